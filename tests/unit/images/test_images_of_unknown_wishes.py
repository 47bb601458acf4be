"""Rows that must come though the owner did not know, at a DDL, what a changefeed contains."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from consumers.control.owner.images.image_wishes import UNKNOWN, ImageWish
from schemas.ddl.job import DdlType, JobScope
from schemas.ids import TableId, Ts
from schemas.rawlog.images import IdRange
from tests.support.control.imaged_owner import FEED, WISH, World, at
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

SIX = (IdRange(TableId(6), TableId(6)),)
WIDER = replace(WISH, key=2, contains=lambda table: table.table != "b2")


def whole(wish: ImageWish = WISH) -> World:
    """Return a world with a changefeed that waits for nothing."""
    world = World({FEED: wish})
    world.tick()
    world.land_all()
    world.tick()
    assert not world.tick().feeds[0].waits
    return world


@pytest.mark.parametrize("wished", [None, {FEED: UNKNOWN}], ids=["nothing is known", "settings are not readable"])
def test_a_table_that_enters_while_settings_are_not_read_is_imaged_by_what_was_read_last(
    wished: Mapping[str, ImageWish] | None,
) -> None:
    world = whole()
    world.wished = wished
    world.ddl(Ts(at(world.seconds + 0.05)), DdlType.RENAME_TABLE, 6, "a6")
    assert world.tick().feeds[0].initial == SIX
    world.ddl(Ts(at(world.seconds + 0.05)), DdlType.RENAME_TABLE, 5, "a5")
    state = world.tick()
    assert (state.feeds[0].initial, state.barriers) == (SIX, ()), "no scan begins"
    (shown,) = world.images.progress()
    assert (shown.state, shown.reason) == ("paused", "its settings cannot be read now")
    world.wished = {FEED: WISH}
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [6]


@pytest.mark.parametrize("wished", [None, {FEED: UNKNOWN}], ids=["nothing is known", "settings are not readable"])
def test_a_table_that_may_enter_while_an_owner_has_read_no_settings_is_backfilled_if_it_is_the_changefeeds(
    wished: Mapping[str, ImageWish] | None,
) -> None:
    world = whole()
    world.wished = wished
    world.other_owner()
    world.ddl(Ts(at(world.seconds + 0.05)), DdlType.RENAME_TABLE, 6, "a6")
    world.ddl(Ts(at(world.seconds + 0.06)), DdlType.RENAME_TABLE, 9, "b9")
    world.ddl(Ts(at(world.seconds + 0.07)), DdlType.CREATE_TABLE, 11, "a11")
    assert world.tick().feeds[0].backfill == (*SIX, IdRange(TableId(9), TableId(9)))
    world.other_owner()
    world.wished = {FEED: WISH}
    state = world.tick()
    assert (state.feeds[0].backfill, [scan.table_id for scan in state.barriers[0].scans]) == (SIX, [6])


def test_partitions_that_are_reorganized_while_nothing_is_known_keep_their_image() -> None:
    world = World({FEED: WISH})
    world.store = snapshot(("d", 1, [_parted(51, 52)]))
    world.tick()
    world.wished = None
    world.other_owner()
    ts = Ts(at(world.seconds + 0.05))
    moved = job(ts, DdlType.REORGANIZE_PARTITION, schema_id=1, table_id=5, table_info=_parted(61))
    change = world.store.apply(moved)
    assert change is not None
    world.images.take(change)
    assert world.tick().feeds[0].backfill == (IdRange(TableId(61), TableId(61)),)


def _parted(*ids: int) -> dict[str, Any]:
    definitions = [{"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}} for each in ids]
    return {**table_info(5, "a1"), "partition": {"enable": True, "definitions": definitions}}


def test_a_changefeed_that_is_removed_while_nothing_is_known_goes_once_that_is_seen() -> None:
    world = whole()
    world.wished = None
    assert world.tick().feeds
    world.wished = {}
    assert not world.tick().feeds


def test_what_other_settings_bring_in_is_backfilled_once_also_when_nobody_asked_for_it() -> None:
    world = whole()
    world.ddl(Ts(at(world.seconds + 0.1)), DdlType.RENAME_TABLE, 6, "b6")
    assert not world.tick().feeds[0].waits
    world.wished = {FEED: WIDER}
    assert world.tick().feeds[0].backfill == SIX
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [6]
    world.land_all()
    world.tick()
    for _ in range(3):
        assert not world.tick().feeds[0].waits


def test_what_other_settings_bring_in_and_do_not_want_is_not_imaged() -> None:
    world = whole()
    for wish in (
        replace(WIDER, wants=lambda table: table.table != "b1"),
        replace(WISH, key=3),
        replace(WIDER, key=4, wants_initial=False),
    ):
        world.wished = {FEED: WISH}
        world.tick()
        world.wished = {FEED: wish}
        assert not any(feed.waits for feed in world.tick().feeds)


def test_what_settings_bring_in_by_a_ddl_that_is_to_come_is_imaged_with_it() -> None:
    world = whole()
    world.ddl(Ts(at(world.seconds + 0.5)), DdlType.RENAME_TABLE, 6, "b2")
    world.wished = {FEED: WIDER}
    assert world.tick().feeds[0].backfill == SIX, "it is b1 still"
    world = whole(WIDER)
    world.wished = {FEED: replace(WISH, key=3, contains=lambda table: table.table != "b1")}
    world.ddl(Ts(at(world.seconds + 0.3)), DdlType.RENAME_TABLE, 6, "b3")
    assert not world.tick().feeds[0].waits
    assert world.tick().feeds[0].initial == SIX


def held_world(job_ts: float, world: World) -> World:
    """Return a world whose owner cannot read a job, has passed it so, and is replaced by one that can."""
    ts = Ts(at(world.seconds + job_ts))
    world.bad_ddl = [JobScope(ts=ts, start_ts=Ts(ts - 1))]
    world.tick()
    world.tick()
    assert [held.ts for held in world.records[-1].held_ddl] == [ts]
    assert world.records[-1].resolved_ts > ts
    world.other_owner()
    world.bad_ddl = ()
    return world


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_table_that_a_job_brings_which_only_a_later_owner_can_read_is_imaged(*, is_stuck: bool) -> None:
    world = held_world(0.1, whole())
    ts = world.records[-1].held_ddl[0].ts
    world.ddl(Ts(ts - 5), DdlType.CREATE_TABLE, 12, "c1")
    world.ddl(ts, DdlType.RENAME_TABLE, 6, "a6")
    world.is_stuck = is_stuck
    for _ in range(3 if is_stuck else 0):
        assert not world.tick().feeds[0].waits, "readers are held at the job still"
    world.is_stuck = False
    assert world.tick().feeds[0].initial == SIX
    assert not world.records[-1].held_ddl
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [6]


@pytest.mark.parametrize("is_stuck", [False, True])
def test_partitions_that_a_job_reorganizes_which_only_a_later_owner_can_read_keep_their_image(
    *, is_stuck: bool
) -> None:
    world = World({FEED: WISH})
    world.store = snapshot(("d", 1, [_parted(51, 52)]))
    world.tick()
    held_world(0.1, world)
    ts = world.records[-1].held_ddl[0].ts
    change = world.store.apply(job(ts, DdlType.REORGANIZE_PARTITION, schema_id=1, table_id=5, table_info=_parted(61)))
    assert change is not None
    world.images.take(change)
    world.results = ()
    world.is_stuck = is_stuck
    for _ in range(3 if is_stuck else 0):
        assert world.tick().feeds[0].initial == (IdRange(TableId(51), TableId(52)),)
    world.is_stuck = False
    assert world.tick().feeds[0].backfill == (IdRange(TableId(61), TableId(61)),)
