"""An event feed over stores that say what a test tells them: no socket, no thread, no clock but the rig's.

rig = FeedRig(regions={2: (b"", b"", 1)})      # region 2 over everything, led by store 1
stream = rig.registered()                      # the one stream, when it has been asked
stream.say(initialized(stream.registers[0]))   # and so on
rig.run(1.0)
"""

import functools
from collections.abc import Callable, Collection
from typing import Any

import grpc

from producers.pull.core.match.change_columns import Change
from producers.pull.core.match.matcher_quota import MatcherQuota
from producers.pull.core.regions.region_map import KEY_END, Peer, RegionInfo
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.feed.event_feed import EventFeed
from producers.pull.feed.event_stream import ByteBudget, StoreStream
from producers.pull.feed.locator import LocatedRange, Locator, UnlocatedRange
from producers.pull.feed.types import FeedSettings, FeedSink
from producers.pull.pd.region_cache import RegionCache
from producers.tls import Channels
from schemas.errors import BusError
from schemas.ids import RegionId, StoreId, TableId, Ts
from schemas.proto import cdcpb_pb2, metapb_pb2
from schemas.tidb.keys import row_key
from schemas.tidb.spans import TableSpan

TABLE = TableId(45)
SPAN = TableSpan.of_table(TABLE)
START_TS = Ts(100)
Row = cdcpb_pb2.Event.Row
TICK_S = 0.05


class ScriptedPd:
    """What the region cache asks of PD."""

    cluster_id = 7

    def __init__(self) -> None:
        self.channels = Channels()
        self.regions: list[RegionInfo] = []
        self.addresses: dict[int, str] = {1: "store-1", 2: "store-2"}
        self.scans = 0

    def scan_regions(self, wanted: EncodedRange, limit: int = 1024) -> list[RegionInfo]:
        self.scans += 1
        return [region for region in self.regions if region.range.intersect(wanted)][:limit]

    def stores(self) -> list[metapb_pb2.Store]:
        return [metapb_pb2.Store(id=number, address=address) for number, address in self.addresses.items()]

    def set(self, *regions: tuple[int, bytes, bytes, int, int]) -> None:
        """Take regions as (id, start, end, version, leading store or 0); encoded keys, b"" for no bound."""
        peers = tuple(Peer(number * 10, StoreId(number)) for number in (1, 2))
        self.regions = [
            RegionInfo(
                region_id=RegionId(number),
                range=EncodedRange(start, end or KEY_END),
                version=version,
                conf_ver=1,
                leader=peers[store - 1] if store else None,
                peers=peers,
            )
            for number, start, end, version, store in regions
        ]


