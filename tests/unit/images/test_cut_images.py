"""What a changefeed's cuts make of table images that stand in frontier records."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.changes import Op, RowChanges
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.images import (
    IdRange,
    ImageBarrier,
    ImageChunk,
    ImageFeed,
    ImageState,
    KeyRange,
    TableImage,
)
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.tidb.keys import row_key, table_span
from sorters.core.cut.cut import ChangefeedFrontier, Cut, frontier_for, with_images
from sorters.core.cut.cut_plan import plan_cuts
from sorters.core.cut.images import LeftOut
from sorters.cut.leave import GIVEN
from sorters.cut.worker import gather_rows
from sorters.run.epochs import EpochBounds, EpochControl, Epochs, EpochSources, EpochWork

FEED, TABLE = "default/a@1", TableId(7)
START, END = table_span(TABLE)
HALF = row_key(TABLE, 50)


def record(ts: int, images: ImageState, *, low: int = 0) -> FrontierRecord:
    return FrontierRecord(
        owner_rev=1, resolved_ts=Ts(ts), high=(ts,), low=(low,), ddl_high=0, repeat_high=(0,), images=images
    )


def frontier(ts: int, images: ImageState, *, low: int = 0, **options: Ts) -> ChangefeedFrontier:
    return with_images(frontier_for(record(ts, images, low=low), lambda _: False), images, FEED, **options)


def state(
    *,
    initial: tuple[IdRange, ...] = (IdRange(TABLE, TABLE),),
    done: tuple[KeyRange, ...] = (),
    resync: tuple[IdRange, ...] = (),
    open_at: int | None = None,
    barrier_low: int = 0,
    chunks: tuple[ImageChunk, ...] = (),
) -> ImageState:
    barriers = () if open_at is None else (ImageBarrier(ts=Ts(open_at), feeds=(FEED,), scans=(), low=(barrier_low,)),)
    return ImageState(
        version=(1, 1),
        feeds=(ImageFeed(feed=FEED, initial=initial, resync=resync),),
        tables=(TableImage(table_id=TABLE, feeds=(FEED,), done=done),) if done else (),
        barriers=barriers,
        chunks=chunks,
    )


def chunk(ts: int, start: bytes, end: bytes, number: int = 0) -> ImageChunk:
    return ImageChunk(
        ts=Ts(ts), number=number, attempt=0, table_id=TABLE, feeds=(FEED,), keys=KeyRange(start, end), partition=0,
        offsets=(0, 1), rows=1, bytes=1,
    )  # fmt: skip


def spans(cuts: tuple[Cut, ...]) -> list[tuple[int, int, list[int]]]:
    return [(cut.after_ts, cut.upto_ts, [chunk.number for chunk in cut.chunks]) for cut in cuts]


def kept(left_out: LeftOut | None, *handles: int, table: TableId = TABLE) -> list[bool]:
    if left_out is None:
        return [True] * len(handles)
    mask = left_out.kept(table, pa.array([row_key(table, handle) for handle in handles], pa.binary()))
    return [True] * len(handles) if mask is None else mask.tolist()


def test_an_open_barrier_holds_its_changefeeds_below_its_ts_and_no_others() -> None:
    images = state(open_at=15)
    assert frontier(20, images).resolved_ts == 14
    assert frontier(12, images).resolved_ts == 12
    other = replace(images, barriers=(ImageBarrier(ts=Ts(15), feeds=("default/b@2",), scans=(), low=(0,)),))
    assert frontier(20, other).resolved_ts == 20


def test_a_changefeed_that_must_be_registered_stands_until_it_is() -> None:
    assert frontier(20, ImageState(), waits_at=Ts(5)).resolved_ts == 5
    assert frontier(20, ImageState()).resolved_ts == 20
    assert frontier(20, state(), waits_at=Ts(5)).resolved_ts == 20


def test_chunks_end_cuts_at_their_ts_and_what_is_done_grows_there() -> None:
    first, rest = chunk(15, START, HALF), chunk(18, HALF, END, number=1)
    frontiers = [
        frontier(14, state(open_at=15)),
        frontier(20, state(chunks=(first, rest))),
        frontier(30, state(initial=())),
    ]
    cuts = plan_cuts(frontier(10, state()), frontiers, Ts(10))
    assert spans(cuts) == [(10, 14, []), (14, 15, [0]), (15, 18, [1]), (18, 20, []), (20, 30, [])]
    assert [kept(cut.left_out, 1, 50, 99) for cut in cuts] == [
        [False, False, False],
        [False, False, False],
        [True, False, False],
        [True, True, True],
        [True, True, True],
    ]
    # All of them are between the same two records where a barrier has closed.
    assert [(cut.start, cut.end) for cut in cuts[1:4]] == [((0,), (20,))] * 3


def test_a_cut_spans_records_only_where_they_leave_the_same_out() -> None:
    half = (KeyRange(START, HALF),)
    frontiers = [frontier(ts, state(done=half)) for ts in (12, 14, 16)]
    assert spans(plan_cuts(frontier(10, state(done=half)), frontiers, Ts(10))) == [(10, 16, [])]
    # A record in between adds a table.
    more = state(done=half, initial=(IdRange(TABLE, TableId(8)),))
    frontiers = [frontier(12, state(done=half)), frontier(14, more), frontier(16, more)]
    cuts = plan_cuts(frontier(10, state(done=half)), frontiers, Ts(10))
    assert spans(cuts) == [(10, 12, []), (12, 16, [])]
    assert kept(cuts[0].left_out, 1, table=TableId(8)) == [True]
    assert kept(cuts[1].left_out, 1, table=TableId(8)) == [False]


def test_a_chunk_that_the_changefeed_has_passed_or_does_not_reach_is_in_no_cut() -> None:
    listed = state(chunks=(chunk(15, START, END),))
    base, end = frontier(10, state()), frontier(20, listed)
    assert spans(plan_cuts(base, [end], Ts(15))) == [(15, 20, [])]
    assert spans(plan_cuts(base, [end], Ts(10), target_ts=Ts(13))) == [(10, 13, [])]
    assert spans(plan_cuts(base, [end], Ts(10), target_ts=Ts(15))) == [(10, 15, [0])]


def test_a_chunk_listed_while_held_tables_keep_the_changefeed_below_goes_out_when_it_passes() -> None:
    listed = state(chunks=(chunk(15, START, END),))
    held = replace(frontier(20, listed), resolved_ts=Ts(12))
    cuts = plan_cuts(frontier(10, state()), [held, frontier(25, listed)], Ts(10))
    assert spans(cuts) == [(10, 12, []), (12, 15, [0]), (15, 25, [])]


def test_without_images_cuts_are_what_they_were() -> None:
    frontiers = [frontier(ts, ImageState()) for ts in (12, 14, 16)]
    cuts = plan_cuts(frontier(10, ImageState()), frontiers, Ts(10))
    assert spans(cuts) == [(10, 16, [])]
    assert cuts[0].left_out is None


def batch(table: TableId, *rows: tuple[int, int]) -> bytes:
    """A record of region-events with (commit_ts, handle)."""
    count = len(rows)
    changes = RowChanges(
        table_id=table,
        commit_ts=np.array([ts for ts, _ in rows], np.int64),
        start_ts=np.array([ts - 1 for ts, _ in rows], np.int64),
        op=np.full(count, Op.PUT, np.int8),
        key=pa.array([row_key(table, handle) for _, handle in rows], pa.binary()),
        value=pa.array([b"v"] * count, pa.binary()),
        old_value=pa.array([b""] * count, pa.binary()),
        txn_source=np.zeros(count, np.int64),
    )
    return encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=changes), 1)


def test_rows_of_ranges_whose_image_is_to_come_are_not_gathered() -> None:
    records = [batch(TABLE, (11, 1), (12, 50), (13, 99)), batch(TableId(8), (11, 50)), batch(TABLE, (12, 60))]
    half = (KeyRange(START, HALF),)
    cut = plan_cuts(frontier(10, state(done=half)), [frontier(20, state(done=half))], Ts(10))[0]
    gathered = {rows.table_id: rows.commit_ts.tolist() for rows in gather_rows(iter(records), cut)}
    assert gathered == {TABLE: [11], TableId(8): [11]}
    gathered = {
        rows.table_id: rows.commit_ts.tolist() for rows in gather_rows(iter(records), replace(cut, left_out=None))
    }
    assert gathered == {TABLE: [11, 12, 13, 12], TableId(8): [11]}


def test_rows_above_a_barrier_are_read_from_where_they_may_stand_though_records_have_passed_it() -> None:
    """Each record's low is its own R: rows that the changefeed did not get by it may stand below."""
    base = frontier(10, state(), low=10)
    announced = frontier(12, state(open_at=15, barrier_low=12), low=12)
    held = frontier(30, state(open_at=15, barrier_low=12), low=30)
    closed = frontier(40, state(chunks=(chunk(15, START, END),)), low=40)
    assert spans(plan_cuts(base, [announced, held], Ts(10))) == [(10, 14, [])]
    # The next epoch begins with a record that holds the changefeed, wherever the one before has ended.
    cuts = plan_cuts(held, [closed], Ts(14))
    assert [(cut.after_ts, cut.upto_ts, cut.start) for cut in cuts] == [(14, 15, (12,)), (15, 40, (12,))]
    # Nothing is read anew of a barrier that the records have not come to.
    assert frontier(14, state(open_at=15, barrier_low=12), low=14).low == (14,)


