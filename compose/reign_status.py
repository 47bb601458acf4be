"""What the owner writes of its upstream into ZooKeeper, for `tidebus top` and whoever looks."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from compose.reign import Reign
from producers.puller import PullerStats
from producers.span_watch import STALL_WARN_S
from schemas.ids import CaptureId, Ts, physical_ms
from schemas.rawlog.frontier import LandingReport

LATE_SHOWN: Final = 5
HELD_SHOWN: Final = 10
"""Tables of each group that is held; only changefeeds that contain them wait for them."""


def reign_status(
    capture: CaptureId, reign: Reign, stats: PullerStats, reports: Mapping[CaptureId, LandingReport]
) -> dict[str, Any]:
    """Return what is shown of an upstream, ready for JSON; times by this machine's clock.

    Tables and spans are the cluster's. Regions, scans, rows and memory are the owner's own puller's.
    """
    place, spans = reign.place, reign.spans_of_captures()
    others = {who: report for who, report in reports.items() if who != capture and who in spans}
    return {
        "capture": capture,
        "owner_rev": place.owner_rev,
        "epoch": reign.epoch,
        "state": "normal",
        "resolved_ts": place.resolved_ts,
        "lag_s": round(time.time() - physical_ms(place.resolved_ts) / 1000, 3),
        "rows_in": stats.landing.acked_rows,
        "tables": reign.table_count,
        "tables_held": sum(len(held.tables) for held in place.held),
        "held": [{"tables": held.tables[:HELD_SHOWN], "ts": held.ts} for held in place.held],
        "spans": reign.span_count,
        "captures": spans,
        "regions": stats.regions,
        "regions_initialized": stats.regions_initialized,
        "scans_running": stats.scans_running,
        "scans_waiting": stats.scans_waiting,
        "troubles": dict(stats.troubles),
        "held_bytes": stats.held_bytes,
        "spilled_bytes": stats.spilled_bytes,
        "locks": asdict(stats.locks),
        "stalls": reign.complaints() + _stalls(stats) + late_spans(others),
        "at_s": round(time.time(), 3),
    }


def late_spans(reports: Mapping[CaptureId, LandingReport]) -> list[str]:
    """Return the slowest span of each capture that has one far behind the first of all: what holds it back stands in
    that capture's log."""
    slowest = {
        who: min(report.landed_ts, key=report.landed_ts.__getitem__)
        for who, report in sorted(reports.items())
        if report.landed_ts
    }
    lead = max((ts for who in slowest for ts in reports[who].landed_ts.values()), default=Ts(0))
    found = []
    for who, span in slowest.items():
        behind_s = (physical_ms(lead) - physical_ms(reports[who].landed_ts[span])) / 1000 if lead else 0.0
        if behind_s > STALL_WARN_S:
            found.append(f"{span} on capture {who}: {behind_s:.0f} s behind others")
    return found[:LATE_SHOWN]


def _stalls(stats: PullerStats) -> list[str]:
    reasons = [f"{one.span}: {one.reason}" for one in stats.stalls[:5]]
    return reasons + ([f"kafka: {stats.broker_reason}"] if stats.broker_reason else [])
