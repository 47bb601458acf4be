"""The streams to the stores, who is registered on each, and who may be scanned now.

One multiplexed stream for each store; a store before EventFeedV2 gets one for each span, up to a bound. Called by the
feed's thread only, under its lock; it never waits. What a registration's or stream's end means is the feed's business.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from producers.pull.core.regions.request_ids import is_shared
from producers.pull.core.regions.scan_queue import ScanQueue
from producers.pull.core.regions.stream_table import StreamTable
from producers.pull.core.regions.subscription import Registration, Subscription
from producers.pull.feed.event_stream import StoreStream
from producers.pull.feed.types import FeedSettings
from schemas.ids import StoreId
from schemas.proto import cdcpb_pb2, kvrpcpb_pb2, metapb_pb2

CLIENT_VERSION: Final = "8.5.0"
"""Strict semver on every request: TiKV chooses its features by it (docs/formats/cdcpb.md §1.2)."""
IDLE_S: Final = 60.0
"""A stream without registrations is closed after so long, as the classic client does."""
PATIENCE_MAX_S: Final = 600.0
"""The longest silence that is believed; TiCDC warns of a scan that takes as long."""
FULL_WAIT_S: Final = 5.0
"""Until a store that has all the streams it may have is asked again."""
_DOUBLINGS_MAX: Final = 20
"""Beyond every patience that is not at its bound; a power without bound is no float after a week of silences."""


@dataclass(slots=True, eq=False)
class OpenStream:
    """One stream with its registrations."""

    transport: StoreStream
    store_id: StoreId
    address: str
    subscription: Subscription | None
    """Whose it is, without multiplexing."""
    table: StreamTable
    heard_at_s: float
    """When the feed last took a message of it; when it was opened, before the first."""
    empty_since_s: float | None
    answered: bool = False
    """Anything has come of it: an event, an error, a resolved ts."""
    resolves: bool = False
    """It has told resolved ts: what it owes is flowing."""
    strangers: int = 0
    """Events of regions that were never registered."""

    @property
    def where(self) -> str:
        """Name it for people."""
        return f"store {self.store_id} at {self.address}"

    def heard(self, now_s: float) -> None:
        """Note that a message has come."""
        self.heard_at_s, self.answered = now_s, True


@dataclass(frozen=True, slots=True)
class Later:
    """A registration must wait, and why."""

    wait_s: float
    reason: str
    """That there is no stream for it; '' where that of its store may just not be opened yet."""


@dataclass(slots=True)
class _Store:
    scans: ScanQueue[OpenStream]
    streams: dict[Subscription | None, OpenStream] = field(default_factory=dict)
    reopen_at_s: float = 0.0
    old_protocol: bool = False
    silences: int = 0
    """Silences in a row, of streams that had answered; each doubles the patience."""
    unanswered: Counter[Subscription | None] = field(default_factory=Counter)
    """Streams in a row of which nothing came, by whose they were: one span's answers say nothing of another's scans."""


def patience_s(first_s: float, silences: int) -> float:
    """Return how long silence is believed after so many in a row: twice as long each time, up to a bound."""
    return min(first_s * 2.0 ** min(silences, _DOUBLINGS_MAX), PATIENCE_MAX_S)


class StoreStreams:
    """See the module's text."""

    def __init__(
        self,
        settings: FeedSettings,
        open_transport: Callable[[StoreId, str, bool], StoreStream],
        cluster_id: Callable[[], int],
    ) -> None:
        """Start with none.

        Args:
            settings: bounds.
            open_transport: opens the stream of (store, address, multiplexed); it is started here.
            cluster_id: asked at each request; PD has been reached long before.
        """
        self._settings = settings
        self._open_transport = open_transport
        self._cluster_id = cluster_id
        self._stores: dict[StoreId, _Store] = {}
        self._by_transport: dict[StoreStream, OpenStream] = {}
        self._ended: list[StoreStream] = []

    def __iter__(self) -> Iterator[OpenStream]:
        return iter(list(self._by_transport.values()))

    def of(self, transport: StoreStream) -> OpenStream | None:
        """Return what is open over ``transport``; None: we have dropped it."""
        return self._by_transport.get(transport)

    def get(self, store_id: StoreId, subscription: Subscription) -> OpenStream | None:
        """Return the open stream that a span's regions at a store are registered on."""
        store = self._store(store_id)
        return store.streams.get(self._owner(store, subscription))

    def on(self, registration: Registration) -> OpenStream | None:
        """Return the open stream that a registration stands on."""
        request_id, region_id = registration.request_id, registration.region.region_id
        streams = (stream for stream in self if stream.table.find(request_id, region_id) is registration)
        return next(streams, None)

    def later(self, store_id: StoreId, subscription: Subscription, now_s: float) -> Later | None:
        """Return why that stream is not open and must not be opened yet; None: go on."""
        store = self._store(store_id)
        if self._owner(store, subscription) in store.streams:
            return None
        if store.reopen_at_s > now_s:
            return Later(store.reopen_at_s - now_s, "")
        if len(store.streams) >= self._settings.streams_per_store_max:
            seen = f"store {store_id} has no multiplexed event feed, and {len(store.streams)} streams are open to it"
            more = "raise --streams-per-store-max, start a further capture, or upgrade TiKV"
            return Later(FULL_WAIT_S, f"{seen}, one for each span and no more: {more}")
        return None

    def open(self, store_id: StoreId, address: str, subscription: Subscription, now_s: float) -> OpenStream:
        """Open that stream; :meth:`later` has been asked."""
        store = self._store(store_id)
        owner = self._owner(store, subscription)
        multiplexed = owner is None
        transport = self._open_transport(store_id, address, multiplexed)
        stream = store.streams[owner] = self._by_transport[transport] = OpenStream(
            transport=transport,
            store_id=store_id,
            address=address,
            subscription=owner,
            table=StreamTable(multiplexed=multiplexed),
            heard_at_s=now_s,
            empty_since_s=now_s,
        )
        transport.start()
        return stream

    def register(self, stream: OpenStream, registration: Registration, now_s: float) -> None:
        """Put a registration on a stream; it is sent when it is its turn to be scanned."""
        stream.table.add(registration)
        stream.empty_since_s = None
        self._store(stream.store_id).scans.put(registration, stream)
        self._send_next(stream.store_id, now_s)

    def initialized(self, stream: OpenStream, registration: Registration, now_s: float) -> None:
        """Note that a scan is complete: resolved ts count, and the next scan may start."""
        stream.table.initialize(registration)
        self._store(stream.store_id).scans.leave(registration)
        self._send_next(stream.store_id, now_s)

    def remove(self, stream: OpenStream, registration: Registration, now_s: float, *, deregister: bool = False) -> None:
        """Forget a registration; ``deregister``: tell the store, which does not know yet that it has ended."""
        stream.table.remove(registration)
        if deregister and registration.sent:
            self._deregister(stream, registration.request_id, registration.region.region_id)
        self._left(stream, [registration], now_s)

    def unsubscribe(self, subscription: Subscription, now_s: float) -> None:
        """Forget all registrations of a span, and tell the stores."""
        for stream in self:
            if stream.subscription is subscription:
                self.close(stream, now_s)
                continue
            mine = stream.table.of(subscription)
            for registration in mine:
                stream.table.remove(registration)
            sent = [(item.request_id, item.region.region_id) for item in mine if item.sent]
            # With 0 the store forgets all regions of an id: not of one that others share.
            for request_id, region_id in {
                (used_id, region if is_shared(used_id) else 0): None for used_id, region in sent
            }:
                self._deregister(stream, request_id, region_id)
            self._left(stream, mine, now_s)
        for store in self._stores.values():
            store.unanswered.pop(subscription, None)

    def close(
        self, stream: OpenStream, now_s: float, *, wait_s: float = 0.0, old_protocol: bool = False
    ) -> list[Registration]:
        """End a stream; return who was on it. Its store is left alone for ``wait_s``."""
        store = self._store(stream.store_id)
        if old_protocol or wait_s > 0:  # a store that failed may come back with a newer TiKV
            store.old_protocol = old_protocol
        store.reopen_at_s = max(store.reopen_at_s, now_s + wait_s)
        gone = stream.table.clear()
        store.streams.pop(stream.subscription, None)
        if stream.answered:
            store.unanswered.pop(stream.subscription, None)
        self._by_transport.pop(stream.transport, None)
        stream.transport.close()
        self._ended = [ended for ended in self._ended if ended.alive()] + [stream.transport]
        self._left(stream, gone, now_s)
        return gone

    def close_all(self) -> list[StoreStream]:
        """End all streams; return every transport whose thread may still run."""
        transports = [*self._by_transport, *self._ended]
        self._stores, self._by_transport, self._ended = {}, {}, []
        for transport in transports:
            transport.close()
        return transports

    def close_idle(self, now_s: float) -> None:
        """End the streams that have had no registrations for long."""
        for stream in self:
            if stream.empty_since_s is not None and now_s - stream.empty_since_s > IDLE_S:
                self.close(stream, now_s)

    def silent(self, now_s: float, listening_since_s: float) -> list[tuple[OpenStream, float]]:
        """Return the streams that say nothing though they should, and for how long.

        A store tells resolved ts each second once a region is initialized; before that a scan may wait for its turn at
        the store for long. That is believed of a stream that has answered anything; where nothing at all came, the
        store may never have got the call. ``listening_since_s``: since when the feed keeps up with what comes.
        """
        silent_streams = []
        for stream in self:
            store = self._store(stream.store_id)
            if stream.resolves:
                store.silences = 0
            if not stream.table.expects_an_answer():
                continue
            silent_s = now_s - max(_owes_since_s(stream), listening_since_s)
            if silent_s > self._patience_s(store, stream):
                silent_streams.append((stream, silent_s))
        for stream, _ in silent_streams:
            store = self._store(stream.store_id)
            if stream.answered:
                store.silences += 1
            else:
                store.unanswered[stream.subscription] += 1
        return silent_streams

    def scans(self) -> tuple[int, int]:
        """Return how many incremental scans are under way and how many wait, at all stores."""
        queues = [store.scans for store in self._stores.values()]
        return sum(queue.running for queue in queues), sum(queue.waiting for queue in queues)

    def _store(self, store_id: StoreId) -> _Store:
        store = self._stores.get(store_id)
        if store is None:
            store = self._stores[store_id] = _Store(ScanQueue(self._settings.scans_per_store_max))
        return store

    def _patience_s(self, store: _Store, stream: OpenStream) -> float:
        if not stream.answered:
            return patience_s(self._settings.unanswered_s, store.unanswered[stream.subscription])
        if stream.table.initialized:
            return patience_s(self._settings.silence_s, store.silences)
        return PATIENCE_MAX_S

    def _owner(self, store: _Store, subscription: Subscription) -> Subscription | None:
        return None if self._settings.multiplexing and not store.old_protocol else subscription

    def _left(self, stream: OpenStream, registrations: Iterable[Registration], now_s: float) -> None:
        scans = self._store(stream.store_id).scans
        for registration in registrations:
            scans.leave(registration)
        if not len(stream.table) and stream.empty_since_s is None:
            stream.empty_since_s = now_s
        self._send_next(stream.store_id, now_s)

    def _send_next(self, store_id: StoreId, now_s: float) -> None:
        scans = self._store(store_id).scans
        while (turn := scans.take()) is not None:
            registration, stream = turn
            registration.sent, registration.since_s = True, now_s
            region, wanted = registration.region, registration.lock.range
            stream.transport.send(
                cdcpb_pb2.ChangeDataRequest(
                    header=self._header(),
                    region_id=region.region_id,
                    region_epoch=metapb_pb2.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
                    checkpoint_ts=registration.checkpoint_ts,
                    start_key=wanted.start,
                    end_key=wanted.end,
                    request_id=registration.request_id,
                    extra_op=kvrpcpb_pb2.ReadOldValue,
                    filter_loop=self._settings.filter_loop,
                    register=cdcpb_pb2.ChangeDataRequest.Register(),
                )
            )

    def _deregister(self, stream: OpenStream, request_id: int, region_id: int) -> None:
        stream.transport.send(
            cdcpb_pb2.ChangeDataRequest(
                header=self._header(),
                request_id=request_id,
                region_id=region_id,
                deregister=cdcpb_pb2.ChangeDataRequest.Deregister(),
            )
        )

    def _header(self) -> cdcpb_pb2.Header:
        return cdcpb_pb2.Header(cluster_id=self._cluster_id(), ticdc_version=CLIENT_VERSION)


def _owes_since_s(stream: OpenStream) -> float:
    """Return since when a stream that has been asked owes a word: it may have stood open and unasked before."""
    if stream.answered:
        return stream.heard_at_s
    return max(stream.heard_at_s, min(registration.since_s for registration in stream.table if registration.sent))
