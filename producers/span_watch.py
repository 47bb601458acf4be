"""How subscribed spans stand, and what holds them back: for the live display, and once for the log."""

import logging
from collections.abc import Iterable
from typing import Final

from producers.core.span_frontier import KeyRange
from producers.core.subscription import Subscription
from producers.feed_types import SlowRegion, SpanStatus
from schemas.ids import Ts

log = logging.getLogger(__name__)

STALL_WARN_S: Final = 20.0
"""A span whose resolved ts has not moved for so long is logged once, with its reason; TiCDC's bound is the same."""
LOOK_S: Final = 1.0
"""Between two looks at all spans."""


def span_status(subscription: Subscription, now_s: float) -> SpanStatus:
    """Return how one span stands."""
    return SpanStatus(
        table_id=subscription.span.table_id,
        resolved_ts=subscription.resolved_ts,
        regions=len(subscription.frontier),
        initialized=subscription.initialized,
        still_s=now_s - subscription.moved_at_s,
        reason=stall_reason(subscription, now_s),
    )


def stall_reason(subscription: Subscription, now_s: float) -> str:
    """Return what holds a span back; '' if its regions are initialized and it moves."""
    slowest = subscription.frontier.slowest()
    if isinstance(slowest, KeyRange):
        return subscription.reason
    registration = subscription.holder(slowest)
    region = registration.region
    where = f"region {region.region_id} at store {region.leader.store_id if region.leader else 0}"
    if not registration.sent:
        return f"{where}: waits for its turn, the store runs as many incremental scans as it may"
    if not registration.matcher.initialized:
        return f"{where}: incremental scan not finished for {now_s - registration.since_s:.0f} s"
    noted_ts, note = subscription.lock_notes.get(region.region_id, (Ts(0), ""))
    if note and registration.lock.resolved_ts < noted_ts:
        return f"{where}: resolved ts does not move: {note}"
    if now_s - subscription.moved_at_s > STALL_WARN_S:
        return f"{where}: resolved ts does not move (a lock that stays?)"
    return ""


def slow_regions(subscriptions: Iterable[Subscription], before_ts: Ts) -> list[SlowRegion]:
    """Return the registered regions whose resolved ts is below ``before_ts``."""
    return [
        SlowRegion(
            span=subscription.span,
            region=registration.region,
            range=lock.range,
            resolved_ts=lock.resolved_ts,
            initialized=registration.matcher.initialized,
            since_s=registration.since_s,
        )
        for subscription in subscriptions
        for lock in subscription.frontier.behind(before_ts)
        for registration in (subscription.holder(lock),)
    ]


class StallLog:
    """Logs each stall once when it begins and once when it ends."""

    def __init__(self) -> None:
        self._stalled: set[Subscription] = set()

    def look(self, subscriptions: Iterable[Subscription], now_s: float) -> None:
        """Look at all spans."""
        for subscription in subscriptions:
            stalled = now_s - subscription.moved_at_s > STALL_WARN_S
            extra = {"table_id": subscription.span.table_id, "resolved_ts": subscription.resolved_ts}
            if stalled and subscription not in self._stalled:
                self._stalled.add(subscription)
                log.warning("span makes no progress", extra={**extra, "reason": stall_reason(subscription, now_s)})
            elif not stalled and subscription in self._stalled:
                self._stalled.discard(subscription)
                log.info("span makes progress again", extra=extra)

    def forget(self, subscription: Subscription) -> None:
        """Drop a span that is fed no more."""
        self._stalled.discard(subscription)
