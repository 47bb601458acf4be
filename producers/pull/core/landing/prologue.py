"""The frontier of a raw log that holds one interval of ts and grows no more: two records, by the frontier law."""

from schemas.ids import Ts
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport


def prologue_frontier(
    start_ts: Ts, end_ts: Ts, report: LandingReport, ddl: DdlReport
) -> tuple[FrontierRecord, FrontierRecord] | None:
    """Return the records at ``start_ts`` and ``end_ts``; None: not everything up to ``end_ts`` has landed.

    The first stands before everything, so the law holds for the two of them as soon as all changes up to the second
    are acknowledged: whatever else has landed, of before ``start_ts`` or beyond ``end_ts``, is no change of the
    interval.

    Args:
        start_ts: every span was pulled from here on (exclusive).
        end_ts: inclusive.
        report: of the one puller that landed the log, with all its spans.
        ddl: of its DDL feed.
    """
    if min([ddl.landed_ts, *report.landed_ts.values()]) < end_ts:
        return None
    nothing = (0,) * len(report.ends)
    first = FrontierRecord(
        owner_rev=0, resolved_ts=start_ts, high=nothing, low=nothing, ddl_high=ddl.end, repeat_high=nothing
    )
    last = FrontierRecord(
        owner_rev=0, resolved_ts=end_ts, high=report.ends, low=nothing, ddl_high=ddl.end, repeat_high=report.repeat_ends
    )
    return first, last
