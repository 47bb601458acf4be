"""Several real processors of one changefeed share its partitions, and are killed, frozen and stopped one by one.

Tables are written outside safe mode: a row that is written twice is a duplicate key, which fails the changefeed. Each
DDL adds an index without a name: run twice it leaves two. When a syncpoint is written, a trigger of the server counts
what the tables hold.
"""

import bisect
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.begin import DatabaseSides
from consumers.processors.processor import TOLD, ProcessorInputs, ProcessorOptions
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ids import Ts, UpstreamId, compose_ts
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.position import RowOp
from tests.integration.processors.test_storage_sink import folder_files
from tests.support.database.apply import rows, run_sql
from tests.support.database.mariadb import mariadb
from tests.support.processes.processors import Processors, processors_of
from tests.support.topics.sink_log import SinkLog, form
from tests.support.topics.storage_lives import check_files
from tests.support.topics.storage_topic import PARTITIONS as FILE_PARTITIONS
from tests.support.topics.storage_topic import START_TS, topic_of

__all__ = ["mariadb"]

PARTITIONS = 6
ROUND_ROWS = 40
SYNCPOINT_S = 30
QUERY = "ALTER TABLE `t0` ADD INDEX (`v`)"


@dataclass
class Writer:
    """What a sorter would write, in rounds."""

    processors: Processors
    log: SinkLog = field(default_factory=lambda: SinkLog(PARTITIONS))
    clock_s: int = 0
    row_ts: list[int] = field(default_factory=list)
    """Of each id, in every table."""
    ddls: int = 0
    produced: int = 0

    @property
    def ts(self) -> Ts:
        return compose_ts(1000 * self.clock_s)

    def write(self, *, ddl: bool = False) -> int:
        """Write a round of rows to every partition, in its middle perhaps a DDL to all; return its last ts."""
        for number in range(ROUND_ROWS):
            self.clock_s += 1
            if ddl and number == ROUND_ROWS // 2:
                self.log.ddl(self.ts, DdlType.ADD_INDEX, "d.t0", QUERY, pre="d.t0")
                self.ddls += 1
                self.clock_s += 1
            for part in range(PARTITIONS):
                row = f"({len(self.row_ts)},{self.clock_s})"
                table = form(f"d.t{part}", "id", "v")
                self.log.rows(part, table, self.ts, (RowOp.INSERT, str(len(self.row_ts)), row))
            self.row_ts.append(self.ts)
        self.clock_s += 1
        self.log.watermark(self.ts)
        self.processors.produce(
            [record for records in self.log.records.values() for record in records[self.produced :]]
        )
        self.produced = len(self.log.records[0])
        return self.ts


@pytest.fixture
def writer(
    stack: Addresses, mariadb: LocalMariaDb, fresh_name: Callable[[str], str], tmp_path: Path
) -> Iterator[Writer]:
    run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
    run_sql(mariadb, *(f"CREATE TABLE d.t{n} (id INT PRIMARY KEY, v INT)" for n in range(PARTITIONS)))
    _count_at_syncpoints(mariadb)
    info = ChangefeedInfo(
        changefeed_id=fresh_name("share"),
        upstream=UpstreamId("u"),
        sink_uri=mariadb.uri("worker-count=4"),
        config={"enable-sync-point": True, "sync-point-interval": f"{SYNCPOINT_S}s"},
        start_ts=Ts(1),
    )
    with processors_of(stack, info, PARTITIONS, tmp_path / "processors.log") as processors:
        yield Writer(processors)
    run_sql(mariadb, "DROP DATABASE IF EXISTS d", "DROP DATABASE IF EXISTS tidb_cdc")


def _count_at_syncpoints(mariadb: LocalMariaDb) -> None:
    """Keep in ``d.seen`` what each table holds while a syncpoint is written."""
    run_sql(
        mariadb,
        "DROP DATABASE IF EXISTS tidb_cdc",
        "CREATE DATABASE tidb_cdc",
        "CREATE TABLE tidb_cdc.syncpoint_v1 (ticdc_cluster_id VARCHAR(255), changefeed VARCHAR(255),"
        " primary_ts VARCHAR(18), secondary_ts VARCHAR(18), created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,"
        " PRIMARY KEY (changefeed, primary_ts))",
        "CREATE TABLE d.seen (primary_ts BIGINT, table_name VARCHAR(9), count BIGINT)",
        "CREATE TRIGGER tidb_cdc.counts AFTER INSERT ON tidb_cdc.syncpoint_v1 FOR EACH ROW INSERT INTO d.seen "
        + " UNION ALL ".join(f"SELECT NEW.primary_ts, 't{n}', COUNT(*) FROM d.t{n}" for n in range(PARTITIONS)),
    )


