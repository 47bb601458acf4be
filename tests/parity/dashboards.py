"""What TiCDC's dashboards and alerts (``tests/data/ticdc-dashboards``) ask of a metric: its labels, panel by panel."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
import zstandard

DATA: Final = Path(__file__).resolve().parents[1] / "data/ticdc-dashboards"
BOARDS: Final = ("classic", "summary", "new")
OF_SCRAPES: Final = frozenset({"instance", "job", "k8s_cluster", "le", "tidb_cluster"})
"""Labels that Prometheus and its targets give, not the page of metrics; ``le`` is a bucket's."""
_SELECTOR: Final = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_LABEL: Final = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_BY: Final = re.compile(r"\bby\s*\(([^)]*)\)")
_BETWEEN: Final = "|".join(
    (
        r"\{[^}]*\}",
        r"\[[^]]*\]",
        r"\"[^\"]*\"",
        r"\$\w+",
        r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)",
    )
)
"""Of an expression, what holds no metric's name: selectors, ranges, texts, Grafana's variables, lists of labels."""
_BARE: Final = re.compile(r"(?<![\w.:])([a-zA-Z_:][\w:]*)(?![\w:]*\s*\()")
_OPERATORS: Final = frozenset(
    {"and", "or", "unless", "offset", "bool", "by", "on", "without", "ignoring", "inf", "nan"}
)


@dataclass(frozen=True, slots=True, order=True)
class Asked:
    """A metric that a panel asks for, with the labels that its expressions name."""

    dashboard: str
    panel: str
    metric: str
    labels: tuple[str, ...]


@cache
def read_panels() -> tuple[Asked, ...]:
    """Return what all dashboards ask for, each once, in order."""
    return tuple(sorted({asked for name in BOARDS for asked in asked_in(name, _board(name))}))


def read_alerts() -> dict[str, str]:
    """Return the expressions of TiCDC's alerts by their names."""
    (group,) = yaml.safe_load((DATA / "ticdc.rules.yml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def _board(name: str) -> dict[str, Any]:
    with (DATA / f"{name}.json.zst").open("rb") as file:
        shown: dict[str, Any] = json.loads(zstandard.ZstdDecompressor().stream_reader(file).read())
    return shown


def asked_in(dashboard: str, shown: dict[str, Any]) -> Iterator[Asked]:
    """Yield what a dashboard's JSON asks for, panel by panel, rows of panels among them."""
    for panel in shown.get("panels", ()):
        yield from asked_in(dashboard, panel)
        metrics: dict[str, set[str]] = {}
        for target in panel.get("targets", ()):
            for metric, labels in metrics_in(str(target.get("expr", ""))).items():
                metrics.setdefault(metric, set()).update(labels)
        for metric, labels in metrics.items():
            yield Asked(dashboard, str(panel["title"]).strip(), metric, tuple(sorted(labels - OF_SCRAPES)))


def metrics_in(expression: str) -> dict[str, set[str]]:
    """Return the metrics of an expression of PromQL with the labels that it selects them by, or groups by.

    >>> sorted(metrics_in('max(ticdc_a_b{changefeed=~"$x"}) by (namespace)')["ticdc_a_b"])
    ['changefeed', 'namespace']
    >>> metrics_in("changes(ticdc_a[1m]) > 0 and ON (instance) ticdc_b > 1e+10")
    {'ticdc_a': set(), 'ticdc_b': set()}
    """
    groups = {label.strip() for by in _BY.findall(expression) for label in by.split(",") if label.strip()}
    metrics = {metric: set(_LABEL.findall(labels)) | groups for metric, labels in _SELECTOR.findall(expression)}
    for name in _BARE.findall(re.sub(_BETWEEN, " ", expression, flags=re.IGNORECASE)):
        if name.lower() not in _OPERATORS:
            metrics.setdefault(name, set(groups))
    return metrics
