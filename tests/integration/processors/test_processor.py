"""The processor as a real process between a real sorter and a real MariaDB, while each of them is killed in turn."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compose.cli import run_cli
from compose.stack.local import Addresses, LocalStack
from compose.stack.mariadb import LocalMariaDb
from consumers.control.changefeeds.store import ChangefeedStore
from consumers.control.cluster.upstream_node import UpstreamNode
from consumers.processors.core.apply.partition import PartitionQueue, start_position
from edges.kafka.clients import kafka_admin
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.changes import Op
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ChangefeedStatus, ZkPaths
from schemas.sink.flow_mark import read_mark
from schemas.sink.position import POSITION_CLASS_AT, PositionClass
from schemas.sink.topic import PARTITIONS
from tests.support.control.lasting_session import lasting_session
from tests.support.control.served_bus import places_of, served_bus
from tests.support.database.apply import rows, run_sql
from tests.support.database.mariadb import mariadb as mariadb
from tests.support.database.mariadb import started_or_skip
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, Change, RawLog, read_topic, recorded, row_key, sbtest1_changes
from tests.support.recorded.recorded_ticdc import recorded_ticdc

TABLE = 114
ROUND_ROWS = 1500
PATIENCE_S = 240.0


@dataclass
class Processors:
    """Processes of ``tidebus processor`` for one changefeed."""

    addresses: Addresses
    changefeed_id: str
    log: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "compose.cli", "processor", "--changefeed", self.changefeed_id]
        command += ["--kafka", self.addresses.kafka, "--zookeeper", self.addresses.zookeeper]
        with self.log.open("ab") as log:
            process = subprocess.Popen([*command, "--cluster", self.changefeed_id], stdout=log, stderr=log)
        self.running.append(process)
        return process

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[tuple[LocalStack, LocalMariaDb]]:
    """A broker, a ZooKeeper and a MariaDB of the test's own: they are killed."""
    with (
        started_or_skip(LocalMariaDb(data=tmp_path / "mariadb")) as server,
        LocalStack(data=tmp_path / "stack", given=Addresses(schema_registry="none")) as stack,
    ):
        yield stack, server


def _status(addresses: Addresses, changefeed_id: str) -> ChangefeedStatus | None:
    with lasting_session(addresses.zookeeper_access) as session:
        return ChangefeedStore(session, ZkPaths(changefeed_id)).status(changefeed_id)


