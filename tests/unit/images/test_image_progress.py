"""How far table images are, as people are shown it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from consumers.control.owner.images.image_progress import (
    FEEDS_SHOWN,
    TABLES_SHOWN,
    FeedProgress,
    FeedWait,
    ImageProgress,
    TableProgress,
    images_status,
)
from producers.errors import PdUnreachableError
from schemas.ids import TableId, Ts
from schemas.rawlog.images import IdRange, ImageChunk, ImageFeed, ImageState, KeyRange, TableImage

FEED, FIVE, SIX = "default/a@1", TableId(5), TableId(6)
WHOLE = KeyRange.of_table(FIVE)
MIDDLE = WHOLE.start + b"m"


class AtOnce(Executor):
    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except PdUnreachableError as error:
            future.set_exception(error)
        return future


class World:
    def __init__(self) -> None:
        self.seconds, self.counted, self.pd_answers = 100.0, list[frozenset[TableId]](), True
        self.progress = ImageProgress(self.count_regions, clock=lambda: self.seconds, counter=AtOnce())
        self.version = 0
        self.state, self.reason, self.paused = "running", "", frozenset[TableId]()

    def count_regions(self, tables: Collection[TableId], at_least: int) -> Mapping[TableId, Sequence[bytes]]:
        self.counted.append(frozenset(tables))
        if not self.pd_answers:
            raise PdUnreachableError("PD does not answer")
        return {FIVE: [MIDDLE]}

    def note(self, *tables: TableId, done: Sequence[KeyRange] = (), chunks: Sequence[ImageChunk] = ()) -> None:
        self.version += 1
        self.progress.note(
            ImageState(
                version=(1, self.version),
                feeds=(ImageFeed(feed=FEED, initial=tuple(IdRange(table, table) for table in tables)),),
                tables=(TableImage(table_id=FIVE, feeds=(FEED,), done=tuple(done)),) if FIVE in tables else (),
                chunks=tuple(chunks),
            )
        )

    def look(self, left: int) -> FeedProgress:
        tables = [FIVE, SIX, *(TableId(number) for number in range(100, 100 + left - 2))][:left]
        waits = FeedWait(self.state, self.reason, tables=tables, paused=self.paused)
        (feed,) = self.progress.look({FEED: waits}, lambda table: (f"d.t{table}", ""))
        return feed


def chunk(number: int, rows: int, table: TableId = FIVE) -> ImageChunk:
    return ImageChunk(
        ts=Ts(9), number=number, attempt=0, table_id=table, feeds=(FEED,), keys=KeyRange.of_table(table),
        partition=0, offsets=(0, 1), rows=rows, bytes=10 * rows,
    )  # fmt: skip


def test_chunks_count_once_however_many_records_list_them() -> None:
    world = World()
    world.note(FIVE, SIX, chunks=[chunk(0, 7)])
    world.note(FIVE, SIX, chunks=[chunk(0, 7), chunk(1, 3, SIX)])
    feed = world.look(2)
    assert (feed.namespace, feed.id, feed.state, feed.tables_left) == ("default", "a", "running", 2)
    assert (feed.rows, feed.bytes, feed.chunks) == (10, 100, 2)
    assert [(table.name, table.mode, table.rows, table.chunks) for table in feed.tables] == [
        ("d.t5", "initial", 7, 1),
        ("d.t6", "initial", 3, 1),
    ]


def test_a_table_that_is_whole_counts_as_done_and_its_pace_tells_the_end_of_all() -> None:
    world = World()
    world.note(FIVE, SIX, chunks=[chunk(0, 7)])
    assert world.look(2).eta_s is None
    world.seconds += 10
    world.note(SIX)
    feed = world.look(1)
    assert (feed.tables_done, feed.rows, feed.tables, feed.eta_s) == (1, 7, (), 10.0)


def test_regions_tell_how_much_of_a_table_is_done_and_how_long_the_rest_takes() -> None:
    world = World()
    world.note(FIVE)
    world.look(1)
    (table,) = world.look(1).tables
    assert (table.done_share, table.eta_s) == (0.0, None)
    world.seconds += 8
    world.note(FIVE, done=[KeyRange(WHOLE.start, MIDDLE)])
    (table,) = world.look(1).tables
    assert (table.done_share, table.eta_s) == (0.5, 8.0)


def test_regions_are_counted_seldom_and_only_of_tables_that_are_begun() -> None:
    world = World()
    world.look(1)
    assert world.counted == []
    world.note(FIVE, SIX)
    for _ in range(5):
        world.look(2)
    assert world.counted == [{FIVE}]
    world.seconds += 61
    world.pd_answers = False
    world.look(2)
    world.look(2)
    assert len(world.counted) == 2
    assert [table.done_share for table in world.look(2).tables] == [0.0], "the former count stands"


def test_an_upstreams_node_shows_some_changefeeds_and_some_tables_of_each() -> None:
    tables = tuple(TableProgress(table_id=TableId(number), mode="initial") for number in range(TABLES_SHOWN + 1))
    feed = FeedProgress(namespace="default", id="a", state="running", tables_left=9, tables=tables)
    shown = images_status([feed] * (FEEDS_SHOWN + 1))
    assert (len(shown), len(shown[0]["tables"])) == (FEEDS_SHOWN, TABLES_SHOWN)


def test_who_waits_is_shown_with_the_reason_and_what_is_paused() -> None:
    world = World()
    world.state, world.reason, world.paused = "paused", "its images are paused", frozenset({FIVE, TableId(900)})
    world.note(FIVE, SIX, chunks=[chunk(0, 7), chunk(1, 3, SIX)])
    feed = world.look(2)
    assert (feed.state, feed.reason, feed.tables_left, feed.tables_paused) == ("paused", "its images are paused", 2, 1)
    assert [(table.table_id, table.is_paused) for table in feed.tables] == [(FIVE, True), (SIX, False)]
