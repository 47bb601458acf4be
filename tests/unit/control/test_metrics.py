"""The page of metrics, read back by Prometheus' own parser."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from compose.capture.api.addresses import ApiAddresses
from compose.capture.api.backend import ApiBackend
from compose.capture.metrics import pull_of, rule_of
from consumers.control.api.metrics import STALLS_SHOWN, MetricsSnapshot, Stall
from consumers.control.owner.owner_loop import Reigning
from edges.kafka.access import KafkaAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from producers.pull.feed.types import FeedCounters, SpanStatus
from producers.pull.images.scanner import ImageCounters
from producers.pull.landing.landing import LandingCounters
from producers.pull.locks.resolver import LockCounters
from producers.pull.puller import PullerStats
from producers.tls import TlsSettings
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import (
    ZkPaths,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.rawlog.frontier import FrontierRecord, HeldDdl, HeldTables
from schemas.tidb.spans import TableSpan
from tests.support.control.api import Api
from tests.support.control.memory_bus import ME, Memory
from tests.support.control.memory_zookeeper import MemoryZooKeeper
from tests.support.control.metrics_page import NOW_S, PULL, RULE, feed, of, read, scrape


def test_metrics_of_an_owner_have_the_snapshots_values() -> None:
    page = scrape(MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=[]))
    expected = {
        "tidebus_frontier_resolved_ts": 1_700_000_098_500,
        "tidebus_frontier_resolved_ts_lag": 1.5,
        "tidebus_frontier_held_ddl": 1,
        "tidebus_frontier_held_tables": 2,
        "tidebus_puller_tables": 3,
        "ticdc_processor_num_of_tables": 3,
        "ticdc_scheduler_table": 9,
        "ticdc_scheduler_task_running": 1,
        "tidebus_puller_spans": 4,
        "tidebus_puller_regions": 50,
        "tidebus_puller_regions_initialized": 48,
        "tidebus_puller_scans_running": 2,
        "tidebus_puller_scans_waiting": 1,
        "ticdc_kvclient_event_feed_count": 5,
        "tidebus_feed_messages_total": 600,
        "tidebus_feed_message_bytes_total": 70_000,
        "tidebus_feed_events_total": 800,
        "tidebus_feed_changes_total": 900,
        "tidebus_feed_stream_failures_total": 6,
        "tidebus_matcher_held_bytes": 1_000,
        "tidebus_matcher_spilled_bytes": 2_000,
        "tidebus_landing_rows_total": 31,
        "tidebus_landing_records_total": 32,
        "tidebus_landing_bytes_total": 33,
        "tidebus_landing_acked_rows_total": 34,
        "tidebus_landing_acked_records_total": 35,
        "tidebus_landing_in_flight_records": 36,
        "tidebus_image_scans_total": 45,
        "tidebus_image_scans_failed_total": 46,
        "tidebus_image_scan_rows_total": 47,
        "tidebus_image_scan_bytes_total": 48,
        "ticdc_event_store_subscription_num": 4,
        "ticdc_schema_store_register_table_num": 3,
        "ticdc_event_store_write_bytes": 33,
        "ticdc_event_store_write_requests_count": 32,
        "ticdc_scheduler_span_count": 11,
        "tidebus_landing_waits_for_kafka": 1,
    }
    assert {name: of(page, name, upstream="u") for name in expected} == expected
    for kind, count in PULL.troubles.items():
        assert of(page, "ticdc_kvclient_event_feed_error_count", upstream="u", type=kind) == count
    assert of(page, "ticdc_puller_txn_collect_event_count", upstream="u", type="kv") == 900
    assert of(page, "ticdc_event_store_input_event_count", upstream="u", type="kv") == 31
    for state, count in (("scanning", 2), ("waiting", 1)):
        assert of(page, "ticdc_subscription_client_requested_region_count", upstream="u", state=state) == count
    for part in ("log_puller", "event_store", "schema_store"):
        assert of(page, f"ticdc_{part}_resolved_ts_lag") == 1.5
    for outcome, count in PULL.locks.items():
        assert of(page, "tidebus_locks_total", upstream="u", outcome=outcome) == count
    assert of(page, "ticdc_scheduler_capture_table", upstream="u", capture="other") == 6
    assert of(page, "ticdc_scheduler_table_replication_state", upstream="u", state="prepare") == 1
    assert of(page, "ticdc_scheduler_task", upstream="u", task="add") == 11
    images = {"tables_left": 5, "tables_done": 6, "tables_paused": 1, "rows": 7, "bytes": 8, "chunks": 0}
    for name, value in images.items():
        assert of(page, f"tidebus_image_{name}", namespace="default", changefeed="a") == value
    ratios = [(dict(labels), value) for (name, labels), value in page.items() if "done_ratio" in name]
    assert sorted((labels["table"], labels["table_id"], value) for labels, value in ratios) == [
        ("d.t", "1", 0.25), ("d.t", "3", 0.5),
    ], "partitions have one name"  # fmt: skip
    assert of(page, "ticdc_owner_ownership_counter") == 12.5
    assert of(page, "tidebus_metadata_readable") == 1
    assert of(page, "process_resident_memory_bytes") > 0


def test_metrics_when_many_spans_stall_name_the_tables_that_stand_longest() -> None:
    stalls = [Stall(TableId(number), "scanning" if number % 2 else "lock", float(number)) for number in range(1, 101)]
    again = [Stall(TableId(100), "scanning", 500.0), Stall(TableId(99), "lock", 1.0)]  # other spans of two tables
    page = scrape(MetricsSnapshot(at_s=NOW_S, pull=replace(PULL, stalls=[*stalls, *again]), rule=RULE, feeds=None))
    assert of(page, "tidebus_spans_stalled", upstream="u", kind="scanning") == 51
    assert of(page, "tidebus_spans_stalled", upstream="u", kind="lock") == 51
    named = {dict(labels)["table_id"]: value for (name, labels), value in page.items() if "stalled_seconds" in name}
    assert len(named) == STALLS_SHOWN == 20
    assert named == {"100": 500.0} | {str(number): float(number) for number in range(81, 100)}
    assert of(page, "tidebus_span_stalled_seconds", upstream="u", table_id="100", kind="scanning") == 500.0
    assert of(page, "tidebus_metadata_readable") == 0


def test_metrics_of_a_capture_that_stands_by_tell_only_that() -> None:
    page = scrape(MetricsSnapshot(at_s=NOW_S, pull=None, feeds=None))
    pulled = scrape(MetricsSnapshot(at_s=NOW_S, pull=PULL, feeds=None))
    assert of(pulled, "tidebus_puller_tables", upstream="u") == 3
    assert not any(name.startswith(("tidebus_frontier", "ticdc_scheduler", "ticdc_owner_status")) for name, _ in pulled)
    assert {name for name, _ in page if not name.startswith("process_")} == {"ticdc_owner_ownership_counter"}
    assert of(page, "ticdc_owner_ownership_counter") == 0


def test_pull_of_takes_each_number_from_its_part() -> None:
    published = FrontierRecord(
        owner_rev=1,
        resolved_ts=RULE.resolved_ts,
        high=(0,),
        low=(0,),
        ddl_high=0,
        repeat_high=(0,),
        held=(HeldTables(tables=(TableId(1), TableId(2)), ts=Ts(1), low=(0,)),),
        held_ddl=(HeldDdl(ts=Ts(1), start_ts=Ts(1), low=(0,)),),
    )
    still = status_of(7, 3.0, "scanning", "region 1 at store 1: incremental scan not finished for 3 s")
    stats = PullerStats(
        at_s=0.0,
        feed=FeedCounters(messages=600, message_bytes=70_000, events=800, changes=900, stream_failures=6),
        landing=LandingCounters(rows=31, records=32, bytes=33, acked_rows=34, acked_records=35),
        tables=3,
        spans=4,
        regions=50,
        regions_initialized=48,
        scans_running=2,
        scans_waiting=1,
        streams=5,
        troubles=PULL.troubles,
        held_bytes=1_000,
        spilled_bytes=2_000,
        in_flight=36,
        images=ImageCounters(scans=45, failed=46, rows=47, bytes=48),
        locks=LockCounters(committed=41, rolled_back=42, left_alive=43),
        stalls=(still,),
        broker_reason="Kafka has been silent for 9 s",
    )
    moving, stuck = status_of(-1, 0.0, "", ""), status_of(-1, 30.0, "unregistered", "no leader")
    assert pull_of(UpstreamId("u"), stats, moving) == replace(PULL, stalls=[Stall(TableId(7), "scanning", 3.0)])
    assert pull_of(UpstreamId("u"), stats, None).stalls == [Stall(TableId(7), "scanning", 3.0)]
    assert pull_of(UpstreamId("u"), stats, stuck).stalls[1] == Stall(TableId(-1), "unregistered", 30.0)
    reigning = SimpleNamespace(began_at_s=0.0, reign=SimpleNamespace(published=published), image_progress=RULE.images)
    taken = rule_of(UpstreamId("u"), cast("Reigning", reigning), RULE.scheduling)
    assert taken.owner_s > 0
    assert replace(taken, owner_s=12.5) == RULE


def status_of(table: int, still_s: float, kind: str, reason: str) -> SpanStatus:
    span = TableSpan(TableId(table), b"a", b"b")
    return SpanStatus(span=span, resolved_ts=Ts(1), regions=1, initialized=0, still_s=still_s, reason=reason, kind=kind)


def test_backends_metrics_read_the_changefeeds_of_all_namespaces_only_as_owner() -> None:
    paths, stored = ZkPaths("c"), [feed("a", "warning"), feed("a", "normal", "other"), feed("b", "stopped", "other")]
    nodes: dict[str, bytes | None] = {}
    for changefeed in stored:
        key = changefeed.info.namespace, changefeed.info.changefeed_id
        assert changefeed.status is not None
        nodes[paths.changefeed_info(*key)] = encode_changefeed_info(changefeed.info)
        nodes[paths.changefeed_status(*key)] = encode_changefeed_status(changefeed.status)
    session, rules = MemoryZooKeeper(), [RULE]
    session.write(nodes)
    places = ApiAddresses(
        pd="",
        tls=TlsSettings(),
        kafka=KafkaAccess(""),
        zookeeper=ZooKeeperAccess(""),
        cluster="c",
        upstream=UpstreamId("u"),
    )
    backend = ApiBackend(
        cast(Session, session), ME, places, lambda: False, lambda: PULL, rule=lambda: rules[-1] if rules else None
    )
    assert (backend.metrics().rule, backend.metrics().feeds) == (RULE, stored)
    session.away = True
    assert (backend.metrics().rule, backend.metrics().feeds) == (RULE, None)
    rules.clear()
    assert (backend.metrics().rule, backend.metrics().pull, backend.metrics().feeds) == (None, PULL, None)
    session.away = False
    session.write(dict.fromkeys(nodes))
    rules.append(RULE)
    assert backend.metrics().feeds == []


def test_get_metrics_answers_text_over_http() -> None:
    bus = Memory()
    bus.snapshot = MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=[feed("cf", "normal")])
    answer = Api(bus).http.get("/metrics")
    kind = answer.headers["Content-Type"]
    assert (answer.status_code, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert of(read(answer.text), "ticdc_owner_status", namespace="default", changefeed="cf") == 0


def test_get_metrics_without_a_session_says_that_it_is_not_ready() -> None:
    assert Api(None).http.get("/metrics").status_code == 503
