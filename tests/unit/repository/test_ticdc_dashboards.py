"""What the panels and alerts of TiCDC's own ask for is on our page of metrics with its labels, or has a reason."""

from typing import Final

import yaml

from tests.parity.dashboards import Asked, asked_in, metrics_in, read_alerts, read_panels
from tests.parity.events import labels_of, reason_of
from tests.support.sources.repository import ROOT

OF_THE_UPSTREAM: Final = frozenset(
    {
        "ticdc_processor_num_of_tables",
        "ticdc_scheduler_capture_table",
        "ticdc_scheduler_table",
        "ticdc_scheduler_table_count",
        "ticdc_scheduler_table_replication_state",
        "ticdc_scheduler_task",
        "ticdc_scheduler_task_running",
        "ticdc_coordinator_changefeed_state",
        "ticdc_puller_txn_collect_event_count",
        "ticdc_scheduler_span_count",
    }
)
"""A table is pulled once for all changefeeds, and states are counted over all: panels show these with `All` chosen."""
NOT_THEIRS: Final = frozenset({"addr", "changefeed", "mode", "namespace", "scheduler", "task"})
"""Labels by which panels choose a changefeed or a part of its scheduling."""
MISSPELT: Final = frozenset({"namesapce"})
"""In TiCDC's own expressions, where it chooses nothing."""
ALERTS_OF_OTHERS: Final = {
    "tikv_cdc_min_resolved_ts_no_change_for_1m": {
        *("tikv_cdc_min_resolved_ts", "tikv_cdc_region_resolve_status", "tikv_cdc_captured_region_total"),
    },
    "tikv_cdc_scan_duration_seconds_more_than_10min": {"tikv_cdc_scan_duration_seconds_bucket"},
    "ticdc_memory_abnormal": {"go_memstats_heap_alloc_bytes"},
}
"""Alerts about TiKV, which it answers itself, and about Go's memory, for which ours has the process's."""
ALERTS_OF_COUNTS: Final = frozenset({"ticdc_sink_execution_error", "ticdc_processor_exit_with_error_count"})
"""By `increase()` here: these counts begin anew, one of them at a resume, and TiCDC's `changes()` would fire then."""
PANELS_SHOWN_MIN: Final = {"classic": 60, "new": 54, "summary": 20}


def shown() -> list[tuple[Asked, set[str]]]:
    return [(asked, labels) for asked in read_panels() if (labels := labels_of(asked.metric)) is not None]


def test_panels_ask_for_metrics_with_the_labels_that_we_give() -> None:
    faults = []
    for asked, labels in shown():
        lacking = set(asked.labels) - labels - MISSPELT
        allowed = NOT_THEIRS if asked.metric in OF_THE_UPSTREAM else frozenset[str]()
        faults += [asked] if lacking - allowed else []
    assert faults == []
    lacking_some = {asked.metric for asked, labels in shown() if set(asked.labels) - labels - MISSPELT}
    assert lacking_some == OF_THE_UPSTREAM, "an entry that nothing needs any more goes"


def test_what_panels_ask_for_and_we_have_not_has_a_reason() -> None:
    missing = {asked.metric for asked in read_panels() if labels_of(asked.metric) is None}
    assert sorted(metric for metric in missing if not reason_of(metric)) == []


def test_alerts_find_their_metrics_or_are_not_about_us() -> None:
    alerts = read_alerts()
    named = {alert: set(metrics_in(expression)) for alert, expression in alerts.items()}
    lacking = {alert: {metric for metric in metrics if labels_of(metric) is None} for alert, metrics in named.items()}
    assert len(alerts) == 11 and all(named.values())
    assert {alert: metrics for alert, metrics in lacking.items() if metrics} == ALERTS_OF_OTHERS
    assert all(reason_of(metric) for metrics in lacking.values() for metric in metrics)


def test_our_alerts_hold_ticdcs_word_for_word_or_with_what_our_states_mean() -> None:
    (group,) = yaml.safe_load((ROOT / "compose/monitoring/alerts.yml").read_text())["groups"]
    ours = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    theirs = {alert: expression for alert, expression in read_alerts().items() if alert not in ALERTS_OF_OTHERS}
    assert ALERTS_OF_COUNTS <= theirs.keys() <= ours.keys()
    theirs |= {alert: theirs[alert].replace("changes(", "increase(") for alert in ALERTS_OF_COUNTS}
    assert {alert: bare(ours[alert]) for alert in theirs} == {alert: bare(theirs[alert]) for alert in theirs}


def bare(expression: str) -> str:
    """Return an expression without what changes nothing: TiCDC's states are above 0 anyway."""
    return expression.removesuffix(" > 0").strip("() ")


def test_panels_of_each_dashboard_show_something() -> None:
    panels = {name: {asked.panel for asked, _ in shown() if asked.dashboard == name} for name in PANELS_SHOWN_MIN}
    assert all(len(panels[name]) >= count for name, count in PANELS_SHOWN_MIN.items()), panels
    for name, panel in (("classic", "Changefeed checkpoint lag"), ("new", "Changefeed Checkpoint Lag")):
        assert panel in panels[name]


def test_what_a_dashboard_asks_for_is_read_from_its_json() -> None:
    inner = {"title": "b", "targets": [{"expr": 'sum(rate(m_total{x="1", job="j"}[1m])) by (le, y) / n{z!~"$z"}'}]}
    board = {"panels": [{"title": "row", "panels": [inner]}, {"title": "none", "targets": [{"expr": "time()"}]}]}
    assert sorted(asked_in("d", board)) == [Asked("d", "b", "m_total", ("x", "y")), Asked("d", "b", "n", ("y", "z"))]
    assert metrics_in("time() - 5") == {}
