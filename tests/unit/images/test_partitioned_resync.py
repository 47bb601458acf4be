"""Partitions that are resynced are one table: the owner lets them begin together, and takes new ones in."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from consumers.control.changefeeds.asked_images import AskedImages
from schemas.ddl.job import DdlType
from schemas.ids import TableId, Ts
from schemas.rawlog.images import IdRange, ImageMode, ImageState
from tests.support.control.imaged_owner import FEED, WISH, World, at
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

RESYNC, BACKFILL = ImageMode.RESYNC, ImageMode.BACKFILL


def parted(*ids: int) -> dict[str, Any]:
    definitions = [{"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}} for each in ids]
    return {**table_info(5, "a1"), "partition": {"enable": True, "definitions": definitions}}


def asking(mode: ImageMode, *tables: int) -> World:
    world = World({})
    world.store = snapshot(("d", 1, [parted(21, 22)]))
    ask(world, mode, *tables)
    return world


def ask(world: World, mode: ImageMode, *tables: int) -> None:
    asked = AskedImages(requested={mode: frozenset(map(TableId, tables))})
    world.wished = {FEED: replace(WISH, wants_initial=False, asked=asked)}


def waits(state: ImageState, mode: ImageMode) -> list[int]:
    ranges: Iterable[IdRange] = state.feeds[0].ids(mode) if state.feeds else ()
    return [table for item in ranges for table in range(item.first, item.last + 1)]


def test_partitions_begin_together_behind_another_image_of_one_of_them() -> None:
    world = asking(BACKFILL, 22)
    world.tick()
    ask(world, RESYNC, 21, 22)
    state = world.tick()
    assert (waits(state, BACKFILL), waits(state, RESYNC)) == ([22], [])
    for _ in range(4):
        world.land_all()
        state = world.tick()
        if waits(state, RESYNC):
            break
        assert waits(state, BACKFILL) in ([22], [])
    assert waits(state, RESYNC) == [21, 22]


@pytest.mark.parametrize(
    ("ddl", "after"), [(DdlType.ADD_PARTITION, (21, 22, 23)), (DdlType.TRUNCATE_PARTITION, (22, 23))]
)
def test_a_partition_that_comes_to_a_table_is_resynced_with_it(ddl: DdlType, after: tuple[int, ...]) -> None:
    """Else its first rows might be there when the table's keys are noted, and no image would strike them off."""
    for mode in (RESYNC, BACKFILL):
        world = asking(mode, 21, 22)
        world.tick()
        ts = Ts(at(world.seconds + 0.1))
        change = world.store.apply(job(ts, ddl, schema_id=1, table_id=5, table_info=parted(*after)))
        assert change is not None
        world.images.take(change)
        state = world.tick()
        assert (23 in waits(state, RESYNC)) == (mode is RESYNC)
        assert 23 not in waits(state, BACKFILL)
