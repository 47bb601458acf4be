"""Cuts by Spark, without Spark: what their jobs are called, and what becomes of a large one that hangs."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.bad_jobs import BadJobs
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.flow.flow_sum import FlowSum
from schemas.ids import TableId, Ts, UpstreamId
from schemas.rawlog.topics import raw_topics
from sorters.core.cut.cut import Cut
from sorters.core.cut.runner import Choice, Reason, Runner
from sorters.core.feed.feed import compile_feed
from sorters.core.flow.ledger import CutFlow
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.cut.leave import GIVEN
from sorters.cut.raw_cut import RAW_RECORD_BYTES_GUESS
from sorters.cut.worker import CutCounts
from sorters.log.blackhole_topics import BlackholeTopics
from sorters.log.failures import TaskHangsError
from sorters.run import cut_job
from sorters.run.cut_job import CutJob, RunBy
from sorters.run.preparation import Preparation
from sorters.spark import cut as spark_cut
from sorters.spark.jobs import session_jobs
from sorters.spark.jobs.job_group import Member
from sorters.spark.jobs.own_job import run_own_job
from sorters.spark.jobs.task_watch import FIRST_LOOK, LARGE_TASK_S_MAX, TaskWatch
from sorters.spark.tasks.cut_answers import counts_as_json
from sorters.spark.tasks.two_steps import ANSWER
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

URI = "blackhole:///t?protocol=canal-json"
TASKS = 2


class PlannedSession:
    """Stands for a Spark session and what its changefeeds share: answers at once, or when a large job is let go."""

    def __init__(self, folder: Path, rows: CutFlow) -> None:
        self.runs_parent, self.tasks, self.rows = folder, TASKS, rows
        self.sparkContext = self.context = self.jobs = self.group = self
        self.described: list[str] = []
        self.with_rows: list[int] = []
        self.large: dict[str, Future[None]] = {}
        self.ended, self.killed = 0, list[str]()
        self.now_s = 0.0
        self.watch = TaskWatch(self.progress, self.cancel, clock=lambda: self.now_s, look_s=3_600)
        self._said = threading.local()

    def broadcast(self, value: Any) -> "PlannedSession":
        return self

    _jbroadcast = property(lambda self: self)

    def id(self) -> int:
        return 1

    def is_gone(self) -> bool:
        return False

    def run(self, member: Member) -> bytes:
        self.described.append(member.name)
        return self._counts()

    def in_own_thread(self, work: Callable[[], list[bytes]], *, pool: str, tag: str, description: str) -> list[bytes]:
        self.described.append(description)
        self._said.tag, self._said.pool = tag, pool
        return work()

    def answers(self, work: Any, tasks: int) -> list[bytes]:
        """A look which tables have rows."""
        return [b"".join(table.to_bytes(8, "little") for table in self.with_rows)]

    def two_steps(self, *orders: Any, **broadcasts: Any) -> list[bytes]:
        end = self.large.setdefault(self._said.pool, Future())
        end.tag = self._said.tag  # type: ignore[attr-defined]
        end.result(20)
        return [ANSWER + self._counts()]

    def progress(self, tag: str) -> tuple[int, int]:
        return self.ended, TASKS

    def cancel(self, tag: str) -> None:
        for end in self.large.values():
            if end.tag == tag and not end.done():  # type: ignore[attr-defined]
                end.set_exception(RuntimeError("cancelled"))

    def end_tasks(self, tag: str) -> None:
        self.killed.append(tag)

    def look_for(self, seconds: float) -> None:
        """Let the watch look each ten seconds of its clock, for so long."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 10
            self.watch.look()

    def _counts(self) -> bytes:
        return counts_as_json(CutCounts(rows=0, raw_bytes=0, corrupt=CorruptRows(), flow=self.rows))


def cut_of(records: int) -> Cut:
    return Cut(after_ts=Ts(5), upto_ts=Ts(9), start=(0,), end=(records,), may_repeat=False, ddl_end=0)


