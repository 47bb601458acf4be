"""The owner's shell of table images: what it asks, and what comes of it in frontier records."""

from dataclasses import replace
from typing import Any

import pytest

from consumers.control.changefeeds.asked_images import AskedImages
from consumers.control.owner.images.image_wishes import UNKNOWN, ImageWish
from consumers.control.owner.images.imaged_tables import ImagedTables, history_ts
from consumers.control.owner.owner import Owner
from schemas.ddl.job import DdlType
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import (
    HeldTables,
    LandingReport,
)
from schemas.rawlog.images import NO_IMAGES, IdRange, ScanResult
from schemas.tidb.keys import row_key
from tests.support.control.imaged_owner import CAPTURE, FEED, WISH, World, asking, at
from tests.support.recorded.ddl_jobs import job, snapshot, table_info


def test_a_changefeed_is_registered_imaged_and_left_alone() -> None:
    world = World({FEED: WISH})
    state = world.tick()
    assert state.feeds[0].initial == (IdRange(TableId(5), TableId(9)),)
    barrier = state.barriers[0]
    assert barrier.ts > world.records[-1].resolved_ts
    assert [scan.table_id for scan in barrier.scans] == [5, 9]
    world.land_all()
    assert [chunk.table_id for chunk in world.tick().chunks] == [5, 9]
    state = world.tick()
    assert (state.feeds[0].waits, state.tables, state.chunks, state.barriers) == (False, (), (), ())
    asked = world.asked
    world.tick()
    assert world.asked == asked, "PD is not asked where nothing waits"


@pytest.mark.parametrize("missing", ["service", "capture"])
def test_nothing_is_registered_while_somebody_does_not_know_images(missing: str) -> None:
    world = World({FEED: WISH})
    world.all_know = missing != "service"
    world.results = None if missing == "capture" else ()
    assert world.tick() == NO_IMAGES
    world.all_know, world.results = True, ()
    assert world.tick().feeds


def test_without_wishes_records_say_nothing_and_pd_is_not_asked() -> None:
    wish = ImageWish(key=1, contains=lambda _: True, wants=lambda _: False, wants_initial=False)
    for wishes in ({}, {FEED: wish}):
        world = World(wishes)
        world.ddl(at(1.1), DdlType.CREATE_TABLE, 11, "a3")
        assert world.tick() == NO_IMAGES
        assert world.tick() == NO_IMAGES
        assert world.asked == 0


def test_a_table_that_is_renamed_in_is_waited_for_from_the_record_that_passes_its_ddl() -> None:
    world = World({FEED: WISH})
    world.tick()
    world.land_all()
    world.tick()
    assert not world.tick().feeds[0].waits
    world.ddl(Ts(at(world.seconds + 0.1)), DdlType.RENAME_TABLE, 6, "a6")
    state = world.tick()
    assert state.feeds[0].initial == (IdRange(TableId(6), TableId(6)),)
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [6]


def test_an_owner_that_does_not_know_the_changefeeds_changes_nothing() -> None:
    world = World({FEED: WISH})
    state = world.tick()
    world.wished = None
    assert world.tick() == state
    world.wished = {}
    assert world.tick().feeds == ()


def test_partitions_whose_images_are_begun_are_named_one_by_one() -> None:
    world = World({FEED: WISH})
    world.store = snapshot(("d", 1, [_parted(51, 52)]))
    world.tick()
    world.results = tuple(
        ScanResult(barrier_ts=barrier.ts, number=scan.number, reached=row_key(scan.table_id, 5))
        for barrier in world.records[-1].images.barriers
        for scan in barrier.scans
    )
    world.tick()
    (shown,) = world.images.progress()
    assert [(table.name, table.partition) for table in shown.tables] == [("d.a1", "p51"), ("d.a1", "p52")]


def test_partitions_that_are_asked_for_while_readers_still_need_their_old_ids_are_imaged_under_the_new() -> None:
    """The DDL is below R and above what held tables keep readers at."""
    world = World({FEED: replace(WISH, wants_initial=False)})
    world.store = snapshot(("d", 1, [_parted(51, 52)]))
    world.tick()
    since_ts, ts = world.records[-1].resolved_ts, at(world.seconds + 0.05)
    moved = job(ts, DdlType.REORGANIZE_PARTITION, schema_id=1, table_id=5, table_info=_parted(51, 53))
    change = world.store.apply(moved)
    assert change is not None
    world.images.take(change)
    held = (HeldTables(tables=(TableId(6),), ts=since_ts, low=(0,)),)
    before = replace(world.owner.published, resolved_ts=Ts(ts + 1), held=held)
    world.wished = {FEED: asking(backfill=52)}
    report = LandingReport(
        capture=CAPTURE, landed_ts={}, ends=(0,), chunks=(), floors=(0,), repeat_ends=(0,), scans=()
    )  # fmt: skip
    world.images.look(world.store, before, {CAPTURE: report})
    after = replace(before, resolved_ts=Ts(ts + 2))
    images = world.images.next_images(before, after)
    feed = images.feed(FEED)
    assert feed is not None
    assert feed.backfill == (IdRange(TableId(52), TableId(53)),), "the old one until no reader needs it"
    assert not world.withdrawn
    world.images.next_images(replace(after, images=images), replace(after, resolved_ts=Ts(ts + 3)))
    assert world.withdrawn == {(FEED, 52)}, "a published record has it, under its new id"


