"""What a scrape says of a capture that is owner, while its only store is away and after."""

import http.client
import threading
import time
from collections.abc import Callable
from contextlib import closing

from prometheus_client.parser import text_string_to_metric_families

from compose.capture.process import run_capture
from compose.capture.settings.options import CaptureOptions
from compose.stack.local import Addresses
from consumers.control.cluster.capture_registry import list_captures
from producers.region_server.core.chaos import StartStore, StopStore
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ids import StoreId, UpstreamId
from schemas.nodes.changefeed import ZkPaths
from tests.support.control.lasting_session import lasting_session
from tests.support.control.pauses import growing_pauses
from tests.support.recorded.recording import TIDB_DATA

REACH_S = 180.0
Page = dict[tuple[str, str], float]
"""By name and the label ``kind`` or ``type``; of several series with the same, the largest."""


def scrape(address: str) -> Page:
    with closing(http.client.HTTPConnection(address, timeout=REACH_S)) as connection:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
    if answer.status != 200:
        return {}
    page: Page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, sample.labels.get("kind") or sample.labels.get("type") or ""
            page[key] = max(page.get(key, sample.value), sample.value)
    return page


def reached(address: str, condition: Callable[[Page], bool]) -> Page:
    deadline, page, pauses = time.monotonic() + REACH_S, Page(), growing_pauses()
    while time.monotonic() < deadline:
        if condition(page := scrape(address)):
            return page
        time.sleep(next(pauses))
    raise AssertionError(f"not reached: {page}")


def moves(page: Page) -> bool:
    return page.get(("tidebus_puller_tables", "")) == 28 and not any(
        name == "tidebus_spans_stalled" for name, _ in page
    )


def test_metrics_when_the_store_is_away_show_stalled_spans_with_the_reason_until_it_is_back(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    name, stopping = fresh_name("metrics"), threading.Event()
    with RegionServer(stores=1, min_ts_interval_ms=100) as server, lasting_session(stack.zookeeper_access) as session:
        replay = Replay(server, read_recording(TIDB_DATA))
        server.call(replay.load())
        options = CaptureOptions(
            pd=server.pd_address,
            kafka=stack.kafka_access,
            zookeeper=stack.zookeeper_access,
            schema_registry=stack.registry_access,
            cluster=name,
            upstream=UpstreamId(name),
            addr="127.0.0.1:0",
            session_timeout_s=30.0,  # a slow machine must not lose the address that is asked
        )
        running = server.spawn(replay.run(0.0, wait_for_subscriber=True))
        thread = threading.Thread(target=run_capture, args=(options, stopping))
        thread.start()
        try:
            deadline = time.monotonic() + REACH_S
            while not (captures := list_captures(session, ZkPaths(name))):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            address = captures[0].address
            running.result(REACH_S)
            before = reached(address, moves)
            assert before["ticdc_owner_ownership_counter", ""] > 0
            assert before["tidebus_landing_acked_rows_total", ""] > 0
            assert before["ticdc_kvclient_event_feed_count", ""] >= 1
            server.perform(StopStore(StoreId(1)))
            failures, stalled = ("tidebus_feed_stream_failures_total", ""), ("tidebus_spans_stalled", "unregistered")
            away = reached(address, lambda page: stalled in page and page[failures] > before[failures])
            assert ("tidebus_span_stalled_seconds", "unregistered") in away
            assert any(name == "ticdc_kvclient_event_feed_error_count" for name, _ in away)
            server.perform(StartStore(StoreId(1)))
            resolved_ts = ("tidebus_frontier_resolved_ts", "")
            back = reached(address, lambda page: moves(page) and page[resolved_ts] > away[resolved_ts])
            assert back["tidebus_frontier_resolved_ts_lag", ""] < REACH_S
        finally:
            stopping.set()
            thread.join(REACH_S)
    assert not thread.is_alive()
