"""What watermarks say of table images, cut by cut: which tables are whole, and what is still to come."""

from dataclasses import replace

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.images import IdRange, ImageChunk, ImageFeed, ImageState, KeyRange, TableImage
from schemas.sink.image_note import ImageNote
from schemas.tidb.keys import row_key
from sorters.core.cut.cut import ChangefeedFrontier, frontier_for, with_images
from sorters.core.cut.cut_plan import plan_cuts
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.image_notes import NotedTables, note_of
from tests.support.recorded.ddl_jobs import snapshot, table_info
from tests.unit.images.test_cut_images import FEED, record

PLAIN, P0, P1, OTHER = TableId(7), TableId(51), TableId(52), TableId(60)
ALL = (IdRange(PLAIN, OTHER),)
"""Ids between them are no tables, or none of the changefeed."""


@pytest.fixture
def store() -> SchemaStore:
    definitions = [{"id": number, "name": {"O": name, "L": name}} for number, name in ((P0, "p0"), (P1, "p1"))]
    parted = {**table_info(50, "parted"), "partition": {"enable": True, "definitions": definitions}}
    return snapshot(("d", 1, [table_info(PLAIN, "plain"), parted, table_info(9, "left"), table_info(OTHER, "other")]))


def notes(store: SchemaStore, *frontiers: ChangefeedFrontier, **config: object) -> list[tuple[int, ImageNote | None]]:
    settings = {"filter": {"rules": ["d.*", "!d.left"]}, **config}
    feed = compile_feed(load_changefeed("kafka://h:1/t?protocol=canal-json", settings), "default")
    tables = NotedTables.at(store, Ts(20), feed)
    return [(cut.upto_ts, note_of(cut, tables)) for cut in plan_cuts(frontiers[0], frontiers[1:], Ts(20))]


def frontier(
    ts: int, mode: str = "initial", ids: tuple[IdRange, ...] = ALL, done: tuple[TableId, ...] = (), *chunks: ImageChunk
) -> ChangefeedFrontier:
    tables = tuple(TableImage(table_id=table, feeds=(FEED,), done=(KeyRange.of_table(table),)) for table in done)
    feeds = (ImageFeed(feed=FEED, **{mode: ids}),)
    images = ImageState(version=(1, ts), feeds=feeds, tables=tables, chunks=chunks)
    return with_images(frontier_for(record(ts, images), lambda _: False), images, FEED)


def chunk(ts: int, table: TableId, number: int = 0, keys: KeyRange | None = None) -> ImageChunk:
    return ImageChunk(
        ts=Ts(ts), number=number, attempt=0, table_id=table, feeds=(FEED,), keys=keys or KeyRange.of_table(table),
        partition=0, offsets=(0, 1), rows=1, bytes=1,
    )  # fmt: skip


WAITING = (("d", "other"), ("d", "parted"), ("d", "plain"))


@pytest.mark.parametrize("mode", ["initial", "resync", "backfill"])
def test_a_table_is_whole_with_the_cut_that_has_its_last_chunk_of_all_partitions(store: SchemaStore, mode: str) -> None:
    said = notes(
        store,
        frontier(20, mode),
        frontier(30, mode, ALL, (), chunk(25, PLAIN), chunk(25, P0, 1), chunk(28, P1, 2)),
        frontier(40, mode, (IdRange(OTHER, OTHER),)),
        frontier(50, mode, (IdRange(OTHER, OTHER),), (), chunk(45, OTHER)),
        frontier(60, mode, ()),
    )
    assert said == [
        (25, ImageNote(2, (("d", "plain"),), (("d", "other"), ("d", "parted")))),
        (28, ImageNote(1, (("d", "parted"),), (("d", "other"),))),
        (30, ImageNote(1, (), (("d", "other"),))),
        (40, ImageNote(1, (), (("d", "other"),))),
        (45, ImageNote(0, (("d", "other"),), ())),
        (50, None),
        (60, None),
    ]


def test_a_part_of_a_table_is_not_whole_and_what_is_done_before_counts(store: SchemaStore) -> None:
    half = KeyRange(KeyRange.of_table(PLAIN).start, row_key(PLAIN, 5))
    rest = KeyRange(half.end, KeyRange.of_table(PLAIN).end)
    only = (IdRange(PLAIN, PLAIN),)
    second = frontier(40, "initial", only, (), chunk(35, PLAIN, 0, rest))
    assert second.images is not None
    said = notes(
        store,
        frontier(20, ids=only),
        frontier(30, "initial", only, (), chunk(25, PLAIN, 0, half)),
        replace(second, images=replace(second.images, done={PLAIN: (half,)})),
    )
    assert [note for _, note in said] == [
        ImageNote(1, (), (("d", "plain"),)), ImageNote(1, (), (("d", "plain"),)),
        ImageNote(0, (("d", "plain"),), ()), None,
    ]  # fmt: skip
    assert notes(store, frontier(20), frontier(30, done=(PLAIN, P0))) == [
        (30, ImageNote(2, (), (("d", "other"), ("d", "parted"))))
    ]


def test_names_are_those_at_the_destination(store: SchemaStore) -> None:
    routes = {"sink": {"dispatchers": [{"matcher": ["d.*"], "target-schema": "e", "target-table": "x_{table}"}]}}
    ((_, note),) = notes(store, frontier(20), frontier(30), **routes)
    assert note == ImageNote(4, (), (("e", "x_other"), ("e", "x_parted"), ("e", "x_plain")))


def test_where_nothing_is_to_come_nothing_is_said(store: SchemaStore) -> None:
    assert [note for _, note in notes(store, frontier(20, ids=()), frontier(30, ids=()))] == [None]
