"""Which landing reports are heard: those that can be true of the raw log and of the upstream as they are.

A report that cannot be is no reason to stop the owner: whoever sent it counts as one that has not reported, so nothing
passes it, and who looks at the upstream sees why.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from schemas.ids import CaptureId, Ts
from schemas.rawlog.frontier import LandingReport, widened

NO_FLOOR = (1 << 63) - 1
"""Of a partition that a capture does not know of, and so lands nothing in."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Reports with vectors of one length, and why others are not among them."""

    reports: Mapping[CaptureId, LandingReport]
    refused: Mapping[CaptureId, str]
    is_wider: bool
    """Somebody knows of more partitions than we do."""


def heard(reports: Mapping[CaptureId, LandingReport], partitions: int, is_past: Callable[[Ts], bool]) -> Heard:
    """Sort reports out.

    Args:
        reports: the newest of each capture.
        partitions: of region-events, as far as the owner knows.
        is_past: says whether PD has given out a ts already.
    """
    fitting: dict[CaptureId, LandingReport] = {}
    refused: dict[CaptureId, str] = {}
    is_wider = False
    for capture, report in reports.items():
        count = len(report.ends)
        if reason := _contradiction(report):
            refused[capture] = reason
        elif count > partitions:
            is_wider = True
            refused[capture] = f"it tells of {count} partitions of region-events, which has {partitions}"
        elif report.landed_ts and not is_past(newest := max(report.landed_ts.values())):
            refused[capture] = f"landed_ts {newest} is above PD's clock, as far as PD has told it"
        else:
            fitting[capture] = report if count == partitions else _widened(report, partitions)
    return Heard(fitting, refused, is_wider)


def _contradiction(report: LandingReport) -> str:
    lengths = {len(report.ends), len(report.floors), len(report.repeat_ends)}
    if len(lengths) > 1:
        return f"its vectors have lengths {sorted(lengths)}"
    if min((*report.ends, *report.floors, *report.repeat_ends), default=0) < 0:
        return "an offset is negative"
    for chunk in report.chunks:
        if not 0 <= chunk.partition < len(report.ends):
            return f"a chunk is of partition {chunk.partition}"
        if not 0 <= chunk.start_offset < report.ends[chunk.partition]:
            return f"a chunk of partition {chunk.partition} starts outside what was acknowledged"
    return ""


def _widened(report: LandingReport, partitions: int) -> LandingReport:
    return replace(
        report,
        ends=widened(report.ends, partitions),
        floors=report.floors + (NO_FLOOR,) * (partitions - len(report.floors)),
        repeat_ends=widened(report.repeat_ends, partitions),
    )
