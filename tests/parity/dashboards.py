"""What TiCDC's dashboards ask of a metric: its labels, by panel. ``python -m tests.parity.dashboards NAME=FILE …``
writes ``tests/parity/rows/panels.csv`` from the dashboards' own JSON (tiflow ``metrics/grafana/ticdc.json`` and
``TiCDC-Monitor-Summary.json``, ticdc ``metrics/grafana/ticdc_new_arch.json``), which is not copied here.
"""

import csv
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.parity.rows import FOLDER

PANELS: Final = FOLDER / "panels.csv"
OF_SCRAPES: Final = frozenset({"instance", "job", "k8s_cluster", "le", "tidb_cluster"})
"""Labels that Prometheus and its targets give, not the page of metrics; ``le`` is a bucket's."""
_SELECTOR: Final = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_LABEL: Final = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_BY: Final = re.compile(r"\bby\s*\(([^)]*)\)")


@dataclass(frozen=True, slots=True, order=True)
class Asked:
    """A metric that a panel asks for, with the labels that its expressions name."""

    dashboard: str
    panel: str
    metric: str
    labels: tuple[str, ...]


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
    """
    groups = {label.strip() for by in _BY.findall(expression) for label in by.split(",") if label.strip()}
    return {metric: set(_LABEL.findall(labels)) | groups for metric, labels in _SELECTOR.findall(expression)}


def read_panels() -> list[Asked]:
    """Return what all dashboards ask for, as it stands here."""
    with PANELS.open(newline="", encoding="utf-8") as file:
        return [
            Asked(line["dashboard"], line["panel"], line["metric"], tuple(line["labels"].split()))
            for line in csv.DictReader(file)
        ]


def main(arguments: list[str]) -> None:
    """Write the file from dashboards, given as NAME=FILE."""
    asked = set[Asked]()
    for argument in arguments:
        name, _, file = argument.partition("=")
        asked.update(asked_in(name, json.loads(Path(file).read_text(encoding="utf-8"))))
    with PANELS.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["dashboard", "panel", "metric", "labels"])
        writer.writerows([item.dashboard, item.panel, item.metric, " ".join(item.labels)] for item in sorted(asked))


if __name__ == "__main__":
    main(sys.argv[1:])
