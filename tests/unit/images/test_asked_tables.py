"""Table images that are asked for by hand, in the owner's shell."""

from dataclasses import replace

import pytest

from consumers.control.changefeeds.asked_images import AskedImages
from consumers.control.owner.images.image_wishes import ImageWish
from consumers.control.owner.images.imaged_tables import SETTINGS_S
from schemas.ids import TableId
from schemas.rawlog.images import IdRange, ImageMode, KeyRange
from schemas.tidb.keys import row_key
from tests.support.control.imaged_owner import ASKING, FEED, WISH, World, asking


def test_what_is_asked_for_by_hand_is_withdrawn_once_a_published_record_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World({FEED: ASKING})
    state = world.tick()
    assert (state.feeds[0].backfill, state.feeds[0].resync) == (
        (IdRange(TableId(5), TableId(5)),),
        (IdRange(TableId(9), TableId(9)),),
    )
    world.tick()
    assert world.withdrawn == {(FEED, 5), (FEED, 9)}
    world.seconds += SETTINGS_S
    world.tick()
    assert world.withdrawn == {(FEED, 5), (FEED, 6), (FEED, 9)}, "no table of the changefeed"
    world.tick()
    (said,) = [record for record in caplog.records if "not to come" in record.message]
    assert said.__dict__["table"] == "d.b1"


@pytest.mark.parametrize("first", ["request", "settings"])
def test_a_table_that_an_update_brings_in_is_imaged_whichever_of_both_nodes_is_seen_first(first: str) -> None:
    narrow = replace(WISH, wants_initial=True)
    world = World({FEED: narrow})
    world.tick()
    world.land_all()
    world.tick()
    assert not world.tick().feeds[0].waits
    asked = AskedImages(requested={ImageMode.BACKFILL: frozenset({TableId(6)})})
    wide = replace(narrow, key=2, contains=lambda _: True)
    world.wished = {FEED: replace(narrow, asked=asked) if first == "request" else wide}
    for _ in range(5):
        assert world.tick().feeds[0].waits is (first == "settings"), "who has both settings sees what came in"
    assert not world.withdrawn
    world.wished = {FEED: replace(wide, asked=asked)}
    assert world.tick().feeds[0].backfill == (IdRange(TableId(6), TableId(6)),)
    assert [scan.table_id for scan in world.tick().barriers[0].scans] == [6]
    assert world.withdrawn == {(FEED, 6)}
    world.land_all()
    world.tick()
    world.wished = {FEED: wide}
    assert not world.tick().feeds[0].waits


def test_an_image_that_is_whole_before_its_request_is_taken_back_does_not_come_again() -> None:
    world = World({FEED: ASKING})
    world.tick()
    for _ in range(2):  # a resync has an opening beforehand
        world.land_all()
        world.tick()
        state = world.tick()
    assert state.feeds == ()
    assert world.tick().feeds == ()
    world.wished = {FEED: asking()}
    assert world.tick().feeds == ()
    world.wished = {FEED: asking(backfill=5)}
    assert world.tick().feeds[0].backfill == (IdRange(TableId(5), TableId(5)),), "asked for once more"


def test_a_resync_that_is_asked_for_while_another_image_is_under_way_begins_behind_it() -> None:
    world = World({FEED: asking(backfill=5)})
    assert world.tick().feeds[0].backfill == (IdRange(TableId(5), TableId(5)),)
    world.tick()
    world.withdrawn.clear()
    world.wished = {FEED: asking(resync=5)}
    state = world.tick()
    assert (state.feeds[0].backfill, state.feeds[0].resync) == ((IdRange(TableId(5), TableId(5)),), ())
    assert not world.withdrawn, "it is asked for until it has begun"
    world.land_all()
    world.tick()
    for _ in range(2):
        state = world.tick()
    assert (state.feeds[0].backfill, state.feeds[0].resync) == ((), (IdRange(TableId(5), TableId(5)),))
    world.tick()
    assert world.withdrawn == {(FEED, 5)}


PART = (KeyRange(row_key(TableId(5), 10), row_key(TableId(5), 20)),)


def part(mode: ImageMode = ImageMode.BACKFILL) -> ImageWish:
    return replace(ASKING, asked=AskedImages(ranged={(mode, TableId(5)): PART}))


@pytest.mark.parametrize("mode", [ImageMode.BACKFILL, ImageMode.RESYNC])
def test_of_a_part_of_a_table_the_rest_is_done_from_the_first(mode: ImageMode) -> None:
    world = World({FEED: part(mode)})
    state = world.tick()
    assert state.feeds[0].ids(mode) == (IdRange(TableId(5), TableId(5)),)
    assert [scan.keys for scan in state.barriers[0].scans] == list(PART), "and a resync has no opening"
    assert not world.withdrawn
    world.tick()
    assert world.withdrawn == {(FEED, 5)}
    world.land_all()
    world.tick()
    assert world.tick().feeds == ()
    assert world.tick().feeds == (), "it is asked for still, and has been"
    assert [chunk.keys for record in world.records for chunk in record.images.chunks][:1] == list(PART)


def test_all_of_a_table_that_is_asked_for_while_a_part_is_under_way_begins_behind_it() -> None:
    world = World({FEED: part()})
    world.tick()
    world.tick()
    world.withdrawn.clear()
    world.wished = {FEED: asking(backfill=5)}
    world.tick()
    assert not world.withdrawn, "what is under way is a part"
    world.land_all()
    world.tick()
    for _ in range(2):
        state = world.tick()
    assert [scan.keys for scan in state.barriers[0].scans] == [KeyRange.of_table(TableId(5))]
    world.tick()
    assert world.withdrawn == {(FEED, 5)}


def test_a_part_that_is_asked_for_while_all_of_the_table_is_under_way_begins_behind_it() -> None:
    world = World({FEED: asking(backfill=5)})
    world.tick()
    world.tick()
    world.withdrawn.clear()
    world.wished = {FEED: part()}
    world.tick()
    assert not world.withdrawn
    world.land_all()
    world.tick()
    for _ in range(2):
        state = world.tick()
    assert [scan.keys for scan in state.barriers[0].scans] == list(PART)
