"""A sorter dies in an epoch that it has begun; the next one, on another machine, repeats that epoch and nothing else.

Another machine is another folder: all that both know is in ZooKeeper and Kafka. More has landed meanwhile, so a sorter
that only knew the checkpoint would cut otherwise: the same rows, and watermarks at other ts.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compose.stack.local import Addresses
from edges.kafka.access import KafkaAccess
from edges.kafka.tail import FrontierTail
from edges.registry.access import RegistryAccess
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.topics import raw_topics
from schemas.sink.position import PositionClass, decode_position
from sorters.core.cut import cut_plan
from sorters.core.cut.beginning import decode_begun
from sorters.core.cut.cut_plan import QUERY_BYTES_MIN, plan_cuts
from sorters.cut.leave import GIVEN, Leave
from sorters.cut.sink_writer import SinkWriter
from sorters.cut.small_cut import SmallCut
from sorters.run import cut_job, epochs, feed_run
from sorters.run.epochs import CutProgress
from sorters.run.feed_run import FeedRun
from sorters.run.nodes.status import StatusBoard
from sorters.run.run_inputs import RunInputs
from sorters.spark.jobs.spark_counts import OF_PROCESS
from sorters.spark.session import create_session
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, RawLog, SinkRecord, read_topic, recorded, sbtest1_changes

TABLE, ROWS = 114, 40
"""Rows in a raw record; each is above the one before."""
STEP = 10 * ROWS
BUDGET, EPOCH_RECORDS = 3, 3
"""Raw records in a cut, frontier records in the epoch: of two raw records, one and one. It has two cuts, and the second
has room for what lands later."""
FIRST_TS, SECOND_TS, LATER_TS = (Ts(START_TS + steps * STEP) for steps in (3, 4, 5))
"""Where the epoch's cuts end, and what lands later."""
DEADLINE_S = 240.0
KILLED_BEFORE_IT_REPORTS = """
import os, signal
from sorters.run.nodes.status import StatusBoard
report = StatusBoard.report
def dying(self, **figures):
    if figures:
        os.kill(os.getpid(), signal.SIGKILL)
    report(self)
StatusBoard.report = dying
"""
TOLD_TO_STOP_IN_MID_CUT = """
import os, signal, threading
from sorters.run import feed_run
from sorters.cut.sink_writer import SinkWriter
feed_run.END_S, stops = 60.0, threading.Event()
write, end = SinkWriter.write, feed_run.FeedRun.end
def in_two(self, records, fence, note):
    write(self, records.slice(0, 10), fence, note)
    self.finish()
    os.kill(os.getpid(), signal.SIGTERM)
    stops.wait(60)
    write(self, records.slice(10), fence, note)
def ending(self, may_write):
    stops.set()
    end(self, may_write)
SinkWriter.write, feed_run.FeedRun.end = in_two, ending
"""
WAYS = {"small": (2**40, QUERY_BYTES_MIN), "jobs": (-1, QUERY_BYTES_MIN), "query": (-1, 1)}
"""Bytes up to which the driver does a cut by itself; raw bytes from which on a query runs several that are larger."""


class DiedError(Exception):
    """The process is killed here."""


def expected() -> list[tuple[Ts, PositionClass]]:
    """Return what stands in the topic if nobody dies: watermarks where the epoch's cuts end."""
    rows = [(Ts(START_TS + 1 + 10 * row), PositionClass.ROW) for row in range(5 * ROWS)]
    return sorted([*rows, *((ts, PositionClass.WATERMARK) for ts in (FIRST_TS, SECOND_TS, LATER_TS))])


def positions_of(records: list[SinkRecord]) -> list[tuple[Ts, PositionClass]]:
    decoded = (decode_position(record.position) for record in records)
    return [(position.commit_ts, position.position_class) for position in decoded]


def rows_of(positions: list[tuple[Ts, PositionClass]]) -> list[tuple[Ts, PositionClass]]:
    return [position for position in positions if position[1] is PositionClass.ROW]


@pytest.fixture
def raw_log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    """Return a log with the epoch's records."""
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([recorded("sbtest1")[0]])
    for at, records in ((0, 2), (2, 1), (3, 1)):
        for number in range(at, at + records):
            land(log, number)
        log.advance(START_TS + (at + records) * STEP)
    return log


def land(log: RawLog, number: int) -> None:
    log.rows(TABLE, sbtest1_changes(ROWS, START_TS + 1 + number * STEP, number * ROWS), number % 2)


@pytest.fixture
def feed(stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[Sorter]:
    sorter = Sorter(stack.kafka, stack.zookeeper, tmp_path / "first", fresh_name("feed"))
    yield sorter
    sorter.close()


@pytest.fixture(scope="module")
def spark(stack: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Any]]:
    started: list[Any] = []

    def session() -> Any:
        if not started:
            started.append(create_session("local[2]", "begun", tmp_path_factory.mktemp("begun")))
        return started[0]

    yield session
    for created in started:
        created.stop()


