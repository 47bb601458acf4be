"""The metrics' snapshot, taken from the running parts of a capture; consumers, who show it, know no producer."""

import time

from consumers.control.api.metrics import Pull, Stall
from consumers.control.owner.figures.owner_figures import Rule, SchedulerFigures
from consumers.control.owner.owned_upstream import DdlProgress
from consumers.control.owner.owner_loop import Reigning
from producers.pull.puller import PullerStats
from schemas.ids import UpstreamId


def rule_of(upstream: UpstreamId, reigning: Reigning, scheduling: SchedulerFigures | None) -> Rule:
    """Return what an owner knows."""
    record = reigning.reign.published
    return Rule(
        upstream=upstream,
        owner_s=time.monotonic() - reigning.began_at_s,
        resolved_ts=record.resolved_ts,
        held_ddl=len(record.held_ddl),
        held_tables=sum(len(held.tables) for held in record.held),
        scheduling=scheduling,
        images=reigning.image_progress,
    )


def pull_of(upstream: UpstreamId, stats: PullerStats, ddl: DdlProgress | None) -> Pull:
    """Return what a puller says, and the DDL feed of an owner (None: another's)."""
    held: list[DdlProgress] = [*stats.stalls, *([ddl] if ddl is not None and ddl.reason else [])]
    return Pull(
        upstream=upstream,
        tables=stats.tables,
        spans=stats.spans,
        regions=stats.regions,
        regions_initialized=stats.regions_initialized,
        scans_running=stats.scans_running,
        scans_waiting=stats.scans_waiting,
        streams=stats.streams,
        messages=stats.feed.messages,
        message_bytes=stats.feed.message_bytes,
        events=stats.feed.events,
        changes=stats.feed.changes,
        stream_failures=stats.feed.stream_failures,
        troubles=stats.troubles,
        stalls=[Stall(stall.span.table_id, stall.kind, stall.still_s) for stall in held],
        held_bytes=stats.held_bytes,
        spilled_bytes=stats.spilled_bytes,
        landed_rows=stats.landing.rows,
        landed_records=stats.landing.records,
        landed_bytes=stats.landing.bytes,
        acked_rows=stats.landing.acked_rows,
        acked_records=stats.landing.acked_records,
        in_flight=stats.in_flight,
        broker_waits=bool(stats.broker_reason),
        image_scans=stats.images.scans,
        image_scans_failed=stats.images.failed,
        image_rows=stats.images.rows,
        image_bytes=stats.images.bytes,
        locks={
            "committed": stats.locks.committed,
            "rolled_back": stats.locks.rolled_back,
            "left_alive": stats.locks.left_alive,
        },
    )
