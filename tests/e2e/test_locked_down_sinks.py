"""A locked-down bus into a real MariaDB and into files, while a capture and a processor are killed.

Captures prove to each other that they know ``--cluster-secret-file``; the other locked-down runs do it by certificates.
All else is as ``tidebus run --secure`` has it: TLS and users everywhere, least rights, settings sealed in ZooKeeper.
"""

import csv
import os
import secrets
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from compose.local.bus import BusOptions, LocalBus
from compose.stack.mariadb import LocalMariaDb
from compose.stack.secure.certificates import write_private
from compose.stack.secure.folder import StackSecrets
from consumers.control.changefeeds.store import ChangefeedRequest
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.ids import UpstreamId
from tests.support.apply import rows
from tests.support.bank import Bank
from tests.support.bus import create_from_the_start, wait_checkpoint, wait_until
from tests.support.lasting_session import lasting_session
from tests.support.mariadb import started_or_skip
from tests.support.secure_bus import region_server_tls
from tests.support.upstream_rows import upstream_at

UPSTREAM = UpstreamId("locked")
DATABASE, STORAGE = "database", "storage"
CATCH_UP_S = 240.0
TRANSFERS_MIN = 200


@dataclass
class Locked:
    """The bus, its upstream in this process, the database and the folder."""

    bus: LocalBus
    server: RegionServer
    mariadb: LocalMariaDb
    files: Path
    bank: Bank
    writing: "list[Future[None]]" = field(default_factory=list)

    def processors(self, changefeed: str) -> list[int]:
        """Return the processes that apply a changefeed."""
        address = self.bus.addresses.zookeeper
        commands = [(process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        return [pid for pid, words in commands if {"processor", changefeed, address} <= set(words)]

    def wait_moving(self) -> None:
        """Wait until both destinations hold what is written by now."""
        now_ts = self.server.tso()
        for changefeed in (DATABASE, STORAGE):
            wait_checkpoint(self.bus, changefeed, now_ts, CATCH_UP_S)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    made = StackSecrets.make(folder / "secrets")
    cluster_secret = folder / "secrets" / "cluster-secret"
    write_private(cluster_secret, f"{secrets.token_urlsafe(32)}\n".encode())
    tls = region_server_tls(made, asks_clients=False)
    server = RegionServer(RegionServerOptions(min_ts_interval_ms=200, tls=tls))
    with started_or_skip(LocalMariaDb(data=folder / "mariadb")) as mariadb, server:
        server.spawn(Generator(server, GeneratorOptions(schema="boot", tables=1, rows_max=1)).run()).result(60)
        options = BusOptions(
            data_dir=folder / "bus",
            pd=server.pd_address,
            upstream=UPSTREAM,
            secrets=made,
            cluster_secret_file=cluster_secret,
        )
        with LocalBus(options) as bus:
            bus.start_capture("capture 2")
            of = Locked(bus, server, mariadb, folder / "files", Bank(server, pause_s=0.02))
            uris = {
                DATABASE: mariadb.uri("worker-count=4"),
                STORAGE: f"file://{of.files}?protocol=csv&flush-interval=2s",
            }
            for changefeed, uri in uris.items():
                config = {"filter": {"rules": ["bank.*"]}}
                create_from_the_start(
                    bus, ChangefeedRequest(upstream=UPSTREAM, sink_uri=uri, config=config, changefeed_id=changefeed)
                )
            of.writing.append(server.spawn(of.bank.run()))
            of.wait_moving()
            yield of


def test_locked_down_bus_whose_capture_and_processor_are_killed_loses_nothing_on_its_way_to_database_and_files(
    locked: Locked,
) -> None:
    os.kill(locked.processors(DATABASE)[0], signal.SIGKILL)
    locked.wait_moving()
    locked.bus.processes["capture 2"].kill()
    locked.wait_moving()
    os.kill(locked.processors(STORAGE)[0], signal.SIGKILL)
    wait_until(lambda: locked.bank.transfers > TRANSFERS_MIN, CATCH_UP_S, "transfers", locked.bus)
    locked.bank.stop()
    for written in locked.writing:
        written.result(60)
    locked.wait_moving()
    tables = locked.bank.names
    want = locked.server.act(lambda store: upstream_at(store, tables, locked.bank.last_commit_ts))
    assert sum(len(held) for held in want.values()) == 2 * locked.bank.accounts
    assert in_database(locked) == want
    assert in_files(locked) == {
        name: {row_id: tuple(map(str, row)) for row_id, row in held.items()} for name, held in want.items()
    }


def in_database(locked: Locked) -> dict[str, dict[int, tuple[object, ...]]]:
    """Return what the database holds of the bank's tables."""
    return {
        name: {int(row[0]): (int(row[1]), *map(str, row[2:])) for row in rows(locked.mariadb, f"SELECT * FROM {name}")}
        for name in locked.bank.names.values()
    }


def in_files(locked: Locked) -> dict[str, dict[int, tuple[str, ...]]]:
    """Return what somebody holds who has applied all lines of the files, in their order."""
    held: dict[str, dict[int, tuple[str, ...]]] = {}
    for path in sorted(locked.files.rglob("CDC*.csv")):
        with path.open(newline="") as file:
            for op, table, schema, row_id, *columns in csv.reader(file):
                whole = held.setdefault(f"{schema}.{table}", {})
                whole.pop(int(row_id), None)
                if op != "D":
                    whole[int(row_id)] = tuple(columns)
    return held


def test_locked_down_bus_keeps_the_destinations_password_sealed(locked: Locked) -> None:
    with lasting_session(locked.bus.addresses.zookeeper_access) as session:
        node = session.client.get(locked.bus.zk_paths.changefeed_info("default", DATABASE))[0]
    assert b'"sealed"' in node and b"mysql://" not in node