class Changefeed:
    """Its preparation and its job, over one planned session; it stands in for the feed of schemas, too."""

    def __init__(
        self,
        session: PlannedSession,
        store: SchemaStore,
        name: str = "ns/feed",
        run_by: RunBy | None = None,
        record_bytes: float = RAW_RECORD_BYTES_GUESS,
    ) -> None:
        self.store, self.bad, self.name = store, BadJobs().jobs, name
        config = load_changefeed(URI)
        spark: Any = lambda: session  # noqa: E731 # a session of another kind
        schemas: Any = self
        feed = compile_feed(config, "default")
        self.preparation = Preparation(spark, feed, schemas, BlackholeTopics(config), None, start_ts=Ts(0))
        self.job = CutJob(
            spark,
            lambda stopped: spark,
            topics=raw_topics(UpstreamId("up")),
            raw_config={},
            sink_config={},
            run_by=run_by,
            name=name,
            record_bytes=lambda: record_bytes,
        )

    def advance(self, ddl_end: int) -> bool:
        return False

    def forget(self, checkpoint_ts: Ts) -> None:
        self.store.gc(checkpoint_ts)

    def run(self, after_ts: int, upto_ts: int, resynced: frozenset[TableId] = frozenset()) -> None:
        cut = replace(cut_of(1), after_ts=Ts(after_ts), upto_ts=Ts(upto_ts), resynced=resynced)
        self.preparation.begin(cut)
        self.job.run(cut, self.preparation, self.preparation.companions(cut, 1), 1, GIVEN)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlannedSession]:
    session = PlannedSession(tmp_path, CutFlow())
    monkeypatch.setattr(session_jobs, "session_jobs", lambda _: session)
    monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", -1)
    yield session
    session.watch.close()


def schema(*names: str) -> SchemaStore:
    return snapshot(("d", 1, [table_info(100 + number, name) for number, name in enumerate(names)]), ts=Ts(1))


def of(session: PlannedSession) -> list[str]:
    """Return what the jobs so far are said to be of."""
    return [described.partition("] of ")[2] for described in session.described]


def test_job_of_a_cut_names_changefeed_range_and_tables_of_the_cut(session: PlannedSession) -> None:
    Changefeed(session, schema("orders", "items")).run(5, 9)
    assert session.described == ["ns/feed: cut (5, 9] of d.orders, d.items"]


def test_job_names_busy_tables_first_and_tells_how_many_more_there_are(session: PlannedSession) -> None:
    feed = Changefeed(session, schema("a", "b", "c", "d", "e", "f"))
    rows = {TableId(103): FlowSum(1, 7), TableId(105): FlowSum(20, 7), TableId(999): FlowSum(90, 7)}
    session.rows = CutFlow(written=rows)
    feed.run(5, 9)
    feed.run(9, 12)
    assert of(session) == ["d.a, d.b, d.c and 3 more", "d.f, d.d, d.a and 3 more"]


def test_job_names_the_tables_of_its_own_ddls_and_forgets_what_they_have_dropped(session: PlannedSession) -> None:
    store = schema("a", "b", "c", "d")
    info = table_info(200, "new")
    query = "CREATE TABLE new"
    store.apply(job(Ts(11), DdlType.CREATE_TABLE, schema_id=1, table_id=200, query=query, table_info=info))
    store.apply(job(Ts(21), DdlType.DROP_TABLE, schema_id=1, table_id=100, query="DROP TABLE a"))
    feed = Changefeed(session, store)
    for after, upto in ((5, 9), (9, 12), (12, 15), (15, 22), (22, 30)):
        feed.run(after, upto)
    assert of(session) == [
        "d.a, d.b, d.c and 1 more",
        "d.new, d.a, d.b and 2 more",
        "d.a, d.b, d.c and 2 more",
        "d.a, d.b, d.c and 2 more",
        "d.b, d.c, d.d and 1 more",
    ]


def test_job_names_the_tables_of_its_images_first(session: PlannedSession) -> None:
    Changefeed(session, schema("a", "b", "c", "d")).run(5, 9, resynced=frozenset([TableId(103)]))
    assert of(session) == ["d.d, d.a, d.b and 1 more"]


def test_job_names_only_tables_that_have_rows_where_a_look_has_told(
    session: PlannedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_job, "TABLES_AT_ONCE_MAX", 0)
    session.with_rows = [103, 104]
    session.rows = CutFlow(written={TableId(100): FlowSum(1, 7)})
    feed = Changefeed(session, schema("a", "b", "c", "d"))
    feed.run(5, 9)
    assert of(session) == ["", "d.d"]


def test_driver_holds_more_of_a_cut_while_there_is_no_spark(
    session: PlannedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", 1_000 * RAW_RECORD_BYTES_GUESS)
    is_warm = threading.Event()
    job = Changefeed(session, schema("a"), run_by=RunBy(is_warm=is_warm.is_set)).job
    held = Choice(runner=Runner.DRIVER, reason=Reason.CHEAPER_ON_DRIVER)
    too_large = Choice(runner=Runner.SPARK, reason=Reason.BEYOND_DRIVER_MEMORY)
    assert (job.choose(cut_of(1_000)), job.choose(cut_of(4_000)), job.choose(cut_of(4_001))) == (held, held, too_large)
    assert (job.is_small(cut_of(4_000)), job.is_small(cut_of(4_001))) == (True, False)
    is_warm.set()
    for warm in (job, Changefeed(session, schema("a")).job):  # who does not say may have a Spark
        assert (warm.choose(cut_of(1_000)), warm.choose(cut_of(1_001))) == (held, too_large)
        assert (warm.is_small(cut_of(1_000)), warm.is_small(cut_of(1_001))) == (True, False)


def test_first_cut_has_as_many_rows_as_the_size_of_its_records_tells(
    session: PlannedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred changefeeds that begin at once had a job of Spark's each, for what others had mounted already."""
    monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", 2**40)
    two = RunBy(tasks=2)
    unknown, small = (Changefeed(session, schema("a"), run_by=two, record_bytes=size).job for size in (4_096, 1_024))
    worth_it = Choice(runner=Runner.SPARK, reason=Reason.WORTH_A_JOB)
    cheaper = Choice(runner=Runner.DRIVER, reason=Reason.CHEAPER_ON_DRIVER)
    assert (unknown.choose(cut_of(2_000)), small.choose(cut_of(2_000))) == (worth_it, cheaper)
    assert small.choose(cut_of(8_000)) == worth_it


def test_no_name_is_made_for_cuts_of_the_driver(monkeypatch: pytest.MonkeyPatch, session: PlannedSession) -> None:
    feed = Changefeed(session, schema("a"))
    monkeypatch.setattr(
        feed.job, "_run_on_driver", lambda orders: CutCounts(rows=0, raw_bytes=0, corrupt=CorruptRows())
    )
    monkeypatch.setattr(cut_job, "DRIVER_CUT_BYTES_MAX", 2**40)
    feed.run(5, 9)
    assert feed.preparation._cut_tables._names is None


def begin_large(
    session: PlannedSession, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, *names: str
) -> "list[Future[None]]":
    """Let a large cut of each changefeed begin, and return when all have."""
    monkeypatch.setattr(cut_job, "TASK_CUT_BYTES_MAX", -1)
    monkeypatch.setattr(spark_cut, "run_own_job", partial(run_own_job, death_s=0.1))
    runs = [pool.submit(Changefeed(session, schema("orders"), name).run, 5, 9) for name in names]
    deadline = time.monotonic() + 10
    while not session.large.keys() >= set(names):
        assert time.monotonic() < deadline, [run for run in runs if run.done() and run.result()]
        time.sleep(0.005)
    return runs


def test_large_cut_whose_tasks_never_end_is_killed_by_name_and_its_neighbour_is_written(
    session: PlannedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(2) as pool:
        (hanging,) = begin_large(session, monkeypatch, pool, "ns/hanging")
        session.look_for(LARGE_TASK_S_MAX / 2)
        (neighbour,) = begin_large(session, monkeypatch, pool, "ns/neighbour")
        session.look_for(LARGE_TASK_S_MAX * (0.5 + FIRST_LOOK) + 20)
        with pytest.raises(TaskHangsError) as raised:
            hanging.result(10)
        assert raised.value.fields == {
            "cut": "ns/hanging: cut (5, 9] of d.orders",
            "seconds_max": round(LARGE_TASK_S_MAX),
        }
        assert session.killed == [session.large["ns/hanging"].tag]  # type: ignore[attr-defined]
        assert not neighbour.done()
        session.large["ns/neighbour"].set_result(None)
        neighbour.result(10)


def test_large_cut_whose_tasks_end_one_by_one_has_all_the_time_it_takes(
    session: PlannedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as pool:
        (slow,) = begin_large(session, monkeypatch, pool, "ns/slow")
        for _ in range(4):
            session.look_for(LARGE_TASK_S_MAX - 20)
            session.ended += 1
        assert not slow.done()
        session.large["ns/slow"].set_result(None)
        slow.result(10)
