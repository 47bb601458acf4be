"""A start before the raw log began: what a real TiDB wrote before any capture came is landed by a prologue."""

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from compose.capture.settings.options import CaptureOptions
from compose.stack.local import Addresses
from consumers.control.cluster.capture_registry import list_captures
from consumers.control.fleets.settings import SorterSettings
from consumers.control.log.raw_log import retained_frontier
from edges.kafka.clients import kafka_admin
from edges.zookeeper.session import Session
from producers.pull.pd.client import PdClient
from producers.pull.puller import PullerSettings
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.prologue import Prologue, decode_prologue
from schemas.rawlog.topics import raw_topics
from tests.integration.captures.test_capture import serve
from tests.support.control.lasting_session import lasting_session
from tests.support.recorded.captured_log import REACH_S, check_law, places, reached
from tests.support.recorded.recording import TIDB_DATA

pytestmark = pytest.mark.integration

NEVER_EXPIRES_S = (1 << 63) - 1
T = Any


def wait_for(condition: Callable[[], T], what: str) -> T:
    deadline = time.monotonic() + REACH_S
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"{what}: not in {REACH_S} s")


@dataclass
class Bus:
    """A capture over an upstream whose whole history lies before its raw log."""

    options: CaptureOptions
    server: RegionServer
    bootstrap_ts: Ts
    end_ts: Ts
    session: Session
    kafka: str

    @property
    def paths(self) -> ZkPaths:
        return ZkPaths(self.options.cluster)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        (capture,) = wait_for(lambda: list_captures(self.session, self.paths), "a capture")
        with contextlib.closing(http.client.HTTPConnection(capture.address, timeout=REACH_S)) as connection:
            connection.request(
                method,
                path if path.startswith("/api/") else f"/api/v2{path}",
                None if body is None else json.dumps(body),
            )
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else None

    def create(self, name: str, start_ts: int, **settings: Any) -> tuple[int, Any]:
        body = {"changefeed_id": name, "sink_uri": f"kafka://{self.kafka}/{name}?protocol=canal-json"}
        rules = {"force_replicate": True, **settings}
        return self.ask("POST", "/changefeeds", {**body, "start_ts": start_ts, "replica_config": rules})

    def prologue(self, name: str) -> Prologue | None:
        path = self.paths.changefeed_prologue("default", name)
        return decode_prologue(self.session.client.get(path)[0]) if self.session.client.exists(path) else None

    def barriers(self) -> dict[str, int]:
        with contextlib.closing(PdClient(self.server.pd_address)) as pd:
            return {barrier.barrier_id: barrier.barrier_ts for barrier in pd.gc_state().gc_barriers}


@pytest.fixture
def bus(stack: Addresses, fresh_name: Callable[[str], str]) -> Iterator[Bus]:
    name, recording = fresh_name("prologue"), read_recording(TIDB_DATA)
    with RegionServer(min_ts_interval_ms=100, gc_api="both") as server, lasting_session(stack.zookeeper_access) as zoo:
        replay = Replay(server, recording)
        server.call(replay.load())
        server.spawn(replay.run()).result(REACH_S)
        options = CaptureOptions(
            pd=server.pd_address,
            kafka=stack.kafka_access,
            zookeeper=stack.zookeeper_access,
            schema_registry=stack.registry_access,
            cluster=name,
            upstream=UpstreamId(name),
            addr="127.0.0.1:0",
            session_timeout_s=30.0,  # a slow machine must not lose it
            sorters=SorterSettings(master="none"),
            graceful_stop_timeout_s=1.0,
        )
        yield Bus(options, server, Ts(replay.bootstrap_ts), Ts(recording.end_ts), zoo, stack.kafka)


