"""The sorter's driver here and its executors on a Spark standalone cluster, one of whose workers dies in mid-batch."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from compose.stack.local import Addresses
from schemas.sink.position import PositionClass, decode_position
from sorters.spark.session import zip_code
from tests.support.processes.sorter_process import Sorter
from tests.support.processes.spark_cluster import SparkCluster, spark_cluster
from tests.support.rawlog.raw_log import (
    START_TS,
    RawLog,
    SinkRecord,
    read_topic,
    recorded,
    sbtest1_changes,
    wait_for_records,
)

TABLE, PARTITIONS = 114, 4
ROWS, ROWS_PER_RECORD = 160_000, 32
"""In more raw records than the driver would try by itself."""
MORE_ROWS = 320
"""Of the cut that follows."""
QUERY = """
from sorters.core.cut import cut_plan
cut_plan.QUERY_BYTES_MIN = 16 << 20
"""
"""So that a streaming query runs them."""
WAIT_S = 400.0
"""Five JVMs start, and one batch runs almost twice: half a minute on two idle cores."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path / "spark") as cluster:
        yield cluster


@pytest.fixture
def sorter(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path, cluster: SparkCluster
) -> Iterator[Sorter]:
    sorter = Sorter(
        stack.kafka,
        stack.zookeeper,
        tmp_path / "sorter",
        fresh_name("feed"),
        master=cluster.master,
        checkpoint_dir=(tmp_path / "checkpoints").as_uri(),
        spark_conf=(
            ("spark.driver.host", "127.0.0.1"),
            ("spark.driver.bindAddress", "127.0.0.1"),
            ("spark.executor.memory", "512m"),
            ("spark.authenticate.secret.file", str(cluster.secret_file)),
        ),
    )
    yield sorter
    sorter.close()


def tries(records: list[SinkRecord]) -> list[list[SinkRecord]]:
    """Divide a partition's records where their order starts over: a task that runs again writes from its beginning."""
    attempts: list[list[SinkRecord]] = []
    for record in records:
        if not attempts or record.position <= attempts[-1][-1].position:
            attempts.append([])
        attempts[-1].append(record)
    return attempts


def assert_secret_is_shown_nowhere(cluster: SparkCluster) -> None:
    """Look through all command lines, executors' among them, and all that master, workers and executors have logged."""
    lines = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            lines.append(" ".join(process.cmdline()))
    assert any("CoarseGrainedExecutorBackend" in line for line in lines), "executors run now"
    assert not [line for line in lines if cluster.secret in line]
    files = cluster.secret_file.parent.rglob("*")
    logs = [file for file in files if file.name in ("stdout", "stderr") or file.suffix == ".log"]
    assert len(logs) > 3
    assert not [file for file in logs if cluster.secret in file.read_text(errors="replace")]


def test_sorter_on_a_cluster_whose_worker_is_killed_in_mid_batch_loses_nothing_and_repeats_the_same(
    stack: Addresses, sorter: Sorter, cluster: SparkCluster, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    raw_log, topic = RawLog(stack.kafka, fresh_name("up")), fresh_name("sink")
    raw_log.snapshot([recorded("sbtest1")[0]])
    changes = sbtest1_changes(ROWS + MORE_ROWS, START_TS + 1)
    for first, end in ((0, ROWS), (ROWS, len(changes))):
        for start in range(first, end, ROWS_PER_RECORD):
            raw_log.rows(TABLE, changes[start : start + ROWS_PER_RECORD], (start // ROWS_PER_RECORD) % 2)
        raw_log.advance(START_TS + 10 * end)
    end_ts = START_TS + 10 * len(changes)
    uri = f"kafka://{stack.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num={PARTITIONS}"
    dispatch = {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}}
    sorter.create(raw_log.upstream, uri, start_ts=START_TS, config=dispatch)
    sorter.trouble = QUERY
    sorter.start()
    wait_for_records(stack.kafka, topic, 1_000, WAIT_S)
    cluster.workers[0].kill()
    at_kill = sorter.status()
    assert at_kill is None or at_kill.checkpoint_ts == START_TS, "the batch was over before the kill: nothing is shown"
    assert_secret_is_shown_nowhere(cluster)  # which takes as long as the batch
    status = sorter.wait_checkpoint(end_ts, WAIT_S)
    assert (status.state, status.error) == ("normal", None), "Spark ran the tasks again elsewhere"
    # The query keeps its files where it was asked to.
    folder = tmp_path / "checkpoints" / sorter.changefeed_id / "default" / sorter.changefeed_id
    assert (folder / "query" / "commits").is_dir()
    few = sbtest1_changes(5, end_ts + 1, len(changes))
    raw_log.rows(TABLE, few)
    raw_log.advance(end_ts + 10 * ROWS)
    sorter.wait_checkpoint(end_ts + 10 * ROWS, WAIT_S)
    assert sorter.stop() == 0
    changes += few
    records = read_topic(stack.kafka, topic)
    commits: list[int] = []
    for partition in range(PARTITIONS):
        *before, whole = tries([record for record in records if record.partition == partition])
        for part in before:
            same = [(record.key, record.value, record.position) for record in part]
            assert same == [(record.key, record.value, record.position) for record in whole[: len(part)]]
        positions = [decode_position(record.position) for record in whole]
        commits += [position.commit_ts for position in positions if position.position_class is PositionClass.ROW]
        assert positions[-1].position_class is PositionClass.WATERMARK
    assert sorted(commits) == [change.commit_ts for change in changes], "every row once in what stands last"


def test_code_that_is_shipped_to_executors_imports_without_the_checkout(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    program = (
        f"import sys; sys.path = [{str(zip_code(tmp_path))!r}] + [path for path in sys.path if path != {root!r}]; "
        "sys.meta_path = [finder for finder in sys.meta_path if 'editable' not in repr(finder)]; "
        "import sorters.spark.tasks.two_steps, sorters.core.rows.pipeline, schemas.tidb.table; "
        "print(sorters.spark.tasks.two_steps.__file__, schemas.tidb.table.__file__)"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("tidebus-code.zip") == 2
