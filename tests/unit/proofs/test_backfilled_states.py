"""A state proof that a backfill or a resync begins is what the table holds, whatever cuts and kills there are."""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from producers.region_server.core.store.row_shapes import int_value
from schemas.config.changefeed import load_changefeed
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.images import IdRange, ImageChunk, ImageFeed, ImageState, KeyRange, TableImage, opening_of
from schemas.state_proof.row_text import TableProof, row_hash
from schemas.tidb.keys import row_key, table_span
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.cut.cut import ChangefeedFrontier, Cut, frontier_for, with_images
from sorters.core.cut.cut_plan import plan_cuts
from sorters.core.feed.feed import compile_feed
from sorters.core.state_proof.deltas import StateDeltas
from sorters.core.state_proof.states import NO_STATE
from sorters.cut.cut_books import state_ledger
from sorters.run.proofs.state_proofs import StateProofs
from tests.support.rawlog.memory_states import MemoryStates
from tests.support.recorded.ddl_jobs import snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLE, FEED, NAME = TableId(12), "default/a@1", ("default", "a")
ID_RANGE = (IdRange(TABLE, TABLE),)
KEYS, START_TS, END_TS = 40, 20, 400
"""Changes are at even ts, barriers at odd ones."""
SEEDS = int(os.environ.get("STATE_SEEDS", "20"))


