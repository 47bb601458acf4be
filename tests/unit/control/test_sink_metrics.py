"""What the owner's page says of sinks, by TiCDC's names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from consumers.control.api.metrics import MetricsSnapshot
from schemas.producer_figures import BrokerFigures, ProducerFigures
from schemas.sink_figures import LEAST_BATCH, LEAST_DDL_US, LEAST_ROWS, LEAST_US, SinkFigures, Spread
from tests.support.control.metrics_page import NOW_S, PULL, RULE, feed, of, scrape


@dataclass(frozen=True)
class Shown:
    """A histogram of a page."""

    count: float
    total: float
    below: dict[str, float]


def histogram(page: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> Shown:
    below = {
        str(dict(key)["le"]): value
        for (metric, key), value in page.items()
        if metric == f"{name}_bucket" and dict(key) == {**labels, "le": dict(key)["le"]}
    }
    return Shown(of(page, f"{name}_count", **labels), of(page, f"{name}_sum", **labels), below)


def test_metrics_of_sinks_have_ticdcs_words_for_their_kinds_and_errors() -> None:
    feeds = []
    for name, uri in (("db", "mysql+ssl://u@h/"), ("files", "s3://b/p"), ("topics", "kafka://h:1/t")):
        made = feed(name, "normal")
        assert made.status is not None
        status = replace(made.status, dml_errors=3, ddl_errors=4)
        feeds.append(replace(made, info=replace(made.info, sink_uri=uri), status=status))
    page = scrape(MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=feeds))
    for changefeed, kind in (("db", "TxnSink"), ("files", "cloudstorage"), ("topics", "sink")):
        for event_type, count in (("dml", 3), ("ddl", 4)):
            key = {"namespace": "default", "changefeed": changefeed, "type": kind, "event_type": event_type}
            assert of(page, "ticdc_sink_execution_error", **key) == count


def test_metrics_of_what_processors_write_are_ticdcs_histograms() -> None:
    durations = Spread().of(900, LEAST_US).of(3_000, LEAST_US)
    sink = SinkFigures(
        flushes_us=durations,
        queued_us=Spread().of(1, LEAST_US),
        batch_rows=Spread().of(5, LEAST_ROWS).of(1, LEAST_ROWS),
        rounds_us=Spread().of(20_000, LEAST_US).of(19_000, LEAST_US),
        ddls_us=Spread().of(25_000, LEAST_DDL_US),
        files=7,
        file_bytes=800,
    )
    uris = {"db": "tidb://u@h/", "files": "file:///d", "topics": "kafka://h:1/t"}
    feeds = [
        replace(made, info=replace(made.info, sink_uri=uri), sink=sink)
        for name, uri in uris.items()
        if (made := feed(name, "normal"))
    ]
    page = scrape(MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=feeds))
    db, files = ({"namespace": "default", "changefeed": name} for name in ("db", "files"))
    flushes = histogram(page, "ticdc_sink_txn_worker_flush_duration", **db, id="all")
    assert {bound: flushes.below[bound] for bound in ("0.001", "0.002", "0.004")} == {
        "0.001": 1,
        "0.002": 1,
        "0.004": 2,
    }
    assert flushes == histogram(page, "ticdc_sink_txn_sink_dml_batch_commit", **db)
    assert (flushes.count, flushes.total) == (2, 0.0039)
    assert histogram(page, "ticdc_sink_txn_queue_duration", **db).below["0.001"] == 1
    ddl = histogram(page, "ticdc_sink_ddl_exec_duration", **db, type="TxnSink")
    assert (ddl.count, ddl.total, ddl.below["0.02"], ddl.below["0.04"]) == (1, 0.025, 0, 1)
    assert of(page, "ticdc_sink_ddl_exec_count", **db, type="TxnSink") == 1
    assert of(page, "ticdc_sink_txn_worker_handled_rows", **db, id="all") == 6
    rounds = histogram(page, "ticdc_sink_txn_worker_total_duration", **db, id="all")
    assert flushes.total / rounds.total == pytest.approx(0.1)
    assert of(page, "ticdc_sink_batch_row_count_bucket", **db, type="TxnSink", le="4.0") == 1
    assert of(page, "ticdc_sink_batch_row_count_count", **files, type="cloudstorage") == 2
    written = histogram(page, "ticdc_sink_cloud_storage_flush_duration_seconds", **files)
    assert (written.count, written.total) == (2, 0.0039)
    assert histogram(page, "ticdc_sink_cloud_storage_flush_bytes", **files) == Shown(2, 800, {})
    assert of(page, "ticdc_sink_cloud_storage_file_count", **files) == 7
    assert of(page, "ticdc_sink_cloud_storage_write_bytes_total", **files) == 800
    of_kafka = {name for name, labels in page if ("changefeed", "topics") in labels and name.startswith("ticdc_sink_")}
    assert not any("txn" in name or "cloud" in name or "ddl" in name for name in of_kafka)


def test_metrics_of_what_sorters_send_to_kafka_are_those_of_ticdcs_workers() -> None:
    sent = SinkFigures(
        flushes_us=Spread().of(3_000, LEAST_US).of(500_000, LEAST_US),
        batch_rows=Spread().of(3, LEAST_BATCH).of(7_000, LEAST_BATCH),
        file_bytes=90_000,
    )
    made = feed("topics", "normal")
    made = replace(made, info=replace(made.info, sink_uri="kafka://h:1/t"), sink=sent.of_batch(0.3, 1.0))
    page = scrape(MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=[made]))
    key = {"namespace": "default", "changefeed": "topics"}
    sending = histogram(page, "ticdc_sink_mq_worker_send_message_duration", **key)
    assert (sending.count, sending.total, sending.below["0.004"], sending.below["+Inf"]) == (2, 0.503, 1, 2)
    batches = histogram(page, "ticdc_sink_mq_worker_batch_duration", **key)
    assert (batches.count, batches.below["0.032"], batches.below["0.064"]) == (1, 0, 1)
    assert batches.total == pytest.approx(0.3 - 0.503 / 2, abs=1e-6)
    sizes = histogram(page, "ticdc_sink_mq_worker_batch_size", **key)
    assert (sizes.count, sizes.total) == (2, 7_003)
    assert [sizes.below[bound] for bound in ("4.0", "4096.0", "8192.0")] == [1, 1, 2]
    assert of(page, "ticdc_sink_write_bytes_total", **key, type="sink") == 90_000


def test_metrics_of_producers_are_ticdcs_gauges() -> None:
    busy = BrokerFigures(
        3,
        requests=400,
        responses=390,
        sent_bytes=8_000,
        in_flight=5,
        trips=100,
        trips_us=2_500_000,
        trip_p99s_us=9_000_000,
        throttles=4,
        throttles_ms=100,
        throttle_p99s_ms=280,
    )
    producer = ProducerFigures(
        seconds=40,
        brokers=(BrokerFigures(1), busy),
        batches=20,
        records=5_000,
        batch_bytes=60_000,
        batch_p99s=18_000,
        packed_bytes=50_000,
        plain_bytes=125_000,
        waits=10,
        waits_us=30_000,
        retries=6,
        errors=7,
    )
    made = feed("topics", "normal")
    made = replace(made, info=replace(made.info, sink_uri="kafka://h:1/t"), sink=SinkFigures(producer=producer))
    page = scrape(MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=[made, feed("silent", "normal")]))
    shown = {
        (name, *(labels[label] for label in ("broker", "type") if label in labels)): value
        for (name, pairs), value in page.items()
        if name.startswith("ticdc_sink_kafka_producer_")
        and (labels := dict(pairs)) | {"namespace": "default", "changefeed": "topics"} == labels
    }
    assert shown == {
        ("ticdc_sink_kafka_producer_in_flight_requests", "1"): 0,
        ("ticdc_sink_kafka_producer_in_flight_requests", "3"): 5,
        ("ticdc_sink_kafka_producer_outgoing_byte_rate", "1"): 0,
        ("ticdc_sink_kafka_producer_outgoing_byte_rate", "3"): 200,
        ("ticdc_sink_kafka_producer_request_rate", "1"): 0,
        ("ticdc_sink_kafka_producer_request_rate", "3"): 10,
        ("ticdc_sink_kafka_producer_response_rate", "1"): 0,
        ("ticdc_sink_kafka_producer_response_rate", "3"): 9.75,
        ("ticdc_sink_kafka_producer_request_latency", "3", "avg"): 0.025,
        ("ticdc_sink_kafka_producer_request_latency", "3", "p99"): 0.09,
        ("ticdc_sink_kafka_producer_throttle_time", "1", "avg"): 0,
        ("ticdc_sink_kafka_producer_throttle_time", "1", "p99"): 0,
        ("ticdc_sink_kafka_producer_throttle_time", "3", "avg"): 25,
        ("ticdc_sink_kafka_producer_throttle_time", "3", "p99"): 70,
        ("ticdc_sink_kafka_producer_records_per_request", "avg"): 250,
        ("ticdc_sink_kafka_producer_records_per_request", "p99"): 900,
        ("ticdc_sink_kafka_producer_compression_ratio", "avg"): 250,
        ("ticdc_sink_kafka_producer_batch_message_count",): 250,
        ("ticdc_sink_kafka_producer_batch_size",): 3_000,
        ("ticdc_sink_kafka_producer_batch_duration",): 0.003,
        ("ticdc_sink_kafka_producer_retry_count",): 6,
        ("ticdc_sink_kafka_producer_err_count",): 7,
    }
    assert not any("kafka_producer" in name and ("changefeed", "silent") in labels for name, labels in page)
