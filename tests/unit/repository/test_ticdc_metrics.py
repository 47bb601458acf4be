"""TiCDC's names and labels on our page, held against `/metrics` of real TiCDC servers, and OpenMetrics."""

from pathlib import Path
from typing import Final

import pytest
import zstandard
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from consumers.control.api.metrics import MetricsSnapshot
from tests.support.control.api import Api
from tests.support.control.memory_bus import Memory
from tests.unit.control.test_metrics import NOW_S, PULL, RULE, feed
from tests.unit.repository.test_monitoring import shown_names

DATA: Final = Path(__file__).resolve().parents[2] / "data/ticdc-api"
OTHER_LABELS: Final = {
    "ticdc_processor_num_of_tables": "a table is pulled once for all changefeeds: by upstream",
    "ticdc_scheduler_task": "as before",
    "ticdc_scheduler_table_replication_state": "as before",
    "ticdc_puller_txn_collect_event_count": "as before",
    "ticdc_scheduler_span_count": "as before",
    "ticdc_scheduler_table_count": "as before",
}
"""Metrics that cannot have the recorded labels, and why."""


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
        assert (recorded[metric] <= ours[metric]) is (metric not in OTHER_LABELS), (metric, recorded[metric])


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
