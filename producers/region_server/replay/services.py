"""The gRPC services of a replayed feed, all on one event loop: ``pdpb.PD``, and ``cdcpb.ChangeData`` of each store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

import grpc

from producers.region_server.core.replay.player import End, FeedReplay, Send
from producers.region_server.core.replay.recording import FeedRecording, Note
from producers.region_server.core.replay.served import Stream
from producers.region_server.rpc.change_data_rpc import ChangeDataContext, ChangeDataRpc
from schemas.ids import PHYSICAL_SHIFT_BITS, StoreId
from schemas.proto import cdcpb_pb2, metapb_pb2, pdpb_pb2, pdpb_pb2_grpc

HELD_NOTES: Final = frozenset({"deregister"})
"""A span that is given up must have come whole before: what the stores say of it ends there."""
_LOGICAL_MASK = (1 << PHYSICAL_SHIFT_BITS) - 1


class ReplayHub:
    """The replay and the queues of its streams."""

    def __init__(self, recording: FeedRecording, now_ms: float, on_note: Callable[[Note], None] | None) -> None:
        self.replay = FeedReplay(recording, frozenset() if on_note is None else HELD_NOTES)
        self.now_ms = now_ms
        """How far the recording may go, in recorded time."""
        self.queues: dict[Stream, asyncio.Queue[bytes | End]] = {}
        self._on_note = on_note
        self._next_ms: float | None = 0.0

    @property
    def held(self) -> bool:
        """Whether the next step's time has come, and it waits for the client."""
        return self._next_ms is not None and self._next_ms <= self.now_ms

    def pump(self) -> None:
        """Let the recording go on as far as it can, and hand out what that brought."""
        self._next_ms = self.replay.advance(self.now_ms)
        for output in self.replay.take_outputs():
            match output:
                case Send(stream, message):
                    self.queues[stream].put_nowait(message.SerializeToString())
                case End(stream):
                    self.queues[stream].put_nowait(output)
                case Note() if self._on_note is not None:
                    self._on_note(output)

    def go_on(self) -> None:
        """See :meth:`FeedReplay.go_on`."""
        self.replay.go_on()
        self.pump()


class ReplayChangeData(ChangeDataRpc):
    """``EventFeed`` and ``EventFeedV2`` of one store."""

    def __init__(self, hub: ReplayHub, store_id: StoreId) -> None:
        self._hub = hub
        self._store_id = store_id

    async def _serve(
        self, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest], context: ChangeDataContext, *, multiplexing: bool
    ) -> None:
        replay, hub = self._hub.replay, self._hub
        stream = replay.connect(self._store_id, multiplexed=multiplexing)
        if isinstance(stream, str):
            hub.pump()
            await context.abort(grpc.StatusCode.UNAVAILABLE, stream)
        queue = hub.queues[stream] = asyncio.Queue()
        reader = asyncio.create_task(self._read(stream, requests))
        try:
            while not isinstance(item := await queue.get(), End):
                await context.write(item)
            await context.abort(grpc.StatusCode.UNAVAILABLE, item.details)
        finally:
            replay.disconnect(stream)
            del hub.queues[stream]
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.RpcError):
                await reader

    async def _read(self, stream: Stream, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest]) -> None:
        replay, hub = self._hub.replay, self._hub
        async for request in requests:
            if stream not in hub.queues:
                return
            if request.WhichOneof("request") == "deregister":
                replay.deregister(stream, request.request_id, request.region_id)
            else:
                replay.register(stream, request)
            hub.pump()


class ReplayPd(pdpb_pb2_grpc.PDServicer):
    """One PD member, always the leader: the recorded cluster's, with our addresses. Other calls are UNIMPLEMENTED."""

    def __init__(
        self, hub: ReplayHub, recording: FeedRecording, address: str, addresses: Mapping[StoreId, str]
    ) -> None:
        self._replay = hub.replay
        self._header = pdpb_pb2.ResponseHeader(cluster_id=recording.members.header.cluster_id)
        recorded = recording.members.leader
        self._member = pdpb_pb2.Member(
            name=recorded.name, member_id=recorded.member_id, client_urls=[f"http://{address}"],
            binary_version=recorded.binary_version,
        )  # fmt: skip
        self._stores = {store.id: store for store in recording.stores.stores}
        self._addresses = addresses

    async def GetMembers(self, request: pdpb_pb2.GetMembersRequest, context: object) -> pdpb_pb2.GetMembersResponse:  # noqa: N802
        """Who is in PD."""
        member = self._member
        return pdpb_pb2.GetMembersResponse(header=self._header, members=[member], leader=member, etcd_leader=member)

    async def Tso(  # noqa: N802
        self, request_iterator: AsyncIterator[pdpb_pb2.TsoRequest], context: object
    ) -> AsyncIterator[pdpb_pb2.TsoResponse]:
        """The recording's time: its highest resolved ts so far. It can repeat; nobody writes here."""
        async for request in request_iterator:
            ts = self._replay.highest_ts
            stamp = pdpb_pb2.Timestamp(physical=ts >> PHYSICAL_SHIFT_BITS, logical=ts & _LOGICAL_MASK)
            yield pdpb_pb2.TsoResponse(header=self._header, count=request.count, timestamp=stamp)

    async def ScanRegions(self, request: pdpb_pb2.ScanRegionsRequest, context: object) -> pdpb_pb2.ScanRegionsResponse:  # noqa: N802
        """Regions that touch a range, in key order."""
        found_regions = list(self._replay.scan_regions(request.start_key, request.end_key))
        regions = found_regions[: request.limit] if request.limit > 0 else found_regions
        return pdpb_pb2.ScanRegionsResponse(
            header=self._header,
            region_metas=[region.region for region in regions],
            leaders=[region.leader for region in regions],
            regions=regions,
        )

    async def GetRegionByID(  # noqa: N802
        self, request: pdpb_pb2.GetRegionByIDRequest, context: object
    ) -> pdpb_pb2.GetRegionResponse:
        """The region of an id; the field is absent if there is none."""
        region = self._replay.region(request.region_id)
        if region is None:
            return pdpb_pb2.GetRegionResponse(header=self._header)
        return pdpb_pb2.GetRegionResponse(header=self._header, region=region.region, leader=region.leader)

    async def GetStore(self, request: pdpb_pb2.GetStoreRequest, context: object) -> pdpb_pb2.GetStoreResponse:  # noqa: N802
        """One store."""
        store = self._stores.get(request.store_id)
        if store is None:
            error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message=f"invalid store ID {request.store_id}, not found")
            return pdpb_pb2.GetStoreResponse(
                header=pdpb_pb2.ResponseHeader(cluster_id=self._header.cluster_id, error=error)
            )  # fmt: skip
        return pdpb_pb2.GetStoreResponse(header=self._header, store=self._ours(store))

    async def GetAllStores(  # noqa: N802
        self, request: pdpb_pb2.GetAllStoresRequest, context: object
    ) -> pdpb_pb2.GetAllStoresResponse:
        """All stores."""
        stores = [self._ours(store) for store in self._stores.values()]
        return pdpb_pb2.GetAllStoresResponse(header=self._header, stores=stores)

    def _ours(self, recorded: metapb_pb2.Store) -> metapb_pb2.Store:
        store = metapb_pb2.Store()
        store.CopyFrom(recorded)
        store.address = self._addresses[StoreId(recorded.id)]
        return store
