"""Changefeeds of one service whose cuts Spark runs, as real processes, when its JVM or Python workers are killed."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from schemas.ids import Ts
from tests.support.processes.sorter_service import ServiceCluster
from tests.support.processes.troubled_daemon import HANGS
from tests.support.rawlog.raw_log import START_TS, RawLog, read_topic, recorded, sbtest1_changes
from tests.support.topics.sink_law import rows_of_topic

TABLE, ROWS, STEP = 114, 2_000, 20_000
FEEDS = ("feed-0", "feed-1")
WAIT_S = 180.0
MOUNTED_CPU_S = 3e-6
"""Of a row, at least, where it is mounted and encoded."""
CUTS_MAX, CUTS_AFTER = 40, 2
"""A kill is tried again until it comes while a cut waits for its answers; and cuts when both kills have."""
KILLING = """
import os, signal, threading
import psutil
from sorters.spark.jobs.task_jobs import TaskJobs
answers, calls, killed = TaskJobs.answers, [0], [False]
left = [("jvm", 0.02), ("workers", 0.05)]  # whom to kill, so long after a call
def victims(jobs, whom):
    jvm = jobs.context._gateway.proc.pid
    workers = [worker.pid for daemon in psutil.Process(jvm).children() for worker in daemon.children()]
    return [jvm] if whom == "jvm" else workers
def kill(jobs, waits, stage):
    if waits.is_set() and stage in left[:1]:
        killed[0] = True
        for pid in victims(jobs, stage[0]):
            print("killed of", stage[0], pid, flush=True)
            os.kill(pid, signal.SIGKILL)
def watched(self, *args, **more):
    calls[0] += 1
    waits, stage = threading.Event(), left[0] if left else None
    waits.set()
    if stage and calls[0] >= 4:  # at each call, until one has met a cut that waits for its answers
        threading.Timer(stage[1], kill, (self, waits, stage)).start()
    try:
        return answers(self, *args, **more)
    except BaseException:
        if killed[0] and stage in left[:1]:
            left.pop(0)
            calls[0], killed[0] = 0, False
        raise
    finally:
        waits.clear()
TaskJobs.answers = watched
"""
TASK_S_MAX = 8.0
IMPATIENT = f"""
from sorters.spark.jobs import task_watch
task_watch.TASK_S_MAX = {TASK_S_MAX}
"""


@pytest.fixture
def raw_log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([recorded("sbtest1")[0]])
    log.advance(START_TS)
    return log


@pytest.fixture
def cluster(stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[ServiceCluster]:
    cluster = ServiceCluster(stack.kafka, stack.zookeeper, fresh_name("services"), tmp_path)
    yield cluster
    cluster.close()


def test_kills_of_jvm_and_workers_in_mid_cut_leave_each_row_once_in_order_and_the_service_alive(
    cluster: ServiceCluster, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    """First the JVM, then the Python workers of the one that came after it."""
    topics = {name: fresh_name("sink") for name in FEEDS}
    for name, topic in topics.items():
        uri = f"kafka://{cluster.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=1"
        cluster.create(name, raw_log.upstream, uri, start_ts=START_TS, config={"sorter": {"run-cuts": "spark"}})
    cluster.assign({"one": [cluster.assigned(name) for name in FEEDS]})
    cluster.start("one", trouble=KILLING)
    pid = cluster.processes["one"].pid

    def printed() -> tuple[str, str, str]:
        """Return what was printed before the first kill of workers, that, and what came after it."""
        return (cluster.folder / "one" / "service.log").read_text(errors="replace").partition("killed of workers")

    cuts = after = 0
    while after < CUTS_AFTER and cuts < CUTS_MAX:
        for part in range(4):
            first = cuts * ROWS + part * ROWS // 4
            raw_log.rows(TABLE, sbtest1_changes(ROWS // 4, START_TS + 1 + 10 * first, first), part % 2)
        cuts += 1
        upto = Ts(START_TS + cuts * STEP)
        raw_log.advance(upto)
        cluster.wait_checkpoints(list(FEEDS), upto, WAIT_S)
        after += "spark job has failed" in printed()[2]
    of_jvm, _, of_workers = printed()
    assert "killed of jvm" in of_jvm and "spark has ended under a cut" in of_jvm, "it was in mid-cut"
    assert "spark job has failed" in of_workers, "it was in mid-cut"
    assert "spark has ended under a cut" not in of_workers, "no JVM was lost with them"
    for name, topic in topics.items():
        status = cluster.own_status(name)
        assert status is None or status.failure is None, "nobody but the service had to run anything again"
        entry = next(entry for entry in cluster.entries() if entry.changefeed_id == name)
        assert (entry.rows_total, entry.spark_rows_total) == (cuts * ROWS, cuts * ROWS)
        assert entry.figures.reason == "forced_by_changefeed"
        assert entry.cpu_s > MOUNTED_CPU_S * entry.rows_total, (
            "its tasks' time is its load, not that of its thread alone"
        )
        commits = rows_of_topic(read_topic(cluster.kafka, topic))
        assert commits == [START_TS + 1 + 10 * row for row in range(cuts * ROWS)]
    assert cluster.processes["one"].pid == pid
    assert cluster.stop("one") == 0


def test_changefeed_that_hangs_in_a_spark_task_is_named_and_its_neighbour_goes_on(
    cluster: ServiceCluster, raw_log: RawLog, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Both have a task at once, on two cores, often in one job."""
    for name, topic in (("neighbour", fresh_name("sink")), ("hanging", fresh_name(HANGS))):
        uri = f"kafka://{cluster.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=1"
        cluster.create(name, raw_log.upstream, uri, start_ts=START_TS, config={"sorter": {"run-cuts": "spark"}})
    cluster.assign({"one": [cluster.assigned(name) for name in ("neighbour", "hanging")]})
    module = "spark.python.daemon.module=tests.support.processes.troubled_daemon"
    options = ["--master", "local[2]", "--event-log", str(tmp_path / "events")]
    for setting in (module, "spark.eventLog.compress=false"):
        options += ["--conf", setting]
    cluster.start("one", *options, trouble=IMPATIENT)
    pid, upto = cluster.processes["one"].pid, Ts(START_TS)

    def is_named() -> bool:
        status = cluster.own_status("hanging")
        return status is not None and status.failure is not None

    def neighbour_goes_on() -> None:
        nonlocal upto
        upto = Ts(upto + STEP)
        raw_log.rows(TABLE, sbtest1_changes(1, upto - 10, upto), 0)
        raw_log.advance(upto)
        cluster.wait_checkpoints(["neighbour"], upto, WAIT_S)

    deadline = time.monotonic() + WAIT_S
    while not is_named():
        assert time.monotonic() < deadline, cluster.logs()
        neighbour_goes_on()
    status = cluster.own_status("hanging")
    assert status is not None and status.failure is not None
    assert (status.failure.code, status.failure.may_heal) == ("sorter.task_hangs", True)
    neighbour_goes_on()
    assert cluster.processes["one"].pid == pid
    assert cluster.stop("one") == 0
    events = "".join(file.read_text() for file in (tmp_path / "events").rglob("*") if file.is_file())
    assert re.search(r'"spark.job.description":"[^"]*default/neighbour: cut \(\d+, \d+\] of \w+\.sbtest1', events)
