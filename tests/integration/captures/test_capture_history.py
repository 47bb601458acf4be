"""A capture that was away until TiKV had collected what it needs: it says so and stays down, instead of losing rows."""

import contextlib
import json
from collections.abc import Callable

import pytest

from compose.capture.process import run_capture
from compose.capture.settings.options import CaptureOptions
from compose.stack.local import Addresses
from consumers.control.log.frontier_topic import FrontierTopic
from producers.pull.pd.client import PdClient
from producers.pull.pd.safe_point import release_safe_point
from producers.pull.puller import PullerSettings
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.topics import raw_topics
from tests.integration.captures.test_capture import serve
from tests.support.control.lasting_session import lasting_session
from tests.support.recorded.captured_log import reached
from tests.support.recorded.recording import TIDB_DATA

pytestmark = pytest.mark.integration

NEVER_EXPIRES_S = (1 << 63) - 1


def test_capture_history_was_collected_while_it_was_away_then_it_ends_with_the_reason_in_zookeeper(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("history")
    with RegionServer(min_ts_interval_ms=100, gc_api="both") as server:
        server.call(Replay(server, read_recording(TIDB_DATA)).load())
        options = CaptureOptions(
            pd=server.pd_address,
            kafka=stack.kafka_access,
            zookeeper=stack.zookeeper_access,
            schema_registry=stack.registry_access,
            cluster=name,
            upstream=UpstreamId(name),
            session_timeout_s=30.0,  # a slow machine must not lose it
        )
        topics, start_ts = raw_topics(options.upstream), server.tso()
        first = serve(options)
        reached(stack.kafka, topics, start_ts)
        assert first.stop() == 0
        with contextlib.closing(FrontierTopic(stack.kafka_access, topics.frontier)) as topic:
            record = topic.newest()
        assert record is not None
        ours = PullerSettings(cluster=name).gc_service_id(options.upstream)
        with contextlib.closing(PdClient(server.pd_address)) as pd:
            barriers = {barrier.barrier_id: barrier.barrier_ts for barrier in pd.gc_state().gc_barriers}
            assert barriers[ours] < record.resolved_ts, "while it is down, PD keeps the history for its TTL"
            # The TTL runs out, and TiDB's collector goes on.
            for barrier in barriers:
                release_safe_point(pd, barrier)
            collected = pd.update_service_gc_safe_point("gc_worker", Ts(record.resolved_ts + 1), NEVER_EXPIRES_S)
            assert collected > record.resolved_ts
            assert run_capture(options) == 1
        with lasting_session(stack.zookeeper_access) as session:
            status = json.loads(session.client.get(ZkPaths(name).upstream(options.upstream))[0])
        assert (status["state"], status["error"]["code"]) == ("failed", "producer.history_gone")
        assert "CDC:ErrSnapshotLostByGC" in status["error"]["message"]
        assert f"needed_ts={record.resolved_ts}" in status["error"]["message"]
