"""``pdpb.PD``: members, timestamps, regions, stores and GC safe points of the embedded cluster."""

import itertools
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from producers.region_server.core.oracle import TimestampOracle
from producers.region_server.core.regions import Region
from producers.region_server.core.safe_points import ServiceSafePoints
from producers.region_server.store import ClusterStore
from producers.region_server.wire import peer, raw_bound, region_meta
from schemas.errors import CorruptDataError
from schemas.ids import PHYSICAL_SHIFT_BITS, StoreId, Ts
from schemas.proto import metapb_pb2, pdpb_pb2, pdpb_pb2_grpc

SERVER_VERSION = "8.5.0"
"""TiDB's version that the cluster claims: clients refuse what is too old or too new for them."""
_LOGICAL_MASK = (1 << PHYSICAL_SHIFT_BITS) - 1


class PdService(pdpb_pb2_grpc.PDServicer):
    """One PD member, always the leader. Region keys are memcomparable-encoded, as clients send them.

    ``addresses`` are the stores' ``host:port``, known once their servers are bound.
    """

    def __init__(self, store: ClusterStore, oracle: TimestampOracle, cluster_id: int) -> None:
        self._store = store
        self._oracle = oracle
        self._cluster_id = cluster_id
        self.addresses: dict[StoreId, str] = {}
        self.client_url = ""
        self.safe_points = ServiceSafePoints()

    async def GetMembers(self, request: pdpb_pb2.GetMembersRequest, context: Any) -> pdpb_pb2.GetMembersResponse:  # noqa: N802
        """The bootstrap call: the only one whose cluster id is not checked."""
        member = pdpb_pb2.Member(
            name="pd-embedded", member_id=1, client_urls=[self.client_url], binary_version=SERVER_VERSION
        )
        return pdpb_pb2.GetMembersResponse(header=self._ok(), members=[member], leader=member, etcd_leader=member)

    async def GetClusterInfo(  # noqa: N802
        self, request: pdpb_pb2.GetClusterInfoRequest, context: Any
    ) -> pdpb_pb2.GetClusterInfoResponse:
        """TSO is served here, not by a service of its own."""
        return pdpb_pb2.GetClusterInfoResponse(header=self._ok(), service_modes=[pdpb_pb2.PD_SVC_MODE])

    async def Tso(  # noqa: N802
        self, request_iterator: AsyncIterator[pdpb_pb2.TsoRequest], context: Any
    ) -> AsyncIterator[pdpb_pb2.TsoResponse]:
        """Timestamps, one answer a request, in order."""
        async for request in request_iterator:
            await self._check(request.header, context)
            if request.count < 1:
                await context.abort(grpc.StatusCode.UNKNOWN, "tso count should be positive")
            ts = self._oracle.tso(request.count)
            stamp = pdpb_pb2.Timestamp(physical=ts >> PHYSICAL_SHIFT_BITS, logical=ts & _LOGICAL_MASK)
            yield pdpb_pb2.TsoResponse(header=self._ok(), count=request.count, timestamp=stamp)

    async def GetRegion(self, request: pdpb_pb2.GetRegionRequest, context: Any) -> pdpb_pb2.GetRegionResponse:  # noqa: N802
        """The region of a key."""
        await self._check(request.header, context)
        key = await _raw(request.region_key, context)
        return self._region_response(self._store.regions.of_key(key))

    async def GetPrevRegion(self, request: pdpb_pb2.GetRegionRequest, context: Any) -> pdpb_pb2.GetRegionResponse:  # noqa: N802
        """The region before the one of a key; no region for the first."""
        await self._check(request.header, context)
        key = await _raw(request.region_key, context)
        return self._region_response(self._store.regions.before(key))

    async def GetRegionByID(  # noqa: N802
        self, request: pdpb_pb2.GetRegionByIDRequest, context: Any
    ) -> pdpb_pb2.GetRegionResponse:
        """The region of an id; the field is absent if there is none, as a PD leader answers."""
        await self._check(request.header, context)
        return self._region_response(self._store.regions.get(request.region_id))

    async def ScanRegions(self, request: pdpb_pb2.ScanRegionsRequest, context: Any) -> pdpb_pb2.ScanRegionsResponse:  # noqa: N802
        """Regions that touch a range, in key order."""
        await self._check(request.header, context)
        start, end = await _raw(request.start_key, context), await _raw(request.end_key, context)
        regions = [self._describe(region) for region in self._store.regions.between(start, end, request.limit)]
        return pdpb_pb2.ScanRegionsResponse(
            header=self._ok(),
            region_metas=[region.region for region in regions],
            leaders=[region.leader for region in regions],
            regions=regions,
        )

    async def BatchScanRegions(  # noqa: N802
        self, request: pdpb_pb2.BatchScanRegionsRequest, context: Any
    ) -> pdpb_pb2.BatchScanRegionsResponse:
        """Regions that touch any of some ranges; the ranges must be in order and must not overlap."""
        await self._check(request.header, context)
        ranges = [(await _raw(r.start_key, context), await _raw(r.end_key, context)) for r in request.ranges]
        if not _in_order(ranges):
            error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message="invalid key range, ranges overlap or are not sorted")
            return pdpb_pb2.BatchScanRegionsResponse(header=self._failed(error))
        found: dict[int, Region] = {}
        for start, end in ranges:
            found.update({region.region_id: region for region in self._store.regions.between(start, end)})
        regions = list(found.values())[: request.limit if request.limit > 0 else None]
        return pdpb_pb2.BatchScanRegionsResponse(
            header=self._ok(), regions=[self._describe(region) for region in regions]
        )

    async def GetStore(self, request: pdpb_pb2.GetStoreRequest, context: Any) -> pdpb_pb2.GetStoreResponse:  # noqa: N802
        """One store."""
        await self._check(request.header, context)
        if StoreId(request.store_id) not in self.addresses:
            error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message=f"invalid store ID {request.store_id}, not found")
            return pdpb_pb2.GetStoreResponse(header=self._failed(error))
        return pdpb_pb2.GetStoreResponse(header=self._ok(), store=self._store_meta(StoreId(request.store_id)))

    async def GetAllStores(self, request: pdpb_pb2.GetAllStoresRequest, context: Any) -> pdpb_pb2.GetAllStoresResponse:  # noqa: N802
        """All stores; none is ever a tombstone here."""
        await self._check(request.header, context)
        stores = [self._store_meta(store_id) for store_id in self.addresses]
        return pdpb_pb2.GetAllStoresResponse(header=self._ok(), stores=stores)

    async def GetGCSafePoint(  # noqa: N802
        self, request: pdpb_pb2.GetGCSafePointRequest, context: Any
    ) -> pdpb_pb2.GetGCSafePointResponse:
        """Below this ts history may be gone."""
        await self._check(request.header, context)
        return pdpb_pb2.GetGCSafePointResponse(header=self._ok(), safe_point=self.safe_points.collected)

    async def UpdateServiceGCSafePoint(  # noqa: N802
        self, request: pdpb_pb2.UpdateServiceGCSafePointRequest, context: Any
    ) -> pdpb_pb2.UpdateServiceGCSafePointResponse:
        """Keep history for a service, or stop keeping it (TTL <= 0)."""
        await self._check(request.header, context)
        least = self.safe_points.update(
            request.service_id, Ts(request.safe_point), request.TTL, time.monotonic()
        )  # fmt: skip
        return pdpb_pb2.UpdateServiceGCSafePointResponse(
            header=self._ok(), service_id=least.service_id, TTL=least.ttl_s, min_safe_point=least.safe_point
        )

    def _ok(self) -> pdpb_pb2.ResponseHeader:
        return pdpb_pb2.ResponseHeader(cluster_id=self._cluster_id)

    def _failed(self, error: pdpb_pb2.Error) -> pdpb_pb2.ResponseHeader:
        return pdpb_pb2.ResponseHeader(cluster_id=self._cluster_id, error=error)

    async def _check(self, header: pdpb_pb2.RequestHeader, context: Any) -> None:
        if header.cluster_id != self._cluster_id:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"mismatch cluster id, need {self._cluster_id} but got {header.cluster_id}",
            )

    def _describe(self, region: Region) -> pdpb_pb2.Region:
        meta = region_meta(region, self._store.store_ids)
        return pdpb_pb2.Region(region=meta, leader=peer(region, region.leader))

    def _region_response(self, region: Region | None) -> pdpb_pb2.GetRegionResponse:
        if region is None:
            return pdpb_pb2.GetRegionResponse(header=self._ok())
        described = self._describe(region)
        return pdpb_pb2.GetRegionResponse(header=self._ok(), region=described.region, leader=described.leader)

    def _store_meta(self, store_id: StoreId) -> metapb_pb2.Store:
        return metapb_pb2.Store(
            id=store_id, address=self.addresses[store_id], version=SERVER_VERSION, node_state=metapb_pb2.Serving
        )


def _in_order(ranges: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether each range ends before the next one starts."""
    return all(end and end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


async def _raw(encoded: bytes, context: Any) -> bytes:
    """The raw key of a region key; a malformed one fails the call."""
    try:
        return raw_bound(encoded)
    except CorruptDataError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise
