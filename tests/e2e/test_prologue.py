"""A start before the raw log began: a database is filled from a dump made at a ts, then `--start-ts` of that ts, though
the bus came later; and topics that begin before the first row are the source's tables at a watermark.

The upstream is the region server, in this process: what its store holds at a ts is the truth. The owner is killed while
it lands what was before.
"""

import contextlib
import http.client
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compose.local.bus import BusOptions, LocalBus
from compose.stack.mariadb import LocalMariaDb
from consumers.control.cluster.capture_registry import list_captures
from consumers.control.log.raw_log import RawLogUnavailableError, retained_frontier
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.ids import TableId, UpstreamId
from schemas.nodes.prologue import decode_prologue
from schemas.rawlog.topics import raw_topics
from tests.support.control.lasting_session import lasting_session
from tests.support.database.apply import rows
from tests.support.database.mariadb import started_or_skip
from tests.support.processes.bus import topic_names, wait_checkpoint, wait_until
from tests.support.topics.imaged_topics import materialised
from tests.support.upstream.dump import dumped_ts, load_dump, write_dump
from tests.support.upstream.upstream_rows import Rows, upstream_at

UPSTREAM = UpstreamId("older")
CATCH_UP_S = 240.0

pytestmark = pytest.mark.skipif(
    "NIGHTLY_IMAGES" not in os.environ, reason="a minute and more; NIGHTLY_IMAGES=1, make nightly"
)


@dataclass
class Old:
    """An upstream with a past, and the bus that comes to it later."""

    server: RegionServer
    generators: list[Generator]
    mariadb: LocalMariaDb
    before_ts: int
    """No row was there yet."""
    bus: LocalBus
    writing: "Future[None]"

    @property
    def names(self) -> dict[TableId, str]:
        return {
            table.table_id: f"{generator._options.schema}.sbtest1_{number}"
            for generator in self.generators
            for number, table in enumerate(generator._tables, 1)
        }

    def source_at(self, ts: int) -> Rows:
        names = self.names
        return {
            name: held for name, held in self.server.act(lambda store: upstream_at(store, names, ts)).items() if held
        }

    def create(self, name: str, sink_uri: str, start_ts: int, **settings: Any) -> None:
        body = {"changefeed_id": name, "sink_uri": sink_uri, "start_ts": start_ts}
        body["replica_config"] = {"filter": {"rules": ["old.*", "busy.*", "late.*"]}, **settings}
        with lasting_session(self.bus.addresses.zookeeper_access) as session:
            (capture,) = list_captures(session, self.bus.zk_paths)
        with contextlib.closing(http.client.HTTPConnection(capture.address, timeout=CATCH_UP_S)) as connection:
            connection.request("POST", "/api/v2/changefeeds", json.dumps(body))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()

    def is_complete(self, name: str) -> bool:
        path = self.bus.zk_paths.changefeed_prologue("default", name)
        with lasting_session(self.bus.addresses.zookeeper_access) as session:
            node = session.client.get(path)[0] if session.client.exists(path) else b""
        return bool(node) and decode_prologue(node).is_complete

    def read(self) -> Rows:
        there = {
            f"{schema}.{name}"
            for schema, name in rows(self.mariadb, "SELECT table_schema, table_name FROM information_schema.tables")
        }
        read: Rows = {}
        for name in there.intersection(self.names.values()):
            table = {
                int(row[0]): (int(row[1]), *map(str, row[2:])) for row in rows(self.mariadb, f"SELECT * FROM {name}")
            }
            if table:
                read[name] = table
        return read


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Old]:
    with (
        started_or_skip(LocalMariaDb(data=tmp_path / "mariadb")) as mariadb,
        RegionServer(RegionServerOptions(min_ts_interval_ms=200)) as server,
    ):
        server.spawn(Generator(server, GeneratorOptions(schema="boot", tables=1, rows_max=1)).run()).result(60)
        before_ts = server.tso()
        still = Generator(server, GeneratorOptions(schema="old", tables=2, rows_max=20_000, rows_per_s=0))
        server.spawn(still.run()).result(120)
        busy = Generator(server, GeneratorOptions(schema="busy", tables=2, rows_per_s=200.0, seed=2))
        writing = server.spawn(busy.run())
        wait_until(lambda: busy.rows_committed > 500, 120, "rows of the busy tables")
        dump_ts = server.tso()
        names = {
            table.table_id: f"{generator._options.schema}.sbtest1_{number}"
            for generator in (still, busy)
            for number, table in enumerate(generator._tables, 1)
        }
        write_dump(tmp_path / "dump", dump_ts, server.act(lambda store: upstream_at(store, names, dump_ts)))
        late = Generator(server, GeneratorOptions(schema="late", tables=1, rows_max=500, rows_per_s=0, seed=3))
        server.spawn(late.run()).result(120)
        wait_until(lambda: busy.rows_committed > 1_500, 120, "rows behind the dump")
        options = BusOptions(
            data_dir=tmp_path,
            pd=server.pd_address,
            upstream=UPSTREAM,
            capture_arguments=("--sorter-spark-on-demand",),
        )
        with LocalBus(options) as bus:
            yield Old(server, [still, busy, late], mariadb, before_ts, bus, writing)
            busy.stop()
            writing.result(60)


def test_a_dump_and_a_start_at_its_ts_give_the_source_though_the_raw_log_began_later(old: Old, tmp_path: Path) -> None:
    bus, busy = old.bus, old.generators[1]
    dump_ts = dumped_ts(tmp_path / "dump")
    load_dump(tmp_path / "dump", old.mariadb)
    assert old.read() == old.source_at(dump_ts)
    oldest: list[int] = []

    def has_log() -> bool:
        with contextlib.suppress(RawLogUnavailableError):
            window = retained_frontier(bus.addresses.kafka_access, raw_topics(UPSTREAM))
            oldest.extend([window.oldest_ts] if window is not None else [])
        return bool(oldest)

    wait_until(has_log, CATCH_UP_S, "the first frontier", bus)
    assert old.before_ts < dump_ts < oldest[0]
    old.create("database", old.mariadb.uri("worker-count=4"), dump_ts)
    uri = f"kafka://{bus.addresses.kafka}/all_ddl?protocol=canal-json&enable-tidb-extension=true&partition-num=2"
    dispatch = {"matcher": ["*.*"], "topic": "all_{schema}_{table}", "partition": "index-value"}
    old.create("all", uri, old.before_ts, sink={"dispatchers": [dispatch]})
    bus.processes["capture"].kill()
    for name in ("database", "all"):
        wait_until(lambda name=name: old.is_complete(name), CATCH_UP_S, f"prologue of {name}", bus)  # type: ignore[misc]
    for name in ("database", "all"):
        wait_checkpoint(bus, name, busy.last_commit_ts, CATCH_UP_S)
    busy.stop()
    old.writing.result(60)
    upto_ts = old.server.tso()
    for name in ("database", "all"):
        wait_checkpoint(bus, name, upto_ts, CATCH_UP_S)
    assert old.read() == old.source_at(upto_ts)
    written = {
        name: held for name, held in materialised(bus.addresses.kafka_access, "all_", upto_ts)[0].items() if held
    }
    assert written == old.source_at(upto_ts)
    assert "late.sbtest1_1" in written, "a table that came between the dump and the raw log"
    wait_until(
        lambda: not topic_names(bus.addresses.kafka_access, "tidebus.prologue."), CATCH_UP_S, "topics are deleted", bus
    )
