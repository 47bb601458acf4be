"""The matcher over random transactions: live, scanned, interleaved; in events of any size the result is the same."""

from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.pull.core.match.change_columns import Change
from producers.pull.core.match.matcher import COMMIT, COMMITTED, INITIALIZED, PREWRITE, ROLLBACK, Matcher
from schemas.ids import RegionId, Ts
from tests.support.upstream.log_rows import DELETE, PUT, Row


@dataclass
class Txn:
    start_ts: int
    commit_ts: int  # 0: rolled back
    keys: list[bytes]
    one_pc: bool

    def value(self, key: bytes) -> bytes:
        return b"" if self.op(key) == DELETE else b"%d:" % self.start_ts + key

    def op(self, key: bytes) -> int:
        return DELETE if (self.start_ts + key[-1]) % 5 == 0 else PUT

    def change(self, key: bytes) -> Change:
        return self.commit_ts, self.start_ts, self.op(key), key, self.value(key), b"old", 0

    def prewrites(self) -> list[Row]:
        return [Row(PREWRITE, self.start_ts, 0, key, self.value(key), b"old", self.op(key)) for key in self.keys]

    def ends(self) -> list[Row]:
        if not self.commit_ts:
            return [Row(ROLLBACK, self.start_ts, 0, key, op_type=0) for key in self.keys]
        return [Row(COMMIT, self.start_ts, self.commit_ts, key, op_type=self.op(key)) for key in self.keys]

    def committed(self) -> list[Row]:
        return [
            Row(COMMITTED, self.start_ts, self.commit_ts, key, self.value(key), b"old", self.op(key))
            for key in self.keys
        ]


def transactions(random: Random) -> list[Txn]:
    out = []
    for number in range(random.randint(1, 8)):
        start_ts = 100 + 10 * number
        keys = random.sample([b"k%02d" % at for at in range(40)], random.randint(1, 25))
        commit_ts = 0 if random.random() < 0.2 else start_ts + random.randint(1, 60)
        out.append(Txn(start_ts, commit_ts, keys, random.random() < 0.2))
    return out


def live_rows(txns: list[Txn], random: Random) -> list[Row]:
    """Each transaction's rows in order, transactions interleaved."""
    queues = []
    for txn in txns:
        if txn.one_pc and txn.commit_ts:
            queues.append([txn.committed()])
        else:
            queues.append([txn.prewrites(), txn.ends()])
    rows: list[Row] = []
    while queues:
        queue = random.choice(queues)
        rows += queue.pop(0)
        queues = [left for left in queues if left]
    return rows


def feed(matcher: Matcher, rows: list[Row], random: Random, most: int) -> list[Change]:
    out: list[Change] = []
    while rows:
        cut = random.randint(1, most)
        out += matcher.feed(rows[:cut])
        rows = rows[cut:]
    return out


def new_matcher() -> Matcher:
    return Matcher(RegionId(1), b"k", b"l", start_ts=Ts(0), checkpoint_ts=Ts(0))


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=True), st.sampled_from([1, 5, 60]))
def test_matcher_live_transactions_in_events_of_any_size_then_every_committed_row_once(
    random: Random, most: int
) -> None:
    txns = transactions(random)
    matcher = new_matcher()
    matcher.feed([Row(INITIALIZED)])
    out = feed(matcher, live_rows(txns, random), random, most)
    wanted = [txn.change(key) for txn in txns if txn.commit_ts for key in txn.keys]
    assert sorted(out) == sorted(wanted)
    assert (matcher.open_prewrites, matcher.held_bytes()) == (0, 0)


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=True), st.sampled_from([1, 5, 60]))
def test_matcher_scan_and_live_rows_in_any_order_then_no_committed_row_is_missing_or_made_up(
    random: Random, most: int
) -> None:
    """The scan's snapshot is taken somewhere in the live rows; its rows come in between what follows."""
    txns = transactions(random)
    rows = live_rows(txns, random)
    cut = random.randint(0, len(rows))
    before, after = rows[:cut], rows[cut:]
    scanned: list[Row] = []
    by_start = {txn.start_ts: txn for txn in txns}
    ended = {(row.start_ts, row.key) for row in before if row.type in (COMMIT, ROLLBACK, COMMITTED)}
    for row in before:
        txn = by_start[row.start_ts]
        if row.type in (COMMIT, COMMITTED):
            scanned += [item for item in txn.committed() if item.key == row.key]
        elif row.type == PREWRITE and (row.start_ts, row.key) not in ended:
            scanned.append(row)
    mixed: list[Row] = []
    left = list(after)
    while scanned:
        source = scanned if not left or random.random() < 0.6 else left
        mixed.append(source.pop(0))
    mixed += [Row(INITIALIZED), *left]
    matcher = new_matcher()
    out = feed(matcher, mixed, random, most)
    wanted = {txn.change(key) for txn in txns if txn.commit_ts for key in txn.keys}
    assert set(out) == wanted
    assert len(out) == len(wanted), "a scan at one point of the live rows repeats nothing"
    assert matcher.open_prewrites == 0
