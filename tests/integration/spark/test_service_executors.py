"""A sorter service's driver here and its executors on a Spark standalone cluster, whose machines have Python and Spark
and nothing of ours: code and libraries come as the archive of ``tidebus executor-archive``. Under load processes of the
cluster are killed with -9.
"""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from compose.cli import run_cli
from compose.stack.local import Addresses
from tests.support.processes.sorter_service import ServiceCluster
from tests.support.processes.spark_cluster import SparkCluster, make_bare_python, spark_cluster
from tests.support.rawlog.raw_log import START_TS, RawLog, read_topic, recorded
from tests.support.topics.sink_law import rows_of_topic
from tests.support.upstream.steady_load import SteadyLoad, land_rows

FEED, PARTITIONS = "orders", 2
WAIT_S = 600.0
"""JVMs and interpreters start, on a machine that is busy: four minutes were too few at a load of 40."""
BACKLOG_ROWS, MORE_ROWS = 210_000, 500
"""More than one task holds, so jobs of two steps; and a cut that follows."""
QUERY = """
from sorters.core.cut import cut_plan
cut_plan.QUERY_BYTES_MIN = 16 << 20
"""
"""So that a streaming query runs them."""
pytestmark = pytest.mark.timeout(1_800)
NIGHTLY = pytest.mark.skipif("NIGHTLY_CLUSTER" not in os.environ, reason="takes minutes: `make nightly`")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python without any library."""
    return make_bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("archive") / "tidebus-executors.tar.gz"
    assert run_cli(["executor-archive", str(target)]) == 0
    return target


@dataclass
class World:
    """One changefeed, a service that runs it on the cluster, and the load."""

    spark: SparkCluster
    services: ServiceCluster
    log: RawLog
    topic: str
    options: tuple[str, ...]
    checkpoints: Path

    def start(self, service: str, trouble: str = "") -> None:
        self.services.start(service, *self.options, trouble=trouble)

    def reach(self, ts: int) -> None:
        """Wait until the changefeed has all up to a ts, and Spark has written it."""
        self.services.wait_checkpoints([FEED], ts, WAIT_S)

    def assert_all_in_order(self, load: SteadyLoad) -> None:
        self.reach(load.stop())
        assert rows_of_topic(read_topic(self.services.kafka, self.topic)) == load.commits

    def spark_rows(self) -> tuple[int, int]:
        entry = next(entry for entry in self.services.entries() if entry.changefeed_id == FEED)
        return entry.rows_total, entry.spark_rows_total


@pytest.fixture
def workers() -> int:
    """Return how many machines the cluster has, of one executor each."""
    return 2


@pytest.fixture
def world(
    stack: Addresses,
    workers: int,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    bare_python: Path,
    archive: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare_python))
    services = ServiceCluster(stack.kafka, stack.zookeeper, fresh_name("services"), tmp_path)
    log, topic = RawLog(stack.kafka, fresh_name("up")), fresh_name("sink")
    log.snapshot([recorded("sbtest1")[0]])
    log.advance(START_TS)
    uri = f"kafka://{stack.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num={PARTITIONS}"
    dispatch = {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}}
    services.create(FEED, log.upstream, uri, start_ts=START_TS, config=dispatch)
    with spark_cluster(tmp_path / "spark", workers) as spark:
        settings = {
            "spark.executor.memory": "512m",
            "spark.authenticate.secret.file": str(spark.secret_file),
            "spark.archives": f"{archive}#tidebus-executors",
            # A file system of Hadoop's that is not the local one.
            "spark.hadoop.fs.viewfs.mounttable.tidebus.link./kept": (tmp_path / "checkpoints").as_uri(),
        }
        (tmp_path / "checkpoints").mkdir()
        options = ["--master", spark.master, "--checkpoint-dir", "viewfs://tidebus/kept"]
        for key, value in settings.items():
            options += ["--conf", f"{key}={value}"]
        yield World(spark, services, log, topic, tuple(options), tmp_path / "checkpoints")
        services.close()


def kill_executor(world: World) -> None:
    """Kill an executor, and wait until its worker has another one."""
    before = world.spark.executors()
    os.kill(before[0], signal.SIGKILL)
    world.services.wait(
        lambda: len(set(world.spark.executors()) - {before[0]}) >= len(before), "another executor", WAIT_S
    )


def assert_ui_is_for_this_machine_alone(world: World) -> None:
    """Spark binds it to all addresses where nobody says otherwise, and our test's cluster is on loopback altogether."""
    registered = world.services.registered("one")
    assert registered is not None and registered.spark_ui.startswith("http://127.0.0.1:")
    driver = psutil.Process(world.services.processes["one"].pid)
    listening = [
        at.laddr
        for child in (driver, *driver.children(recursive=True))
        for at in child.net_connections("tcp")
        if at.status == psutil.CONN_LISTEN
    ]
    assert {at.ip.removeprefix("::ffff:") for at in listening} == {"127.0.0.1"}
    assert int(registered.spark_ui.rsplit(":", 1)[1]) in {at.port for at in listening}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=NIGHTLY)])
