"""Rows of protocols, DDL types and event names, and of metrics."""

from functools import cache

from schemas.config.filter.event_names import EVENT_NAMES
from schemas.ddl.job import DdlType
from tests.parity.evidence import shown
from tests.parity.rows import Mark, Row, Verdict, read_rows
from tests.parity.settings import judge_parameter
from tests.unit.repository.test_monitoring import shown_names


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
    return judge_metric(name)


def judge_metric(name: str) -> Verdict:
    """Return whether a page of metrics has a metric, else the reason by the longest name that it begins with."""
    labels = labels_of(name)
    if labels is not None:
        return Verdict(
            Mark.SAME, f"labels {', '.join(sorted(labels)) or 'none'} (`tests/unit/repository/test_ticdc_metrics.py`)"
        )
    reason = reason_of(name)
    return Verdict(Mark.NOT_HERE, reason) if reason else Verdict(Mark.SILENT, "there is no such metric, and no reason")


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
