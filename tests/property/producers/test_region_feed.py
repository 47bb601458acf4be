"""Whatever is written, and whenever a client subscribes: scan and live rows together are exactly the committed changes,
and no resolved ts is passed by a change that comes later."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.region_server.core.cdc.delegate import Delegate, Downstream
from producers.region_server.core.cdc.incremental_scan import scan, take_snapshot
from producers.region_server.core.store.commands import Mutation, Txn
from producers.region_server.core.store.mvcc import Change, RegionData
from schemas.ids import RegionId, Ts
from schemas.proto import cdcpb_pb2

KEYS = (b"a", b"b", b"c")
Event = cdcpb_pb2.Event

Step = tuple[str, int, int]
"""(what, keys of a prewrite as bits, which open transaction or how many scan events)"""


def steps(least: int, most: int) -> st.SearchStrategy[list[Step]]:
    # Commits and rounds of resolved ts come often: what can go wrong is one between the two halves of a commit.
    kinds = ["prewrite", "prewrite", "commit", "commit", "commit", "resolve", "resolve", "rollback", "one_pc", "scan"]
    step = st.tuples(st.sampled_from(kinds), st.integers(1, 7), st.integers(0, 5))
    return st.lists(step, min_size=least, max_size=most)


class Client:
    """Matches rows as a client must, and checks each against the resolved ts that it was told."""

    def __init__(self) -> None:
        self.changes: dict[tuple[bytes, int], tuple[int, int, bytes, bytes]] = {}
        self.resolved = 0
        self._prewrites: dict[tuple[int, bytes], cdcpb_pb2.Event.Row] = {}
        self._waiting: list[cdcpb_pb2.Event.Row] = []
        self._initialized = False

    def take(self, event: cdcpb_pb2.Event) -> None:
        for row in event.entries.entries:
            match row.type:
                case Event.PREWRITE:
                    self._prewrites[row.start_ts, row.key] = row
                case Event.COMMITTED:
                    self._emit(row, row.value, row.old_value)
                case Event.COMMIT if (row.start_ts, row.key) in self._prewrites:
                    prewrite = self._prewrites.pop((row.start_ts, row.key))
                    self._emit(row, prewrite.value, prewrite.old_value)
                case Event.COMMIT:
                    assert not self._initialized
                    self._waiting.append(row)
                case Event.ROLLBACK if self._initialized:
                    self._prewrites.pop((row.start_ts, row.key), None)
                case Event.INITIALIZED:
                    self._initialized = True
                    for commit in self._waiting:
                        if pending := self._prewrites.pop((commit.start_ts, commit.key), None):
                            self._emit(commit, pending.value, pending.old_value)

    def _emit(self, row: cdcpb_pb2.Event.Row, value: bytes, old_value: bytes) -> None:
        assert row.commit_ts > self.resolved
        change = (row.start_ts, row.op_type, value, old_value)
        assert self.changes.setdefault((row.key, row.commit_ts), change) == change


@settings(max_examples=300)
@given(steps(0, 20), steps(20, 50), st.integers(0, 40))
def test_scan_and_live_rows_together_are_the_committed_changes(
    before: Sequence[Step], after: Sequence[Step], checkpoint_ts: int
) -> None:
    data, delegate, client, clock = RegionData(), Delegate(RegionId(2)), Client(), 0
    # [start_ts, keys, commit_ts]: a coordinator takes its commit_ts from PD first (0 until then), and commits later.
    open_transactions: list[tuple[int, list[bytes], int]] = []

    def live(changes: list[Change]) -> None:
        for _, event in delegate.observe(changes):
            client.take(event)

    def write(step: Step, value: bytes) -> None:
        nonlocal clock
        kind, bits, which = step
        free = [key for bit, key in enumerate(KEYS) if bits >> bit & 1 and key not in data.locks]
        mutations = [Mutation("put", key, value) if which % 3 else Mutation("delete", key) for key in free]
        clock += 1
        match kind:
            case "prewrite" if free:
                live(data.prewrite(Txn(start_ts=Ts(clock), primary=free[0]), mutations))
                open_transactions.append((clock, free, 0))
            case "one_pc" if free:
                clock += 1
                live(data.commit_at_once(Txn(start_ts=Ts(clock - 1), primary=free[0]), mutations, Ts(clock)))
            case "commit" | "rollback" if open_transactions:
                start_ts, keys, commit_ts = open_transactions.pop(which % len(open_transactions))
                if kind == "commit" and not commit_ts:
                    open_transactions.insert(0, (start_ts, keys, clock))
                elif kind == "commit":
                    live(data.commit(Ts(start_ts), Ts(commit_ts), keys))
                else:
                    live(data.rollback(Ts(start_ts), keys))

    for number, step in enumerate(before):
        write(step, b"b%d" % number)
    subscriber = Downstream(region_id=RegionId(2), request_id=1, start=b"", end=b"", checkpoint_ts=Ts(checkpoint_ts))
    # A checkpoint is a resolved ts of before: below every commit of a transaction that is still open.
    client.resolved = min(checkpoint_ts % (clock + 1), *(start_ts for start_ts, _, _ in open_transactions), clock)
    subscriber.checkpoint_ts = Ts(client.resolved)
    delegate.subscribe(subscriber, data.locked_between(b"", b""))
    scanning = scan(take_snapshot(data, b"", b"", subscriber.checkpoint_ts), subscriber, event_bytes=3)

    def scan_on(events: int) -> None:
        for _ in range(events):
            event = next(scanning, None)
            if event is None:
                subscriber.initialized = True
                return
            client.take(event)

    for number, step in enumerate(after):
        if step[0] == "scan":
            scan_on(step[2])
        elif step[0] == "resolve":
            clock += 1
            for _, ts in delegate.resolve(Ts(clock)):
                client.resolved = max(client.resolved, ts)
        else:
            write(step, b"a%d" % number)
    scan_on(1000)

    committed = {}
    for key, newest in data.writes.items():
        version = newest
        while version is not None and version.commit_ts > subscriber.checkpoint_ts:
            change = (version.start_ts, int(version.op), version.value, version.old_value)
            committed[key, int(version.commit_ts)] = change
            version = version.previous  # type: ignore[assignment]
    assert client.changes == committed
