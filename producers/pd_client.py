"""Client of the Placement Driver: members, TSO, regions, stores, service GC safe points (reference/pd.md).

Blocking calls, safe from any thread. A call that finds no leader goes round the members until its deadline and then
raises :class:`PdUnreachableError`; the caller decides whether to wait on. Nothing is retried without a bound here.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import grpc

from producers.core.region_errors import ClusterMismatchError
from producers.core.region_map import KEY_END, Peer, RegionInfo
from producers.core.span_frontier import KeyRange
from producers.errors import PdRefusedError, PdUnreachableError
from schemas.ids import PHYSICAL_SHIFT_BITS, RegionId, StoreId, Ts
from schemas.proto import metapb_pb2, pdpb_pb2, pdpb_pb2_grpc

log = logging.getLogger(__name__)
Reply = TypeVar("Reply")

CALL_TIMEOUT_S: Final = 3.0
"""For one try at one member."""
DEADLINE_S: Final = 20.0
"""For all tries of one call, as client-go's total back-off for locating a region."""
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 2.0
SCAN_REGIONS_LIMIT: Final = 1024
"""Page size of the classic client."""
_CHANNEL_OPTIONS: Final = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
]


class PdClient:
    """A client of one PD cluster."""

    def __init__(self, addresses: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Know the way; the first call connects.

        Args:
            addresses: ``host:port`` of one or more members, comma-separated; an ``http://`` before one is ignored.
            deadline_s: bound of one call with all its retries.
        """
        self._addresses = [_plain(address) for address in addresses.split(",") if address.strip()]
        if not self._addresses:
            raise PdUnreachableError("no PD address is given", addresses=addresses)
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._leader: str | None = None
        self._cluster_id = 0
        self._closed = threading.Event()
        self._tso_lock = threading.Lock()
        self._tso: _TsoStream | None = None

    def close(self) -> None:
        """End waits and connections; calls after it fail."""
        self._closed.set()
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        if self._tso is not None:
            self._tso.close()
        for channel in channels:
            channel.close()

    @property
    def cluster_id(self) -> int:
        """Return the cluster's id; asks for it once."""
        if not self._cluster_id:
            self._call("GetMembers", lambda stub, _: self._members(stub))
        return self._cluster_id

    def now(self) -> Ts:
        """Return a new TSO."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> Ts:
            with self._tso_lock:
                if self._tso is None or self._tso.broken:
                    self._tso = _TsoStream(stub)
                return self._tso.ask(header)

        return self._call("Tso", ask)

    def scan_regions(self, wanted: KeyRange, limit: int = SCAN_REGIONS_LIMIT) -> list[RegionInfo]:
        """Return up to ``limit`` regions that overlap ``wanted`` (encoded keys), ascending; there may be holes."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.ScanRegionsResponse:
            end = b"" if wanted.end >= KEY_END else wanted.end
            request = pdpb_pb2.ScanRegionsRequest(header=header, start_key=wanted.start, end_key=end, limit=limit)
            return stub.ScanRegions(request, timeout=CALL_TIMEOUT_S)

        reply = self._call("ScanRegions", ask)
        if reply.regions:
            return [_region(item.region, item.leader) for item in reply.regions]
        return [_region(meta, leader) for meta, leader in zip(reply.region_metas, reply.leaders, strict=True)]

    def region_by_id(self, region_id: RegionId) -> RegionInfo | None:
        """Return one region, or None when PD does not know it."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.GetRegionResponse:
            request = pdpb_pb2.GetRegionByIDRequest(header=header, region_id=region_id)
            return stub.GetRegionByID(request, timeout=CALL_TIMEOUT_S)

        reply = self._call("GetRegionByID", ask)
        return _region(reply.region, reply.leader) if reply.HasField("region") else None

    def stores(self) -> list[metapb_pb2.Store]:
        """Return all stores that are not tombstones, TiFlash included."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.GetAllStoresResponse:
            request = pdpb_pb2.GetAllStoresRequest(header=header, exclude_tombstone_stores=True)
            return stub.GetAllStores(request, timeout=CALL_TIMEOUT_S)

        return list(self._call("GetAllStores", ask).stores)

    def update_service_gc_safe_point(self, service_id: str, safe_point: Ts, ttl_s: int) -> Ts:
        """Ask TiKV to keep history above ``safe_point`` for ``ttl_s`` seconds; 0 or less deletes the entry.

        Returns the least safe point that is in force. If it is above the one asked for, that history is gone.
        """

        def ask(
            stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader
        ) -> pdpb_pb2.UpdateServiceGCSafePointResponse:
            request = pdpb_pb2.UpdateServiceGCSafePointRequest(
                header=header, service_id=service_id.encode(), TTL=ttl_s, safe_point=safe_point
            )
            return stub.UpdateServiceGCSafePoint(request, timeout=CALL_TIMEOUT_S)

        return Ts(self._call("UpdateServiceGCSafePoint", ask).min_safe_point)

    def _call(self, name: str, ask: Callable[[pdpb_pb2_grpc.PDStub, pdpb_pb2.RequestHeader], Reply]) -> Reply:
        """Run one call at the leader, going round the members until the deadline.

        Raises:
            PdUnreachableError: nobody answered well in time.
            PdRefusedError: PD said no in a way that lasts.
            ClusterMismatchError: the members belong to another cluster than at first.
        """
        deadline, wait_s, tries, last = time.monotonic() + self._deadline_s, RETRY_FIRST_S, 0, "closed"
        while not self._closed.is_set():
            address = self._leader or self._addresses[tries % len(self._addresses)]
            tries += 1
            try:
                stub = pdpb_pb2_grpc.PDStub(self._channel(address))
                if not self._cluster_id or self._leader is None:
                    self._members(stub)
                    stub = pdpb_pb2_grpc.PDStub(self._channel(self._leader or address))
                reply = ask(stub, pdpb_pb2.RequestHeader(cluster_id=self._cluster_id))
                last = self._header_error(name, reply)
                if not last:
                    return reply
            except grpc.RpcError as error:
                last = self._judge(name, address, error)
            self._leader = None
            if time.monotonic() + wait_s > deadline or self._closed.wait(wait_s):
                break
            wait_s = min(2 * wait_s, RETRY_MAX_S)
        raise PdUnreachableError(
            "PD does not answer", call=name, addresses=",".join(self._addresses), tries=tries, last=last
        )

    def _members(self, stub: pdpb_pb2_grpc.PDStub) -> pdpb_pb2.GetMembersResponse:
        reply = stub.GetMembers(pdpb_pb2.GetMembersRequest(), timeout=CALL_TIMEOUT_S)
        found = reply.header.cluster_id
        if self._cluster_id and found != self._cluster_id:
            raise ClusterMismatchError("PD belongs to another cluster", pd_cluster=found, our_cluster=self._cluster_id)
        self._cluster_id = found
        if reply.leader.client_urls:
            self._leader = _plain(reply.leader.client_urls[0])
        known = [_plain(url) for member in reply.members for url in member.client_urls]
        self._addresses += [address for address in known if address not in self._addresses]
        return reply

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            if address not in self._channels:
                self._channels[address] = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
            return self._channels[address]

    def _header_error(self, name: str, reply: Any) -> str:
        """Return why a reply that came is no answer ('' if it is one)."""
        header = getattr(reply, "header", None)
        if header is None or header.error.type == pdpb_pb2.OK:
            return ""
        if header.error.type in (pdpb_pb2.NOT_BOOTSTRAPPED, pdpb_pb2.REGION_NOT_FOUND):
            return str(header.error.message or pdpb_pb2.ErrorType.Name(header.error.type))
        raise PdRefusedError(
            "PD refuses the call", call=name, kind=pdpb_pb2.ErrorType.Name(header.error.type), said=header.error.message
        )

    def _judge(self, name: str, address: str, error: grpc.RpcError) -> str:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.FAILED_PRECONDITION and "cluster id" in details:
            raise ClusterMismatchError(
                "PD belongs to another cluster", address=address, our_cluster=self._cluster_id, said=details
            ) from error
        if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT):
            raise PdRefusedError("PD does not know the call", call=name, address=address, said=details) from error
        return f"{address}: {code.name} {details}".strip()


class _TsoStream:
    """The one bidirectional Tso stream; requests are answered in order, so one at a time is asked."""

    def __init__(self, stub: pdpb_pb2_grpc.PDStub) -> None:
        self._requests: queue.SimpleQueue[pdpb_pb2.TsoRequest | None] = queue.SimpleQueue()
        self.broken = False
        self._call: Any = stub.Tso(self._iterate())

    def _iterate(self) -> Iterator[pdpb_pb2.TsoRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def ask(self, header: pdpb_pb2.RequestHeader) -> Ts:
        # A bidirectional stream has no deadline of one reply: a timer ends the stream if the reply stays away.
        timer = threading.Timer(CALL_TIMEOUT_S, self._call.cancel)
        timer.daemon = True
        timer.start()
        try:
            self._requests.put(pdpb_pb2.TsoRequest(header=header, count=1))
            reply: pdpb_pb2.TsoResponse = next(self._call)
        except StopIteration:
            self.close()
            raise _StreamEndedError() from None
        except grpc.RpcError:
            self.close()
            raise
        finally:
            timer.cancel()
        return Ts((reply.timestamp.physical << PHYSICAL_SHIFT_BITS) + reply.timestamp.logical)

    def close(self) -> None:
        self.broken = True
        self._requests.put(None)
        with contextlib.suppress(grpc.RpcError):
            self._call.cancel()


class _StreamEndedError(grpc.RpcError):
    """PD ended the Tso stream without a status."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "stream ended"


def _plain(address: str) -> str:
    return address.strip().removeprefix("http://").removeprefix("https://").rstrip("/")


def _region(meta: metapb_pb2.Region, leader: metapb_pb2.Peer) -> RegionInfo:
    return RegionInfo(
        region_id=RegionId(meta.id),
        range=KeyRange(meta.start_key, meta.end_key or KEY_END),
        version=meta.region_epoch.version,
        conf_ver=meta.region_epoch.conf_ver,
        # A region without a known leader has an empty Peer.
        leader=Peer(leader.id, StoreId(leader.store_id)) if leader.store_id else None,
        peers=tuple(Peer(peer.id, StoreId(peer.store_id)) for peer in meta.peers),
    )