@pytest.mark.timeout(900)
def test_processors_share_partitions_and_apply_every_row_once_whoever_is_lost(
    writer: Writer, mariadb: LocalMariaDb
) -> None:
    of = writer.processors
    first = of.start()
    of.wait_applied(writer.write(ddl=True))
    second, third = of.start(), of.start()
    of.wait_spread(first, second, third)
    of.wait_applied(writer.write(ddl=True))

    # One that only applies is killed, the other is frozen beyond its session: the leader has all.
    assert of.of(of.wait_spread(first, second, third)[0]) is first
    second.kill()
    third.send_signal(signal.SIGSTOP)
    of.wait_applied(writer.write(ddl=True))
    of.wait_spread(first)
    third.send_signal(signal.SIGCONT)  # what it read and would apply now is not its any more
    of.wait_spread(first, third)
    of.wait_applied(writer.write())

    # The leader is killed in the middle of a DDL, which waits for a lock on its table.
    with _kept_from_altering(mariadb, "d.t0"):
        last_ts = writer.write(ddl=True)
        altering = "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'ALTER%'"
        of.wait(lambda: bool(rows(mariadb, altering)))
        first.kill()
        fourth = of.start()
        of.wait_spread(third, fourth)
        assert of.applied_ts() < last_ts
    of.wait_applied(last_ts)

    # The leader is asked to stop: it hands the lead and its partitions over, and ends.
    leader = of.of(of.wait_spread(third, fourth)[0])
    stays = fourth if leader is third else third
    leader.send_signal(signal.SIGTERM)
    of.wait_applied(writer.write(ddl=True))
    assert leader.wait(60) == TOLD
    of.wait_spread(stays)
    of.wait_applied(writer.write())
    stays.send_signal(signal.SIGTERM)
    assert stays.wait(60) == TOLD
    assert "run failed" not in of.log_file.read_text()
    _check_tables(writer, mariadb)


def _check_tables(writer: Writer, mariadb: LocalMariaDb) -> None:
    written = len(writer.row_ts)
    for part in range(PARTITIONS):
        counts = rows(mariadb, f"SELECT COUNT(*), MIN(id), MAX(id) FROM d.t{part}")
        assert counts == [(written, 0, written - 1)]
    assert len(rows(mariadb, "SHOW INDEX FROM d.t0")) == 1 + writer.ddls
    seen = rows(mariadb, "SELECT primary_ts, table_name, count FROM d.seen")
    syncpoints = [compose_ts(1000 * at_s) for at_s in range(SYNCPOINT_S, writer.clock_s + 1, SYNCPOINT_S)]
    expected = [
        (int(ts), f"t{part}", bisect.bisect_right(writer.row_ts, ts)) for ts in syncpoints for part in range(PARTITIONS)
    ]
    assert sorted(seen) == sorted(expected)


@contextmanager
def _kept_from_altering(server: LocalMariaDb, table: str) -> Iterator[None]:
    connection = server.connect()
    try:
        connection.begin()
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {table}")
        yield
        connection.rollback()
    finally:
        connection.close()


def test_leader_that_has_no_partition_reads_a_ddl_where_another_stands_at_it(writer: Writer) -> None:
    writer.write(ddl=True)
    offset = next(record.offset for record in writer.log.records[2] if record.key is None)
    of = writer.processors
    options = ProcessorOptions(
        changefeed_id=of.info.changefeed_id, kafka=of.addresses.kafka_access, zookeeper=of.addresses.zookeeper_access
    )
    config = load_changefeed(of.info.sink_uri, of.info.config)
    sides = DatabaseSides(ProcessorInputs(options=options, info=of.info, config=config, stopped=lambda: False))
    with closing(sides.source):
        mark = sides.read_ddl({2: offset, 4: 10**6})
    assert (mark.ddl.query, mark.position) == (QUERY, writer.log.records[2][offset].position)


@pytest.mark.timeout(600)
def test_processors_share_a_folder_and_show_every_line_once_whoever_is_lost(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, meant, last_ts = topic_of(random.Random(3))
    info = ChangefeedInfo(
        changefeed_id=fresh_name("files"),
        upstream=UpstreamId("u"),
        sink_uri=f"file://{tmp_path}/out?protocol=csv&flush-interval=2s",
        config={"sink": {"file-index-digit": 6, "date-separator": "none", "csv": {}}},
        start_ts=START_TS,
    )
    with processors_of(stack, info, FILE_PARTITIONS, tmp_path / "processors.log") as of:
        first, second = of.start(), of.start()
        of.wait_spread(first, second)
        of.produce([record for records in topic.values() for record in records[: len(records) // 2]])
        leader = of.of(next(share for share in of.shares() if share.is_leader))
        stays = second if leader is first else first
        leader.send_signal(signal.SIGSTOP)
        of.produce([record for records in topic.values() for record in records[len(records) // 2 :]])
        of.wait_applied(last_ts)
        leader.send_signal(signal.SIGCONT)
        of.wait_spread(first, second)
        for process in (leader, stays):
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == TOLD
    check_files(folder_files(tmp_path / "out"), meant, last_ts)
