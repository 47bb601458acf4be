"""The owner's part of table images, step by step."""

from dataclasses import replace

import pytest

from consumers.control.core.images.images import step
from consumers.control.core.images.inputs import ImageInputs, ImageLimits, Replaced, WantingFeed
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, HeldTables
from schemas.rawlog.images import (
    NO_IMAGES,
    IdRange,
    ImageMode,
    KeyRange,
    ScanResult,
    TableImage,
)
from schemas.tidb.keys import row_key, table_span
from tests.support.control.image_steps import CAPTURE, NINE, SEVEN, WANTS, A, B, C, at, wanting


def test_a_table_goes_from_waiting_to_whole_in_four_records() -> None:
    steps = wanting(A)
    opened = steps.go(2)
    assert opened.feeds[0].initial == (IdRange(SEVEN, NINE),)
    barrier = opened.barriers[0]
    assert (barrier.ts, barrier.feeds, barrier.low) == (Ts(at(2) + 1), (A,), (7,))
    assert [(scan.table_id, scan.keys, scan.capture) for scan in barrier.scans] == [
        (SEVEN, KeyRange.of_table(SEVEN), CAPTURE),
        (NINE, KeyRange.of_table(NINE), CAPTURE),
    ]
    steps.lands(0)
    assert steps.go(2.1) is opened
    middle = row_key(NINE, 5)
    steps.lands(1, reached=middle)
    assert steps.go(2.2, lag=1) is opened, "R is below S: DDL up to it may be unknown"
    listed = steps.go(2.3)
    assert not listed.barriers
    assert [(chunk.ts, chunk.table_id, chunk.keys.end) for chunk in listed.chunks] == [
        (barrier.ts, SEVEN, table_span(SEVEN)[1]),
        (barrier.ts, NINE, middle),
    ]
    assert listed.feeds[0].initial == (IdRange(SEVEN, NINE),), "readers need it to take the chunk"
    passed = steps.go(2.4)
    assert not passed.chunks
    assert passed.feeds[0].initial == (IdRange(NINE, NINE),)
    assert passed.tables == (TableImage(table_id=NINE, feeds=(A,), done=(KeyRange(table_span(NINE)[0], middle),)),)
    assert [scan.keys for scan in passed.barriers[0].scans] == [KeyRange(middle, table_span(NINE)[1])]
    steps.lands(0)
    steps.go(2.5)
    whole = steps.go(2.6)
    assert (whole.feeds[0].initial, whole.tables, whole.barriers) == ((), (), ())
    assert [feed.feed for feed in whole.feeds] == [A], "it stays registered"
    assert steps.go(2.7) is whole


def test_no_barrier_is_opened_before_all_know_of_images() -> None:
    steps = wanting(A)
    steps.all_know = False
    assert steps.go(2) is NO_IMAGES
    steps.all_know = True
    assert steps.go(3).barriers


def test_a_barrier_is_announced_only_above_the_resolved_ts_of_its_own_record() -> None:
    steps = wanting(A)
    assert not steps.go(2, lag=-1).barriers
    assert steps.go(4).barriers


def test_a_scan_that_fails_or_hangs_or_whose_capture_is_gone_leaves_its_range_for_later() -> None:
    steps = wanting(A)
    ts = steps.go(2).barriers[0].ts
    steps.lands(0)
    assert steps.go(11.9).barriers, "ten seconds are not over"
    after = steps.go(12.1)
    assert (after.cancelled, [chunk.table_id for chunk in after.chunks]) == ((ts,), [SEVEN])
    steps.go(12.2)
    second = steps.state.barriers[0]
    assert [scan.table_id for scan in second.scans] == [NINE]
    steps.results = (ScanResult(barrier_ts=second.ts, number=0, failure="tikv.gc_too_early"),)
    assert steps.go(12.3).cancelled == (second.ts,)
    assert not steps.go(12.4).barriers, "a second is to pass"
    third = steps.go(13.5).barriers[0]
    assert third.ts > second.ts
    steps.results = None
    after = steps.go(13.6)
    assert (after.cancelled, after.barriers) == ((third.ts,), ())


def test_what_lands_for_a_barrier_that_is_over_counts_for_nobody() -> None:
    steps = wanting(A)
    steps.go(2)
    steps.lands(0)
    steps.lands(1)
    late = steps.results
    steps.results = ()
    steps.go(12.1)
    steps.results = late
    state = steps.go(13.2)
    assert state.barriers and not state.chunks
    assert not steps.go(13.3).chunks


