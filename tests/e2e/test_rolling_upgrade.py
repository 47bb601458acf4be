"""A cluster of the version before sorter services is upgraded capture by capture under load, taken back, and up again.

All processes are real, of both versions; the upstream is a region server in this process, whose store is the truth.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from compose.local.bus import BusOptions
from consumers.control.changefeeds.store import ChangefeedRequest
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer, RegionServerOptions
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import NAMESPACE_DEFAULT, ChangefeedStatus, decode_changefeed_status
from schemas.nodes.service_paths import ServicePaths
from tests.support.control.lasting_session import lasting_session
from tests.support.processes.bus import (
    create_from_the_start,
    status,
    stored_upstream,
    topic_records,
    wait_checkpoint,
    wait_until,
)
from tests.support.processes.release_before import MixedBus, has_died, tree_before
from tests.support.topics.messages import decode_canal_json
from tests.support.topics.validator import Validator

pytestmark = [
    pytest.mark.skipif("NIGHTLY_UPGRADE" not in os.environ, reason="takes minutes: `make nightly`"),
    pytest.mark.timeout(2_400),
]

FEEDS = ("first", "second")
UPSTREAM = UpstreamId("upgrade")
TABLES, ROWS_PER_S = 4, 300.0
WAIT_S = 600.0
STATUS_S = 180.0
"""Within which the ``status`` node follows, on a busy machine; the service writes it each 10 s."""


@dataclass
class Load:
    """Rows that keep coming, and whoever is to write them downstream."""

    bus: MixedBus
    server: RegionServer
    generator: Generator
    writing: "Future[None]"

    def go_on(self, what: str) -> None:
        """See that each changefeed passes what is written by now, whoever runs it."""
        upto = self.generator.last_commit_ts
        for feed in FEEDS:
            wait_checkpoint(self.bus, feed, upto, WAIT_S)
        assert has_died(self.bus) == [], what

    def services(self) -> list[str]:
        """Return the sorter services that are registered: captures of the version before have none."""
        with lasting_session(self.bus.addresses.zookeeper_access) as session:
            path = ServicePaths(self.bus.zk_paths).services
            return list(session.client.get_children(path)) if session.client.exists(path) else []

    def own_status(self, feed: str) -> ChangefeedStatus:
        """Return what the changefeed's own node says, which is all that the version before reads."""
        with lasting_session(self.bus.addresses.zookeeper_access) as session:
            node, _ = session.client.get(self.bus.zk_paths.changefeed_status(NAMESPACE_DEFAULT, feed))
        return decode_changefeed_status(node)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    tree = tree_before(tmp_path)
    with RegionServer(RegionServerOptions(min_ts_interval_ms=200)) as server:
        server.spawn(Generator(server, GeneratorOptions(schema="boot", tables=1, rows_max=1)).run()).result(60)
        options = BusOptions(data_dir=tmp_path / "bus", pd=server.pd_address, upstream=UPSTREAM)
        with MixedBus(options, tree) as bus:
            bus.start_capture("before-a")
            bus.start_capture("before-b")
            for feed in FEEDS:
                create_from_the_start(bus, requested(bus, feed))
            settings = GeneratorOptions(schema="gen", rows_per_s=ROWS_PER_S, tables=TABLES, seed=1)
            generator = Generator(server, settings)
            yield Load(bus, server, generator, server.spawn(generator.run()))


def requested(bus: MixedBus, feed: str) -> ChangefeedRequest:
    uri = f"kafka://{bus.addresses.kafka}/{feed}_ddl?protocol=canal-json&enable-tidb-extension=true&partition-num=2"
    dispatch = {"matcher": ["*.*"], "topic": feed + "_{schema}_{table}", "partition": "index-value"}
    return ChangefeedRequest(
        upstream=UPSTREAM, sink_uri=uri, config={"sink": {"dispatchers": [dispatch]}}, changefeed_id=feed
    )


def test_captures_replaced_one_by_one_by_both_versions_lose_nothing_and_checkpoints_go_on(load: Load) -> None:
    bus = load.bus
    wait_until(lambda: load.generator.last_commit_ts > 0, WAIT_S, "rows", bus)
    load.go_on("two of the version before")
    assert load.services() == []
    bus.replace("before-a", "now-a", killed=False)
    load.go_on("one of each")
    bus.replace("before-b", "now-b", killed=False)
    load.go_on("two of this version")
    by_services = load.own_status(FEEDS[0]).checkpoint_ts
    wait_until(
        lambda: load.own_status(FEEDS[0]).checkpoint_ts > by_services,
        STATUS_S,
        "the status node does not follow the service",
        bus,
    )

    bus.replace("now-a", "before-c", killed=True)
    load.go_on("back: one of each, after a kill")
    bus.replace("now-b", "before-d", killed=False)
    load.go_on("back: two of the version before")
    assert load.services() == []
    for feed in FEEDS:
        behind = status(bus, feed)
        assert behind is not None
        assert (behind.state, behind.error) == ("normal", None)

    bus.replace("before-c", "now-e", killed=True)
    load.go_on("up again: one of each")
    bus.replace("before-d", "now-f", killed=True)
    load.go_on("up again: two of this version")
    assert len(load.services()) == 2
    finish(load)


def finish(load: Load) -> None:
    """End the load, and hold both changefeeds' topics against the upstream's store."""
    load.generator.stop()
    load.writing.result(60)
    load.go_on("all is written")
    upto = load.generator.last_commit_ts
    tables = {
        table.table_id: f"gen.{table.shape.name}_{number}" for number, table in enumerate(load.generator._tables, 1)
    }
    upstream = load.server.act(lambda store: stored_upstream(store, tables))
    assert len(upstream) > 1_000
    for feed in FEEDS:
        validator = Validator(decode_canal_json, upstream)
        validator.note_all(topic_records(load.bus.addresses.kafka_access, f"{feed}_"))
        assert validator.finish(need_watermark=upto) == []
