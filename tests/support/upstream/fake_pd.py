"""PD members that can be told who leads, what they lack, and when to die; each on its own port."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from schemas.proto import pdpb_pb2, pdpb_pb2_grpc

CLUSTER_ID = 77


class FakePd:
    """A cluster of members. ``leader`` may be changed while it runs."""

    def __init__(self, members: int) -> None:
        self.leader: int | None = 0
        self.lock = threading.Lock()
        self.logical = 0
        self.tso_requests = 0
        self.tso_delay = threading.Event()
        self.tso_delay.set()
        self.header_error: pdpb_pb2.Error | None = None
        self.starting: set[int] = set()
        """Members that have only just started: they do not know their cluster yet."""
        self.has_barriers = True
        self.txn_safe_point = 100
        self.barriers: dict[str, int] = {}
        self.services: dict[bytes, int] = {}
        self.asked: list[tuple[int, str]] = []
        # The generated base answers UNIMPLEMENTED to what _Member leaves out.
        self.members = [_Member(self, number) for number in range(members)]  # type: ignore[abstract]

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of every member."""
        return [member.address for member in self.members]

    def kill(self, number: int) -> None:
        """Stop serving one member; its port is free afterwards."""
        self.members[number].server.stop(None).wait()

    def stop(self) -> None:
        """Stop all."""
        self.tso_delay.set()
        for number in range(len(self.members)):
            self.kill(number)

    def __enter__(self) -> "FakePd":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Member(pdpb_pb2_grpc.PDServicer):
    def __init__(self, pd: FakePd, number: int) -> None:
        self._pd = pd
        self._number = number
        self.server = grpc.server(ThreadPoolExecutor(32))
        pdpb_pb2_grpc.add_PDServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def _led(self, name: str, header: pdpb_pb2.RequestHeader, context: Any) -> pdpb_pb2.ResponseHeader:
        """Take a call as a leader only, and of the right cluster."""
        pd = self._pd
        pd.asked.append((self._number, name))
        if pd.leader != self._number:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not leader")
        if header.cluster_id != CLUSTER_ID:
            said = f"mismatch cluster id, need {CLUSTER_ID} but got {header.cluster_id}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, said)
        return pdpb_pb2.ResponseHeader(cluster_id=CLUSTER_ID, error=pd.header_error)

    def GetMembers(self, request: pdpb_pb2.GetMembersRequest, context: Any) -> pdpb_pb2.GetMembersResponse:  # noqa: N802
        pd = self._pd
        if self._number in pd.starting:
            error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message="[PD:server:ErrServerNotStarted]server not started")
            return pdpb_pb2.GetMembersResponse(header=pdpb_pb2.ResponseHeader(error=error))
        known = [
            pdpb_pb2.Member(name=f"pd-{number}", member_id=number + 1, client_urls=[f"http://{address}"])
            for number, address in enumerate(pd.addresses)
        ]
        leader = None if pd.leader is None else known[pd.leader]
        header = pdpb_pb2.ResponseHeader(cluster_id=CLUSTER_ID)
        return pdpb_pb2.GetMembersResponse(header=header, members=known, leader=leader)

    def Tso(self, requests: Iterator[pdpb_pb2.TsoRequest], context: Any) -> Iterator[pdpb_pb2.TsoResponse]:  # noqa: N802
        pd = self._pd
        for request in requests:
            header = self._led("Tso", request.header, context)
            pd.tso_delay.wait(10)
            with pd.lock:
                pd.tso_requests += 1
                pd.logical += request.count
                stamp = pdpb_pb2.Timestamp(physical=1_000, logical=pd.logical)
            yield pdpb_pb2.TsoResponse(header=header, count=request.count, timestamp=stamp)

    def GetAllStores(  # noqa: N802
        self, request: pdpb_pb2.GetAllStoresRequest, context: Any
    ) -> pdpb_pb2.GetAllStoresResponse:
        return pdpb_pb2.GetAllStoresResponse(header=self._led("GetAllStores", request.header, context))

    def SetGCBarrier(  # noqa: N802
        self, request: pdpb_pb2.SetGCBarrierRequest, context: Any
    ) -> pdpb_pb2.SetGCBarrierResponse:
        header = self._led("SetGCBarrier", request.header, context)
        pd = self._pd
        if not pd.has_barriers:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method SetGCBarrier for service pdpb.PD")
        if request.barrier_ts < pd.txn_safe_point:
            said = f"[PD:gc:ErrGCBarrierTSBehindTxnSafePoint]trying to set a GC barrier to ts {request.barrier_ts}"
            header.error.CopyFrom(pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message=said))
            return pdpb_pb2.SetGCBarrierResponse(header=header)
        pd.barriers[request.barrier_id] = request.barrier_ts
        info = pdpb_pb2.GCBarrierInfo(
            barrier_id=request.barrier_id, barrier_ts=request.barrier_ts, ttl_seconds=request.ttl_seconds
        )
        return pdpb_pb2.SetGCBarrierResponse(header=header, new_barrier_info=info)

    def DeleteGCBarrier(  # noqa: N802
        self, request: pdpb_pb2.DeleteGCBarrierRequest, context: Any
    ) -> pdpb_pb2.DeleteGCBarrierResponse:
        header = self._led("DeleteGCBarrier", request.header, context)
        if not self._pd.has_barriers:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method DeleteGCBarrier for service pdpb.PD")
        self._pd.barriers.pop(request.barrier_id, None)
        return pdpb_pb2.DeleteGCBarrierResponse(header=header)

    def GetGCState(self, request: pdpb_pb2.GetGCStateRequest, context: Any) -> pdpb_pb2.GetGCStateResponse:  # noqa: N802
        header = self._led("GetGCState", request.header, context)
        state = pdpb_pb2.GCState(txn_safe_point=self._pd.txn_safe_point)
        return pdpb_pb2.GetGCStateResponse(header=header, gc_state=state)

    def UpdateServiceGCSafePoint(  # noqa: N802
        self, request: pdpb_pb2.UpdateServiceGCSafePointRequest, context: Any
    ) -> pdpb_pb2.UpdateServiceGCSafePointResponse:
        header = self._led("UpdateServiceGCSafePoint", request.header, context)
        pd = self._pd
        if request.TTL <= 0:
            pd.services.pop(request.service_id, None)
        elif request.safe_point >= pd.txn_safe_point:
            pd.services[request.service_id] = request.safe_point
        least = min([pd.services.get(request.service_id, pd.txn_safe_point), *pd.services.values()])
        return pdpb_pb2.UpdateServiceGCSafePointResponse(header=header, min_safe_point=max(least, pd.txn_safe_point))