def _parted(*ids: int) -> dict[str, Any]:
    definitions = [{"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}} for each in ids]
    return {**table_info(5, "a1"), "partition": {"enable": True, "definitions": definitions}}


def test_another_owner_goes_on_with_the_barrier_that_it_finds() -> None:
    world = World({FEED: WISH})
    barrier = world.tick().barriers[0]
    images = ImagedTables(8, world, world.new_ts, clock=lambda: world.seconds)
    world.images = images
    world.owner = Owner(world, world, 8, 1, images=images.next_images, clock=lambda: world.seconds)
    world.owner.start(lambda: at(1))
    assert world.tick().barriers == (barrier,)
    world.land_all()
    state = world.tick()
    assert ([chunk.ts for chunk in state.chunks], state.version) == ([barrier.ts, barrier.ts], (8, 1))


def test_a_changefeed_whose_settings_nobody_can_read_keeps_what_it_waits_for() -> None:
    world = World({FEED: WISH})
    state = world.tick()
    world.wished = {FEED: UNKNOWN}
    assert world.tick() == state
    world.land_all()
    world.tick()
    feed = world.tick().feeds[0]
    assert not feed.waits, "what was open goes out"
    assert world.tick().barriers == ()
    world.wished = {FEED: WISH}
    assert world.tick().feeds == (replace(state.feeds[0], initial=()),)
    assert World({FEED: UNKNOWN}).tick() == NO_IMAGES, "it is not registered anew"


def test_history_is_kept_for_the_scans_of_open_barriers() -> None:
    world = World({FEED: WISH})
    barrier = world.tick().barriers[0]
    record = world.records[-1]
    assert history_ts(record) == record.resolved_ts < barrier.ts
    later = replace(record, resolved_ts=Ts(barrier.ts + 5))
    assert history_ts(later) == barrier.ts
    assert history_ts(replace(later, images=NO_IMAGES)) == barrier.ts + 5


def test_what_is_paused_is_scanned_no_more_and_said_so() -> None:
    world = World({FEED: WISH})
    world.wished = {FEED: replace(WISH, asked=AskedImages(paused=frozenset({TableId(5)})))}
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [9]
    (shown,) = world.images.progress()
    assert (shown.state, shown.tables_left, shown.tables_paused) == ("running", 2, 1)
    world.land_all()
    world.tick()
    assert world.tick().barriers == (), "what is left is paused"
    world.wished = {FEED: replace(WISH, asked=AskedImages(is_paused=True))}
    assert world.tick().barriers == ()
    (shown,) = world.images.progress()
    assert (shown.state, shown.reason, shown.tables_left) == ("paused", "its images are paused", 1)
    world.wished = {FEED: WISH}
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [5]
    (shown,) = world.images.progress()
    assert (shown.state, shown.reason, shown.tables_paused) == ("running", "", 0)


def test_a_changefeed_that_is_too_far_behind_is_deferred_and_said_to_be_so() -> None:
    world = World({FEED: replace(WISH, lag_max_s=2)})
    world.checkpoint_ts = at(-3)
    for _ in range(2):
        assert world.tick().barriers == ()
    (shown,) = world.images.progress()
    assert (shown.state, shown.tables_left) == ("deferred", 2)
    assert shown.reason == "the changefeed is 4 s behind, its lag-seconds-max is 2"
    world.checkpoint_ts = at(world.seconds)
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [5, 9]
    assert world.images.progress()[0].state == "running"


def test_tables_come_in_the_order_that_a_changefeed_asks_for_also_after_a_ddl() -> None:
    ranks = {"a2": 0, "a7": 0}
    world = World({FEED: replace(WISH, scans_max=1, rank=lambda table: ranks.get(table.table))})
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [9]
    world.land_all()
    world.tick()
    world.ddl(at(world.seconds + 0.1), DdlType.RENAME_TABLE, 6, "a7")
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [6], "before table 5"
    world.land_all()
    world.tick()
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [5]
