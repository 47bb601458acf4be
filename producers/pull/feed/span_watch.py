"""How subscribed spans stand, and what holds them back: for the live display, and once for the log."""

import logging
from collections.abc import Iterable
from typing import Final

from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.core.regions.subscription import Subscription
from producers.pull.feed.types import SpanStatus
from schemas.ids import Ts
from schemas.rawlog.pull_figures import STALL_WARN_S

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""The time between two looks at all spans."""


def span_status(subscription: Subscription, now_s: float) -> SpanStatus:
    """Return how one span stands."""
    kind, reason = held_back(subscription, now_s)
    return SpanStatus(
        span=subscription.span,
        resolved_ts=subscription.resolved_ts,
        regions=len(subscription.frontier),
        initialized=subscription.initialized,
        still_s=now_s - subscription.moved_at_s,
        reason=reason,
        kind=kind,
    )


def held_back(subscription: Subscription, now_s: float) -> tuple[str, str]:
    """Return what holds a span back, as one word and for people; two '' if its regions are initialized and it moves.

    The words: ``unregistered`` (a range without a region: PD, a store or a region refuses), ``no_stream`` (the same: a
    store before EventFeedV2 has all the streams that it may have), ``scan_waiting``, ``scanning``, ``lock`` (the lock
    watch has found one), ``still`` (no cause found).
    """
    slowest = subscription.frontier.slowest()
    if isinstance(slowest, EncodedRange):
        return (subscription.reason_kind if subscription.reason else ""), subscription.reason
    registration = subscription.holder(slowest)
    region, still_s = registration.region, now_s - subscription.moved_at_s
    if registration.matcher.initialized and still_s <= STALL_WARN_S and not subscription.lock_notes:
        return "", ""
    where = f"region {region.region_id} at store {region.leader.store_id if region.leader else 0}"
    if not registration.sent:
        return "scan_waiting", f"{where}: waits for its turn, the store runs as many incremental scans as it may"
    if not registration.matcher.initialized:
        return "scanning", f"{where}: incremental scan not finished for {now_s - registration.since_s:.0f} s"
    noted_ts, note = subscription.lock_notes.get(region.region_id, (Ts(0), ""))
    if note and registration.lock.resolved_ts < noted_ts:
        return "lock", f"{where}: resolved ts does not move: {note}"
    if still_s > STALL_WARN_S:
        return "still", f"{where}: resolved ts does not move (a lock that stays?)"
    return "", ""


class StallLog:
    """Logs once when spans stall and once when they move again: one line a look, however many they are."""

    def __init__(self) -> None:
        self._stalled: set[Subscription] = set()

    def look(self, subscriptions: Iterable[Subscription], now_s: float) -> None:
        """Look at all spans."""
        stalled = {item for item in subscriptions if now_s - item.moved_at_s > STALL_WARN_S}
        new, over = stalled - self._stalled, self._stalled - stalled
        self._stalled = stalled
        if new:
            _, reason = held_back(_slowest(new), now_s)
            log.warning("spans make no progress", extra=_shown(new) | {"reason": reason})
        if over:
            log.info("spans make progress again", extra=_shown(over))

    def forget(self, subscription: Subscription) -> None:
        """Drop a span that is fed no more."""
        self._stalled.discard(subscription)


def _slowest(spans: set[Subscription]) -> Subscription:
    return min(spans, key=lambda item: (item.resolved_ts, item.span))


def _shown(spans: set[Subscription]) -> dict[str, object]:
    slowest = _slowest(spans)
    return {"spans": len(spans), "table_id": slowest.span.table_id, "resolved_ts": slowest.resolved_ts}
