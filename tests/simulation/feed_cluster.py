"""The embedded cluster and its wire in memory, for a simulation: no sockets, no threads, no clock but the world's.

The region server's own services answer (``ChangeDataService``, ``PdService``), on an asyncio loop that runs only when
the world turns it. What they write waits on the **wire** of its stream until the world delivers it.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc

from producers.pull.feed.event_stream import ByteBudget, StoreStream
from producers.pull.pd.client import PdClient
from producers.region_server.cdc.endpoint import Endpoint
from producers.region_server.cdc.service import ChangeDataService
from producers.region_server.core.store.oracle import TimestampOracle
from producers.region_server.kv.store import ClusterStore
from producers.region_server.pd.cluster import PdCluster, PdMember
from producers.region_server.pd.service import PdService
from schemas.ids import StoreId
from schemas.proto import cdcpb_pb2, pdpb_pb2
from tests.support.recorded.feed_rules import FeedRules, RuleBrokenError

CLUSTER_ID = 77
STREAM_QUOTA_BYTES = 1 << 20
BOOT_MS = 1_700_000_000_000
_Reply = TypeVar("_Reply")
_Ended = tuple[grpc.StatusCode, str]


class AbortedError(Exception):
    """How a handler's ``context.abort`` ends it."""


class SimStream(StoreStream):
    """The client's end of one stream. What it sends is read when the loop turns."""

    def __init__(
        self,
        cluster: "SimCluster",
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
        self.wire: deque[bytes | _Ended] = deque()
        self.requests: asyncio.Queue[bytes] = asyncio.Queue()
        self.server: asyncio.Task[None] | None = None
        self.closed = False
        self._cluster = cluster
        self._budget = budget
        self._on_message = on_message
        self._on_end = on_end

    def start(self) -> None:
        self._cluster.connect(self)

    def send(self, request: cdcpb_pb2.ChangeDataRequest) -> None:
        self.requests.put_nowait(request.SerializeToString())

    def close(self) -> None:
        self.closed = True
        if self.server is not None:
            self.server.cancel()
        self._cluster.forget(self)

    def alive(self) -> bool:
        return False

    def join(self, timeout_s: float) -> None:
        """There is no thread."""

    def deliver(self) -> None:
        """Hand the oldest message on the wire to the client."""
        item = self.wire.popleft()
        if isinstance(item, bytes):
            assert self._budget.take(len(item))
            self._on_message(self, item)
        else:
            self._on_end(self, *item)

    def end(self, code: grpc.StatusCode, details: str, *, keep: int) -> None:
        """Break the stream: ``keep`` of the messages on the wire still arrive."""
        if self.server is not None:
            self.server.cancel()
            self.server = None
        if self.wire and not isinstance(self.wire[-1], bytes):
            return
        while len(self.wire) > keep:
            self.wire.pop()
        self.wire.append((code, details))


class SimPdClient(PdClient):
    """The real client, whose calls reach the service directly. ``view`` is what PD knows; the truth if it is None."""

    def __init__(self, pd: PdService) -> None:
        super().__init__("sim:1")
        self._cluster_id = CLUSTER_ID
        self._service = pd
        self.view: list[pdpb_pb2.Region] | None = None

    def regions(self) -> list[pdpb_pb2.Region]:
        """Return all regions as they are."""
        request = pdpb_pb2.ScanRegionsRequest(header=pdpb_pb2.RequestHeader(cluster_id=CLUSTER_ID))
        return list(now(self._service.ScanRegions(request, NO_CONTEXT)).regions)

    def _call(self, name: str, ask: Callable[..., Any]) -> Any:
        return ask(SimpleNamespace(ScanRegions=self._scan, GetAllStores=self._stores), _HEADER)

    def _scan(self, request: pdpb_pb2.ScanRegionsRequest, timeout: float) -> pdpb_pb2.ScanRegionsResponse:
        if self.view is None:
            return now(self._service.ScanRegions(request, NO_CONTEXT))
        known = [
            region
            for region in self.view
            if (not request.end_key or region.region.start_key < request.end_key)
            and (not region.region.end_key or request.start_key < region.region.end_key)
        ]
        return pdpb_pb2.ScanRegionsResponse(header=pdpb_pb2.ResponseHeader(cluster_id=CLUSTER_ID), regions=known)

    def _stores(self, request: pdpb_pb2.GetAllStoresRequest, timeout: float) -> pdpb_pb2.GetAllStoresResponse:
        return now(self._service.GetAllStores(request, NO_CONTEXT))


class SimCluster:
    """Store, endpoints, PD, and every stream that the client has open."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], *, fake_prewrites: bool = False
    ) -> None:
        self._loop = loop
        self.oracle = TimestampOracle(lambda: BOOT_MS + int(clock() * 1000))
        self.store = ClusterStore([StoreId(number) for number in range(1, 4)])
        self.endpoints = {
            store_id: Endpoint(store_id, self.store, CLUSTER_ID, scans_at_once=2, fake_prewrites=fake_prewrites)
            for store_id in self.store.store_ids
        }
        self._handlers = {
            store_id: ChangeDataService(endpoint, STREAM_QUOTA_BYTES).handlers()
            for store_id, endpoint in self.endpoints.items()
        }
        known = PdCluster(self.store, self.oracle, CLUSTER_ID, members=[PdMember("pd-1", 1)])
        known.addresses.update({store_id: f"store-{store_id}:1" for store_id in self.store.store_ids})
        self.pd = SimPdClient(PdService(known))
        self.streams: list[SimStream] = []
        """Streams that the client has not closed, oldest first."""
        self.down: set[StoreId] = set()
        self.losing: set[StoreId] = set()
        """Stores that never get the next stream to them, though it looks open to the client."""
        self.kinds: Counter[str] = Counter()
        """Of all messages, rows and errors that the stores have sent."""
        self.broken: list[RuleBrokenError] = []
        """What they should not have sent."""

    def turn(self, times: int = 1) -> None:
        """Let the services go on: one turn of the loop runs every task up to its next wait."""
        for _ in range(times):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def connect(self, stream: SimStream) -> None:
        """A client opens a stream."""
        self.streams.append(stream)
        if stream.store_id in self.down:
            stream.wire.append((grpc.StatusCode.UNAVAILABLE, "failed to connect"))
        elif stream.store_id in self.losing:
            self.losing.discard(stream.store_id)
        else:
            stream.server = self._loop.create_task(self._serve(stream))

    def forget(self, stream: SimStream) -> None:
        """The client has closed it."""
        if stream in self.streams:
            self.streams.remove(stream)

    def stop_store(self, store_id: StoreId, keep: int, *, leads_on: bool) -> None:
        """A store goes down: its streams end, new ones are refused. ``leads_on``: nobody else has been elected yet."""
        self.down.add(store_id)
        for stream in self.streams:
            if stream.store_id == store_id:
                stream.end(grpc.StatusCode.UNAVAILABLE, "Socket closed", keep=keep)
        self.turn()
        if not leads_on:
            self.store.stop_store(store_id)

    def start_store(self, store_id: StoreId) -> None:
        """The store takes streams again."""
        if store_id in self.down:
            self.down.discard(store_id)
            self.store.start_store(store_id)

    def close(self) -> None:
        """End all tasks."""
        for stream in list(self.streams):
            stream.close()
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self.turn()

    async def _serve(self, stream: SimStream) -> None:
        method = "/cdcpb.ChangeData/EventFeedV2" if stream.multiplexed else "/cdcpb.ChangeData/EventFeed"
        handler: Any = self._handlers[stream.store_id].service(
            SimpleNamespace(method=method, invocation_metadata=())  # type: ignore[arg-type]
        )
        context = _Context(stream, self)

        async def requests() -> AsyncIterator[cdcpb_pb2.ChangeDataRequest]:
            while True:
                request = handler.request_deserializer(await stream.requests.get())
                context.rules.request(request)
                yield request

        with contextlib.suppress(AbortedError):
            await handler.stream_stream(requests(), context)
            stream.wire.append((grpc.StatusCode.OK, ""))


class _Context:
    def __init__(self, stream: SimStream, cluster: SimCluster) -> None:
        self.rules = FeedRules(multiplexed=stream.multiplexed)
        self.rules.kinds = cluster.kinds
        self._stream = stream
        self._broken = cluster.broken

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("features", "stream-multiplexing"),) if self._stream.multiplexed else ()

    async def write(self, message: bytes) -> None:
        self._stream.wire.append(bytes(message))
        try:
            self.rules.message(cdcpb_pb2.ChangeDataEvent.FromString(message))
        except RuleBrokenError as error:
            self._broken.append(error)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self._stream.wire.append((code, details))
        raise AbortedError


NO_CONTEXT: Any = None
"""Of a call that no server has taken; PD says nothing by it here."""
_HEADER = pdpb_pb2.RequestHeader(cluster_id=CLUSTER_ID)


def now(work: Coroutine[Any, Any, _Reply]) -> _Reply:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        reply: _Reply = done.value
        return reply
    raise AssertionError("the service waited")
