"""A bank, and rows that come and go, through the whole bus into a real MariaDB: at every syncpoint all tables are what
the upstream had at that ts, row by row, whoever was killed or stopped meanwhile; and when the upstream is gone in
mid-load, ``tidebus recover`` brings the database to the last ts that Kafka holds.

A trigger makes every syncpoint wait until the test has read all tables. What the region server's store holds is the
truth, read by the decoder of rows alone. ``make nightly`` runs it (``NIGHTLY_DATABASE``): it takes some three minutes.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from compose.local.bus import BusOptions, LocalBus
from compose.stack.mariadb import LocalMariaDb
from consumers.control.changefeeds.processor_nodes import Share, decode_shares
from consumers.control.changefeeds.store import ChangefeedRequest
from edges.kafka.access import KafkaAccess
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.ids import TableId, UpstreamId
from tests.support.control.lasting_session import lasting_session
from tests.support.database.apply import rows, run_sql
from tests.support.database.bank import Bank
from tests.support.database.mariadb import started_or_skip
from tests.support.processes.bus import create_from_the_start, wait_checkpoint, wait_until
from tests.support.processes.secure_bus import made_secrets, region_server_tls
from tests.support.upstream.upstream_rows import Rows, upstream_at

pytestmark = pytest.mark.skipif(not os.environ.get("NIGHTLY_DATABASE"), reason="some minutes; make nightly runs it")

FEED, UPSTREAM = "database", UpstreamId("database")
CATCH_UP_S = 300.0
TRIGGER = """CREATE TRIGGER tidb_cdc.waits BEFORE INSERT ON tidb_cdc.syncpoint_v1 FOR EACH ROW BEGIN
    DO GET_LOCK('seen', 600);
    DO RELEASE_LOCK('seen');
END"""
WAITING = "SELECT id FROM information_schema.processlist WHERE state = 'User lock' AND user = 'tidebus'"
NEWEST = "SELECT MAX(CAST(primary_ts AS UNSIGNED)) FROM tidb_cdc.syncpoint_v1"


@dataclass
class Reader:
    """Reads all tables whenever a syncpoint is being written."""

    server: LocalMariaDb
    reads_of: dict[int, list[Rows]] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                self._watch()
            except pymysql.MySQLError:  # it restarts, and its locks are free until we are back
                self.stopped.wait(0.1)

    def _watch(self) -> None:
        """Hold the lock that a syncpoint waits for, but for the moments after the tables were read."""
        connection = self.server.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT GET_LOCK('seen', 60)")
                while not self.stopped.wait(0.02):
                    cursor.execute(WAITING)
                    if not (waiting := cursor.fetchall()):
                        continue
                    (before,) = rows(self.server, NEWEST)
                    read = self.read()
                    cursor.execute("SELECT RELEASE_LOCK('seen')")
                    while not self.stopped.wait(0.02):
                        cursor.execute(WAITING)
                        if not set(cursor.fetchall()) & set(waiting):
                            break
                    cursor.execute("SELECT GET_LOCK('seen', 60)")
                    (after,) = rows(self.server, NEWEST)
                    if after != before:  # else its writer was killed
                        self.reads_of.setdefault(int(after[0]), []).append(read)
        finally:
            connection.close()

    def read(self) -> Rows:
        there = {f"{schema}.{name}" for schema, name in rows(
            self.server, "SELECT table_schema, table_name FROM information_schema.tables"
        )}  # fmt: skip
        return {
            name: {int(row[0]): (int(row[1]), *map(str, row[2:])) for row in rows(self.server, f"SELECT * FROM {name}")}
            for name in self.tables
            if name in there
        }


@dataclass
class Whole:
    """The bus, its upstream in this process, and the database."""

    bus: LocalBus
    server: RegionServer
    mariadb: LocalMariaDb
    reader: Reader
    folder: Path
    writing: "list[Future[None]]" = field(default_factory=list)
    generators: list[Generator] = field(default_factory=list)
    bank: Bank = field(init=False)

    def write(self, number: int) -> None:
        """Let a generator make a schema with tables, by DDL, and write into them."""
        options = GeneratorOptions(schema=f"orders{number}", rows_per_s=150.0, tables=2, seed=number)
        self.generators.append(Generator(self.server, options))
        self.writing.append(self.server.spawn(self.generators[-1].run()))

    @property
    def tables(self) -> dict[TableId, str]:
        names = dict(self.bank.names)
        for generator in self.generators:
            schema = generator._options.schema
            names |= {
                table.table_id: f"{schema}.{table.shape.name}_{n}" for n, table in enumerate(generator._tables, 1)
            }
        return names

    def shares(self) -> list[Share]:
        with lasting_session(self.bus.addresses.zookeeper_access) as session:
            return decode_shares(session.client.get(self.bus.zk_paths.changefeed_processors("default", FEED))[0])

    def recovering_kafka(self) -> KafkaAccess:
        """Return how ``tidebus recover`` gets in: it does a sorter's work."""
        addresses, secrets = self.bus.addresses, self.bus.secrets
        if secrets is None:
            return addresses.kafka_access
        return KafkaAccess.read(addresses.kafka, secrets.kafka_config("sorter"))

    def processor_pids(self) -> list[int]:
        asked = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        address = self.bus.addresses.zookeeper
        mine = [line for line in asked.splitlines() if "compose.cli processor" in line and address in line]
        return [int(line.split()[0]) for line in mine]

    def wait_syncpoints(self, more: int) -> None:
        """Wait for so many syncpoints of a ts from now on."""
        now_ts = self.server.tso()
        wait_until(lambda: sum(ts > now_ts for ts in self.reader.reads_of) >= more, CATCH_UP_S, "syncpoints", self.bus)


