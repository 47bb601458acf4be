"""The event feed: subscribed spans in, matched row changes and resolved ts out (docs/formats/cdcpb.md §3 to §5).

Threads::

    reader per store stream --raw messages--\\
    locator -------regions of a range-------> inbox --> the feed's one thread: parse, match, range lock --> FeedSink
       ^                                                         | under the lock
       '--a span's range---.                                     v
    subscribe, unsubscribe, a report --under the lock--------> state

Messages are handled by one thread, so a matcher needs no lock of its own. All state changes under ``lock``: the thread
holds it while it works, and so does whoever subscribes, unsubscribes or wants a report of one moment. The thread works
in bounded turns and gives the lock back after each. Messages wait in the inbox up to a bound of bytes; a sink that is
saturated stops the thread from taking more, the readers then stop, and gRPC slows the store.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from producers.errors import ProducerBugError
from producers.pull.core.match.log_rows import LogRows
from producers.pull.core.match.matcher import BadRowError, PrewriteNotMatchError
from producers.pull.core.match.matcher_quota import MatcherQuota
from producers.pull.core.match.spill import SpillCorruptError, SpillRefusedError
from producers.pull.core.regions.feed_message import FeedMessage
from producers.pull.core.regions.region_errors import decide
from producers.pull.core.regions.span_frontier import TS_MAX, EncodedRange
from producers.pull.core.regions.stream_errors import bad_rows, decide_stream, malformed
from producers.pull.core.regions.subscription import Registration, Retry, Subscription
from producers.pull.core.regions.subscriptions import Subscriptions
from producers.pull.feed.event_stream import ByteBudget, StoreStream
from producers.pull.feed.locator import LocatedRange, Locator, UnlocatedRange
from producers.pull.feed.recovery import Recovery
from producers.pull.feed.span_watch import LOOK_S, StallLog, span_status
from producers.pull.feed.spill_refusals import SpillRefusals
from producers.pull.feed.store_streams import OpenStream, StoreStreams
from producers.pull.feed.types import FeedCounters, FeedSettings, FeedSink, SpanStatus
from producers.pull.pd.region_cache import RegionCache
from schemas.errors import Action, BusError
from schemas.ids import RegionId, StoreId, TableId, Ts
from schemas.proto import cdcpb_pb2
from schemas.tidb.spans import TableSpan

log = logging.getLogger(__name__)

TURN_S: Final = 0.005
"""How long the thread takes messages before it lets the sink flush."""

_Item = tuple[StoreStream, bytes] | tuple[StoreStream, grpc.StatusCode, str] | LocatedRange | UnlocatedRange


class EventFeed:
    """See the module's text."""

    def __init__(
        self,
        cache: RegionCache,
        sink: FeedSink,
        on_fatal: Callable[[BusError], None],
        settings: FeedSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        open_stream: Callable[..., StoreStream] = StoreStream,
        locator: Callable[[RegionCache, Callable[[LocatedRange | UnlocatedRange], None]], Locator] = Locator,
        quota: MatcherQuota | None = None,
    ) -> None:
        """Prepare; :meth:`start` connects.

        Args:
            cache: regions and stores; the caller closes its PD client after :meth:`stop`.
            sink: takes the output.
            on_fatal: told once when the feed has ended for good; called by the feed's thread.
            settings: bounds.
            clock: in seconds, never goes back; a simulation has its own.
            open_stream: takes the arguments of :class:`StoreStream`; a simulation's needs no socket.
            locator: made from the cache and the inbox; a simulation's runs on its own clock.
            quota: of all matchers; without one all open transactions stay in memory.
        """
        self.lock = threading.RLock()
        self.counters = FeedCounters()
        self.troubles: Counter[str] = Counter()
        """How often each kind of trouble was met (producers.pull.core.regions.region_errors); take it under the
        lock.
        """
        self._cache = cache
        self._sink = sink
        self._on_fatal = on_fatal
        settings = settings or FeedSettings()
        self._quota = quota or MatcherQuota()
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._budget = ByteBudget(settings.inbox_bytes_max)
        self._clock = clock
        self._open_stream = open_stream
        self._locator = locator(cache, self._inbox.put)
        self._streams = StoreStreams(settings, self._open_transport, lambda: cache.pd.cluster_id)
        self._recovery = Recovery(cache, self._streams, self._locator.submit, self.troubles)
        self._refusals = SpillRefusals(self._quota, self._streams, self._recovery)
        self._subscriptions = Subscriptions(self._quota)
        self._dirty: set[Subscription] = set()
        self._stopping = False
        self._stalls = StallLog()
        self._looked_at_s = 0.0
        self._listening_since_s = clock()
        self._thread = threading.Thread(target=self._run, name="event-feed", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._locator.start()
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop all threads; idempotent. What was read and not flushed comes again from the published R."""
        self._stopping = True
        self._inbox.put(None)
        self._locator.stop()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        self._budget.close()
        with self.lock:
            transports = self._streams.close_all()
        for transport in transports:
            transport.join(timeout_s)

    def subscribe(self, span: TableSpan, start_ts: Ts) -> None:
        """Feed a span's rows with commit_ts > ``start_ts``; spans of its table that overlap it end."""
        with self.lock:
            for other in self.overlapping(span):
                self.unsubscribe(other)
            subscription = self._subscriptions.begin(span, start_ts, self._clock())
        self._locator.submit(subscription, Retry(EncodedRange(*span.encoded)))

    def unsubscribe(self, what: TableSpan | TableId) -> None:
        """End the feed of a span, or of all spans of a table; nothing of it reaches the sink any more."""
        with self.lock:
            for subscription in self._subscriptions.end(what):
                self._dirty.discard(subscription)
                self._stalls.forget(subscription)
                self._streams.unsubscribe(subscription, self._clock())

    def overlapping(self, span: TableSpan) -> list[TableSpan]:
        """Return the subscribed spans that have rows in common with ``span``."""
        with self.lock:
            return self._subscriptions.overlapping(span)

    def status(self) -> list[SpanStatus]:
        """Return how every span stands."""
        with self.lock:
            now_s = self._clock()
            return [span_status(subscription, now_s) for subscription in self._subscriptions]

    def subscription(self, span: TableSpan) -> Subscription | None:
        """Return a live one, for the lock watch."""
        return self._subscriptions.get(span)

    def subscriptions(self) -> list[Subscription]:
        """Return the live ones, for the lock watch; whoever looks into them holds :attr:`lock`."""
        return list(self._subscriptions)

    def scans(self) -> tuple[int, int]:
        """Return how many incremental scans are under way and how many wait for their turn."""
        with self.lock:
            return self._streams.scans()

    def streams(self) -> int:
        """Return how many streams are open."""
        with self.lock:
            return sum(1 for _ in self._streams)

    def held_bytes(self) -> int:
        """Return the bytes of open transactions that all matchers hold in memory."""
        with self.lock:
            return self._quota.memory_bytes

    # -- the feed's thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            wait_s = 0.0
            while not self._stopping:
                if self._sink.saturated():
                    time.sleep(TURN_S)
                else:
                    self._take(wait_s)
                wait_s = self._turn()
        except BusError as error:
            self._fail(error)
        except Exception as error:
            log.exception("event feed failed")
            self._fail(ProducerBugError("event feed failed", error=repr(error)))

    def step(self) -> float:
        """Handle all that is in the inbox and take one turn: what the feed's thread does, for one that was not started.

        Returns in how many seconds the sink wants the next one. For simulations; a BusError reaches the caller.
        """
        with contextlib.suppress(queue.Empty):
            while (item := self._inbox.get_nowait()) is not None:
                self._work_off(item)
        return self._turn()

    def _turn(self) -> float:
        with self.lock:
            now_s = self._clock()
            self._report_resolved(now_s)
            wait_s = self._sink.turn(now_s)
            if now_s - self._looked_at_s > LOOK_S:
                self._looked_at_s = now_s
                self._look(now_s)
            return wait_s

    def _fail(self, error: BusError) -> None:
        self._stopping = True
        self._budget.close()
        self._on_fatal(error)

    def _take(self, wait_s: float) -> None:
        """Handle what is in the inbox, for one turn at most; wait for the first item."""
        try:
            item = self._inbox.get(timeout=wait_s) if wait_s > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return
        until_s = time.monotonic() + TURN_S
        with contextlib.suppress(queue.Empty):
            while item is not None and not self._stopping:
                self._work_off(item)
                if time.monotonic() > until_s:
                    return
                item = self._inbox.get_nowait()

    def _work_off(self, item: _Item) -> None:
        """Handle an item, a part of its rows at a time: between two parts the sink flushes and others get the lock.

        A COMMIT event of a few MiB may bring gigabytes, and the sink bounds what is under way by being saturated.
        """
        with self.lock:
            parts = iter(self._handle(item))
            waiting = next(parts, None)
        while waiting is not None:
            while self._sink.saturated() and not self._stopping and not waiting.stopped:
                time.sleep(TURN_S)
                with self.lock:
                    now_s = self._clock()
                    self._report_resolved(now_s)
                    self._sink.turn(now_s)
            with self.lock:
                waiting = next(parts, None)

    def _handle(self, item: _Item) -> Iterable[Subscription]:
        """Handle an item, under the lock. Whoever takes a subscription from this waits until the sink takes more rows.

        The lock may be given back meanwhile.
        """
        match item:
            case LocatedRange():
                self._recovery.register(item, self._clock())
            case UnlocatedRange(subscription, error):
                subscription.unlocked_for(str(error))
                self.troubles[error.code.partition(".")[2]] += 1
                if error.action is not Action.RETRY:
                    raise error
            case (transport, message):
                self._budget.give(len(message))
                self.counters.messages += 1
                self.counters.message_bytes += len(message)
                stream = self._streams.of(transport)
                if stream is not None:  # else dropped by ourselves: its regions are registered anew
                    return self._bytes(stream, message)
            case (transport, code, details):
                stream = self._streams.of(transport)
                if stream is not None:
                    self.counters.stream_failures += 1
                    multiplexed = stream.table.multiplexed
                    decision = decide_stream(code.name, details, multiplexed=multiplexed, where=stream.where)
                    self._recovery.end_stream(stream, decision, self._clock())
        return ()

    def _bytes(self, stream: OpenStream, message: bytes) -> Iterable[Subscription]:
        stream.heard(self._clock())
        try:
            parsed = FeedMessage(message)
        except DecodeError as error:
            self._recovery.end_stream(stream, malformed(stream.where, f"{len(message)} bytes: {error}"), self._clock())
            return ()
        return self._message(stream, parsed)

    def _message(self, stream: OpenStream, message: FeedMessage) -> Iterator[Subscription]:
        table = stream.table
        for number, event in enumerate(message.parsed.events):
            self.counters.events += 1
            registration = table.find(event.request_id, event.region_id)
            if registration is None:
                self._unclaimed(stream, event)
            elif event.HasField("entries"):
                yield from self._entries(stream, registration, message.rows(number, event))
                if self._stopping:
                    return  # some of its rows may have been left: no resolved ts behind them counts
            elif event.HasField("error"):
                self.counters.region_errors += 1
                self._recovery.end_registration(stream, registration, decide(event.error), self._clock())
            elif event.HasField("resolved_ts"):
                self._resolve(stream, event.request_id, (event.region_id,), event.resolved_ts)
        resolved = message.parsed.resolved_ts if message.parsed.HasField("resolved_ts") else None
        if resolved is not None and resolved.ts:  # 0 has been observed, and means nothing
            self._resolve(stream, resolved.request_id, resolved.regions, resolved.ts)

    def _entries(self, stream: OpenStream, registration: Registration, rows: LogRows) -> Iterator[Subscription]:
        subscription = registration.subscription
        span, region_id = subscription.span, registration.region.region_id
        # The scan's rows, and the live ones that came between them, may be in the log already.
        scanned = not registration.matcher.initialized
        try:
            for changes in registration.parts(rows):
                self.counters.changes += len(changes)
                self._sink.rows(span, region_id, changes, may_repeat=scanned)
                if self._sink.saturated():
                    yield subscription
                    if self._stopping or subscription.stopped:
                        return  # nobody is left to take the rest
        except (PrewriteNotMatchError, BadRowError, SpillCorruptError) as error:
            self._recovery.end_registration(stream, registration, bad_rows(error), self._clock(), deregister=True)
            return
        except SpillRefusedError as error:
            self._refusals.end(error, self._subscriptions, self._clock())
            if not registration.stands:  # it lacks rows itself, or a stream had to end that both stood on
                return
        if scanned and registration.matcher.initialized:
            subscription.initialize(registration)
            self._streams.initialized(stream, registration, self._clock())

    def _resolve(self, stream: OpenStream, request_id: int, regions: Sequence[int], ts: int) -> None:
        if ts >= TS_MAX:
            self._recovery.end_stream(stream, malformed(stream.where, f"resolved ts {ts}"), self._clock())
        else:
            stream.resolves = True
            self._dirty.update(stream.table.resolve(request_id, regions, Ts(ts)))

    def _unclaimed(self, stream: OpenStream, event: cdcpb_pb2.Event) -> None:
        """Pass over an event that no registration claims: legal after an error or a deregister."""
        request_id, region_id = event.request_id, RegionId(event.region_id)
        if self._subscriptions.has_used(request_id, region_id):
            self.counters.stale_events += 1
            return
        # Nothing is invented by it, and nothing lost: what was registered is vouched for by its own resolved ts.
        self.counters.stranger_events += 1
        self.troubles["region_never_registered"] += 1
        stream.strangers += 1
        if stream.strangers == 1:
            extra = {"store": stream.where, "region_id": region_id, "request_id": request_id}
            log.warning("store sends events of a region that was never registered", extra=extra)

    def _report_resolved(self, now_s: float) -> None:
        dirty, self._dirty = self._dirty, set()
        for subscription in dirty:
            ts = subscription.frontier.resolved_ts()
            if ts > subscription.resolved_ts:
                subscription.resolved_ts = ts
                subscription.moved_at_s = now_s
                self._sink.resolved(subscription.span, ts)

    def _look(self, now_s: float) -> None:
        """Look at all spans and streams, once a second."""
        self._stalls.look(self._subscriptions, now_s)
        if self._sink.saturated() or not self._inbox.empty():
            self._listening_since_s = now_s  # who does not listen cannot call others silent
        self._recovery.look(self._subscriptions, now_s, self._listening_since_s)

    def _open_transport(self, store_id: StoreId, address: str, multiplexed: bool) -> StoreStream:
        return self._open_stream(
            store_id,
            address,
            multiplexed=multiplexed,
            budget=self._budget,
            on_message=lambda stream, message: self._inbox.put((stream, message)),
            on_end=lambda stream, code, details: self._inbox.put((stream, code, details)),
            open_channel=self._cache.open_channel,
        )