def test_held_tables_keep_chunks_listed_until_readers_have_passed() -> None:
    steps = wanting(A)
    steps.held = (HeldTables(tables=(TableId(99),), ts=at(1), low=(0,)),)
    steps.go(2)
    steps.lands(0)
    steps.lands(1)
    listed = steps.go(2.1)
    assert len(listed.chunks) == 2
    assert steps.go(5) is listed
    steps.held = ()
    assert not steps.go(5.1).chunks


def test_changefeeds_that_wait_for_the_same_share_a_scan_and_one_that_joins_gets_what_it_missed() -> None:
    steps = wanting(A, B)
    steps.limits = ImageLimits(scans_max=1)
    middle = row_key(SEVEN, 5)
    assert steps.go(2).barriers[0].feeds == (A, B)
    steps.lands(reached=middle)
    steps.go(2.1)
    steps.feeds[C] = WANTS
    scan = steps.go(2.2).barriers[0].scans[0]
    assert (scan.feeds, scan.keys.start) == ((A, B, C), middle)
    steps.lands()
    steps.go(2.3)
    # A and B have all of the table, and C gets the rest alone.
    scan = steps.go(2.4).barriers[0].scans[0]
    assert (scan.table_id, scan.feeds, scan.keys) == (SEVEN, (C,), KeyRange(table_span(SEVEN)[0], middle))


def test_changefeeds_with_other_tables_have_barriers_of_their_own() -> None:
    steps = wanting(A)
    steps.feeds[B] = WantingFeed(tables=[TableId(20)], wants_initial=True)
    steps.go(2)
    state = steps.go(2.1)
    assert [barrier.feeds for barrier in state.barriers] == [(A,), (B,)]
    assert len({barrier.ts for barrier in state.barriers}) == 2


def test_a_paused_changefeed_is_in_no_new_barrier_and_holds_nobody_up() -> None:
    steps = wanting(A, B)
    steps.feeds[A] = replace(WANTS, is_running=False)
    assert steps.go(2).barriers[0].feeds == (B,)


def test_a_removed_changefeed_is_nowhere_and_its_scan_goes_on_for_others() -> None:
    steps = wanting(A, B)
    steps.go(2)
    del steps.feeds[A]
    state = steps.go(2.1)
    assert [feed.feed for feed in state.feeds] == [B]
    assert [(barrier.feeds, barrier.scans[0].feeds) for barrier in state.barriers] == [((B,), (B,))]
    del steps.feeds[B]
    state = steps.go(2.2)
    assert (state.feeds, state.barriers, state.tables) == ((), (), ())


def test_tables_asked_for_by_hand_are_taken_once_and_forgotten_when_whole() -> None:
    steps = wanting()
    steps.feeds[A] = WantingFeed(tables=[SEVEN, NINE], requested={ImageMode.RESYNC: [NINE]})
    state = steps.go(2)
    assert (state.feeds[0].resync, state.feeds[0].initial) == ((IdRange(NINE, NINE),), ())
    steps.feeds[A] = WantingFeed(tables=[SEVEN, NINE])
    for seconds in (2.1, 2.3):
        steps.lands()
        steps.go(seconds)
        state = steps.go(seconds + 0.1)
    assert (state.feeds, state.tables) == ((), ())


def test_a_resync_begins_with_a_range_that_no_key_is_in_and_what_others_miss_is_shared_then() -> None:
    steps = wanting(B)
    steps.feeds[B] = replace(WANTS, tables=[NINE])
    steps.feeds[A] = WantingFeed(tables=[NINE], requested={ImageMode.RESYNC: [NINE]})
    whole = KeyRange.of_table(NINE)
    opening = KeyRange(whole.start, whole.start + b"\0")
    assert opening.end <= row_key(NINE, -(2**63))
    (scan,) = steps.go(2).barriers[0].scans
    assert (scan.keys, scan.feeds) == (opening, (A, B))
    steps.lands()
    (chunk,) = steps.go(2.1).chunks
    assert chunk.keys == opening
    (scan,) = steps.go(2.2).barriers[0].scans
    assert (scan.keys, scan.feeds) == (KeyRange(opening.end, whole.end), (A, B))
    steps.lands(reached=row_key(NINE, 5))
    steps.go(2.3)
    (scan,) = steps.go(2.4).barriers[0].scans
    assert scan.keys == KeyRange(row_key(NINE, 5), whole.end), "an opening comes once"


def test_a_version_grows_with_each_change_and_with_none_else() -> None:
    steps = wanting(A)
    assert steps.go(2).version == (1, 1)
    assert steps.go(2.1).version == (1, 1)
    steps.lands(0)
    steps.lands(1)
    assert steps.go(2.2).version == (1, 2)


