"""A sorter service's driver here and its executors on YARN, whose machines have Python and Spark and nothing of ours.

Executors, and what asks for them, are killed with -9 under load.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from compose.cli import run_cli
from compose.ports import LOOPBACK
from compose.stack.jars import pyspark_jars
from compose.stack.local import Addresses
from tests.support.processes.sorter_service import ServiceCluster
from tests.support.processes.spark_cluster import make_bare_python
from tests.support.processes.yarn_cluster import yarn_cluster
from tests.support.rawlog.raw_log import START_TS, RawLog, read_topic, recorded
from tests.support.topics.sink_law import rows_of_topic
from tests.support.upstream.steady_load import SteadyLoad

FEED = "orders"
WAIT_S = 600.0
pytestmark = [
    pytest.mark.timeout(1_800),
    pytest.mark.skipif("NIGHTLY_CLUSTER" not in os.environ, reason="takes minutes: `make nightly`"),
]


def test_executors_on_yarn_run_all_cuts_and_lose_none_when_they_and_their_master_are_killed(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "tidebus-executors.tar.gz"
    assert run_cli(["executor-archive", str(archive)]) == 0
    services = ServiceCluster(stack.kafka, stack.zookeeper, fresh_name("services"), tmp_path)
    log, topic = RawLog(stack.kafka, fresh_name("up")), fresh_name("sink")
    log.snapshot([recorded("sbtest1")[0]])
    log.advance(START_TS)
    uri = f"kafka://{stack.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=2"
    services.create(FEED, log.upstream, uri, start_ts=START_TS)
    with yarn_cluster(tmp_path / "yarn") as yarn:
        monkeypatch.setenv("PYSPARK_PYTHON", str(make_bare_python(tmp_path / "bare")))
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
        settings = {
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.archives": f"{archive}#tidebus-executors",
            "spark.yarn.jars": f"local:{pyspark_jars()}/*",
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": LOOPBACK,
            "spark.executorEnv.SPARK_LOCAL_IP": LOOPBACK,
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]

        def wait_executors(gone: set[int]) -> list[int]:
            running: list[int] = []

            def is_there() -> bool:
                running[:] = yarn.executors()
                return len(set(running) - gone) == 2

            services.wait(is_there, "two executors", WAIT_S)
            return running

        services.assign({"one": [services.assigned(FEED)]})
        services.start("one", "--master", "yarn", *options)
        try:
            with SteadyLoad(log) as load:
                services.wait_checkpoints([FEED], load.ts + 1, WAIT_S)
                killed = wait_executors(set())[0]
                os.kill(killed, signal.SIGKILL)
                services.wait_checkpoints([FEED], load.ts + 1, WAIT_S)
                before = set(wait_executors({killed}))
                (master,) = yarn.application_masters()
                os.kill(master, signal.SIGKILL)
                services.wait_checkpoints([FEED], load.ts + 300, WAIT_S)
                wait_executors(before)
                services.wait_checkpoints([FEED], load.stop(), WAIT_S)
                assert rows_of_topic(read_topic(stack.kafka, topic)) == load.commits
            entry = next(entry for entry in services.entries() if entry.changefeed_id == FEED)
            assert entry.rows_total == entry.spark_rows_total > 0, "the driver wrote none"
            assert services.stop("one") == 0
        finally:
            services.close()
