"""Several real processors of one changefeed share its partitions, and are killed, frozen and stopped one by one.

Tables are written outside safe mode: a row that is written twice is a duplicate key, which fails the changefeed. Each
DDL adds an index without a name: run twice it leaves two.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
import pytest
from confluent_kafka import Producer

from compose.stack.local import Addresses
from compose.stack.mariadb import LocalMariaDb
from consumers.processor_board import ProcessorBoard
from consumers.processor_nodes import Share, decode_shares
from consumers.zookeeper import Session
from schemas.changefeed import ChangefeedInfo, ZkPaths, encode_changefeed_info
from schemas.ids import Ts, UpstreamId
from schemas.position import POSITION_HEADER, RowOp
from schemas.sink_topic import sink_topic
from schemas.tidb.ddl_job import DdlType
from tests.support.apply import rows, run_sql
from tests.support.mariadb import mariadb
from tests.support.raw_log import create_topic
from tests.support.sink_log import SinkLog, form

__all__ = ["mariadb"]

PARTITIONS = 6
ROUND_ROWS = 40
PATIENCE_S = 240.0


@dataclass
class Feed:
    """A changefeed without a sorter: the test writes its topic."""

    kafka: str
    zookeeper: str
    server: LocalMariaDb
    info: ChangefeedInfo
    log_file: Path
    log: SinkLog = field(default_factory=lambda: SinkLog(PARTITIONS))
    ts: int = 100
    ids: int = 0
    ddls: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    produced: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.info.changefeed_id

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "compose.cli", "processor", "--changefeed", self.name, "--cluster", self.name]
        command += ["--kafka", self.kafka, "--zookeeper", self.zookeeper, "--capture", f"c{len(self.processes)}"]
        with self.log_file.open("ab") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self.processes[-1]

    def process_of(self, share: Share) -> subprocess.Popen[bytes]:
        return self.processes[int(share.capture[1:])]

    def write(self, *, ddl: bool = False) -> int:
        """Write a round of rows to every partition, in its middle perhaps a DDL to all; return its last ts."""
        for number in range(ROUND_ROWS):
            self.ts += 1
            if ddl and number == ROUND_ROWS // 2:
                query = "ALTER TABLE `t0` ADD INDEX (`v`)"
                self.log.ddl(self.ts, DdlType.ADD_INDEX, "d.t0", query, pre="d.t0")
                self.ddls += 1
                self.ts += 1
            for part in range(PARTITIONS):
                row = f"({self.ids},{self.ts})"
                self.log.rows(part, form(f"d.t{part}", "id", "v"), self.ts, (RowOp.INSERT, str(self.ids), row))
            self.ids += 1
        self.ts += 1
        self.log.watermark(self.ts)
        producer = Producer({"bootstrap.servers": self.kafka, "linger.ms": 5})
        for part, records in self.log.records.items():
            for record in records[self.produced.get(part, 0) :]:
                headers = [(POSITION_HEADER, record.position)]
                producer.produce(sink_topic(self.info), record.value, record.key, part, headers=headers)
            self.produced[part] = len(records)
        assert producer.flush(60) == 0
        return self.ts

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.log_file.read_text(errors="replace")[-6000:]
            time.sleep(0.1)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@dataclass
class Look:
    """What ZooKeeper says of a changefeed's processors."""

    feed: Feed
    session: Session

    @property
    def board(self) -> ProcessorBoard:
        return ProcessorBoard(self.session, ZkPaths(self.feed.name), "default", self.feed.name)

    def shares(self) -> list[Share]:
        path = ZkPaths(self.feed.name).changefeed_processors("default", self.feed.name)
        return decode_shares(self.session.client.get(path)[0])

    def applied_ts(self) -> int:
        found = self.board.read()
        return 0 if found is None or found.applied is None else found.applied.checkpoint_ts

    def wait_applied(self, ts: int) -> None:
        self.feed.wait(lambda: self.applied_ts() >= ts)

    def wait_spread(self, *processes: subprocess.Popen[bytes]) -> list[Share]:
        """Wait until these have all partitions, in equal shares; return the leader's first."""

        def spread() -> bool:
            shares = self.shares()
            live = [self.feed.process_of(share) for share in shares]
            return (
                len(live) == len(processes)
                and set(live) == set(processes)
                and sorted(part for share in shares for part in share.partitions) == list(range(PARTITIONS))
                and all(len(share.partitions) == PARTITIONS // len(processes) for share in shares)
            )

        self.feed.wait(spread)
        return sorted(self.shares(), key=lambda share: not share.is_leader)


@pytest.fixture
def look(stack: Addresses, mariadb: LocalMariaDb, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[Look]:
    run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
    run_sql(mariadb, *(f"CREATE TABLE d.t{n} (id INT PRIMARY KEY, v INT)" for n in range(PARTITIONS)))
    name = fresh_name("share")
    info = ChangefeedInfo(
        changefeed_id=name, upstream=UpstreamId("u"), sink_uri=mariadb.uri("worker-count=4"), start_ts=Ts(1)
    )
    create_topic(stack.kafka, sink_topic(info), PARTITIONS)
    feed = Feed(stack.kafka, stack.zookeeper, mariadb, info, tmp_path / "processors.log")
    with Session(stack.zookeeper) as session:
        path = ZkPaths(name).changefeed_info("default", name)
        session.client.create(path, encode_changefeed_info(info), makepath=True)
        try:
            yield Look(feed, session)
        finally:
            feed.close()
            run_sql(mariadb, "DROP DATABASE IF EXISTS d")


@pytest.mark.timeout(900)
def test_processors_share_partitions_and_apply_every_row_once_whoever_is_lost(look: Look) -> None:
    feed = look.feed
    first = feed.start()
    look.wait_applied(feed.write(ddl=True))
    second, third = feed.start(), feed.start()
    look.wait_spread(first, second, third)
    look.wait_applied(feed.write(ddl=True))

    # One that only applies is killed, the other is frozen beyond its session: the leader has all.
    assert feed.process_of(look.wait_spread(first, second, third)[0]) is first
    second.kill()
    third.send_signal(signal.SIGSTOP)
    last_ts = feed.write(ddl=True)
    look.wait_applied(last_ts)
    look.wait_spread(first)
    third.send_signal(signal.SIGCONT)  # what it read and would apply now is not its any more
    look.wait_spread(first, third)
    look.wait_applied(feed.write())

    # The leader is killed in the middle of a DDL, which the server goes on with when it may.
    with mariadb_lock(feed.server, "d.t0"):
        last_ts = feed.write(ddl=True)
        feed.wait(
            lambda: bool(rows(feed.server, "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'ALTER%'"))
        )
        first.kill()
        fourth = feed.start()
        look.wait_spread(third, fourth)
        assert look.applied_ts() < last_ts
    look.wait_applied(last_ts)

    # The leader is asked to stop: it hands the lead and its partitions over, and ends.
    leader = feed.process_of(look.wait_spread(third, fourth)[0])
    stays = fourth if leader is third else third
    leader.send_signal(signal.SIGTERM)
    look.wait_applied(feed.write(ddl=True))
    assert leader.wait(60) == 0
    look.wait_spread(stays)
    look.wait_applied(feed.write())
    stays.send_signal(signal.SIGTERM)
    assert stays.wait(60) == 0
    _assert_each_row_once(feed)


def _assert_each_row_once(feed: Feed) -> None:
    for part in range(PARTITIONS):
        found = rows(feed.server, f"SELECT COUNT(*), MIN(id), MAX(id) FROM d.t{part}")
        assert found == [(feed.ids, 0, feed.ids - 1)]
    assert len(rows(feed.server, "SHOW INDEX FROM d.t0")) == 1 + feed.ddls
    assert "run failed" not in feed.log_file.read_text()


class mariadb_lock:  # noqa: N801  a context manager
    """Keeps a table from being altered while inside."""

    def __init__(self, server: LocalMariaDb, table: str) -> None:
        self._connection: pymysql.connections.Connection[pymysql.cursors.Cursor] = server.connect()
        self._table = table

    def __enter__(self) -> None:
        self._connection.begin()
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {self._table}")

    def __exit__(self, *_: object) -> None:
        self._connection.rollback()
        self._connection.close()
