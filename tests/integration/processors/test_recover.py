"""``tidebus recover``: an upstream that is gone, a destination that is behind, and the raw log between them."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compose.cli import run_cli
from compose.stack.local import Addresses
from compose.stack.mariadb import LocalMariaDb
from consumers.control.changefeeds.store import ChangefeedStore
from consumers.control.changefeeds.verbs import ChangefeedControl
from consumers.control.cluster.capture_registry import CaptureInfo, register_capture
from consumers.processors import recovery
from schemas.ddl.job import DdlType
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, encode_changefeed_info
from schemas.rawlog.frontier import HeldTables
from schemas.sink.topic import sink_topic
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from tests.support.control.lasting_session import lasting_session
from tests.support.control.pauses import MET_S, growing_pauses
from tests.support.database.apply import rows, run_sql, table
from tests.support.database.mariadb import mariadb
from tests.support.rawlog.raw_log import START_TS, Change, RawLog, wait_for_records
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, table_info

__all__ = ["mariadb"]

ONE, TWO = TableId(114), TableId(115)
ROWS = 6_000
DDL_TS, HELD_TS, LAST_TS = START_TS + 40_000, START_TS + 70_000, START_TS + 80_000
HELD_ROW = 1_500
"""Before the DDL."""
PATIENCE_S = 240.0


def value(number: int) -> bytes:
    return encode_row_v2({2: number.to_bytes(4, "little", signed=True)})


def info(of: TableId, name: str, *more: dict[str, Any]) -> dict[str, Any]:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "v"), *more]
    return table_info(of, name, columns=[spec | {"offset": offset} for offset, spec in enumerate(columns)])


@dataclass
class Gone:
    """An upstream that is gone, with what it has left: a raw log, a changefeed, a destination."""

    stack: Addresses
    server: LocalMariaDb
    log: RawLog
    feed: str
    folder: Path
    runs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def paths(self) -> ZkPaths:
        return ZkPaths(self.feed)  # a cluster of its own keeps tests apart

    def create(self, rules: list[str]) -> ChangefeedInfo:
        feed = ChangefeedInfo(
            changefeed_id=self.feed,
            upstream=UpstreamId(self.log.upstream),
            sink_uri=self.server.uri("worker-count=1&max-txn-row=20"),
            config={"filter": {"rules": rules}},
            start_ts=START_TS,
        )
        with lasting_session(self.stack.zookeeper_access) as session:
            path = self.paths.changefeed_info("default", self.feed)
            session.client.create(path, encode_changefeed_info(feed), makepath=True)
        return feed

    def arguments(self, *more: str) -> list[str]:
        where = ["--kafka", self.stack.kafka, "--zookeeper", self.stack.zookeeper, "--cluster", self.feed]
        return ["recover", "--changefeed", self.feed, *where, "--data-dir", str(self.folder), *more]

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "recover.log").open("ab") as log:
            command = [sys.executable, "-m", "compose.cli", *self.arguments("--json")]
            self.runs.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log))
        return self.runs[-1]

    def said(self) -> str:
        return (self.folder / "recover.log").read_text()[-4000:]

    def wait(self, run: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
        deadline, pauses = time.monotonic() + PATIENCE_S, growing_pauses(MET_S)
        while not reached():
            assert run.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(next(pauses))

    def count(self) -> int:
        names = rows(self.server, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'gone'")
        return sum(int(rows(self.server, f"SELECT COUNT(*) FROM gone.{name}")[0][0]) for (name,) in names)


@pytest.fixture
def gone(stack: Addresses, mariadb: LocalMariaDb, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[Gone]:
    """Two tables; in mid-way ``one`` gets a column. Two thirds of each table's rows are within the last frontier,
    which holds ``two``; the rest had landed beyond it.
    """
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([info(ONE, "one"), info(TWO, "two")], schema="gone")
    run_sql(mariadb, "DROP DATABASE IF EXISTS gone", "CREATE DATABASE gone")
    for name in ("one", "two"):
        run_sql(mariadb, f"CREATE TABLE gone.{name} (id INT PRIMARY KEY, v INT)")
    wide = info(ONE, "one", column(3, "w", origin_default="7"))
    query = "ALTER TABLE `one` ADD COLUMN `w` INT DEFAULT 7"
    log.ddl(job(DDL_TS, DdlType.ADD_COLUMN, schema_id=1, table_id=ONE, schema="gone", query=query, table_info=wide))
    for at in range(0, ROWS, 500):
        for partition, of in enumerate((ONE, TWO)):
            numbers = range(at, at + 500)
            changes = [Change(START_TS + 20 * n + partition + 1, row_key(of, n), value(n)) for n in numbers]
            log.rows(of, changes, partition)
    held = HeldTables(tables=(TWO,), ts=Ts(HELD_TS), low=(0, 0))
    log.advance(LAST_TS, low=(0, 0), held=(held,))
    made = Gone(stack, mariadb, log, fresh_name("feed"), tmp_path)
    yield made
    for run in made.runs:
        run.kill()
        run.communicate()
    run_sql(mariadb, "DROP DATABASE IF EXISTS gone")


@contextmanager
def another_holds_a_row(server: LocalMariaDb) -> Iterator[None]:
    """Hold one of the first table's rows in a transaction of somebody else: who applies in order comes so far."""
    connection = server.connect()
    try:
        connection.begin()
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO gone.one (id, v) VALUES ({HELD_ROW}, 0)")
        yield
        connection.rollback()
    finally:
        connection.close()


