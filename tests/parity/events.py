"""Rows of protocols, DDL types and event names, and of metrics."""

from functools import cache
from typing import Final

from schemas.config.filter.event_names import EVENT_NAMES
from schemas.ddl.job import DdlType
from tests.parity.evidence import names_it, shown
from tests.parity.rows import Mark, Row, Verdict, read_rows
from tests.parity.settings import judge_parameter
from tests.unit.repository.test_monitoring import shown_names
from tests.unit.repository.test_ticdc_metrics import LABELS, LACKING

METRICS: Final = "tests/unit/repository/test_ticdc_metrics.py::test_metric_of_ticdcs_is_on_the_page_with_its_labels"


def judge_content(row: Row) -> Verdict:
    """Return what becomes of a protocol, a DDL type, an event's name or a metric, by the first word of the item."""
    kind, _, name = row.item.partition(" ")
    if kind == "protocol":
        return judge_parameter(row) if row.probe else Verdict(Mark.NOT_HERE, row.how)
    if kind == "DDL":
        known = row.probe in DdlType.__members__
        return shown(row, row.probe) if known else Verdict(Mark.SILENT, "the job is passed over")
    if kind == "event":
        unknown = [event for event in row.probe.split(", ") if event not in EVENT_NAMES]
        return Verdict(Mark.UNKNOWN, f"no event {unknown[0]}") if unknown else shown(row, row.probe.split(", ")[0])
    return judge_metric(row, name)


def judge_metric(row: Row, name: str) -> Verdict:
    """Return whether a page of metrics has a metric, else the reason by the longest name that it begins with. What a
    row says of its test is held, and of what differs is told.
    """
    labels = labels_of_family(name)
    if labels is None:
        reason = reason_of(name)
        return Verdict(Mark.NOT_HERE if reason else Mark.SILENT, reason or "there is no such metric, and no reason")
    said = f"labels {', '.join(sorted(labels)) or 'none'}"
    if not row.test:
        return _judge_labels(name, said)
    verdict = shown(row, name)
    return Verdict(verdict.mark, f"{said}; {verdict.how}")


def _judge_labels(name: str, said: str) -> Verdict:
    if name not in LABELS or not names_it(METRICS, "LABELS"):
        return Verdict(Mark.SILENT, f"no test knows its labels (`{METRICS}`)")
    path, _, function = METRICS.partition("::")
    where = f"`{function}[{name}]` in `{path}`"
    if name in LACKING:
        labels, why = LACKING[name]
        return Verdict(Mark.DIFFERS, f"{said}, not {', '.join(labels.split())}: {why} ({where})")
    return Verdict(Mark.SAME, f"{said} ({where})")


def labels_of_family(name: str) -> set[str] | None:
    """Return the labels of a metric whose samples have its name, or are those of a histogram; None: there is none."""
    samples = (name, *(f"{name}_{part}" for part in ("bucket", "count", "sum")))
    of_samples = [labels for sample in samples if (labels := labels_of(sample)) is not None]
    return set().union(*of_samples) - {"le"} if of_samples else None


def labels_of(name: str) -> set[str] | None:
    """Return the labels of a metric on a full page of metrics; None: there is none."""
    return shown_metrics().get(name)


@cache
def shown_metrics() -> dict[str, set[str]]:
    """Return names and labels of a full page of metrics."""
    return shown_names()


@cache
def reasons() -> dict[str, str]:
    """Return why there is no metric that begins so."""
    return {row.item: row.how for row in read_rows("metric-reasons")}


def reason_of(name: str) -> str:
    """Return the reason of the longest beginning of a metric's name; '': there is none."""
    fitting = [begin for begin in reasons() if name.startswith(begin)]
    return reasons()[max(fitting, key=len)] if fitting else ""