def test_rows_that_enter_and_move_to_other_ids_between_two_records_are_imaged_there() -> None:
    eleven, twelve = TableId(11), TableId(12)
    steps = wanting()
    steps.feeds = {A: replace(WANTS, tables=[SEVEN])}
    steps.go(1.2)
    steps.feeds = {A: replace(WANTS, tables=[SEVEN, twelve], entered=[NINE])}
    steps.replaced = tuple(
        Replaced(frozenset({old}), frozenset({new})) for old, new in ((NINE, eleven), (eleven, twelve))
    )
    feed = steps.go(1.4).feed(A)
    assert feed is not None
    assert feed.mode_of(twelve) is ImageMode.BACKFILL


@pytest.mark.parametrize("count_before", [0, 1, 2])
@pytest.mark.parametrize("mode", [ImageMode.BACKFILL, ImageMode.RESYNC])
def test_a_table_that_is_asked_for_once_its_rows_have_other_ids_is_imaged_there(
    mode: ImageMode, count_before: int
) -> None:
    """Of two DDL, that many were below the record before: there are rows of the first id to come still."""
    eleven, twelve = TableId(11), TableId(12)
    moved = tuple(Replaced(frozenset({old}), frozenset({new})) for old, new in ((SEVEN, eleven), (eleven, twelve)))
    steps = wanting()
    steps.replaced_before, steps.replaced = moved[:count_before], moved[count_before:]
    steps.feeds = {A: WantingFeed(tables=[SEVEN, NINE, twelve], requested={mode: [SEVEN]})}
    feed = steps.go(2).feed(A)
    assert feed is not None
    assert [feed.mode_of(table) for table in (SEVEN, NINE, twelve)] == [mode, None, mode]


def test_where_a_part_of_a_table_is_asked_for_once_its_rows_have_other_ids_all_of_those_is_imaged() -> None:
    eleven, part = TableId(11), KeyRange(row_key(SEVEN, 3), row_key(SEVEN, 5))
    steps = wanting()
    steps.replaced = (Replaced(frozenset({SEVEN}), frozenset({eleven})),)
    steps.feeds = {A: WantingFeed(tables=[SEVEN, eleven], ranged={(ImageMode.BACKFILL, SEVEN): (part,)})}
    state = steps.go(2)
    feed = state.feed(A)
    assert feed is not None
    assert feed.mode_of(eleven) is ImageMode.BACKFILL
    assert [scan.keys for scan in state.barriers[0].scans] == [part, KeyRange.of_table(eleven)]


@pytest.mark.parametrize(("mode", "comes"), [(ImageMode.BACKFILL, None), (ImageMode.RESYNC, ImageMode.RESYNC)])
def test_a_partition_that_was_added_as_its_table_was_asked_for_is_resynced_with_it(
    mode: ImageMode, comes: ImageMode | None
) -> None:
    eleven = TableId(11)
    steps = wanting()
    steps.replaced_before = (Replaced(frozenset({SEVEN, NINE}), frozenset({eleven}), is_empty=True),)
    steps.feeds = {A: WantingFeed(tables=[SEVEN, NINE, eleven], requested={mode: [SEVEN, NINE]})}
    feed = steps.go(2).feed(A)
    assert feed is not None
    assert feed.mode_of(eleven) is comes


def test_a_barrier_at_the_very_ts_of_a_ddl_has_no_chunk() -> None:
    steps = wanting(A)
    barrier = steps.go(2).barriers[0]
    steps.lands(0)
    steps.lands(1)
    before = FrontierRecord(
        owner_rev=1, resolved_ts=steps.resolved_ts, high=(0,), low=(0,), ddl_high=0, repeat_high=(0,),
        images=steps.state,
    )  # fmt: skip
    seen = ImageInputs(
        owner_rev=1, before=before, resolved_ts=at(3), low=(7,), now_ts=at(3), new_ts=None, feeds=steps.feeds,
        scanners={CAPTURE: steps.results or ()}, ddl_ts={barrier.ts},
    )  # fmt: skip
    after = step(steps.state, seen)
    assert (after.chunks, after.cancelled) == ((), (barrier.ts,))


def test_parts_of_more_tables_than_a_record_has_room_for_wait() -> None:
    tables = [TableId(number) for number in range(1, 6)]
    steps = wanting()
    steps.limits = ImageLimits(scans_max=2, tables_max=2)
    ranged = {(ImageMode.BACKFILL, table): (KeyRange(row_key(table, 1), row_key(table, 3)),) for table in tables}
    steps.feeds = {A: WantingFeed(tables=tables, ranged=ranged)}
    opened = steps.go(2)
    assert (opened.feeds[0].backfill, len(opened.tables)) == ((IdRange(TableId(1), TableId(2)),), 2)
    assert [scan.keys for scan in opened.barriers[0].scans] == [
        KeyRange(row_key(table, 1), row_key(table, 3)) for table in tables[:2]
    ]
