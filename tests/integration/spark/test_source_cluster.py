"""The Spark source on a standalone cluster that lets only those in who know its secret: a program on machines with
Spark, a bare Python and ``tidebus executor-archive``, of which one is killed while it reads.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose.cli import run_cli
from compose.stack.children import Nursery
from compose.stack.local import Addresses
from tests.support.processes.bus import wait_until
from tests.support.processes.source_driver import SLOW_S, SourceDriver
from tests.support.processes.spark_cluster import SparkCluster, make_bare_python, spark_cluster
from tests.support.rawlog.raw_log import START_TS, RawLog, recorded, sbtest1_changes

ROWS, ROWS_PER_RECORD, ROWS_MAX = 3_000, 5, 1_200
"""600 raw records: five tasks for a read, and two for a batch of the stream."""
WAIT_S = 600.0
pytestmark = [
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(
        os.environ.get("NIGHTLY_SOURCE") != "1", reason="takes minutes: NIGHTLY_SOURCE=1, as `make nightly`"
    ),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    bare = make_bare_python(tmp_path)
    with spark_cluster(tmp_path / "spark", path=f"{bare.parent}{os.pathsep}{os.environ['PATH']}") as cluster:
        yield cluster


@pytest.fixture
def driver(cluster: SparkCluster, tmp_path: Path) -> SourceDriver:
    archive = tmp_path / "tidebus-executors.tar.gz"
    assert run_cli(["executor-archive", str(archive)]) == 0
    return SourceDriver(tmp_path / "user", cluster, archive)


@pytest.fixture
def options(stack: Addresses, fresh_name: Callable[[str], str]) -> dict[str, str]:
    log = RawLog(stack.kafka, fresh_name("up"), partitions=3)
    log.snapshot([recorded("sbtest1")[0]])
    changes = sbtest1_changes(ROWS, START_TS + 10)
    for number, at in enumerate(range(0, ROWS, ROWS_PER_RECORD)):
        part = changes[at : at + ROWS_PER_RECORD]
        log.rows(recorded("sbtest1")[0]["id"], part, number % log.partitions)
        if number % 50 == 49:
            log.advance(part[-1].commit_ts)
    return {"kafka": log.kafka, "raw": log.upstream, "table": "sb.sbtest1", "startingTs": "earliest"}


def expected() -> Counter[tuple[int, int]]:
    return Counter((change.commit_ts, number) for number, change in enumerate(sbtest1_changes(ROWS, START_TS + 10)))


def written(driver: SourceDriver, *, stream: bool) -> Counter[tuple[int, int]]:
    return Counter((row["_commit_version"], row["id"]) for row in driver.rows(stream=stream))


def kill_a_worker_in_the_middle(driver: SourceDriver) -> None:
    """Kill the second machine, its executor and Python with it, while tasks on it hand out rows."""
    wait_until(lambda: any("work-2" in folder for folder in driver.worked_in()), WAIT_S, "a task on the second machine")
    os.killpg(driver.cluster.workers[1].pid, signal.SIGKILL)


def test_source_on_a_cluster_reads_and_follows_each_change_once_while_a_machine_is_killed(
    driver: SourceDriver, options: dict[str, str]
) -> None:
    with Nursery() as nursery:
        reading = driver.start(nursery, options)
        wait_until(lambda: not reading.is_running(), WAIT_S, "the read's end")
        assert written(driver, stream=False) == expected(), reading.log.read_text()[-3000:]
        assert {"work-1", "work-2"} <= {word for folder in driver.worked_in() for word in Path(folder).parts}
        driver.forget_begun()

        following = driver.start(nursery, {**options, "maxRowsPerBatch": str(ROWS_MAX)}, stream=True, slow_s=SLOW_S)
        kill_a_worker_in_the_middle(driver)
        wait_until(lambda: not following.is_running(), WAIT_S, "the stream's end")
    assert written(driver, stream=True) == expected(), following.log.read_text()[-3000:]
    assert driver.batches() >= ROWS // ROWS_MAX