class ScriptedStream(StoreStream):
    """The client's end of a stream, and the test's hands on it."""

    def __init__(
        self,
        made: "list[ScriptedStream]",
        store_id: StoreId,
        address: str,
        *,
        multiplexed: bool,
        budget: ByteBudget,
        on_message: Callable[[StoreStream, bytes], None],
        on_end: Callable[[StoreStream, grpc.StatusCode, str], None],
        **_: object,
    ) -> None:
        self.store_id, self.address, self.multiplexed = store_id, address, multiplexed
        self.requests: list[cdcpb_pb2.ChangeDataRequest] = []
        self.closed = False
        self._budget, self._on_message, self._on_end = budget, on_message, on_end
        made.append(self)

    def start(self) -> None:
        """Nothing runs."""

    def send(self, request: cdcpb_pb2.ChangeDataRequest) -> None:
        self.requests.append(request)

    def close(self) -> None:
        self.closed = True

    def alive(self) -> bool:
        return False

    def join(self, timeout_s: float) -> None:
        """Nothing ran."""

    # For tests ------------------------------------------------------------------------------------------------------

    @property
    def registers(self) -> list[cdcpb_pb2.ChangeDataRequest]:
        """The Register requests so far."""
        return [request for request in self.requests if request.WhichOneof("request") == "register"]

    @property
    def deregisters(self) -> list[cdcpb_pb2.ChangeDataRequest]:
        """The Deregister requests so far."""
        return [request for request in self.requests if request.WhichOneof("request") == "deregister"]

    def say(self, message: cdcpb_pb2.ChangeDataEvent | bytes) -> None:
        """Send a message to the client."""
        raw = message if isinstance(message, bytes) else message.SerializeToString()
        self._budget.take(len(raw))
        self._on_message(self, raw)

    def end(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the stream from the store's side."""
        self._on_end(self, code, details)


class Collected:
    """A sink that keeps everything and holds the feed to the landing's rule."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.repeats = 0
        self.resolved_ts = 0
        self.full = False

    def rows(self, span: TableSpan, region_id: RegionId, changes: Collection[Change], *, may_repeat: bool) -> None:
        for change in changes:
            if change in self.changes:
                assert may_repeat, f"a live change came twice: {change}"
                self.repeats += 1
            else:
                assert change[0] > self.resolved_ts, f"new change at or below {self.resolved_ts}: {change}"
                self.changes.append(change)

    def resolved(self, span: TableSpan, ts: Ts) -> None:
        assert ts > self.resolved_ts
        self.resolved_ts = ts

    def turn(self, now_s: float) -> float:
        return 1.0

    def saturated(self) -> bool:
        return self.full


class FeedRig:
    """One feed, one PD, and every stream that the feed has opened."""

    def __init__(
        self,
        *regions: tuple[int, bytes, bytes, int, int],
        subscribe: bool = True,
        quota: MatcherQuota | None = None,
        sink: FeedSink | None = None,
        **settings: Any,
    ) -> None:
        """``sink`` takes the output in place of :attr:`sink`."""
        self.now_s = 1000.0
        self.pd, self.sink, self.fatal = ScriptedPd(), Collected(), list[BusError]()
        self.pd.set(*(regions or ((2, b"", b"", 5, 1),)))
        self.streams: list[ScriptedStream] = []
        self.feed = EventFeed(
            RegionCache(self.pd),  # type: ignore[arg-type]
            sink or self.sink,
            self.fatal.append,
            FeedSettings(**settings),
            clock=lambda: self.now_s,
            open_stream=functools.partial(ScriptedStream, self.streams),
            locator=self._make_locator,
            quota=quota,
        )
        if subscribe:
            self.feed.subscribe(SPAN, START_TS)
            self.run()

    def _make_locator(self, cache: RegionCache, deliver: Callable[[LocatedRange | UnlocatedRange], None]) -> Locator:
        self.locator = Locator(cache, deliver, clock=lambda: self.now_s, jitter=lambda: 0.5)
        return self.locator

    def run(self, seconds: float = 0.0) -> None:
        """Let the feed work off what is there, then let ``seconds`` pass, tick by tick."""
        until_s = self.now_s + seconds
        while True:
            while self.locator.step():
                self.feed.step()
            self.feed.step()
            if self.now_s >= until_s:
                return
            self.now_s += TICK_S

    @property
    def stream(self) -> ScriptedStream:
        """The one stream that is open."""
        (stream,) = [stream for stream in self.streams if not stream.closed]
        return stream

    @property
    def reason(self) -> str:
        """Why the span stands still."""
        return self.feed.status()[0].reason


def event(request: cdcpb_pb2.ChangeDataRequest, *rows: Row) -> cdcpb_pb2.ChangeDataEvent:
    """Return rows of a registration."""
    message = cdcpb_pb2.Event(region_id=request.region_id, request_id=request.request_id)
    message.entries.entries.extend(rows)
    return cdcpb_pb2.ChangeDataEvent(events=[message])


def initialized(request: cdcpb_pb2.ChangeDataRequest) -> cdcpb_pb2.ChangeDataEvent:
    """Return the end of a registration's scan."""
    return event(request, Row(type=cdcpb_pb2.Event.INITIALIZED))


def region_error(request: cdcpb_pb2.ChangeDataRequest, error: cdcpb_pb2.Error) -> cdcpb_pb2.ChangeDataEvent:
    """Return the end of a registration."""
    message = cdcpb_pb2.Event(region_id=request.region_id, request_id=request.request_id, error=error)
    return cdcpb_pb2.ChangeDataEvent(events=[message])


def resolved(ts: int, *requests: cdcpb_pb2.ChangeDataRequest, multiplexed: bool = True) -> cdcpb_pb2.ChangeDataEvent:
    """Return a batched resolved ts for registrations of one request id."""
    message = cdcpb_pb2.ResolvedTs(regions=[request.region_id for request in requests], ts=ts)
    message.request_id = requests[0].request_id if multiplexed else 0
    return cdcpb_pb2.ChangeDataEvent(resolved_ts=message)


def committed(start_ts: int, commit_ts: int, handle: int = 1, value: bytes = b"v") -> Row:
    """Return a change that comes whole."""
    return Row(
        type=cdcpb_pb2.Event.COMMITTED,
        op_type=Row.PUT,
        start_ts=start_ts,
        commit_ts=commit_ts,
        key=row_key(TABLE, handle),
        value=value,
    )


def commit(start_ts: int, commit_ts: int, handle: int = 1) -> Row:
    """Return a COMMIT."""
    key = row_key(TABLE, handle)
    return Row(type=cdcpb_pb2.Event.COMMIT, op_type=Row.PUT, start_ts=start_ts, commit_ts=commit_ts, key=key)
