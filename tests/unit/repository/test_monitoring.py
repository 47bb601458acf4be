"""The alert rules and the dashboard: they parse, and name only metrics that a page of metrics has."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from consumers.control.api.metrics import MetricsSnapshot, Stall, metrics_text
from schemas.ids import TableId
from schemas.nodes.changefeed import ChangefeedError
from schemas.producer_figures import BrokerFigures, ProducerFigures
from schemas.sink_figures import SinkFigures
from tests.support.control.metrics_page import NOW_S, PULL, RULE, feed

PRODUCER = ProducerFigures(
    seconds=1,
    brokers=(BrokerFigures(1, requests=1, trips=1),),
    **dict.fromkeys(("batches", "records", "packed_bytes", "waits"), 1),
)
"""Of which all is known."""

FOLDER = Path(__file__).parents[3] / "compose" / "monitoring"
FUNCTIONS = {"sum", "rate", "max_over_time", "min_over_time", "increase", "or", "and", "by"}


def shown_names() -> dict[str, set[str]]:
    """Return the labels of each sample that a full page has."""
    from dataclasses import replace

    failed = feed("cf", "failed")
    assert failed.status is not None
    failed = replace(failed, status=replace(failed.status, error=ChangefeedError(code="c", message="m", time="")))
    pull = replace(PULL, stalls=[Stall(TableId(1), "lock", 9.0)])
    feeds = [failed, replace(feed("ok", "normal"), sink=SinkFigures(producer=PRODUCER))]
    for name, uri in (("db", "mysql://u@h/"), ("files", "file:///d")):
        made = feed(name, "normal")
        feeds.append(replace(made, info=replace(made.info, sink_uri=uri)))
    snapshot = MetricsSnapshot(at_s=NOW_S, pull=pull, rule=RULE, feeds=feeds)
    page = metrics_text(snapshot)[0].decode()
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def metrics_of(expression: str) -> set[str]:
    """Return the metrics that an expression of PromQL names; it must be one of the few forms that are used here."""
    text = re.sub(r"\{[^}]*\}|\[\d+[smh]\]", " ", expression)
    assert text.count("(") == text.count(")") and re.fullmatch(r"[\w\s().><=+\-*/]+", text), expression
    return {word for word in re.findall(r"[a-zA-Z_]\w*", text) if word not in FUNCTIONS}


def labels_of(text: str, form: str) -> set[str]:
    return set(re.findall(form, text)) - {"instance", "job"}


def test_alert_rules_parse_and_name_only_metrics_and_labels_that_there_are() -> None:
    names = shown_names()
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["level"] in ("warning", "critical") and rule["annotations"]["summary"]
        used = metrics_of(rule["expr"])
        assert used and used <= names.keys(), rule
        known = set().union(*(names[name] for name in used))
        assert labels_of(rule["annotations"]["summary"], r"\$labels\.(\w+)") <= known, rule


def test_alert_rules_hold_ticdcs_that_mean_the_same_here() -> None:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    rules = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    assert rules["cdc_multiple_owners"] == "sum(rate(ticdc_owner_ownership_counter[240s])) >= 2"
    assert rules["cdc_checkpoint_high_delay"] == "ticdc_owner_checkpoint_ts_lag > 600"
    assert rules["cdc_resolvedts_high_delay"] == "ticdc_owner_resolved_ts_lag > 300"
    assert rules["ticdc_changefeed_failed"] == "max_over_time(ticdc_owner_status[1m]) == 2"
    assert {"cdc_no_owner", "ticdc_changefeed_meet_error", "ticdc_processor_exit_with_error_count"} <= rules.keys()


def test_alerts_of_counts_that_begin_anew_are_quiet_when_they_do() -> None:
    """TiCDC's rules take `changes()`, which a resume fires: it sets the sorter's deaths back to 0."""
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    rules = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    for name in ("ticdc_sink_execution_error", "ticdc_processor_exit_with_error_count"):
        assert rules[name] == f"increase({name}[1m]) > 0"
    assert not any("changes(" in expression for expression in rules.values())


def test_dashboard_parses_and_names_only_metrics_and_labels_that_there_are() -> None:
    names = shown_names()
    panels = [
        panel for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"] if panel["type"] != "row"
    ]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        for target in panel["targets"]:
            used = metrics_of(target["expr"])
            assert used and used <= names.keys(), target
            known = set().union(*(names[name] for name in used))
            assert labels_of(target["legendFormat"], r"\{\{(\w+)\}\}") <= known, target