def upto(ts: int, partition: int) -> int:
    """Return how many rows a table has at a ts."""
    return sum(START_TS + 20 * n + partition + 1 <= ts for n in range(ROWS))


@pytest.mark.timeout(900)
def test_recover_killed_in_both_halves_brings_the_destination_to_the_last_consistent_ts(gone: Gone) -> None:
    feed = gone.create(["gone.*"])
    sorting = gone.start()
    wait_for_records(gone.stack.kafka, sink_topic(feed), 1)
    sorting.kill()  # -9, in mid-batch as a rule
    with another_holds_a_row(gone.server):
        applying = gone.start()
        gone.wait(applying, lambda: gone.count() > 0)
        applying.kill()
        applying.wait(PATIENCE_S)
    assert 0 < gone.count() < upto(HELD_TS, 0) + upto(HELD_TS, 1)
    last = gone.start()
    out, _ = last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 0, gone.said()
    report = json.loads(out)
    # What the held table has not, the other must not show either: a destination is consistent at one ts.
    assert (report["checkpoint_ts"], report["consistent_ts"]) == (HELD_TS, HELD_TS)
    assert report["resolved_ts"] == LAST_TS
    assert report["held"] == [{"ts": HELD_TS, "tables": ["gone.two"], "ddl_start_ts": None}]
    wide = [(n, n, 7) for n in range(upto(HELD_TS, 0))]
    assert sorted(rows(gone.server, "SELECT * FROM gone.one")) == wide
    assert table(gone.server, "gone.two") == sorted([(n, n) for n in range(upto(HELD_TS, 1))], key=repr)
    beyond = report["not_applied"]
    assert beyond["changes"] == 2 * ROWS - upto(HELD_TS, 0) - upto(HELD_TS, 1)
    assert (beyond["tables"], beyond["all_seen"]) == (["gone.one", "gone.two"], True)
    assert beyond["max_commit_ts"] == START_TS + 20 * (ROWS - 1) + 2
    with lasting_session(gone.stack.zookeeper_access) as session:
        status = ChangefeedStore(session, gone.paths).status(gone.feed)
    assert status is not None
    assert status.checkpoint_ts == HELD_TS
    again = gone.start()
    out, _ = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, gone.said()
    assert (json.loads(out)["rows"], json.loads(out)["checkpoint_ts"]) == (0, HELD_TS)


def test_recover_of_a_changefeed_without_the_held_table_reaches_the_frontier(
    gone: Gone, capsys: pytest.CaptureFixture[str]
) -> None:
    gone.create(["gone.one"])
    assert run_cli(gone.arguments("--dry-run", "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["recovered"], report["target_ts"], report["held"]) == (False, LAST_TS, [])
    assert report["not_applied"]["tables"] == ["gone.one"]
    assert report["not_applied"]["changes"] == ROWS - upto(LAST_TS, 0)
    assert gone.count() == 0


def test_recover_while_captures_live_is_refused_and_of_a_paused_changefeed_is_not(
    gone: Gone, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "GONE_WAIT_S", 0.5)
    feed = gone.create(["gone.one"])
    capture = CaptureInfo(capture_id=CaptureId("c1"), address="10.0.0.1:8300", version="1", started_at_s=1)
    with lasting_session(gone.stack.zookeeper_access) as session:
        register_capture(session, gone.paths, capture)
        assert run_cli(gone.arguments()) == 3
        said = capsys.readouterr().err
        assert "[recover.captures_alive]" in said
        assert "c1 at 10.0.0.1:8300" in said
        ChangefeedControl(session, gone.paths).pause(gone.feed)
        session.client.create(gone.paths.changefeed_processor("default", gone.feed), b"pid 7", ephemeral=True)
        monkeypatch.setattr("compose.operator.recover.SorterRecovery.run", lambda *_: feed.start_ts)
        assert run_cli(gone.arguments()) == 3
        said = capsys.readouterr().err
        assert "[recover.processor_alive]" in said
        assert "pid 7" in said
    assert gone.count() == 0


def test_recover_of_what_is_not_there_or_no_database_is_refused(gone: Gone, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(gone.arguments()) == 1
    assert "[changefeed.not_found]" in capsys.readouterr().err
    kafka = ChangefeedInfo(
        changefeed_id=gone.feed,
        upstream=UpstreamId(gone.log.upstream),
        sink_uri=f"kafka://{gone.stack.kafka}/t?protocol=canal-json",
        start_ts=START_TS,
    )
    with lasting_session(gone.stack.zookeeper_access) as session:
        path = gone.paths.changefeed_info("default", gone.feed)
        session.client.create(path, encode_changefeed_info(kafka), makepath=True)
    assert run_cli(gone.arguments()) == 2
    assert "tidebus remount" in capsys.readouterr().err