@pytest.fixture(autouse=True)
def _epoch_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the epoch be of the frontier records that are there, however the broker hands them out."""
    read_some = FrontierTail.read

    def read(self: FrontierTail, count: int, timeout_s: float) -> list[FrontierRecord]:
        records = read_some(self, count, timeout_s)
        while records and records[0].resolved_ts <= SECOND_TS and records[-1].resolved_ts < SECOND_TS:
            records += read_some(self, count, timeout_s)
        return records

    monkeypatch.setattr(FrontierTail, "read", read)
    monkeypatch.setattr(epochs, "plan_cuts", lambda *args, **more: plan_cuts(*args, offsets_max=BUDGET, **more))


class Machine:
    """One that a sorter of the changefeed runs on, as a sorter process does, and may die in."""

    def __init__(self, feed: Sorter, spark: Callable[[], Any], data_dir: Path, dies: str = "") -> None:
        self._dies, self.died, self._reached = dies, threading.Event(), threading.Event()
        self.board = StatusBoard(feed.client, feed.paths, "default", feed.changefeed_id)
        current = self.board.info()
        assert current is not None
        self.cuts = 0
        info = current[0]
        self._run = FeedRun(
            spark,
            RunInputs(
                kafka=KafkaAccess(feed.kafka),
                raw_topics=raw_topics(info.upstream),
                schema_registry=RegistryAccess(),
                info=info,
                config=load_changefeed(info.sink_uri, info.config),
            ),
            data_dir=data_dir,
            checkpoint_ts=self.board.open(*current),
            ask=lambda: GIVEN,
            on_progress=self._on_progress,
            begun=self,
        )

    def begun(self) -> bytes | None:
        return self.board.begun()

    def begin(self, epoch: bytes, after_ts: Ts) -> Leave:
        self.board.begin(epoch, after_ts)
        self._dies_at("noted")
        return GIVEN

    def _on_progress(self, progress: CutProgress) -> None:
        self.cuts += 1
        if progress.checkpoint_ts >= SECOND_TS:
            self._dies_at("written")
        self.board.report(checkpoint_ts=progress.checkpoint_ts, resolved_ts=progress.resolved_ts)
        self._dies_at("between")
        if progress.checkpoint_ts >= LATER_TS:
            self._reached.set()

    def write_half(self, writer: SinkWriter, records: pa.Table, write: Callable[[SinkWriter, pa.Table], None]) -> None:
        """Write the second cut's first half if it is there that this machine dies; its topics have no fences."""
        if self._dies == "half" and self.cuts == 1:
            write(writer, records.slice(0, records.num_rows // 2))
            writer.finish()
            self._dies_at("half")
        write(writer, records)

    def _dies_at(self, point: str) -> None:
        if self._dies == point:
            self.died.set()
            raise DiedError

    def run(self) -> None:
        """Run until it has died, or has written all."""
        self.run_until(self.died if self._dies else self._reached, may_write=False)

    def run_until(self, done: threading.Event, may_write: bool) -> None:
        """Run until that, and end as a process does that is told to."""
        with closing(self._run):
            self._run.start()
            assert done.wait(DEADLINE_S), self._run.failure()
            self._run.end(lambda: may_write)


@pytest.mark.parametrize(
    ("way", "dies", "checkpoint_ts", "written"),
    [
        ("small", "noted", START_TS, 0),
        ("small", "between", FIRST_TS, 3 * ROWS + 1),
        ("small", "half", FIRST_TS, 3 * ROWS + 1 + ROWS // 2),
        ("small", "written", FIRST_TS, 4 * ROWS + 2),
        ("jobs", "between", FIRST_TS, 3 * ROWS + 1),
        ("jobs", "written", FIRST_TS, 4 * ROWS + 2),
        ("query", "between", FIRST_TS, 3 * ROWS + 1),
        ("query", "written", FIRST_TS, 4 * ROWS + 2),
    ],
)
def test_begun_epoch_whose_sorter_dies_is_repeated_as_it_was_on_another_machine(
    way: str,
    dies: str,
    checkpoint_ts: Ts,
    written: int,
    raw_log: RawLog,
    feed: Sorter,
    spark: Callable[[], Any],
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = fresh_name("sink")
    feed.create(raw_log.upstream, sink(feed, topic), start_ts=START_TS)
    driver_bytes_max, query_bytes_min = WAYS[way]
    monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", driver_bytes_max)
    monkeypatch.setattr(cut_plan, "QUERY_BYTES_MIN", query_bytes_min)
    first, queries = Machine(feed, spark, tmp_path / "first", dies), OF_PROCESS.figures.queries
    write = SinkWriter.write
    with monkeypatch.context() as patched:
        patched.setattr(SinkWriter, "write", lambda self, records, *_: first.write_half(self, records, write))
        first.run()
    assert OF_PROCESS.figures.queries - queries == (1 if way == "query" else 0)
    node = decode_begun(first.begun())
    assert node is not None
    assert (node.start, node.end) == (1, 1 + EPOCH_RECORDS), "the snapshot's is no part of it"
    status = feed.status()
    assert (status.checkpoint_ts if status else START_TS) == checkpoint_ts
    records = read_topic(feed.kafka, topic) if written else []
    assert positions_of(records) == expected()[:written]
    land(raw_log, 4)
    raw_log.advance(LATER_TS)
    Machine(feed, spark, tmp_path / "second").run()
    after = read_topic(feed.kafka, topic)
    done = 0 if checkpoint_ts == START_TS else 3 * ROWS + 1
    assert positions_of(after[written:]) == expected()[done:], "from the checkpoint on, with watermarks where they were"
    repeated = written - done
    assert [bytes_of(record) for record in after[done:written]] == [
        bytes_of(record) for record in after[written:][:repeated]
    ]


def bytes_of(record: SinkRecord) -> tuple[bytes | None, bytes | None, bytes]:
    return record.key, record.value, record.position


def sink(feed: Sorter, topic: str) -> str:
    return f"kafka://{feed.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=1"


def test_sorter_process_killed_before_it_reports_is_followed_by_one_that_repeats_its_epoch(
    stack: Addresses, raw_log: RawLog, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Of real processes, each with its own folder. Without the node the second watermark would stand elsewhere."""
    topic, name = fresh_name("sink"), fresh_name("feed")
    first, second = (Sorter(stack.kafka, stack.zookeeper, tmp_path / folder, name) for folder in ("first", "second"))
    first.trouble = KILLED_BEFORE_IT_REPORTS
    with closing(first), closing(second):
        first.create(raw_log.upstream, sink(first, topic), start_ts=START_TS)
        first.start()
        assert first.process is not None
        assert first.process.wait(DEADLINE_S) == -signal.SIGKILL, first.log()
        status, node = second.status(), StatusBoard(second.client, second.paths, "default", name).begun()
        before, epoch = read_topic(stack.kafka, topic), decode_begun(node)
        assert status is not None
        assert status.checkpoint_ts == START_TS
        assert epoch is not None
        land(raw_log, 4)
        raw_log.advance(LATER_TS)
        second.start()
        second.wait_checkpoint(LATER_TS)
    after = read_topic(stack.kafka, topic)[len(before) :]
    assert positions_of(before)[-1][1] is PositionClass.WATERMARK
    assert [bytes_of(record) for record in before] == [bytes_of(record) for record in after[: len(before)]]
    assert rows_of(positions_of(after)) == rows_of(expected())


def test_sorter_process_told_to_stop_in_mid_cut_ends_the_cut_and_reports_it(
    raw_log: RawLog, feed: Sorter, fresh_name: Callable[[str], str]
) -> None:
    topic, feed.trouble = fresh_name("sink"), TOLD_TO_STOP_IN_MID_CUT
    feed.create(raw_log.upstream, sink(feed, topic), start_ts=START_TS)
    feed.start()
    assert feed.process is not None
    assert feed.process.wait(DEADLINE_S) == 0, feed.log()
    written, status = positions_of(read_topic(feed.kafka, topic)), feed.status()
    assert status is not None
    assert written[-1] == (status.checkpoint_ts, PositionClass.WATERMARK), "all of the cut, and nothing of another"
    assert rows_of(written) == [row for row in rows_of(expected()) if row[0] <= status.checkpoint_ts]


@pytest.mark.parametrize(("end_s", "may_write"), [(0.0, True), (60.0, False)], ids=["too long", "not ours"])
def test_run_that_cannot_end_its_cut_gives_it_up(
    end_s: float,
    may_write: bool,
    raw_log: RawLog,
    feed: Sorter,
    spark: Callable[[], Any],
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = fresh_name("sink")
    feed.create(raw_log.upstream, sink(feed, topic), start_ts=START_TS)
    begun, given_up, write = threading.Event(), threading.Event(), SinkWriter.write

    def slow(writer: SinkWriter, records: pa.Table, fence: bytes, note: None) -> None:
        write(writer, records.slice(0, 10), fence)
        writer.finish()
        begun.set()
        assert given_up.wait(DEADLINE_S)
        write(writer, records.slice(10), fence)

    give_up = SmallCut.give_up

    def giving_up(cut: SmallCut) -> None:
        give_up(cut)
        given_up.set()

    monkeypatch.setattr(SinkWriter, "write", slow)
    monkeypatch.setattr(SmallCut, "give_up", giving_up)
    monkeypatch.setattr(feed_run, "END_S", end_s)
    machine = Machine(feed, spark, tmp_path / "first")
    machine.run_until(begun, may_write)
    status = feed.status()
    assert status is None or status.checkpoint_ts == START_TS
    assert positions_of(read_topic(feed.kafka, topic)) == expected()[:10]
