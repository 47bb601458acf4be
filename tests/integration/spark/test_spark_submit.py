"""A sorter service whose JVM ``spark-submit`` starts: it runs cuts by Spark, listens at the loopback address alone,
and nothing of it outlives that JVM.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from compose.stack.jars import cached_spark_jars
from compose.stack.local import Addresses
from tests.support.processes.sorter_service import ServiceCluster
from tests.support.rawlog.raw_log import START_TS, RawLog, read_topic, recorded
from tests.support.topics.sink_law import rows_of_topic
from tests.support.upstream.steady_load import SteadyLoad

ROOT = Path(__file__).parents[3]
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
FEED, WAIT_S = "orders", 600.0


@pytest.fixture
def services(stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[ServiceCluster]:
    services = ServiceCluster(stack.kafka, stack.zookeeper, fresh_name("services"), tmp_path)
    yield services
    services.close()


@pytest.mark.skipif("NIGHTLY_CLUSTER" not in os.environ, reason="takes minutes: `make nightly`")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("address", "number"), [("127.0.0.1", signal.SIGTERM), (None, signal.SIGKILL)])
def test_a_service_under_spark_submit_runs_cuts_by_spark_and_ends_with_its_jvm(
    services: ServiceCluster,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    address: str | None,
    number: signal.Signals,
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    if address is not None:
        monkeypatch.setenv("SPARK_LOCAL_IP", address)
    log, topic = RawLog(services.kafka, fresh_name("up")), fresh_name("sink")
    log.snapshot([recorded("sbtest1")[0]])
    log.advance(START_TS)
    uri = f"kafka://{services.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=1"
    services.create(FEED, log.upstream, uri, start_ts=START_TS)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    jars = ",".join(map(str, cached_spark_jars()))
    launcher = [
        str(SPARK_SUBMIT),
        "--master",
        "local[2]",
        "--jars",
        jars,
        str(ROOT / "examples/spark/sorter_service.py"),
    ]
    services.assign({"one": [services.assigned(FEED)]})
    services.start("one", "--master", "local[2]", "--run-cuts", "spark", launcher=launcher)
    with SteadyLoad(log) as load:
        services.wait_checkpoints([FEED], START_TS + 1, WAIT_S)
        upto = load.stop()
    services.wait_checkpoints([FEED], upto, WAIT_S)
    assert rows_of_topic(read_topic(services.kafka, topic)) == load.commits
    entry = services.newest()[FEED]
    assert entry.spark_rows_total == entry.rows_total > 0
    said = services.registered("one")
    assert said is not None
    assert said.spark_ui.startswith("http://127.0.0.1:") if address else said.spark_ui == "", said
    process = services.processes.pop("one")
    jvm = psutil.Process(process.pid)
    heard_at = {each.laddr.ip for each in jvm.net_connections() if each.status == psutil.CONN_LISTEN}
    assert heard_at and heard_at <= {"127.0.0.1", "::ffff:127.0.0.1"}, heard_at
    ours = jvm.children(recursive=True)
    os.kill(process.pid, number)
    process.wait(120.0)
    _, alive = psutil.wait_procs(ours, timeout=120.0)
    assert not alive, services.logs()
