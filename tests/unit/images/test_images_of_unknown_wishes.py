"""Rows that must come though the owner did not know, at a DDL, what a changefeed contains."""

from dataclasses import replace

from consumers.control.owner.images.image_wishes import ImageWish
from schemas.ddl.job import DdlType
from schemas.ids import TableId, Ts
from schemas.rawlog.images import IdRange
from tests.support.control.imaged_owner import FEED, WISH, World, at

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
