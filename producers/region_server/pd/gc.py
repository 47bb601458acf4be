"""The calls of PD by which clients keep history: service safe points and GC barriers."""

import time

import grpc

from producers.region_server.core.store.gc_state import BarrierRefusedError, GcBarrier
from producers.region_server.pd.cluster import PdCluster
from producers.region_server.rpc.call_context import CallContext
from schemas.ids import Ts
from schemas.proto import pdpb_pb2, pdpb_pb2_grpc

NULL_KEYSPACE = 0xFFFFFFFF


class PdGcCalls(pdpb_pb2_grpc.PDServicer):
    """Half of a PD member, and the checks that all its calls share."""

    def __init__(self, cluster: PdCluster, index: int) -> None:
        self._cluster = cluster
        self._index = index

    def _ok(self) -> pdpb_pb2.ResponseHeader:
        return pdpb_pb2.ResponseHeader(cluster_id=self._cluster.cluster_id)

    def _failed(self, error: pdpb_pb2.Error) -> pdpb_pb2.ResponseHeader:
        return pdpb_pb2.ResponseHeader(cluster_id=self._cluster.cluster_id, error=error)

    def _refused(self, refused: BarrierRefusedError) -> pdpb_pb2.ResponseHeader:
        return self._failed(pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message=refused.message))

    async def _check(self, header: pdpb_pb2.RequestHeader, context: CallContext) -> None:
        if self._cluster.leader != self._index:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not leader")
        need = self._cluster.cluster_id
        if header.cluster_id != need:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"mismatch cluster id, need {need} but got {header.cluster_id}"
            )

    async def _check_barriers(self, header: pdpb_pb2.RequestHeader, context: CallContext) -> None:
        if self._cluster.gc_api == "service_safe_points":
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method for service pdpb.PD")
        await self._check(header, context)

    async def GetGCSafePoint(  # noqa: N802
        self, request: pdpb_pb2.GetGCSafePointRequest, context: CallContext
    ) -> pdpb_pb2.GetGCSafePointResponse:
        """Below this ts history may be gone."""
        await self._check(request.header, context)
        return pdpb_pb2.GetGCSafePointResponse(header=self._ok(), safe_point=self._cluster.gc_safe_point)

    async def UpdateServiceGCSafePoint(  # noqa: N802
        self, request: pdpb_pb2.UpdateServiceGCSafePointRequest, context: CallContext
    ) -> pdpb_pb2.UpdateServiceGCSafePointResponse:
        """Keep history for a service, or stop keeping it (TTL <= 0)."""
        if self._cluster.gc_api == "barriers":
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method for service pdpb.PD")
        await self._check(request.header, context)
        safe_point, now_s = Ts(request.safe_point), time.monotonic()
        if self._cluster.gc_api == "service_safe_points":
            least = self._cluster.safe_points.update(request.service_id, safe_point, request.TTL, now_s)
            return pdpb_pb2.UpdateServiceGCSafePointResponse(
                header=self._ok(), service_id=least.service_id, TTL=least.ttl_s, min_safe_point=least.safe_point
            )
        service = request.service_id.decode("utf-8", "replace")
        point, ttl_s = self._cluster.gc.update_service(service, safe_point, request.TTL, now_s)
        return pdpb_pb2.UpdateServiceGCSafePointResponse(
            header=self._ok(), service_id=b"gc_worker", TTL=ttl_s, min_safe_point=point
        )

    async def SetGCBarrier(  # noqa: N802
        self, request: pdpb_pb2.SetGCBarrierRequest, context: CallContext
    ) -> pdpb_pb2.SetGCBarrierResponse:
        """Keep history from a ts on."""
        await self._check_barriers(request.header, context)
        try:
            barrier = self._cluster.gc.set_barrier(
                request.barrier_id, Ts(request.barrier_ts), request.ttl_seconds, time.monotonic()
            )
        except BarrierRefusedError as refused:
            return pdpb_pb2.SetGCBarrierResponse(header=self._refused(refused))
        return pdpb_pb2.SetGCBarrierResponse(header=self._ok(), new_barrier_info=_info(barrier))

    async def DeleteGCBarrier(  # noqa: N802
        self, request: pdpb_pb2.DeleteGCBarrierRequest, context: CallContext
    ) -> pdpb_pb2.DeleteGCBarrierResponse:
        """Stop keeping it; the field is absent if there was no such barrier."""
        await self._check_barriers(request.header, context)
        barrier = self._cluster.gc.delete_barrier(request.barrier_id, time.monotonic())
        deleted = _info(barrier) if barrier is not None else None
        return pdpb_pb2.DeleteGCBarrierResponse(header=self._ok(), deleted_barrier_info=deleted)

    async def SetGlobalGCBarrier(  # noqa: N802
        self, request: pdpb_pb2.SetGlobalGCBarrierRequest, context: CallContext
    ) -> pdpb_pb2.SetGlobalGCBarrierResponse:
        """Keep history of all keyspaces from a ts on."""
        await self._check_barriers(request.header, context)
        try:
            barrier = self._cluster.gc.set_barrier(
                request.barrier_id, Ts(request.barrier_ts), request.ttl_seconds, time.monotonic(), globally=True
            )
        except BarrierRefusedError as refused:
            return pdpb_pb2.SetGlobalGCBarrierResponse(header=self._refused(refused))
        return pdpb_pb2.SetGlobalGCBarrierResponse(header=self._ok(), new_barrier_info=_global_info(barrier))

    async def DeleteGlobalGCBarrier(  # noqa: N802
        self, request: pdpb_pb2.DeleteGlobalGCBarrierRequest, context: CallContext
    ) -> pdpb_pb2.DeleteGlobalGCBarrierResponse:
        """Stop keeping it."""
        await self._check_barriers(request.header, context)
        barrier = self._cluster.gc.delete_barrier(request.barrier_id, time.monotonic(), globally=True)
        deleted = _global_info(barrier) if barrier is not None else None
        return pdpb_pb2.DeleteGlobalGCBarrierResponse(header=self._ok(), deleted_barrier_info=deleted)

    async def GetGCState(  # noqa: N802
        self, request: pdpb_pb2.GetGCStateRequest, context: CallContext
    ) -> pdpb_pb2.GetGCStateResponse:
        """Safe points and barriers of the one keyspace."""
        await self._check_barriers(request.header, context)
        barriers = self._global_barriers() if request.include_global_gc_barriers else None
        state = self._state(exclude_barriers=request.exclude_gc_barriers)
        return pdpb_pb2.GetGCStateResponse(header=self._ok(), gc_state=state, global_gc_barriers=barriers)

    async def GetAllKeyspacesGCStates(  # noqa: N802
        self, request: pdpb_pb2.GetAllKeyspacesGCStatesRequest, context: CallContext
    ) -> pdpb_pb2.GetAllKeyspacesGCStatesResponse:
        """The same of all keyspaces; there is one."""
        await self._check_barriers(request.header, context)
        barriers = None if request.exclude_global_gc_barriers else self._global_barriers()
        state = self._state(exclude_barriers=request.exclude_gc_barriers)
        return pdpb_pb2.GetAllKeyspacesGCStatesResponse(
            header=self._ok(), gc_states=[state], global_gc_barriers=barriers
        )

    def _state(self, *, exclude_barriers: bool) -> pdpb_pb2.GCState:
        gc = self._cluster.gc
        return pdpb_pb2.GCState(
            keyspace_scope=pdpb_pb2.KeyspaceScope(keyspace_id=NULL_KEYSPACE),
            txn_safe_point=gc.txn_safe_point,
            gc_safe_point=gc.gc_safe_point,
            gc_barriers=[] if exclude_barriers else [_info(barrier) for barrier in gc.barriers(time.monotonic())],
        )

    def _global_barriers(self) -> pdpb_pb2.GlobalGCBarriers:
        barriers = self._cluster.gc.barriers(time.monotonic(), globally=True)
        return pdpb_pb2.GlobalGCBarriers(barriers=[_global_info(barrier) for barrier in barriers])


def _info(barrier: GcBarrier) -> pdpb_pb2.GCBarrierInfo:
    return pdpb_pb2.GCBarrierInfo(barrier_id=barrier.barrier_id, barrier_ts=barrier.ts, ttl_seconds=barrier.ttl_s)


def _global_info(barrier: GcBarrier) -> pdpb_pb2.GlobalGCBarrierInfo:
    return pdpb_pb2.GlobalGCBarrierInfo(barrier_id=barrier.barrier_id, barrier_ts=barrier.ts, ttl_seconds=barrier.ttl_s)
