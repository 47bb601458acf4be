"""``pdpb.PD``: members, timestamps, regions, stores and GC safe points of the embedded cluster."""

import itertools
from collections.abc import AsyncIterator, Sequence

import grpc

from producers.region_server.core.store.regions import Region
from producers.region_server.pd.cluster import PdCluster
from producers.region_server.pd.gc import PdGcCalls
from producers.region_server.rpc.call_context import CallContext
from producers.region_server.rpc.wire import leader_peer, raw_bound, region_meta
from schemas.errors import CorruptDataError
from schemas.ids import PHYSICAL_SHIFT_BITS, StoreId
from schemas.proto import metapb_pb2, pdpb_pb2

_LOGICAL_MASK = (1 << PHYSICAL_SHIFT_BITS) - 1


class PdService(PdGcCalls):
    """One PD member. Region keys are memcomparable-encoded, as clients send them.

    A follower answers GetMembers, and UNAVAILABLE "not leader" to everything else.
    """

    def __init__(self, cluster: PdCluster, index: int = 0) -> None:
        super().__init__(cluster, index)
        self._store = cluster.store
        self._oracle = cluster.oracle

    async def GetMembers(  # noqa: N802
        self, request: pdpb_pb2.GetMembersRequest, context: CallContext
    ) -> pdpb_pb2.GetMembersResponse:
        """The bootstrap call: the only one whose cluster id is not checked."""
        members = self._cluster.member_metas()
        leader = members[self._cluster.leader]
        return pdpb_pb2.GetMembersResponse(header=self._ok(), members=members, leader=leader, etcd_leader=leader)

    async def GetClusterInfo(  # noqa: N802
        self, request: pdpb_pb2.GetClusterInfoRequest, context: CallContext
    ) -> pdpb_pb2.GetClusterInfoResponse:
        """TSO is served here, not by a service of its own."""
        return pdpb_pb2.GetClusterInfoResponse(header=self._ok(), service_modes=[pdpb_pb2.PD_SVC_MODE])

    async def Tso(  # noqa: N802
        self, request_iterator: AsyncIterator[pdpb_pb2.TsoRequest], context: CallContext
    ) -> AsyncIterator[pdpb_pb2.TsoResponse]:
        """Timestamps, one answer a request, in order."""
        async for request in request_iterator:
            # A leader change shows here: the stream of the old leader ends.
            await self._check(request.header, context)
            if request.count < 1:
                await context.abort(grpc.StatusCode.UNKNOWN, "tso count should be positive")
            ts = self._oracle.tso(request.count)
            stamp = pdpb_pb2.Timestamp(physical=ts >> PHYSICAL_SHIFT_BITS, logical=ts & _LOGICAL_MASK)
            yield pdpb_pb2.TsoResponse(header=self._ok(), count=request.count, timestamp=stamp)

    async def LoadGlobalConfig(  # noqa: N802
        self, request: pdpb_pb2.LoadGlobalConfigRequest, context: CallContext
    ) -> pdpb_pb2.LoadGlobalConfigResponse:
        """Settings by name; the call has no header, and so no cluster id to be checked."""
        items = []
        for name in request.names:
            if name in self._cluster.global_config:
                value = self._cluster.global_config[name]
                items.append(pdpb_pb2.GlobalConfigItem(name=name, value=value, payload=value.encode()))
            else:
                error = pdpb_pb2.Error(type=pdpb_pb2.GLOBAL_CONFIG_NOT_FOUND, message=f"key {name} not found")
                items.append(pdpb_pb2.GlobalConfigItem(name=name, error=error))
        return pdpb_pb2.LoadGlobalConfigResponse(items=items)

    async def GetRegion(self, request: pdpb_pb2.GetRegionRequest, context: CallContext) -> pdpb_pb2.GetRegionResponse:  # noqa: N802
        """The region of a key."""
        await self._check(request.header, context)
        key = await _raw(request.region_key, context)
        return self._region_response(self._store.regions.of_key(key))

    async def GetPrevRegion(  # noqa: N802
        self, request: pdpb_pb2.GetRegionRequest, context: CallContext
    ) -> pdpb_pb2.GetRegionResponse:
        """The region before the one of a key; no region for the first."""
        await self._check(request.header, context)
        key = await _raw(request.region_key, context)
        return self._region_response(self._store.regions.before(key))

    async def GetRegionByID(  # noqa: N802
        self, request: pdpb_pb2.GetRegionByIDRequest, context: CallContext
    ) -> pdpb_pb2.GetRegionResponse:
        """The region of an id; the field is absent if there is none, as a PD leader answers."""
        await self._check(request.header, context)
        return self._region_response(self._store.regions.get(request.region_id))

    async def ScanRegions(  # noqa: N802
        self, request: pdpb_pb2.ScanRegionsRequest, context: CallContext
    ) -> pdpb_pb2.ScanRegionsResponse:
        """Regions that touch a range, in key order."""
        await self._check(request.header, context)
        start, end = await _raw(request.start_key, context), await _raw(request.end_key, context)
        shown = [region for region in self._store.regions.between(start, end, request.limit) if not region.hidden]
        regions = [self._describe(region) for region in shown]
        return pdpb_pb2.ScanRegionsResponse(
            header=self._ok(),
            region_metas=[region.region for region in regions],
            leaders=[region.leader for region in regions],
            regions=regions,
        )

    async def BatchScanRegions(  # noqa: N802
        self, request: pdpb_pb2.BatchScanRegionsRequest, context: CallContext
    ) -> pdpb_pb2.BatchScanRegionsResponse:
        """Regions that touch any of some ranges; the ranges must be in order and must not overlap."""
        await self._check(request.header, context)
        ranges = [(await _raw(r.start_key, context), await _raw(r.end_key, context)) for r in request.ranges]
        if not _in_order(ranges):
            error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message="invalid key range, ranges overlap or are not sorted")
            return pdpb_pb2.BatchScanRegionsResponse(header=self._failed(error))
        by_id: dict[int, Region] = {}
        for start, end in ranges:
            touched = self._store.regions.between(start, end)
            if request.contain_all_key_range and any(region.hidden for region in touched):
                message = "the regions do not contain all key ranges"
                error = pdpb_pb2.Error(type=pdpb_pb2.REGIONS_NOT_CONTAIN_ALL_KEY_RANGE, message=message)
                return pdpb_pb2.BatchScanRegionsResponse(header=self._failed(error))
            by_id.update({region.region_id: region for region in touched if not region.hidden})
        regions = list(by_id.values())[: request.limit if request.limit > 0 else None]
        return pdpb_pb2.BatchScanRegionsResponse(
            header=self._ok(), regions=[self._describe(region) for region in regions]
        )

    async def GetStore(self, request: pdpb_pb2.GetStoreRequest, context: CallContext) -> pdpb_pb2.GetStoreResponse:  # noqa: N802
        """One store, also one that was removed."""
        await self._check(request.header, context)
        store_id = StoreId(request.store_id)
        if store_id not in self._cluster.addresses:
            error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message=f"invalid store ID {store_id}, not found")
            return pdpb_pb2.GetStoreResponse(header=self._failed(error))
        return pdpb_pb2.GetStoreResponse(header=self._ok(), store=self._cluster.store_meta(store_id))

    async def GetAllStores(  # noqa: N802
        self, request: pdpb_pb2.GetAllStoresRequest, context: CallContext
    ) -> pdpb_pb2.GetAllStoresResponse:
        """All stores, with or without removed ones."""
        await self._check(request.header, context)
        stores = [self._cluster.store_meta(store_id) for store_id in self._cluster.addresses]
        if request.exclude_tombstone_stores:
            stores = [store for store in stores if store.state != metapb_pb2.Tombstone]
        return pdpb_pb2.GetAllStoresResponse(header=self._ok(), stores=stores)

    def _describe(self, region: Region) -> pdpb_pb2.Region:
        meta = region_meta(region, self._store.store_ids)
        named = region.leader if region.pd_leader is None else region.pd_leader
        return pdpb_pb2.Region(region=meta, leader=leader_peer(region, named))

    def _region_response(self, region: Region | None) -> pdpb_pb2.GetRegionResponse:
        if region is None or region.hidden:
            return pdpb_pb2.GetRegionResponse(header=self._ok())
        described = self._describe(region)
        return pdpb_pb2.GetRegionResponse(header=self._ok(), region=described.region, leader=described.leader)


def _in_order(ranges: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether each range ends before the next one starts."""
    return all(end and end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


async def _raw(encoded: bytes, context: CallContext) -> bytes:
    """The raw key of a region key; a malformed one fails the call."""
    try:
        return raw_bound(encoded)
    except CorruptDataError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise
