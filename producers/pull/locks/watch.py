"""Watches a feed for spans that stand still, and has their locks resolved (docs/formats/cdcpb.md §7).

One thread looks every two seconds; a few workers resolve, since one store that does not answer must not keep the locks
of others waiting. What they find is noted at the span, so that its stall reason names the lock.
"""

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from producers.pull.core.locks.resolving import Task
from producers.pull.core.regions.stuck_spans import (
    LOOK_S,
    REGIONS_FIRST,
    STILL_S,
    Look,
    ResolveRegion,
    StillSpan,
    StuckRegion,
    Watch,
    at_once,
    reach,
    step,
)
from producers.pull.core.regions.subscription import Subscription
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.client import PdClient
from schemas.errors import BusError
from schemas.ids import physical_ms
from schemas.tidb.codec import decode_bytes
from schemas.tidb.spans import TableSpan

log = logging.getLogger(__name__)

WORKERS: Final = 4


class WatchedFeed(Protocol):
    """What is needed of the event feed. Subscriptions are looked into under ``lock``."""

    @property
    def lock(self) -> threading.RLock:
        """Held while a subscription is looked into."""

    def subscription(self, span: TableSpan) -> Subscription | None:
        """Return the live subscription of a span."""

    def subscriptions(self) -> list[Subscription]:
        """Return the live ones."""


class LockWatch:
    """See the module's text."""

    def __init__(self, feed: WatchedFeed, pd: PdClient, resolver: LockResolver, *, look_s: float = LOOK_S) -> None:
        self._feed = feed
        self._pd = pd
        self._resolver = resolver
        self._look_s = look_s
        self._state = Watch()
        self._regions_max, self._has_locks = REGIONS_FIRST, False
        """Under resolution at once; whether a lock was found since the last look."""
        self._stopping = threading.Event()
        self._under_way: set[Future[None]] = set()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="lock-resolver")
        self._thread = threading.Thread(target=self._run, name="lock-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; tasks under way end at their next call. Idempotent."""
        self._stopping.set()
        self._resolver.close()
        self._workers.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stopping.wait(self._look_s):
            try:
                self.look()
            except BusError as error:
                log.warning("no look for stuck locks", extra={"error": str(error)})

    def look(self) -> None:
        """Look once, and hand what is stuck to the workers.

        Raises:
            PdUnreachableError: PD does not answer.
        """
        now_s = time.monotonic()
        spans = self._still_spans(now_s)
        # PD is asked for the time only when somebody stands still.
        if not spans:
            self._state = Watch(resolved_at_s=self._state.resolved_at_s)
            return
        self._regions_max, self._has_locks = at_once(self._regions_max, has_locks=self._has_locks), False
        room = self._regions_max - len(self._under_way)
        self._state, orders = step(self._state, Look(now_s, self._pd.now(), spans, room))
        for order in orders:
            if not self._stopping.is_set():
                task = self._workers.submit(self._resolve, order)
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    def _still_spans(self, now_s: float) -> tuple[StillSpan, ...]:
        with self._feed.lock:
            return tuple(
                _still_span(subscription, now_s)
                for subscription in self._feed.subscriptions()
                if now_s - subscription.moved_at_s >= STILL_S or subscription.span in self._state.targets
            )

    def _resolve(self, order: ResolveRegion) -> None:
        try:
            start, end = decode_bytes(order.range.start)[0], decode_bytes(order.range.end)[0]
            task = self._resolver.resolve_range(start, end, order.max_version)
            self._has_locks |= bool(task.held or task.committed or task.rolled_back)
            text = _finding(order, task)
        except BusError as error:
            text = f"its locks cannot be resolved: {error}"
        except Exception as error:
            log.exception("lock resolver failed")
            text = f"its locks cannot be resolved: {error!r}"
        with self._feed.lock:
            subscription = self._feed.subscription(order.span)
            if subscription is not None:
                subscription.lock_notes[order.region_id] = (order.max_version, text)


def _still_span(subscription: Subscription, now_s: float) -> StillSpan:
    resolved_ts = subscription.frontier.resolved_ts()
    bound = reach(resolved_ts)
    return StillSpan(
        subscription.span,
        resolved_ts,
        now_s - subscription.moved_at_s,
        tuple(
            StuckRegion(holder.region.region_id, lock.range, lock.resolved_ts)
            for lock in subscription.frontier.behind(bound)
            for holder in (subscription.holder(lock),)
            if holder.matcher.initialized
        ),
    )


def _finding(order: ResolveRegion, task: Task) -> str:
    """Return what holds a region's resolved ts, for people; '' if all that was found has been resolved."""
    said = [
        f"lock of transaction {live.start_ts} (started {physical_ms(live.start_ts)} ms) on key {live.key.hex()}, "
        f"primary {live.primary.hex()}, is alive: ttl {live.ttl_ms} ms"
        for live in task.held[:3]
    ]
    said += task.troubles[:3]
    more = len(task.held) + len(task.troubles) - len(said)
    if said:
        return "; ".join(said) + (f"; and {more} more" if more > 0 else "")
    if not task.committed + task.rolled_back:
        return f"no lock of a transaction up to {order.max_version} is found"
    log.info(
        "locks resolved",
        extra={"region_id": order.region_id, "committed": task.committed, "rolled_back": task.rolled_back},
    )
    return ""
