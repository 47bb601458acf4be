"""Lake tables end to end: by the API to owner, services and tables, over images, kills, a resync and maintenance.

The upstream is the region server, in this process: what its store holds at a ts is the truth, and each tag must show
it. Money moves between two tables all the time; another one has rows from before the bus. ``make nightly`` runs it
(``NIGHTLY_LAKE``) over an open bus with a catalog of files.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from compose.local.bus import BusOptions, LocalBus
from compose.stack.jars import cached_spark_jars
from compose.stack.secure.folder import StackSecrets
from consumers.control.cluster.capture_registry import list_captures
from producers.region_server.core.store.mvcc import LockKind, Write
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.kv.store import ClusterStore
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.ids import TableId, Ts, UpstreamId
from sorters.spark.connector import SPARK_JARS_ENV
from tests.support.control.lasting_session import lasting_session
from tests.support.database.bank import Bank
from tests.support.lakes.duckdb_lake import assert_duckdb_reads_the_same
from tests.support.lakes.lake import Lake
from tests.support.lakes.lake_catalogs import JdbcLake, catalog_jars
from tests.support.processes.bus import sorter_pid, wait_checkpoint, wait_until
from tests.support.processes.secure_bus import region_server_tls
from tests.support.topics.imaged_topics import is_whole, wait_whole
from tests.support.upstream.upstream_rows import Rows, upstream_at

pytestmark = [
    pytest.mark.skipif("NIGHTLY_LAKE" not in os.environ, reason="minutes: NIGHTLY_LAKE=1, as `make nightly`"),
    pytest.mark.timeout(1800),
]

FEED, UPSTREAM, PASSWORD = "lake", UpstreamId("lake"), "word-of-the-catalog"
OLD_ROWS, SCANNED_ROWS_PER_S = 12_000, 1_000
TAGS_MIN: Final = 10
CATCH_UP_S = 600.0
"""Nothing here is measured: a machine that runs much else may take its time."""


@dataclass
class LakeBus:
    """A running bus, its upstream in this process, and the tables that it writes."""

    bus: LocalBus
    server: RegionServer
    bank: Bank
    moving: "Future[None]"
    old: tuple[TableId, str]
    lake: Lake

    @property
    def names(self) -> dict[TableId, str]:
        """All tables."""
        return dict([*self.bank.names.items(), self.old])

    def ask(self, *words: str) -> str:
        """Run a command of the API's; return what it prints."""
        with lasting_session(self.bus.addresses.zookeeper_access) as session:
            address = list_captures(session, self.bus.zk_paths)[0].address
        tls = self.bus.tls
        scheme = "https" if tls.cert_path else "http"
        shown = {"--ca": tls.ca_path, "--cert": tls.cert_path, "--key": tls.key_path}
        more = [part for flag, value in shown.items() if value for part in (flag, value)]
        return self.run(*words, "-c", FEED, "--server", f"{scheme}://{address}", *more)

    def maintain(self, verb: str, folder: Path) -> list[dict[str, object]]:
        """Run a verb of ``tidebus lake``; return its lines."""
        words = ["lake", verb, "-c", FEED, *self.bus.addresses.zookeeper_access.arguments(), "--data-dir", str(folder)]
        return [json.loads(line) for line in self.run(*words).splitlines()]

    def run(self, *words: str) -> str:
        command = [sys.executable, "-m", "compose.cli", *words]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=CATCH_UP_S, check=False)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
        return ran.stdout

    def wait(self, done: Callable[[], bool], what: str) -> None:
        def is_done() -> bool:
            with contextlib.suppress(FileNotFoundError):  # metadata of a moment ago
                return done()
            return False

        wait_until(is_done, CATCH_UP_S, what, self.bus)

    def catch_up(self) -> None:
        """Wait until lake tables hold what is written by now."""
        wait_checkpoint(self.bus, FEED, self.server.tso(), CATCH_UP_S)

    def kill_sorters(self) -> None:
        """Kill the service that runs the changefeed, as soon as there is one."""
        killed: list[int | None] = [None]

        def is_there() -> bool:
            killed[0] = sorter_pid(self.bus, FEED)
            return killed[0] is not None

        self.wait(is_there, "a sorter to kill")
        assert killed[0] is not None
        os.killpg(killed[0], signal.SIGKILL)

    def has_part_of_image(self) -> bool:
        schema, table = self.old[1].split(".")
        there = self.lake.metadata(schema, table) is not None
        return there and "tidebus.image_to_come" in self.lake.table(schema, table).properties

    def is_committing(self) -> bool:
        """Tell whether rows stand in a branch that is not published."""
        return any(self.lake.branches(*name.split(".")) - {"main"} for name in self.bank.names.values())

    def source_at(self, ts: int) -> Rows:
        names = self.names
        return self.server.act(lambda store: upstream_at(store, names, ts))

    def held_at(self, ts: int) -> Rows:
        """Return what lake tables show at a tag."""
        return {
            name: {row["id"]: (row["k"], row["c"], row["pad"]) for row in self.lake.rows(*_parts(name), ts)}
            for name in self.names.values()
        }

    def common_tags(self) -> list[Ts]:
        return sorted(set.intersection(*(self.lake.tags(*_parts(name)) for name in self.names.values())))


def _parts(name: str) -> tuple[str, str]:
    schema, _, table = name.partition(".")
    return schema, table


