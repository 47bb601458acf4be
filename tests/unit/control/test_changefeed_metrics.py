"""What the page of metrics says of changefeeds, read back by Prometheus' own parser."""

from dataclasses import replace

import pytest

from consumers.control.api.bodies import StoredFeed
from consumers.control.api.metrics import MetricsSnapshot
from schemas.nodes.changefeed import (
    ChangefeedError,
    ChangefeedState,
)
from tests.support.control.metrics_page import NOW_S, PULL, RULE, feed, of, scrape


@pytest.mark.parametrize(
    ("state", "number", "lags"),
    [
        ("normal", 0, True),
        ("pending", 1, True),
        ("failed", 2, False),
        ("stopped", 3, False),
        ("finished", 4, False),
        ("removed", 5, False),
        ("warning", 6, True),
    ],
)
def test_metrics_of_a_changefeed_are_ticdcs(state: ChangefeedState, number: int, lags: bool) -> None:
    page = scrape(
        MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=[feed("cf", state), feed("cf", state, "other")])
    )
    for namespace in ("default", "other"):
        key = {"namespace": namespace, "changefeed": "cf"}
        assert of(page, "ticdc_owner_status", **key) == number
        assert of(page, "ticdc_processor_exit_with_error_count", **key) == 2
        assert of(page, "ticdc_owner_checkpoint_ts", **key) == 1_700_000_090_000
        assert of(page, "ticdc_owner_resolved_ts", **key) == 1_700_000_095_250
        assert of(page, "ticdc_scheduler_slow_table_checkpoint_ts", **key) == 1_700_000_090_000
        assert of(page, "ticdc_scheduler_slow_table_resolved_ts", **key) == 1_700_000_095_250
        assert of(page, "ticdc_scheduler_slow_table_puller_resolved_ts", **key) == 1_700_000_098_500
        assert of(page, "ticdc_scheduler_slow_table_puller_resolved_ts_lag", **key) == 1.5
        for name, lag_s in (("ticdc_owner_checkpoint_ts_lag", 10.0), ("ticdc_owner_resolved_ts_lag", 4.75)):
            assert page.get((name, frozenset(key.items()))) == (lag_s if lags else None)


def test_metrics_of_flow_proofs_tell_stages_apart_and_what_differs() -> None:
    kafka = feed("kafka", "normal")
    assert kafka.status is not None
    alone = replace(kafka, status=replace(kafka.status, windows_proven=5, error=None))
    broken = ChangefeedError(code="apply.flow_broken", message="rows are lost", time="")
    status = replace(kafka.status, windows_proven=7, windows_unproven=2, error=broken)
    behind = replace(feed("base", "failed"), status=status, sorter_status=replace(status, windows_proven=9))
    page = scrape(MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=[alone, behind]))
    windows = {
        (key["changefeed"], key["stage"], key["outcome"]): value
        for (name, labels), value in page.items()
        if name == "tidebus_flow_windows" and (key := dict(labels))
    }
    assert windows == {
        ("kafka", "sorter", "proven"): 5,
        ("kafka", "sorter", "differing"): 0,
        ("base", "sorter", "proven"): 9,
        ("base", "sorter", "differing"): 0,
        ("base", "processor", "proven"): 7,
        ("base", "processor", "unproven"): 2,
        ("base", "processor", "differing"): 1,
    }


def test_metrics_rows_of_a_changefeed_are_said_by_who_wrote_them() -> None:
    """Where processors apply what a sorter writes, the sorter's rows count, and not theirs."""
    kafka, mysql = feed("a", "normal"), feed("b", "normal")
    assert kafka.status is not None
    written = replace(kafka.status, rows_total=70, spark_rows_total=30)
    feeds = [
        StoredFeed(kafka.info, written),
        StoredFeed(mysql.info, replace(written, rows_total=9), sorter_status=written),
        StoredFeed(feed("c", "normal").info, None),
    ]
    page = scrape(MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=feeds))
    rows = {
        (labels["changefeed"], labels["path"]): value
        for (name, key), value in page.items()
        if name == "tidebus_sorter_rows_total" and (labels := dict(key))
    }
    assert rows == {("a", "spark"): 30, ("a", "driver"): 40, ("b", "spark"): 30, ("b", "driver"): 40}


def test_metrics_of_rows_that_a_changefeed_wrote_have_the_names_of_ticdcs_parts() -> None:
    said = feed("cf", "normal")
    assert said.status is not None
    applied, sorted_ = replace(said.status, rows_total=70), replace(said.status, rows_total=90)
    at_a_database = replace(said, status=applied, sorter_status=sorted_)
    page = scrape(MetricsSnapshot(at_s=NOW_S, pull=PULL, rule=RULE, feeds=[at_a_database]))
    key = {"namespace": "default", "changefeed": "cf"}
    for name in (
        "ticdc_sink_table_sink_total_rows_count",
        "ticdc_sink_dml_event_count",
        "ticdc_sink_batch_row_count_sum",
    ):
        assert of(page, name, **key) == 70
    assert of(page, "ticdc_mounter_total_rows_count", **key) == 90
    assert of(page, "ticdc_sorter_output_event_count", **key, type="kv") == 90