@dataclass
class Table:
    """Its changes: rows as they were before the changefeed, and all that came."""

    rng: random.Random
    changes: list[CommittedChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        held: dict[int, bytes] = {}
        for ts in range(2, END_TS, 2):
            key = self.rng.randrange(KEYS)
            old = held.pop(key, b"")
            is_gone = bool(old) and self.rng.random() < 0.3
            value = b"" if is_gone else encode_row_v2({2: int_value(ts)})
            if not is_gone:
                held[key] = value
            op = "delete" if is_gone else "put"
            self.changes.append(CommittedChange(ts, ts - 1, row_key(TABLE, key), op, value, old, 0))  # type: ignore[arg-type]

    def rows_at(self, ts: int) -> dict[bytes, tuple[int, bytes]]:
        """Return commit_ts and value by key."""
        rows: dict[bytes, tuple[int, bytes]] = {}
        for change in self.changes:
            if change.commit_ts <= ts:
                rows.pop(change.key, None)
                if change.op == "put":
                    rows[change.key] = change.commit_ts, change.value
        return rows

    def proof_at(self, ts: int) -> TableProof:
        """Return what the rows come to, whose texts are their key and the ts that wrote them."""
        proof = TableProof()
        for key, (commit_ts, _) in self.rows_at(ts).items():
            number = int.from_bytes(key[-8:], "big") - (1 << 63)
            proof = proof.changed(None, row_hash([b"%d" % number, b"%d" % commit_ts]))
        return proof

    def image(self, chunk: ImageChunk) -> list[CommittedChange]:
        return [
            CommittedChange(chunk.ts, chunk.ts, key, "put", value, b"", 0)
            for key, (_, value) in sorted(self.rows_at(chunk.ts).items())
            if chunk.keys.start <= key < chunk.keys.end
        ]


def chunks_of(rng: random.Random, after_ts: int, upto_ts: int, *, is_resync: bool) -> list[ImageChunk]:
    """Divide the table's keys into ranges that are read in any order, each at a ts of its own."""
    start, end = table_span(TABLE)
    borders = [row_key(TABLE, key) for key in sorted(rng.sample(range(1, KEYS), rng.randrange(4)))]
    bounds = [start, *borders, end]
    ranges = [KeyRange(*pair) for pair in pairwise(bounds)]
    rng.shuffle(ranges)
    if is_resync:
        ranges.insert(0, opening_of(TABLE))
    stamps = sorted(rng.sample(range(after_ts + 1, upto_ts, 2), len(ranges)))
    return [
        ImageChunk(
            ts=Ts(ts), number=0, attempt=0, table_id=TABLE, feeds=(FEED,), keys=keys, partition=0, offsets=(0, 1),
            rows=1, bytes=1,
        )
        for ts, keys in zip(stamps, ranges, strict=True)
    ]  # fmt: skip


def frontiers_of(
    rng: random.Random, requests: Sequence[tuple[int, list[ImageChunk]]], *, is_resync: bool
) -> list[ChangefeedFrontier]:
    """Return what records say: a chunk stands in them from its completion on, then among what is done, and the table
    leaves the changefeed's wishes once all of it is.
    """
    stamps = sorted({START_TS, *rng.sample(range(START_TS, END_TS), 40), END_TS})
    frontiers: list[ChangefeedFrontier] = []
    for at, resolved_ts in enumerate(stamps):
        before_ts = stamps[max(0, at - 1)]
        waits, done, listed = False, tuple[KeyRange, ...](), tuple[ImageChunk, ...]()
        for asked_ts, chunks in requests:
            if resolved_ts < asked_ts or all(chunk.ts <= before_ts for chunk in chunks):
                continue
            waits = True
            passed = [chunk for chunk in chunks if chunk.ts <= before_ts]
            moved = passed[: rng.randrange(len(passed) + 1)] if rng.random() < 0.5 else passed
            done = _merged([chunk.keys for chunk in moved])
            listed = tuple(chunk for chunk in chunks if chunk.ts <= resolved_ts and chunk not in moved)
        feed = ImageFeed(feed=FEED, **{"resync" if is_resync else "backfill": ID_RANGE if waits else ()})
        tables = (TableImage(table_id=TABLE, feeds=(FEED,), done=done),) if done else ()
        images = ImageState(version=(1, at), feeds=(feed,), tables=tables, chunks=listed)
        record = FrontierRecord(
            owner_rev=1, resolved_ts=Ts(resolved_ts), high=(at,), low=(0,), ddl_high=0, repeat_high=(0,), images=images
        )
        frontiers.append(with_images(frontier_for(record, lambda _: False), images, FEED))
    return frontiers


def _merged(ranges: list[KeyRange]) -> tuple[KeyRange, ...]:
    merged: list[KeyRange] = []
    for keys in sorted(ranges):
        if merged and keys.start <= merged[-1].end:
            merged[-1] = KeyRange(merged[-1].start, max(merged[-1].end, keys.end))
        else:
            merged.append(keys)
    return tuple(merged)


@dataclass
class Run:
    """Runs of a changefeed, one after the other, over the same topic of states."""

    rng: random.Random
    table: Table
    frontiers: list[ChangefeedFrontier]
    topic: MemoryStates = field(default_factory=MemoryStates)
    proven_at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = snapshot(("app", 2, [table_info(TABLE, "b")]))
        settings = {"state-proofs": ["app.*"]}
        self.feed = compile_feed(load_changefeed("kafka://127.0.0.1:9092/t?protocol=canal-json", settings), "default")

    def to_the_end(self) -> None:
        at = Ts(START_TS)
        while at < END_TS:
            base = max(number for number, each in enumerate(self.frontiers) if each.resolved_ts <= at)
            known = self.frontiers[base + 1 : base + 1 + self.rng.randrange(1, 6)]
            states = StateProofs(self.topic, NAME, "life")
            for cut in plan_cuts(self.frontiers[base], known, at):
                planned = states.plan(cut, self.store, self.feed)
                deltas = self._deltas(planned)
                fate = self.rng.choice(["lives", "lives", "dies before it tells", "dies before the checkpoint"])
                if fate != "dies before it tells":
                    states.tell(deltas)
                if fate != "lives":
                    break
                at = cut.upto_ts
                if states.states[TABLE].is_proven:
                    self.proven_at.append(at)
                    if states.states[TABLE].ts <= at:
                        assert states.states[TABLE].proof == self.table.proof_at(at), at

    def _deltas(self, cut: Cut) -> StateDeltas:
        ledger = state_ledger(cut)
        if ledger is None:
            return StateDeltas()
        rows = [change for change in self.table.changes if cut.after_ts < change.commit_ts <= cut.upto_ts]
        for chunk in cut.chunks:
            rows += self.table.image(chunk)
        for _ in range(2 if cut.may_repeat else 1):
            if rows:
                ledger.take(row_changes(TABLE, rows), self.store)
        return ledger.close()


@pytest.mark.parametrize("is_resync", [False, True])
def test_state_begun_by_a_later_image_is_what_the_table_holds(is_resync: bool) -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        table = Table(rng)
        asked_ts = rng.randrange(START_TS, 100)
        requests = [(asked_ts, chunks_of(rng, asked_ts | 1, 300, is_resync=is_resync))]
        run = Run(rng, table, frontiers_of(rng, requests, is_resync=is_resync))
        run.to_the_end()
        (state,) = run.topic.read(NAME, "life")[0].values()
        assert state.is_proven, (seed, state)
        assert state.proof == table.proof_at(END_TS), seed
        assert state.begun_by == "image"
        assert min(run.proven_at) >= max(chunk.ts for chunk in requests[0][1]), seed


def test_state_that_is_proven_outlives_a_later_image() -> None:
    outlived = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        table = Table(rng)
        first = chunks_of(rng, 31, 100, is_resync=False)
        requests = [(30, first), (150, chunks_of(rng, 151, 300, is_resync=False))]
        run = Run(rng, table, frontiers_of(rng, requests, is_resync=False))
        run.to_the_end()
        (state,) = run.topic.read(NAME, "life")[0].values()
        assert state.is_proven and state.proof == table.proof_at(END_TS), seed
        if min(run.proven_at) < requests[1][0]:  # else nobody knew yet that the first image was whole
            assert state.begun_ts < min(run.proven_at), seed
            outlived += 1
    assert outlived > SEEDS / 2


def test_image_of_a_part_of_a_table_begins_no_proof() -> None:
    """What else there is of it counts as done from the beginning, and nobody has read it."""
    rng = random.Random(1)
    table = Table(rng)
    chunks = chunks_of(rng, 31, 100, is_resync=False)
    asked = chunks[0]
    frontiers = []
    for each in frontiers_of(rng, [(30, [asked])], is_resync=False):
        images = each.images
        if images is not None and images.backfill:
            rest = tuple(chunk.keys for chunk in chunks[1:]) or (KeyRange(b"t", b"u"),)
            frontiers.append(replace(each, images=replace(images, done={TABLE: rest})))
        else:
            frontiers.append(each)
    run = Run(rng, table, frontiers)
    run.to_the_end()
    (state,) = run.topic.read(NAME, "life")[0].values()
    assert state.unproven == NO_STATE
