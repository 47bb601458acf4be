"""What the owner writes of its upstream into ZooKeeper, for `tidebus top` and whoever looks."""

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from consumers.control.owner.held_feeds import HeldTable
from consumers.control.owner.reign import Reign
from schemas.ids import CaptureId, Ts, physical_ms
from schemas.rawlog.frontier import LandingReport
from schemas.rawlog.pull_figures import STALL_WARN_S, PullFigures, total

LATE_SHOWN: Final = 5
STALLS_SHOWN: Final = 5
HELD_SHOWN: Final = 10
"""Tables of each group that is held; only changefeeds that contain them wait for them."""


def reign_status(
    capture: CaptureId, reign: Reign, reports: Mapping[CaptureId, LandingReport], held: Collection[HeldTable]
) -> dict[str, Any]:
    """Return what is shown of an upstream, ready for JSON; times by this machine's clock.

    ``capture`` is the owner. What the pullers do is the sum over all captures, by what each has told last, and each
    one's own in ``pullers``. Counters are since the captures' starts.
    """
    published, spans = reign.published, reign.spans_of_captures()
    figures_of = {who: reports[who].figures or PullFigures() for who in spans if who in reports}
    sums = total(list(figures_of.values()))
    names = {table.table_id: f"{table.schema}.{table.table}" for table in held}
    others = {who: report for who, report in reports.items() if who != capture and who in spans}
    return {
        "capture": capture,
        "owner_rev": published.owner_rev,
        "epoch": reign.epoch,
        "state": "normal",
        "resolved_ts": published.resolved_ts,
        "lag_s": round(time.time() - physical_ms(published.resolved_ts) / 1000, 3),
        "tables": reign.table_count,
        "tables_held": sum(len(group.tables) for group in published.held),
        "held": [
            {
                "tables": group.tables[:HELD_SHOWN],
                "names": [names.get(table, "") for table in group.tables[:HELD_SHOWN]],
                "ts": group.ts,
            }
            for group in published.held
        ],
        "captures": spans,
        "pullers": {who: _shown(figures, spans[who]) for who, figures in figures_of.items()},
        **_shown(sums, reign.span_count),
        "troubles": dict(sums.troubles),
        "locks": {
            "committed": sums.locks_committed,
            "rolled_back": sums.locks_rolled_back,
            "left_alive": sums.locks_left_alive,
        },
        "stalls": reign.complaints() + _stalls(figures_of) + late_spans(others),
        "at_s": round(time.time(), 3),
    }


def _shown(figures: PullFigures, spans: int) -> dict[str, int]:
    return {
        "spans": spans,
        "rows_in": figures.rows,
        "regions": figures.regions,
        "regions_initialized": figures.regions_initialized,
        "scans_running": figures.scans_running,
        "scans_waiting": figures.scans_waiting,
        "held_bytes": figures.held_bytes,
        "spilled_bytes": figures.spilled_bytes,
    }


def late_spans(reports: Mapping[CaptureId, LandingReport]) -> list[str]:
    """Return the slowest span of each capture that has one far behind the first of all: what holds it back stands in
    that capture's log."""
    slowest = {
        who: min(report.landed_ts, key=report.landed_ts.__getitem__)
        for who, report in sorted(reports.items())
        if report.landed_ts
    }
    newest_ts = max((ts for who in slowest for ts in reports[who].landed_ts.values()), default=Ts(0))
    late = []
    for who, span in slowest.items():
        behind_s = (physical_ms(newest_ts) - physical_ms(reports[who].landed_ts[span])) / 1000 if newest_ts else 0.0
        if behind_s > STALL_WARN_S:
            late.append(f"{span} on capture {who}: {behind_s:.0f} s behind others")
    return late[:LATE_SHOWN]


def _stalls(figures_of: Mapping[CaptureId, PullFigures]) -> list[str]:
    stalls = [(stall, who) for who, figures in sorted(figures_of.items()) for stall in figures.stalls]
    reasons = [f"{stall.span}: {stall.reason} (capture {who})" for stall, who in stalls[:STALLS_SHOWN]]
    return reasons + [
        f"kafka: {figures.broker_reason} (capture {who})"
        for who, figures in sorted(figures_of.items())
        if figures.broker_reason
    ]
