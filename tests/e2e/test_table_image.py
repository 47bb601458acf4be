"""Rows that were there before a changefeed: its topics are the source's tables at a watermark, whoever was killed.

The upstream is the region server, in this process: what its store holds at a ts is the truth. Scans take few rows a
second, so that an image is long enough for owner and sorter service to be killed in the middle of it.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from compose.local.bus import BusOptions, LocalBus
from compose.stack.mariadb import LocalMariaDb
from consumers.control.changefeeds.image_requests import request_images
from consumers.control.changefeeds.store import ChangefeedRequest, NoFrontierError
from consumers.control.log.frontier_topic import FrontierTopic
from consumers.control.log.raw_log import RawLogUnavailableError
from edges.zookeeper.session import Session
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.ids import TableId, UpstreamId
from schemas.rawlog.images import NO_IMAGES, ImageChunk, ImageMode, ImageState, TableImage, image_feed
from schemas.rawlog.topics import raw_topics
from tests.support.database.apply import rows, run_sql
from tests.support.database.mariadb import started_or_skip
from tests.support.processes.bus import sorter_pid, wait_checkpoint, wait_until
from tests.support.processes.secure_bus import made_secrets, region_server_tls, with_parameters
from tests.support.topics.imaged_topics import materialised, wait_whole
from tests.support.upstream.upstream_rows import Rows, upstream_at

UPSTREAM = UpstreamId("image")
OLD_ROWS, BUSY_ROWS_PER_S, SCANNED_ROWS_PER_S = 30_000, 50.0, 500
CATCH_UP_S = 240.0
"""For a restarted part to be back, or an image to be whole; a loaded two-core machine needs a minute."""


@dataclass
class Imaged:
    """A running bus over a region server of this process that had rows before; some of its tables are written to."""

    bus: LocalBus
    server: RegionServer
    names: dict[TableId, str]
    busy: Generator
    writing: "Future[None]"
    frontier: FrontierTopic

    def create(self, name: str) -> str:
        """Create a changefeed into topics with ``initial``; return what frontier records call it."""
        uri = f"kafka://{self.bus.addresses.kafka}/{name}_ddl?protocol=canal-json&enable-tidb-extension=true"
        dispatch = {"matcher": ["*.*"], "topic": name + "_{schema}_{table}", "partition": "index-value"}
        uri = with_parameters(f"{uri}&partition-num=2", self.bus.sink_parameters)
        return self.create_into(name, uri, {"sink": {"dispatchers": [dispatch]}})

    def create_into(self, name: str, sink_uri: str, config: Mapping[str, Any]) -> str:
        """Create a changefeed with ``initial``; return what frontier records call it."""
        request = ChangefeedRequest(
            upstream=UPSTREAM,
            sink_uri=sink_uri,
            config={"initial": "snapshot", "filter": {"rules": ["old.*", "busy.*"]}, **config},
            changefeed_id=name,
        )

        def is_created() -> bool:
            try:
                self.bus.create_changefeed(request)
            except (NoFrontierError, RawLogUnavailableError):
                return False
            return True

        self.wait(is_created, "the first frontier")
        with Session(self.bus.addresses.zookeeper_access) as session:
            _, info = session.client.get(self.bus.zk_paths.changefeed_info("default", name))
        return image_feed("default", name, int(info.czxid))

    def images(self) -> ImageState:
        """Return what the newest frontier record says of images."""
        record = self.frontier.newest()
        return NO_IMAGES if record is None else record.images

    def is_whole(self, feed: str) -> bool:
        """Tell whether a published record says that a changefeed waits for no image any more."""
        registered = self.images().feed(feed)
        return registered is not None and not registered.waits

    def has_begun(self, feed: str) -> bool:
        """Tell whether a part of a changefeed's images has landed."""
        images = self.images()
        landed: list[ImageChunk | TableImage] = [*images.chunks, *(table for table in images.tables if table.done)]
        return any(feed in item.feeds for item in landed)

    def wait(self, done: Callable[[], bool], what: str) -> None:
        wait_until(done, CATCH_UP_S, what, self.bus)

    def stop_writing(self) -> None:
        self.busy.stop()
        self.writing.result(60)

    def source_at(self, ts: int) -> Rows:
        """Return the source's tables at ``ts``."""
        return self.server.act(lambda store: upstream_at(store, self.names, ts))

    def processor_pids(self) -> list[int]:
        """Return the processes that apply a changefeed of this bus."""
        address = self.bus.addresses.zookeeper
        commands = [(process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        return [pid for pid, words in commands if {"processor", address} <= set(words)]


@pytest.fixture
def imaged(tmp_path: Any) -> Iterator[Imaged]:
    secrets = made_secrets(tmp_path)
    with RegionServer(RegionServerOptions(min_ts_interval_ms=200, tls=region_server_tls(secrets))) as server:
        old = Generator(server, GeneratorOptions(schema="old", tables=2, rows_max=OLD_ROWS, rows_per_s=0))
        server.spawn(old.run()).result(120)
        busy = Generator(server, GeneratorOptions(schema="busy", tables=2, rows_per_s=BUSY_ROWS_PER_S, seed=2))
        writing = server.spawn(busy.run())
        wait_until(lambda: busy.rows_committed > 300, 120, "rows of the busy tables")
        names = {
            table.table_id: f"{schema}.sbtest1_{number}"
            for schema, generator in (("old", old), ("busy", busy))
            for number, table in enumerate(generator._tables, 1)
        }
        options = BusOptions(
            data_dir=tmp_path,
            pd=server.pd_address,
            upstream=UPSTREAM,
            secrets=secrets,
            capture_arguments=("--image-rows-per-second", str(SCANNED_ROWS_PER_S), "--sorter-spark-on-demand"),
        )
        with LocalBus(options) as bus:
            topic = FrontierTopic(bus.addresses.kafka_access, raw_topics(UPSTREAM).frontier)
            with contextlib.closing(topic):
                running = Imaged(bus, server, names, busy, writing, topic)
                yield running
            running.stop_writing()


@pytest.mark.skipif("NIGHTLY_IMAGES" not in os.environ, reason="a minute and more; NIGHTLY_IMAGES=1, make nightly")
def test_topics_are_the_source_at_a_watermark_though_owner_and_sorter_die_during_the_image(imaged: Imaged) -> None:
    bus = imaged.bus
    feed = imaged.create("first")
    imaged.wait(lambda: sorter_pid(bus, "first") is not None and imaged.has_begun(feed), "an image has begun")
    killed = sorter_pid(bus, "first")
    assert killed is not None
    assert not imaged.is_whole(feed), "the sorter is killed in the middle"
    os.killpg(killed, signal.SIGKILL)
    bus.processes["capture"].kill()
    assert not imaged.is_whole(feed), "so is the owner"
    imaged.wait(lambda: sorter_pid(bus, "first") not in (None, killed), "the next sorter")
    wait_whole(bus, "first", CATCH_UP_S)
    upto_ts = imaged.busy.last_commit_ts
    wait_checkpoint(bus, "first", upto_ts, CATCH_UP_S)
    rows, image_ts = materialised(bus.addresses.kafka_access, "first_", upto_ts)
    assert rows == imaged.source_at(upto_ts)
    assert len(image_ts) > 1, "the image came in chunks, each at a ts of its own"

    imaged.create("second")
    wait_whole(bus, "second", CATCH_UP_S)
    upto_ts = imaged.busy.last_commit_ts
    for name in ("first", "second"):
        wait_checkpoint(bus, name, upto_ts, CATCH_UP_S)
    rows, own_ts = materialised(bus.addresses.kafka_access, "second_", upto_ts)
    assert rows == imaged.source_at(upto_ts)
    assert own_ts
    assert not own_ts & image_ts, "a changefeed that comes later gets an image of its own"
    assert materialised(bus.addresses.kafka_access, "first_", upto_ts)[0] == rows


@pytest.mark.timeout(1200)
@pytest.mark.skipif("NIGHTLY_IMAGES" not in os.environ, reason="minutes; NIGHTLY_IMAGES=1, make nightly")
def test_database_is_the_source_though_processors_sorter_and_owner_die_during_the_image(
    imaged: Imaged, tmp_path: Path
) -> None:
    """The database has neither tables nor schemas, and old rows are under way while the busy tables are written to."""
    bus = imaged.bus
    with started_or_skip(LocalMariaDb(data=tmp_path / "mariadb")) as mariadb:
        feed = imaged.create_into("base", mariadb.uri("worker-count=4"), {})

        def rows_there() -> int:
            made = rows(mariadb, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'old'")
            if made[0][0] < 2:
                return 0
            return sum(int(rows(mariadb, f"SELECT COUNT(*) FROM old.sbtest1_{n}")[0][0]) for n in (1, 2))

        def kill_processors() -> None:
            for pid in imaged.processor_pids():
                os.kill(pid, signal.SIGKILL)

        imaged.wait(lambda: rows_there() > 0, "rows of the image")
        killed = sorter_pid(bus, "base")
        assert killed is not None and imaged.processor_pids()
        kill_processors()
        os.killpg(killed, signal.SIGKILL)
        bus.processes["capture"].kill()
        assert not imaged.is_whole(feed), "processors, sorter and owner die in the middle"
        before = rows_there()
        imaged.wait(lambda: rows_there() > before, "more rows of the image")
        kill_processors()
        wait_whole(bus, "base", CATCH_UP_S)
        imaged.stop_writing()
        upto_ts = imaged.busy.last_commit_ts
        wait_checkpoint(bus, "base", upto_ts, CATCH_UP_S)
        held = {
            name: {int(row[0]): (int(row[1]), *map(str, row[2:])) for row in rows(mariadb, f"SELECT * FROM {name}")}
            for name in imaged.names.values()
        }
    assert held == imaged.source_at(upto_ts)


@pytest.mark.timeout(1200)
@pytest.mark.skipif("NIGHTLY_IMAGES" not in os.environ, reason="minutes; NIGHTLY_IMAGES=1, make nightly")
def test_resync_mends_a_damaged_database_while_its_tables_are_written_to(imaged: Imaged, tmp_path: Path) -> None:
    """Rows that the source lacks vanish, lost ones are back, and what is written meanwhile stays; processors die."""
    bus = imaged.bus
    with started_or_skip(LocalMariaDb(data=tmp_path / "mariadb")) as mariadb:
        feed = imaged.create_into("base", mariadb.uri("worker-count=4"), {})
        wait_whole(bus, "base", CATCH_UP_S)
        wait_checkpoint(bus, "base", imaged.busy.last_commit_ts, CATCH_UP_S)
        for name in imaged.names.values():
            run_sql(
                mariadb,
                f"INSERT INTO {name} SELECT id + 100000000, k, c, pad FROM {name} LIMIT 50",
                f"UPDATE {name} SET k = -7 WHERE id % 11 = 3",
            )
        run_sql(mariadb, "DELETE FROM old.sbtest1_1 WHERE id % 5 = 2")
        asked = [table for table, name in imaged.names.items() if name != "old.sbtest1_2"]
        with Session(bus.addresses.zookeeper_access) as session:
            request_images(session, bus.zk_paths, ("default", "base"), ImageMode.RESYNC, asked)

        def waits() -> bool:
            registered = imaged.images().feed(feed)
            return registered is not None and bool(registered.resync)

        imaged.wait(waits, "the resync has begun")
        for pid in imaged.processor_pids():
            os.kill(pid, signal.SIGKILL)
        imaged.wait(lambda: not waits(), "the resync is whole")
        imaged.stop_writing()
        upto_ts = imaged.busy.last_commit_ts
        wait_checkpoint(bus, "base", upto_ts, CATCH_UP_S)
        held = {
            name: {int(row[0]): (int(row[1]), *map(str, row[2:])) for row in rows(mariadb, f"SELECT * FROM {name}")}
            for name in imaged.names.values()
        }
    source = imaged.source_at(upto_ts)
    assert len(held["old.sbtest1_2"]) == len(source["old.sbtest1_2"]) + 50, "nobody has asked for this one"
    assert {name: held[name] for name in held if name != "old.sbtest1_2"} == {
        name: source[name] for name in source if name != "old.sbtest1_2"
    }
