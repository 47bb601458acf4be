"""The event feed: subscribed spans in, matched row changes and resolved ts out (reference/cdcpb.md §3 to §5).

Threads::

    reader per store stream --raw messages--\\
    locator -------regions of a range-------> inbox --> the feed's one thread: parse, match, range lock --> FeedSink
    assign/remove, under the lock ----------/

One thread owns all state, so matching needs no locks of its own; ``lock`` is held while it works, and whoever else
wants a consistent moment (a report, an assignment) takes it too. Messages wait in the inbox up to a bound of bytes; a
sink that is saturated stops the thread from taking more, the readers then stop, and gRPC slows the store.
"""

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from producers.core.region_errors import Step, decide
from producers.core.subscription import Registration, Retry, Subscription, TableSpan, joined
from producers.errors import ProducerBugError
from producers.event_stream import ByteBudget, StoreStream
from producers.feed_types import FeedCounters, FeedSettings, FeedSink, SpanStatus
from producers.locator import Located, Locator, NotLocated
from producers.region_cache import RegionCache
from producers.span_watch import LOOK_S, StallLog, span_status
from schemas.errors import Action, BusError
from schemas.ids import RegionId, StoreId, TableId, Ts
from schemas.proto import cdcpb_pb2, kvrpcpb_pb2, metapb_pb2

log = logging.getLogger(__name__)

CLIENT_VERSION: Final = "8.5.0"
"""Strict semver on every request: TiKV chooses batched resolved ts and the cluster check by it (cdcpb.md §1.2)."""
STREAM_REOPEN_S: Final = 1.0
"""A store whose stream broke is left alone so long, as both engines do."""
TURN_S: Final = 0.005
"""How long the thread takes messages before it lets the sink flush."""


