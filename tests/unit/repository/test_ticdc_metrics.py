"""TiCDC's names and labels on our page, held against its source and pages of real TiCDC servers, and OpenMetrics."""

from pathlib import Path
from typing import Final

import pytest
import zstandard
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from consumers.control.api.metrics import MetricsSnapshot
from tests.support.control.api import Api
from tests.support.control.memory_bus import Memory
from tests.support.control.metrics_page import NOW_S, PULL, RULE, feed
from tests.unit.repository.test_monitoring import shown_names

DATA: Final = Path(__file__).resolve().parents[2] / "data/ticdc-api"
CHANGEFEED: Final = "namespace changefeed"
TICDC_LABELS: Final = {
    "": (
        *("event_store_resolved_ts_lag", "event_store_subscription_num", "event_store_write_bytes"),
        *("event_store_write_requests_count", "kvclient_event_feed_count", "log_puller_resolved_ts_lag"),
        *("owner_ownership_counter", "schema_store_register_table_num", "schema_store_resolved_ts_lag"),
        "subscription_client_subscribed_region_count",
    ),
    "state": ("coordinator_changefeed_state", "subscription_client_requested_region_count"),
    "type": ("event_store_input_event_count", "kvclient_event_feed_error_count"),
    CHANGEFEED: (
        *(f"dispatchermanager_{what}" for what in ("checkpoint_ts", "checkpoint_ts_lag", "resolved_ts")),
        *("dispatchermanager_resolved_ts_lag", "maintainer_checkpoint_ts", "maintainer_checkpoint_ts_lag"),
        *("maintainer_resolved_ts", "maintainer_resolved_ts_lag", "mounter_total_rows_count"),
        *("owner_checkpoint_ts", "owner_resolved_ts", "owner_resolved_ts_lag", "processor_exit_with_error_count"),
        *("processor_num_of_tables", "scheduler_slow_table_checkpoint_ts", "scheduler_slow_table_resolved_ts"),
        *("scheduler_slow_table_puller_resolved_ts", "scheduler_slow_table_puller_resolved_ts_lag"),
        *("scheduler_table", "scheduler_task_running", "sink_cloud_storage_file_count"),
        *("sink_cloud_storage_write_bytes_total", "sink_dml_event_count", "sink_table_sink_total_rows_count"),
        "sink_mq_worker_batch_size",
    ),
    f"{CHANGEFEED} keyspace_id": ("owner_checkpoint_ts_lag", "owner_status"),
    f"{CHANGEFEED} downstream_type": ("owner_changefeed_downstream_info",),
    f"{CHANGEFEED} type": (
        *("puller_txn_collect_event_count", "sink_ddl_exec_count", "sink_write_bytes_total"),
        "sorter_output_event_count",
    ),
    f"{CHANGEFEED} type event_type": ("sink_execution_error",),
    f"{CHANGEFEED} addr": ("scheduler_capture_table",),
    f"{CHANGEFEED} stage": (
        *("scheduler_slow_table_stage_checkpoint_ts", "scheduler_slow_table_stage_checkpoint_ts_lag"),
        *("scheduler_slow_table_stage_resolved_ts", "scheduler_slow_table_stage_resolved_ts_lag"),
    ),
    f"{CHANGEFEED} mode": ("scheduler_span_count", "scheduler_table_count"),
    f"{CHANGEFEED} mode state": ("scheduler_table_replication_state",),
    f"{CHANGEFEED} mode scheduler task": ("scheduler_task",),
    f"{CHANGEFEED} id": ("sink_txn_worker_handled_rows",),
}
"""Labels, of both architectures together, by the names that have them, less `ticdc_`. Source: where pingcap/tiflow and
pingcap/ticdc define them (the commits of docs/parity.md); `namespace` is what the newer calls a keyspace."""
LABELS: Final = {f"ticdc_{name}": set(labels.split()) for labels, names in TICDC_LABELS.items() for name in names}
BY_UPSTREAM: Final = "a table is pulled once for all changefeeds: by upstream"
NO_KEYSPACE: Final = "there is the null keyspace only"
LACKING: Final = {
    "ticdc_owner_checkpoint_ts_lag": ("keyspace_id", NO_KEYSPACE),
    "ticdc_owner_status": ("keyspace_id", NO_KEYSPACE),
    "ticdc_processor_num_of_tables": ("changefeed namespace", BY_UPSTREAM),
    "ticdc_puller_txn_collect_event_count": ("changefeed namespace", BY_UPSTREAM),
    "ticdc_scheduler_capture_table": ("addr changefeed namespace", f"{BY_UPSTREAM}, and `capture` for `addr`"),
    "ticdc_scheduler_span_count": ("changefeed mode namespace", BY_UPSTREAM),
    "ticdc_scheduler_table": ("changefeed namespace", BY_UPSTREAM),
    "ticdc_scheduler_table_count": ("changefeed mode namespace", BY_UPSTREAM),
    "ticdc_scheduler_table_replication_state": ("changefeed mode namespace", BY_UPSTREAM),
    "ticdc_scheduler_task": ("changefeed mode namespace scheduler", BY_UPSTREAM),
    "ticdc_scheduler_task_running": ("changefeed namespace", BY_UPSTREAM),
}
"""Labels that metrics cannot have here, and why."""


def recorded_labels(name: str) -> dict[str, set[str]]:
    with (DATA / f"{name}-metrics.txt.zst").open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file).read().decode()
    families = text_string_to_metric_families(text)
    return {family.name: set(family.samples[0].labels) for family in families if family.samples}


@pytest.mark.parametrize(("name", "at_least"), [("classic", 6), ("new", 14)])
def test_metrics_with_names_of_ticdcs_have_its_labels(name: str, at_least: int) -> None:
    ours, recorded = shown_names(), recorded_labels(name)
    both = sorted(metric for metric in recorded if metric in ours)
    assert len(both) >= at_least, both
    for metric in both:
        lacking = set(LACKING.get(metric, ("", ""))[0].split())
        assert recorded[metric] - ours[metric] <= lacking, (metric, recorded[metric])


@pytest.mark.parametrize("name", LABELS)
def test_metric_of_ticdcs_is_on_the_page_with_its_labels(name: str) -> None:
    """docs/parity.md takes this as what stands behind a metric's row."""
    ours = shown_names()
    samples = [sample for sample in (name, f"{name}_count", f"{name}_sum") if sample in ours]
    assert samples
    for sample in samples:
        assert " ".join(sorted(LABELS[name] - ours[sample])) == LACKING.get(name, ("", ""))[0]


def test_metrics_show_progress_by_the_names_of_both_architectures() -> None:
    names = shown_names()
    for part in ("owner", "processor", "maintainer"):
        for what in ("checkpoint_ts", "checkpoint_ts_lag", "resolved_ts", "resolved_ts_lag"):
            assert names[f"ticdc_{part}_{what}"] == {"namespace", "changefeed"}


def test_metrics_are_open_metrics_where_they_are_asked_for() -> None:
    bus = Memory()
    bus.snapshot = MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=[feed("cf", "normal")])
    http = Api(bus).http
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    answer = http.get("/metrics", headers={"Accept": accept})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    families = open_metrics(answer.text)  # type: ignore[no-untyped-call]
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert samples["tidebus_feed_changes_total"] == 900 and "ticdc_owner_checkpoint_ts_lag" in samples
    plain = http.get("/metrics")
    assert plain.headers["Content-Type"].startswith("text/plain")
    names = {sample.name for family in text_string_to_metric_families(plain.text) for sample in family.samples}
    assert set(samples) <= names