def test_changes_of_before_the_raw_log_are_landed_under_the_frontier_law_and_their_topics_go_with_the_changefeed(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compose.capture.prologue.prologues.SWEEP_S", 0.5)
    capture = serve(bus.options)
    topics = raw_topics(bus.options.upstream)
    try:
        reached(bus.kafka, topics, Ts(bus.end_ts + 1))
        window = retained_frontier(bus.options.kafka, topics)
        assert window is not None
        assert bus.bootstrap_ts < bus.end_ts < window.oldest_ts, "all of the history lies before the log"
        status, made = bus.create("old", bus.bootstrap_ts)
        assert (status, made["start_ts"]) == (200, bus.bootstrap_ts), made
        prologue = wait_for(lambda: (node := bus.prologue("old")) and node.is_complete and node, "a prologue")
        assert window.oldest_ts <= window.newest_ts <= prologue.end_ts
        ours = PullerSettings(cluster=bus.options.cluster).gc_service_id(prologue.holder)
        wait_for(lambda: ours not in bus.barriers(), "history is let go")
        shown = bus.ask("GET", "/api/tidebus/changefeeds/old/sorter")[1]["prologue"]
        assert (shown["end_ts"], shown["is_complete"], shown["error"]) == (prologue.end_ts, True, None)
        own_topics = raw_topics(prologue.log)
        check_law(bus.kafka, own_topics, bus.bootstrap_ts, bus.end_ts)
        assert [record.resolved_ts for record in places(bus.kafka, own_topics)] == [bus.bootstrap_ts, prologue.end_ts]
        filtered = {"filter": {"rules": ["sbtest.*"]}, "force_replicate": True}
        assert bus.ask("POST", "/changefeeds/old/pause") == (200, {})
        status, refused = bus.ask("PUT", "/changefeeds/old", {"replica_config": filtered})
        assert (status, refused["error_code"]) != (200, "")
        assert "the filter stays" in refused["error_msg"]
        assert bus.ask("DELETE", "/changefeeds/old") == (200, {})
        admin = kafka_admin(bus.options.kafka.config())
        mine = f"tidebus.prologue.{bus.options.cluster}."
        wait_for(
            lambda: not [topic for topic in admin.list_topics(timeout=30).topics if topic.startswith(mine)], "topics"
        )
    finally:
        assert capture.stop() == 0


def test_a_start_is_refused_by_both_ts_once_tikv_has_collected_it_and_an_owner_that_died_is_followed(bus: Bus) -> None:
    options = bus.options
    topics = raw_topics(options.upstream)
    capture = serve(options)
    try:
        reached(bus.kafka, topics, Ts(bus.end_ts + 1))
        middle_ts = Ts((bus.bootstrap_ts + bus.end_ts) // 2)
        with contextlib.closing(PdClient(bus.server.pd_address)) as pd:
            collected = pd.update_service_gc_safe_point("gc_worker", middle_ts, NEVER_EXPIRES_S)
        assert collected == middle_ts
        status, refused = bus.create("gone", bus.bootstrap_ts)
        assert (status, refused["error_code"]) == (400, "CDC:ErrStartTsBeforeGC")
        assert f"start_ts={bus.bootstrap_ts}" in refused["error_msg"]
        assert f"gc_safe_point={middle_ts}" in refused["error_msg"]
        assert not [barrier for barrier in bus.barriers() if "-prologue." in barrier], "nothing is held for nobody"
        status, refused = bus.create("both", middle_ts + 1, initial="snapshot")
        assert (status, "initial" in refused["error_msg"]) == (400, True), refused
        status, _ = bus.create("half", middle_ts + 1)
        assert status == 200
        prologue = wait_for(lambda: bus.prologue("half"), "a prologue")
        assert prologue.start_ts == middle_ts + 1
    finally:
        assert capture.stop() == 0
    capture = serve(options)
    try:
        whole = wait_for(lambda: (node := bus.prologue("half")) and node.is_complete and node, "a prologue")
        assert (whole.life, whole.end_ts) == (prologue.life, prologue.end_ts), "the next owner goes on with the same"
        stands = places(bus.kafka, raw_topics(whole.log))
        assert [record.resolved_ts for record in stands] == [middle_ts + 1, prologue.end_ts]
    finally:
        assert capture.stop() == 0
