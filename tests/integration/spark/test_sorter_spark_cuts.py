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
KILLING = """
import os, signal, threading
import psutil
from sorters.spark.jobs.task_jobs import TaskJobs
answers, calls, failures = TaskJobs.answers, [0], [0]
def victims(jobs):
    jvm = jobs.context._gateway.proc.pid
    {victims}
def kill(jobs, waits):
    if waits.is_set() and not failures[0]:
        for pid in victims(jobs):
            print("killed", pid, flush=True)
            os.kill(pid, signal.SIGKILL)
def watched(self, *args, **more):
    calls[0] += 1
    waits = threading.Event()
    waits.set()
    if calls[0] >= {first}:  # at each call, until one has met a cut that waits for its answers
        threading.Timer({after_s}, kill, (self, waits)).start()
    try:
        return answers(self, *args, **more)
    except BaseException:
        failures[0] += 1
        raise
    finally:
        waits.clear()
TaskJobs.answers = watched
"""
JVM = KILLING.format(victims="return [jvm]", first=4, after_s=0.02)
WORKERS = KILLING.format(
    victims="return [worker.pid for daemon in psutil.Process(jvm).children() for worker in daemon.children()]",
    first=4,
    after_s=0.05,
)
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


@pytest.mark.parametrize("trouble", [JVM, WORKERS], ids=["jvm", "workers"])
def test_kill_in_mid_cut_leaves_each_row_once_in_order_and_the_service_alive(
    trouble: str, cluster: ServiceCluster, raw_log: RawLog, fresh_name: Callable[[str], str]
) -> None:
    topics = {name: fresh_name("sink") for name in FEEDS}
    for name, topic in topics.items():
        uri = f"kafka://{cluster.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=1"
        cluster.create(name, raw_log.upstream, uri, start_ts=START_TS, config={"sorter": {"run-cuts": "spark"}})
    cluster.assign({"one": [cluster.assigned(name) for name in FEEDS]})
    cluster.start("one", trouble=trouble)
    pid = cluster.processes["one"].pid
    cuts = 8
    for cut in range(cuts):
        for part in range(4):
            first = cut * ROWS + part * ROWS // 4
            raw_log.rows(TABLE, sbtest1_changes(ROWS // 4, START_TS + 1 + 10 * first, first), part % 2)
        upto = Ts(START_TS + (cut + 1) * STEP)
        raw_log.advance(upto)
        cluster.wait_checkpoints(list(FEEDS), upto, WAIT_S)
    printed = (cluster.folder / "one" / "service.log").read_text(errors="replace")
    assert "killed " in printed
    assert ("spark has ended under a cut" if trouble is JVM else "spark job has failed") in printed, "it was in mid-cut"
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