def test_a_barrier_announced_when_there_were_fewer_partitions_holds_nothing_in_the_new_ones() -> None:
    images = state(open_at=15, barrier_low=12)
    wide = replace(record(30, images), high=(30, 9), low=(30, 5), repeat_high=(0, 0))
    assert with_images(frontier_for(wide, lambda _: False), images, FEED).low == (12, 0)


def test_a_cut_says_which_of_its_chunks_are_of_a_resync() -> None:
    images = state(initial=(), resync=(IdRange(TABLE, TABLE),), chunks=(chunk(15, START, HALF), chunk(18, HALF, END)))
    cuts = plan_cuts(frontier(10, state(initial=())), [frontier(20, images)], Ts(10))
    assert [(cut.upto_ts, cut.resynced) for cut in cuts] == [(15, {TABLE}), (18, {TABLE}), (20, frozenset())]
    initial = state(chunks=(chunk(15, START, END),))
    assert [cut.resynced for cut in plan_cuts(frontier(10, state()), [frontier(20, initial)], Ts(10))] == [set(), set()]


def epochs(image_name: str, waits_at: Ts | None = None, **parts_too: Any) -> Epochs:
    parts: Any = SimpleNamespace(begin_cut=lambda _: None, **parts_too)
    return Epochs(
        EpochSources(frontier=parts, frontier_topic="f", folder=parts, schemas=parts),
        EpochWork(preparation=parts, job=parts, share=parts),
        EpochBounds(origin_ts=Ts(10), checkpoint_ts=Ts(10), target_ts=None, image_name=image_name, waits_at=waits_at),
        EpochControl(begin=lambda _: GIVEN, ask=lambda: GIVEN, note=lambda _: None, stopping=lambda: False),
    )