@contextmanager
def whole(folder: Path) -> Iterator[Whole]:
    secrets = made_secrets(folder)
    server = RegionServer(RegionServerOptions(min_ts_interval_ms=200, tls=region_server_tls(secrets)))
    with started_or_skip(LocalMariaDb(data=folder / "mariadb")) as mariadb, server:
        server.spawn(Generator(server, GeneratorOptions(schema="boot", tables=1, rows_max=1)).run()).result(60)
        options = BusOptions(data_dir=folder / "bus", pd=server.pd_address, upstream=UPSTREAM, secrets=secrets)
        options = replace(options, capture_arguments=("--sorter-spark-on-demand",))
        with LocalBus(options) as bus:
            bus.start_capture("capture 2")
            yield Whole(bus, server, mariadb, Reader(mariadb), folder)


def prepare(mariadb: LocalMariaDb) -> None:
    """Make the syncpoints' table, with the trigger."""
    run_sql(
        mariadb,
        "CREATE DATABASE tidb_cdc",
        "CREATE TABLE tidb_cdc.syncpoint_v1 (ticdc_cluster_id VARCHAR(255), changefeed VARCHAR(255),"
        " primary_ts VARCHAR(18), secondary_ts VARCHAR(18), created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,"
        " PRIMARY KEY (changefeed, primary_ts))",
        TRIGGER,
    )


@pytest.mark.timeout(1500)
def test_database_equals_upstream_at_every_syncpoint_and_at_the_end_of_a_lost_upstream(tmp_path: Path) -> None:
    with whole(tmp_path) as of:
        prepare(of.mariadb)
        bank = of.bank = Bank(of.server, pause_s=0.05)
        config = {
            "enable-sync-point": True,
            "sync-point-interval": "30s",
            "filter": {"rules": ["bank.*", "orders*.*"]},
        }
        request = ChangefeedRequest(
            upstream=UPSTREAM, sink_uri=of.mariadb.uri("worker-count=4"), config=config, changefeed_id=FEED
        )
        create_from_the_start(of.bus, request)
        of.writing.append(of.server.spawn(bank.run()))
        schemas = ("bank", "orders1", "orders2", "orders3")
        of.reader.tables = tuple(f"{schema}.sbtest1_{number}" for schema in schemas for number in (1, 2))
        reading = threading.Thread(target=of.reader.run, daemon=True)
        reading.start()
        try:
            _disturb(of)
            report = _lose_upstream_and_recover(of)
        finally:
            of.reader.stopped.set()
            reading.join()
        tables, checked = of.tables, 0
        for ts, all_read in sorted(of.reader.reads_of.items()):
            want = of.server.act(lambda store, ts=ts: upstream_at(store, tables, ts))  # type: ignore[misc]
            for read in all_read:
                assert {name: content for name, content in want.items() if content} == {
                    k: v for k, v in read.items() if v
                }, ts
                checked += 1
                if sum(len(read.get(name, {})) for name in bank.names.values()):
                    assert sum(row[0] for name in bank.names.values() for row in read[name].values()) == bank.total
        assert checked >= 3
        want = of.server.act(lambda store: upstream_at(store, tables, report["checkpoint_ts"]))
        assert {name: content for name, content in want.items() if content} == {
            k: v for k, v in of.reader.read().items() if v
        }


def _disturb(of: Whole) -> None:
    """Kill and stop what there is, one after the other, with DDL in between."""
    of.write(1)
    wait_checkpoint(of.bus, FEED, of.server.tso(), CATCH_UP_S)
    for pid in of.processor_pids()[:1]:
        os.kill(pid, signal.SIGKILL)
    of.write(2)
    of.wait_syncpoints(1)
    wait_checkpoint(of.bus, FEED, of.server.tso(), CATCH_UP_S)
    stopped = of.processor_pids()[-1:]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    wait_checkpoint(of.bus, FEED, of.server.tso(), CATCH_UP_S)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    assert of.mariadb.child is not None
    of.mariadb.child.kill()
    of.mariadb.restart()
    of.write(3)
    of.wait_syncpoints(1)
    of.bus.part("kafka").kill()
    of.bus.restart_part("kafka")
    of.wait_syncpoints(1)
    wait_checkpoint(of.bus, FEED, of.server.tso(), CATCH_UP_S)


def _lose_upstream_and_recover(of: Whole) -> dict[str, Any]:
    """kill -9 both captures and take the upstream away, in mid-load; then recover."""
    for name in ("capture", "capture 2"):
        of.bus.processes[name].kill()
    for generator in of.generators:
        generator.stop()
    of.bank.stop()
    for written in of.writing:
        written.result(60)
    where = [*of.recovering_kafka().arguments(), *of.bus.addresses.zookeeper_access.arguments()]
    command = [sys.executable, "-m", "compose.cli", "recover", "--changefeed", FEED, *where, "--json"]
    ran = subprocess.run(
        [*command, "--data-dir", str(of.folder / "recover")], capture_output=True, text=True, timeout=400, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    report: dict[str, Any] = json.loads(ran.stdout)
    last_ts = max([of.bank.last_commit_ts, *(generator.last_commit_ts for generator in of.generators)])
    assert report["checkpoint_ts"] == report["consistent_ts"] < last_ts
    return report