def test_executors_with_nothing_but_the_archive_run_all_cuts_and_lose_none_when_they_and_their_worker_are_killed(
    world: World, workers: int
) -> None:
    """The only worker is not killed: nobody would start it again."""
    world.services.assign({"one": [world.services.assigned(FEED)]})
    world.start("one")
    with SteadyLoad(world.log) as load:
        world.reach(load.ts + 1)
        world.services.wait(lambda: len(world.spark.executors()) == workers, "an executor on each worker", WAIT_S)
        assert_ui_is_for_this_machine_alone(world)
        kill_executor(world)
        world.reach(load.ts + 1)
        for worker in world.spark.workers[1:]:
            os.kill(worker.pid, signal.SIGKILL)
            world.reach(load.ts + 1)
        pid = world.services.processes["one"].pid
        world.assert_all_in_order(load)
    rows, spark_rows = world.spark_rows()
    assert rows == spark_rows > 0, "the driver wrote none"
    status = world.services.own_status(FEED)
    assert status is None or status.failure is None
    assert world.services.processes["one"].pid == pid
    assert world.services.stop("one") == 0


@NIGHTLY
def test_backlog_on_executors_that_are_killed_is_written_whole_and_in_order(world: World) -> None:
    land_rows(world.log, 0, BACKLOG_ROWS)
    land_rows(world.log, BACKLOG_ROWS, MORE_ROWS)
    world.services.assign({"one": [world.services.assigned(FEED)]})
    world.start("one", QUERY)
    with SteadyLoad(world.log, first_row=BACKLOG_ROWS + MORE_ROWS) as load:
        world.services.wait(lambda: bool(world.spark.executors()), "executors", WAIT_S)
        for _ in range(3):
            kill_executor(world)
        world.assert_all_in_order(load)
    assert list(world.checkpoints.glob("**/query/commits/*")), "the query has kept its checkpoint where it was asked to"


@NIGHTLY
def test_master_that_is_killed_and_started_again_costs_the_session_and_no_row(world: World) -> None:
    """It knows neither workers nor driver: workers kill the executors, and the service begins another session."""
    world.services.assign({"one": [world.services.assigned(FEED)]})
    world.start("one")
    with SteadyLoad(world.log) as load:
        world.reach(load.ts + 1)
        world.spark.master_process.kill()
        world.reach(load.ts + 1)
        world.spark.start_master_again()
        world.reach(load.ts + 300)
        world.services.wait(
            lambda: len(world.spark.executors()) == 2, "executors of the master that came again", WAIT_S
        )
        for pid in world.spark.executors():
            os.kill(pid, signal.SIGKILL)
        world.assert_all_in_order(load)


@NIGHTLY
def test_driver_that_is_killed_is_followed_by_another_service_on_the_same_cluster(world: World) -> None:
    world.services.assign({"one": [world.services.assigned(FEED)], "two": []})
    world.start("one")
    world.start("two")
    with SteadyLoad(world.log) as load:
        world.reach(load.ts + 1)
        world.services.kill("one")
        world.services.assign({"one": [], "two": [world.services.assigned(FEED)]})
        world.reach(load.ts + 1)
        world.assert_all_in_order(load)