def test_a_run_goes_no_further_than_a_barrier_of_its_own_changefeed() -> None:
    assert epochs(FEED).frontier_of(record(20, state(open_at=15))).resolved_ts == 14
    assert epochs("default/a@2").frontier_of(record(20, state(open_at=15))).resolved_ts == 20


def test_a_run_that_waits_to_be_registered_reads_from_where_it_waits_once_it_is() -> None:
    """Where images are of some tables alone, rows of the others go out from start_ts on."""
    topic = [record(ts, ImageState(), low=ts) for ts in (8, 9, 20, 30)] + [record(40, state(initial=()), low=40)]

    def find(after_ts: Ts) -> int:
        return sum(item.resolved_ts <= after_ts for item in topic)

    def read(start: int, end: int) -> list[FrontierRecord]:
        return topic[start:end]

    def run() -> Epochs:
        return epochs(FEED, Ts(10), find=find, record_before=lambda offset: topic[offset - 1], read=read)

    waiting = run().plan(2, 4)
    assert (waiting.cuts, waiting.resolved_ts) == ((), 10)
    for start in (2, 3, 4):  # the next epoch begins wherever the one before has ended, also in another process
        assert [(cut.after_ts, cut.upto_ts, cut.start) for cut in run().plan(start, 5).cuts] == [(10, 40, (9,))]