def _wait_applied(addresses: Addresses, processors: Processors, ts: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    status: ChangefeedStatus | None = None
    while time.monotonic() < deadline:
        status = _status(addresses, processors.changefeed_id)
        assert status is None or status.failure is None, (status, processors.tail())
        if status is not None and status.checkpoint_ts >= ts:
            return
        time.sleep(0.3)
    raise AssertionError(f"{status}\n{processors.tail()}")


def _check_marks(kafka: str, rows_least: int) -> None:
    """Each watermark of the changefeed's topic says which rows stand before it, and that is true."""
    topics = kafka_admin({"bootstrap.servers": kafka}).list_topics(timeout=20).topics
    (topic,) = (name for name in topics if name.startswith("tidebus.sink."))
    books = {number: PartitionQueue(number, start_position(START_TS), 0) for number in range(PARTITIONS)}
    rows_told = 0
    for record in read_topic(kafka, topic):
        queue = books[record.partition]
        queue.feed(position=record.position, offset=record.offset, key=record.key, value=record.value or b"")
        while queue.claim(1000, bytes_max=1 << 24) is not None:
            queue.arrived()
        if record.position[POSITION_CLASS_AT] == PositionClass.WATERMARK:
            mark = read_mark(record.value or b"")
            assert mark is not None
            rows_told += mark.rows.count
    assert rows_told >= rows_least
    # One writer, although its process was killed: only where each partition begins, and where cuts differ, is nothing.
    assert sum(queue.flow.proven for queue in books.values()) > sum(queue.flow.unproven for queue in books.values())


@pytest.mark.timeout(900)
def test_processor_and_all_around_it_killed_in_turn_applies_every_row_once(
    parts: tuple[LocalStack, LocalMariaDb], fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Outside safe mode a row that is written twice is a duplicate key, which ends the changefeed."""
    stack, server = parts
    log = RawLog(stack.addresses.kafka, fresh_name("up"))
    log.snapshot([recorded("sbtest1")[0]])
    run_sql(
        server,
        "CREATE DATABASE sb",
        "CREATE TABLE sb.sbtest1 (id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL)",
    )
    sorter = Sorter(stack.addresses.kafka, stack.addresses.zookeeper, tmp_path / "sorter", fresh_name("feed"))
    processors = Processors(stack.addresses, sorter.changefeed_id, tmp_path / "processor.log")
    written: dict[int, bytes] = {}
    ts = int(START_TS)

    def write_round() -> None:
        nonlocal ts
        inserts = sbtest1_changes(ROUND_ROWS, ts + 1, len(written))
        updated = [
            Change(ts + 20_000 + 10 * at, row_key(TABLE, at), recorded("sbtest1")[1][at].value2, value)
            for at, value in list(written.items())[:100]
        ]
        written.update({len(written) + at: change.value for at, change in enumerate(inserts)})
        written.update({at: change.value for at, change in enumerate(updated)})
        for start in range(0, ROUND_ROWS, 250):
            log.rows(TABLE, inserts[start : start + 250], start // 250 % 2)
        if updated:
            log.rows(TABLE, updated, 0)
        ts += 30_000
        log.advance(ts)

    try:
        sorter.create(log.upstream, server.uri("worker-count=2"), start_ts=START_TS)
        write_round()
        sorter.start()
        first = processors.start()
        _wait_applied(stack.addresses, processors, ts)

        write_round()
        first.kill()  # -9
        second = processors.start()
        write_round()
        assert server.child is not None
        server.child.kill()
        server.restart()
        _wait_applied(stack.addresses, processors, ts)

        write_round()
        sorter.kill()
        stack.children["kafka"].kill()
        stack.children["kafka"].start()
        stack.wait_ready("kafka")
        sorter.start()
        write_round()
        _wait_applied(stack.addresses, processors, ts)
        assert second.poll() is None
        _check_marks(stack.addresses.kafka, len(written))
        status = _status(stack.addresses, processors.changefeed_id)
        assert status is not None and status.windows_proven > status.windows_unproven > 0
    finally:
        processors.close()
        sorter.close()
    assert rows(server, "SELECT COUNT(*), MIN(id), MAX(id) FROM sb.sbtest1") == [(len(written), 0, len(written) - 1)]
    assert rows(server, "SELECT COUNT(DISTINCT revision) FROM tidebus.position") == [(1,)]


def test_changefeed_of_a_ticdc_that_wrote_above_its_checkpoint_is_taken_over_by_migrate(
    stack: Addresses, mariadb: LocalMariaDb, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """TiCDC has written 300 rows and a delete, 200 rows of them below its checkpoint; 100 more come later."""
    run_sql(
        mariadb,
        "CREATE DATABASE sb",
        "CREATE TABLE sb.sbtest1 (id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL)",
        "INSERT INTO sb.sbtest1 SELECT seq, 0, 'of TiCDC', '' FROM sb.seq_0_to_299 WHERE seq <> 7",
    )
    log, name, checkpoint_ts = RawLog(stack.kafka, fresh_name("up")), fresh_name("moved"), int(START_TS) + 5_000
    log.snapshot([recorded("sbtest1")[0]])
    changes = sbtest1_changes(400, int(START_TS) + 3_001)  # ten ts apart: the 200th is just below the checkpoint
    log.rows(TABLE, changes[:200])
    log.rows(TABLE, [Change(checkpoint_ts + 1, row_key(TABLE, 7), old_value=changes[7].value, op=Op.DELETE)], 1)
    log.rows(TABLE, changes[200:])
    log.advance(last_ts := int(START_TS) + 20_000)
    sorter = Sorter(stack.kafka, stack.zookeeper, tmp_path / "sorter", name)
    processors = Processors(stack, name, tmp_path / "processor.log")
    try:
        with RegionServer(RegionServerOptions()) as upstream, recorded_ticdc("classic") as ticdc:
            shown: dict[str, Any] = {"id": name, "sink_uri": mariadb.uri("worker-count=2"), "config": {}}
            shown |= {"upstream_id": upstream.options.cluster_id, "checkpoint_ts": checkpoint_ts}
            ticdc.infos[name] = {**ticdc.infos["plain"], **shown}
            ticdc.listed = [{**ticdc.listed[0], "id": name}]
            UpstreamNode(sorter.session, sorter.paths, UpstreamId(log.upstream)).write({"epoch": 1})
            bus = places_of(upstream.pd_address, stack.kafka, stack.zookeeper, name, log.upstream)
            with served_bus(sorter.session, bus) as address:
                assert (
                    run_cli(["migrate", "--ticdc", ticdc.url, "--server", address, "--take-over", "--no-confirm"]) == 0
                )
            assert ticdc.posted == [f"pause {name}"]
        sorter.start()
        processors.start()
        _wait_applied(stack, processors, last_ts)
        # What is above the checkpoint came again, over what was there; what is below it did not come.
        assert rows(mariadb, "SELECT COUNT(*), MAX(id), SUM(id = 7) FROM sb.sbtest1") == [(399, 399, 0)]
        assert rows(mariadb, "SELECT COUNT(*), MAX(id) FROM sb.sbtest1 WHERE c = 'of TiCDC'") == [(199, 199)]
    finally:
        processors.close()
        sorter.close()
        run_sql(mariadb, "DROP DATABASE sb")