@pytest.fixture(params=["hadoop"])
def running(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LakeBus]:
    folder, secrets = tmp_path / "lake", None
    lake: Lake = Lake(folder)
    uri = f"iceberg://?warehouse=file://{folder}&mode=upsert&commit-interval=1s&tags-kept=40&compaction-interval=20s"
    if request.param != "hadoop":
        jars = [*cached_spark_jars(), *catalog_jars("drivers")]
        monkeypatch.setenv(SPARK_JARS_ENV, ",".join(map(str, jars)))
        secrets, lake = StackSecrets.make(tmp_path / "secrets"), JdbcLake(folder)
        uri += f"&catalog=jdbc&catalog-uri=jdbc:sqlite:{folder}.db&catalog-user=u&catalog-password={PASSWORD}"
    with RegionServer(RegionServerOptions(min_ts_interval_ms=200, tls=region_server_tls(secrets))) as server:
        old = Generator(server, GeneratorOptions(schema="old", tables=1, rows_max=OLD_ROWS, rows_per_s=0))
        server.spawn(old.run()).result(120)
        bank = Bank(server, pause_s=0.05)
        moving = server.spawn(bank.run())
        wait_until(lambda: bank.transfers > 0, 60, "the bank is open")
        options = BusOptions(
            data_dir=tmp_path / "bus",
            pd=server.pd_address,
            upstream=UPSTREAM,
            secrets=secrets,
            capture_arguments=("--image-rows-per-second", str(SCANNED_ROWS_PER_S)),
        )
        with LocalBus(options) as bus:
            bus.start_capture("capture 2")
            of = LakeBus(bus, server, bank, moving, (old._tables[0].table_id, "old.sbtest1_1"), lake)
            config = tmp_path / "lake.toml"
            config.write_text('initial = "snapshot"\n[filter]\nrules = ["bank.*", "old.*"]\n')
            of.wait(lambda: _is_created(of, uri, config), "the changefeed is created")
            yield of
        bank.stop()


def _is_created(of: LakeBus, uri: str, config: Path) -> bool:
    try:
        of.ask("changefeed", "create", "--sink-uri", uri, "--config", str(config), "--no-confirm")
    except (AssertionError, IndexError) as error:  # no capture yet, or no frontier
        if "exists" not in str(error):
            return False
    return True


def _lose(of: LakeBus) -> int:
    """Let rows vanish from the upstream without a change, as by a restored backup; return how many."""
    table = of.old[0]

    def lose(store: ClusterStore) -> int:
        lost = 0
        for region in store.regions:
            for key, newest in list(region.data.writes.items()):
                is_ours = key[:1] == b"t" and key[9:11] == b"_r" and int.from_bytes(key[1:9], "big") ^ 1 << 63 == table
                if is_ours and key[-1] % 16 == 3 and newest.op is LockKind.PUT:
                    ts = Ts(newest.commit_ts + 1)  # so long ago that nobody hears of it
                    region.data.writes[key] = Write(ts, ts, LockKind.DELETE, b"", 0, newest)
                    lost += 1
        return lost

    return of.server.act(lose)


def test_lake_tables_are_the_upstream_at_each_tag_over_images_kills_a_resync_and_maintenance(
    running: LakeBus, tmp_path: Path
) -> None:
    of = running
    of.wait(of.has_part_of_image, "a part of the image")
    of.kill_sorters()
    of.bus.processes["capture"].kill()
    wait_whole(of.bus, FEED, CATCH_UP_S)
    of.catch_up()
    for _ in range(2):
        of.wait(of.is_committing, "a commit under way")
        of.kill_sorters()
        of.catch_up()

    assert _lose(of) > 100
    of.catch_up()
    extra = len(of.lake.rows(*_parts(of.old[1]))) - len(of.source_at(of.server.tso())[of.old[1]])
    assert extra > 100, "the lake table has rows that the upstream has no more"
    of.ask("table", "resync", "--table", of.old[1])
    of.wait(lambda: not is_whole(of.bus, FEED), "the resync has begun")
    of.kill_sorters()
    wait_whole(of.bus, FEED, CATCH_UP_S)
    of.catch_up()
    mended_ts = of.common_tags()[-1]

    of.ask("changefeed", "pause")
    of.wait(lambda: sorter_pid(of.bus, FEED) is None, "no sorter writes any more")
    if not isinstance(of.lake, JdbcLake):  # SQLite takes one process alone, and a service's session stays
        compacted = of.maintain("compact", tmp_path / "verb")
        assert {line["table"] for line in compacted} == set(of.names.values())
        assert of.maintain("expire", tmp_path / "verb")
    of.ask("changefeed", "resume", "--no-confirm")
    of.catch_up()
    of.bank.stop()
    of.moving.result(60)
    of.catch_up()

    tags = of.common_tags()
    assert len(tags) >= TAGS_MIN
    for ts in tags:
        held, source = of.held_at(ts), of.source_at(ts)
        accounts = [row for name in of.bank.names.values() for row in held[name].values()]
        assert {name: held[name] for name in of.bank.names.values()} == {
            name: source[name] for name in of.bank.names.values()
        }
        assert sum(balance for balance, *_ in accounts) == of.bank.total
        if ts >= mended_ts:
            assert held == source
    assert tags[-1] >= of.bank.last_commit_ts
    for name in of.names.values():
        assert assert_duckdb_reads_the_same(of.lake, *_parts(name), tmp_path)
    if of.bus.secrets is not None:
        _assert_nobody_sees_the_password(of)


def _assert_nobody_sees_the_password(of: LakeBus) -> None:
    with lasting_session(of.bus.addresses.zookeeper_access) as session:
        node = session.client.get(of.bus.zk_paths.changefeed_info("default", FEED))[0]
    assert b'"sealed"' in node and PASSWORD.encode() not in node
    logs = [file for file in of.bus.options.data_dir.rglob("*.log") if PASSWORD in file.read_text(errors="replace")]
    assert not logs