_StreamKey = tuple[StoreId, TableId | None]
_Item = tuple[StoreStream, bytes] | tuple[StoreStream, grpc.StatusCode, str] | Located | NotLocated


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
        locator: Callable[[RegionCache, Callable[[Located | NotLocated], None]], Locator] = Locator,
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
        """
        self.lock = threading.RLock()
        self.counters = FeedCounters()
        self._cache = cache
        self._sink = sink
        self._on_fatal = on_fatal
        self._settings = settings = settings or FeedSettings()
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._budget = ByteBudget(settings.inbox_bytes_max)
        self._clock = clock
        self._open_stream = open_stream
        self._locator = locator(cache, self._inbox.put)
        self._subscriptions: dict[TableId, Subscription] = {}
        self._streams: dict[_StreamKey, StoreStream] = {}
        self._ended: list[StoreStream] = []
        self._reopen_at: dict[StoreId, float] = {}
        self._old_stores: set[StoreId] = set()
        self._request_ids = itertools.count(1)
        self._dirty: set[Subscription] = set()
        self._stopping = False
        self._stalls = StallLog()
        self._looked_at_s = 0.0
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
            streams = [*self._streams.values(), *self._ended]
            self._streams.clear()
        for stream in streams:
            stream.close()
        for stream in streams:
            stream.join(timeout_s)

    def subscribe(self, span: TableSpan, start_ts: Ts) -> None:
        """Feed a table's rows with commit_ts > ``start_ts``; a table that is fed already starts anew."""
        with self.lock:
            self.unsubscribe(span.table_id)
            subscription = Subscription(span, start_ts, self._request_ids)
            subscription.moved_at_s = self._clock()
            self._subscriptions[span.table_id] = subscription
        self._locator.submit(subscription, Retry(span.encoded))

    def unsubscribe(self, table_id: TableId) -> None:
        """End a table's feed; nothing of it reaches the sink any more."""
        with self.lock:
            subscription = self._subscriptions.pop(table_id, None)
            if subscription is None:
                return
            subscription.stopped = True
            self._dirty.discard(subscription)
            self._stalls.forget(subscription)
            for (_, owner), stream in list(self._streams.items()):
                if owner == table_id:
                    self._drop_stream(stream)
                    continue
                mine = [item for item in stream.registrations.values() if item.subscription is subscription]
                for registration in mine:
                    stream.remove(registration)
                for request_id in {item.request_id for item in mine}:
                    stream.send(
                        cdcpb_pb2.ChangeDataRequest(
                            header=self._header(),
                            request_id=request_id,
                            deregister=cdcpb_pb2.ChangeDataRequest.Deregister(),
                        )
                    )

    def status(self) -> list[SpanStatus]:
        """Return how every span stands."""
        with self.lock:
            now_s = self._clock()
            return [span_status(subscription, now_s) for subscription in self._subscriptions.values()]

    def held_bytes(self) -> int:
        """Return the bytes of open transactions in all matchers."""
        with self.lock:
            return sum(
                registration.matcher.held_bytes()
                for subscription in self._subscriptions.values()
                for registration in subscription.registrations
            )

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
                with self.lock:
                    self._handle(item)
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
                with self.lock:
                    self._handle(item)
                if time.monotonic() > until_s:
                    return
                item = self._inbox.get_nowait()

    def _handle(self, item: _Item) -> None:
        match item:
            case Located():
                self._place(item)
            case NotLocated(subscription, error):
                subscription.reason = str(error)
                if error.action is not Action.RETRY:
                    raise error
            case (stream, message):
                self._budget.give(len(message))
                self.counters.messages += 1
                self.counters.message_bytes += len(message)
                self._message(stream, cdcpb_pb2.ChangeDataEvent.FromString(message))
            case (stream, code, details):
                self._stream_ended(stream, code, details)

    def _message(self, stream: StoreStream, message: cdcpb_pb2.ChangeDataEvent) -> None:
        for event in message.events:
            self.counters.events += 1
            registration = stream.registrations.get((event.request_id, RegionId(event.region_id)))
            if registration is None:
                self.counters.stale_events += 1  # legal: after an error, a deregister
            elif event.HasField("entries"):
                self._entries(registration, event.entries)
            elif event.HasField("error"):
                self._region_error(stream, registration, event.error)
            elif event.HasField("resolved_ts"):
                self._resolve(registration, event.resolved_ts)
        if message.HasField("resolved_ts") and message.resolved_ts.ts:  # 0 has been observed, and means nothing
            resolved = message.resolved_ts
            registrations, request_id, ts = stream.registrations, resolved.request_id, resolved.ts
            for region_id in resolved.regions:
                found = (
                    registrations.get((request_id, RegionId(region_id)))
                    if stream.multiplexed
                    else stream.by_region.get(RegionId(region_id))
                )
                if found is not None:
                    self._resolve(found, ts)

    def _entries(self, registration: Registration, entries: cdcpb_pb2.Event.Entries) -> None:
        matcher = registration.matcher
        scanned = not matcher.initialized
        changes = matcher.feed(entries.entries)
        if scanned and matcher.initialized:
            registration.attempt = 0
        if changes:
            self.counters.changes += len(changes)
            subscription = registration.subscription
            # The scan's rows, and the live ones that came between them, may be in the log already.
            self._sink.rows(subscription.span.table_id, registration.region.region_id, changes, may_repeat=scanned)

    def _resolve(self, registration: Registration, ts: int) -> None:
        if registration.subscription.resolve(registration, Ts(ts)):
            self._dirty.add(registration.subscription)

    def _report_resolved(self, now_s: float) -> None:
        dirty, self._dirty = self._dirty, set()
        for subscription in dirty:
            ts = subscription.frontier.resolved_ts()
            if ts > subscription.resolved_ts:
                subscription.resolved_ts = ts
                subscription.moved_at_s = now_s
                self._sink.resolved(subscription.span.table_id, ts)

    def _look(self, now_s: float) -> None:
        """Look at all spans, once a second."""
        self._stalls.look(self._subscriptions.values(), now_s)
        for subscription in self._subscriptions.values():
            # A range waits until an older lock over it is released. Asking again also costs little, and then no mistake
            # about who waits for whom can leave a range without a registration for ever.
            waiting, subscription.waiting = subscription.waiting, []
            self._place_again(subscription, waiting, 0.0)

    # -- registering ---------------------------------------------------------------------------------------------------

    def _place(self, located: Located) -> None:
        subscription = located.subscription
        if subscription.stopped:
            return
        placed = subscription.place(located.retry, located.regions, self._clock())
        for registration in placed.registrations:
            self._register(registration, located.addresses)
        for retry in placed.retries:
            self._cache.drop(retry.range)
            self._locator.submit(subscription, retry)

    def _register(self, registration: Registration, addresses: dict[StoreId, str]) -> None:
        region, span = registration.region, registration.subscription.span
        assert region.leader is not None, "the locator gives only regions with a leader"
        store_id = region.leader.store_id
        wait_s = self._reopen_at.get(store_id, 0.0) - self._clock()
        if wait_s > 0:
            self._place_again(registration.subscription, registration.subscription.release(registration), wait_s)
            return
        multiplexed = self._settings.multiplexing and store_id not in self._old_stores
        key = (store_id, None if multiplexed else span.table_id)
        stream = self._streams.get(key)
        if stream is not None and stream.address != addresses[store_id]:
            self._stream_ended(stream, grpc.StatusCode.CANCELLED, "the store has moved to another address")
            stream = None
        if stream is None:
            stream = self._streams[key] = self._open_stream(
                store_id,
                addresses[store_id],
                multiplexed=multiplexed,
                budget=self._budget,
                on_message=lambda stream, message: self._inbox.put((stream, message)),
                on_end=lambda stream, code, details: self._inbox.put((stream, code, details)),
                open_channel=self._cache.open_channel,
            )
            stream.start()
        if registration.region.region_id in stream.by_region:
            # A merge: the region has a part of the span already. Without multiplexing it cannot be registered twice,
            # nor deregistered; the stream starts anew, and the joined range is registered from the lesser ts.
            stream.add(registration)
            self._stream_ended(stream, grpc.StatusCode.CANCELLED, "a merged region must be registered as one range")
            return
        stream.add(registration)
        stream.send(
            cdcpb_pb2.ChangeDataRequest(
                header=self._header(),
                region_id=region.region_id,
                region_epoch=metapb_pb2.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
                checkpoint_ts=registration.lock.resolved_ts,
                start_key=registration.lock.range.start,
                end_key=registration.lock.range.end,
                request_id=registration.request_id,
                extra_op=kvrpcpb_pb2.ReadOldValue,
                register=cdcpb_pb2.ChangeDataRequest.Register(),
            )
        )

    def _header(self) -> cdcpb_pb2.Header:
        return cdcpb_pb2.Header(cluster_id=self._cache.pd.cluster_id, ticdc_version=CLIENT_VERSION)

    def _region_error(self, stream: StoreStream, registration: Registration, error: cdcpb_pb2.Error) -> None:
        self.counters.region_errors += 1
        decision = decide(error)
        if decision.error is not None:
            raise decision.error
        subscription, region = registration.subscription, registration.region
        stream.remove(registration)
        subscription.reason = f"region {region.region_id}: {decision.reason}"
        if decision.step is Step.LOCATE:
            self._cache.drop(registration.lock.range)
        elif decision.new_leader is not None:
            self._cache.set_leader(region.region_id, registration.lock.range, decision.new_leader)
        self._place_again(subscription, subscription.release(registration), decision.wait_ms / 1000)

    def _stream_ended(self, stream: StoreStream, code: grpc.StatusCode, details: str) -> None:
        key = next((key for key, open_one in self._streams.items() if open_one is stream), None)
        if key is None:
            return  # dropped by ourselves
        self.counters.stream_failures += 1
        reason = f"stream to store {stream.store_id} at {stream.address} ended: {code.name} {details}"
        if code is grpc.StatusCode.UNIMPLEMENTED and stream.multiplexed:
            # TiKV before EventFeedV2 (or without multiplexing): from now on one stream for each table.
            self._old_stores.add(stream.store_id)
            log.info("store has no multiplexed event feed", extra={"store_id": stream.store_id})
        else:
            self._reopen_at[stream.store_id] = self._clock() + STREAM_REOPEN_S
            self._cache.forget_stores()
        released: dict[Subscription, list[Retry]] = {}
        for registration in list(stream.registrations.values()):
            registration.subscription.reason = reason
            released.setdefault(registration.subscription, []).extend(registration.subscription.release(registration))
        self._drop_stream(stream)
        for subscription, retries in released.items():
            ranges = joined(retries)
            for retry in ranges:
                self._cache.drop(retry.range)
            self._place_again(subscription, ranges, 0.0)

    def _drop_stream(self, stream: StoreStream) -> None:
        self._streams = {key: kept for key, kept in self._streams.items() if kept is not stream}
        stream.registrations.clear()
        stream.by_region.clear()
        stream.close()
        self._ended = [ended for ended in self._ended if ended.alive()] + [stream]

    def _place_again(self, subscription: Subscription, retries: Sequence[Retry], wait_s: float) -> None:
        for retry in retries:
            self._locator.submit(subscription, retry, wait_ms=int(wait_s * 1000))
