"""Client of the Placement Driver: members, TSO, regions, stores, and what keeps history from GC (docs/formats/pd.md).

Blocking calls, safe from any thread. A call that finds no leader goes round the members until its deadline and then
raises :class:`PdUnreachableError`; the caller decides whether to wait on. Nothing is retried without a bound here.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import grpc

from producers.channels import KeptChannels
from producers.errors import (
    HistoryGoneError,
    PdRefusedError,
    PdUnimplementedError,
    PdUnreachableError,
    TlsFileError,
    TlsRefusedError,
)
from producers.pull.core.regions.region_errors import ClusterMismatchError
from producers.pull.core.regions.region_map import KEY_END, Peer, RegionInfo
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.pd.tso_stream import TsoStream
from producers.tls import Channels
from schemas.ids import RegionId, StoreId, Ts
from schemas.nodes.changefeed import SOURCE_ID_DEFAULT
from schemas.proto import metapb_pb2, pdpb_pb2, pdpb_pb2_grpc

Reply = TypeVar("Reply")

CALL_TIMEOUT_S, CALL_TIMEOUT_S_MIN = 3.0, 0.5
"""The time that one try at one member has; in a call with a short deadline half of that, down to the lesser."""
DEADLINE_S: Final = 20.0
"""For all tries of one call, as client-go's total back-off for locating a region."""
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 2.0
SCAN_REGIONS_LIMIT: Final = 1024
"""Page size of the classic client."""
_CHANNEL_OPTIONS: Final = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # A member that comes back is used at once; grpc's own back-off grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
NULL_KEYSPACE: Final = 0xFFFF_FFFF
"""The scope of clusters without keyspaces."""
_PASSING: Final = (pdpb_pb2.UNKNOWN, pdpb_pb2.NOT_BOOTSTRAPPED, pdpb_pb2.REGION_NOT_FOUND)
_SOURCE_ID: Final = "source_id"
_BARRIER_TOO_LATE: Final = "ErrGCBarrierTSBehindTxnSafePoint"


class PdClient:
    """A client of one PD cluster."""

    def __init__(self, addresses: str, *, channels: Channels | None = None, deadline_s: float = DEADLINE_S) -> None:
        """Know the way; the first call connects.

        Args:
            addresses: ``host:port`` of one or more members, comma-separated; a scheme before one is ignored.
            channels: with TLS, or not; whoever talks to the stores takes the same.
            deadline_s: bound of one call with all its retries.

        Raises:
            PdUnreachableError: no address is given.
            TlsFileError: an address says https, and TLS is not set up.
        """
        self.channels = channels or Channels()
        self._addresses = [_plain(address) for address in addresses.split(",") if address.strip()]
        if not self._addresses:
            raise PdUnreachableError("no PD address is given", addresses=addresses)
        if "https://" in addresses and not self.channels.tls.enabled:
            raise TlsFileError("PD is to be reached by https, so a CA is needed", addresses=addresses, file="--ca")
        self._deadline_s = deadline_s
        self._try_s = min(CALL_TIMEOUT_S, max(CALL_TIMEOUT_S_MIN, deadline_s / 2))
        self._lock = threading.Lock()
        self._open = KeptChannels(self.channels.open, _CHANNEL_OPTIONS)
        self._leader: str | None = None
        self._next = 0
        """Whom to ask where no leader is known: the one behind who failed last, so that short calls get on as well."""
        self._cluster_id = 0
        self._closed = threading.Event()
        self._tso: TsoStream | None = None

    def close(self) -> None:
        """End waits and connections; calls after it fail."""
        self._closed.set()
        with self._lock:
            tso = self._tso
        if tso is not None:
            tso.close()
        self._open.close()

    @property
    def cluster_id(self) -> int:
        """Return the cluster's id; asks for it once."""
        if not self._cluster_id:
            self._call("GetMembers", lambda stub, _: self._members(stub))
        return self._cluster_id

    def now(self) -> Ts:
        """Return a new TSO. Callers at the same time share requests."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> Ts:
            with self._lock:
                if self._tso is None or self._tso.broken:
                    self._tso = TsoStream(stub, header, self._try_s)
                tso = self._tso
            return tso.ask()

        return self._call("Tso", ask)

    def scan_regions(self, wanted: EncodedRange, limit: int = SCAN_REGIONS_LIMIT) -> list[RegionInfo]:
        """Return up to ``limit`` regions that overlap ``wanted`` (encoded keys), ascending; there may be holes."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.ScanRegionsResponse:
            end = b"" if wanted.end >= KEY_END else wanted.end
            request = pdpb_pb2.ScanRegionsRequest(header=header, start_key=wanted.start, end_key=end, limit=limit)
            return stub.ScanRegions(request, timeout=self._try_s)

        reply = self._call("ScanRegions", ask)
        if reply.regions:
            return [_region(item.region, item.leader) for item in reply.regions]
        return [_region(meta, leader) for meta, leader in zip(reply.region_metas, reply.leaders, strict=True)]

    def region_by_id(self, region_id: RegionId) -> RegionInfo | None:
        """Return one region, or None when PD does not know it."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.GetRegionResponse:
            request = pdpb_pb2.GetRegionByIDRequest(header=header, region_id=region_id)
            return stub.GetRegionByID(request, timeout=self._try_s)

        reply = self._call("GetRegionByID", ask)
        return _region(reply.region, reply.leader) if reply.HasField("region") else None

    def stores(self) -> list[metapb_pb2.Store]:
        """Return all stores that are not tombstones, TiFlash included."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.GetAllStoresResponse:
            request = pdpb_pb2.GetAllStoresRequest(header=header, exclude_tombstone_stores=True)
            return stub.GetAllStores(request, timeout=self._try_s)

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
            return stub.UpdateServiceGCSafePoint(request, timeout=self._try_s)

        return Ts(self._call("UpdateServiceGCSafePoint", ask).min_safe_point)

    def set_gc_barrier(self, barrier_id: str, barrier_ts: Ts, ttl_s: int) -> None:
        """Keep history above ``barrier_ts`` for ``ttl_s`` seconds, by the interface of new PDs.

        Raises:
            HistoryGoneError: the txn safe point has passed it.
            PdUnimplementedError: this PD has the old interface only.
        """

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.SetGCBarrierResponse:
            request = pdpb_pb2.SetGCBarrierRequest(
                header=header,
                keyspace_scope=pdpb_pb2.KeyspaceScope(keyspace_id=NULL_KEYSPACE),
                barrier_id=barrier_id,
                barrier_ts=barrier_ts,
                ttl_seconds=ttl_s,
            )
            return stub.SetGCBarrier(request, timeout=self._try_s)

        try:
            self._call("SetGCBarrier", ask)
        except PdRefusedError as error:
            if _BARRIER_TOO_LATE not in str(error.fields.get("said", "")):
                raise
            raise HistoryGoneError("PD refuses the GC barrier", needed_ts=barrier_ts, **error.fields) from error

    def delete_gc_barrier(self, barrier_id: str) -> None:
        """Keep history no longer; a barrier that is not there is no error."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.DeleteGCBarrierResponse:
            scope = pdpb_pb2.KeyspaceScope(keyspace_id=NULL_KEYSPACE)
            request = pdpb_pb2.DeleteGCBarrierRequest(header=header, keyspace_scope=scope, barrier_id=barrier_id)
            return stub.DeleteGCBarrier(request, timeout=self._try_s)

        self._call("DeleteGCBarrier", ask)

    def gc_state(self) -> pdpb_pb2.GCState:
        """Return the safe points that are in force, and all barriers."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.GetGCStateResponse:
            scope = pdpb_pb2.KeyspaceScope(keyspace_id=NULL_KEYSPACE)
            return stub.GetGCState(pdpb_pb2.GetGCStateRequest(header=header, keyspace_scope=scope), timeout=self._try_s)

        return self._call("GetGCState", ask).gc_state

    def gc_safe_point(self) -> Ts:
        """Return the ts below which history may be gone."""

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.GetGCSafePointResponse:
            return stub.GetGCSafePoint(pdpb_pb2.GetGCSafePointRequest(header=header), timeout=self._try_s)

        return Ts(self._call("GetGCSafePoint", ask).safe_point)

    def source_id(self) -> int:
        """Return the cluster's ``tidb_source_id``; 1 where nobody has set one, or PD is older than they are.

        Raises:
            PdRefusedError: PD holds something else under that name.
        """

        def ask(stub: pdpb_pb2_grpc.PDStub, header: pdpb_pb2.RequestHeader) -> pdpb_pb2.LoadGlobalConfigResponse:
            request = pdpb_pb2.LoadGlobalConfigRequest(names=[_SOURCE_ID])
            return stub.LoadGlobalConfig(request, timeout=self._try_s)

        try:
            items = self._call("LoadGlobalConfig", ask).items
        except PdUnimplementedError:
            return SOURCE_ID_DEFAULT
        # Old PDs answer by the text, new ones by the bytes.
        texts = [item.value or item.payload.decode("utf-8", "replace") for item in items if item.name == _SOURCE_ID]
        text = next(filter(None, texts), str(SOURCE_ID_DEFAULT))
        if not (text.isascii() and text.isdecimal() and int(text) < 1 << 63):
            raise PdRefusedError("PD's source_id is no number", call="LoadGlobalConfig", got=text[:40])
        return int(text) or SOURCE_ID_DEFAULT

    def _call(self, name: str, ask: Callable[[pdpb_pb2_grpc.PDStub, pdpb_pb2.RequestHeader], Reply]) -> Reply:
        """Run one call at the leader, going round the members until the deadline.

        Raises:
            PdUnreachableError: nobody answered well in time.
            PdRefusedError: PD said no in a way that lasts.
            ClusterMismatchError: the members belong to another cluster than at first.
            TlsRefusedError: with no member is there a TLS connection.
        """
        deadline, wait_s, tries, last = time.monotonic() + self._deadline_s, RETRY_FIRST_S, 0, "closed"
        distrusted: dict[str, TlsRefusedError] = {}
        while not self._closed.is_set():
            with self._lock:
                address = self._leader or self._addresses[self._next % len(self._addresses)]
            tries, channel = tries + 1, None
            try:
                stub = pdpb_pb2_grpc.PDStub(channel := self._channel(address))
                if not self._cluster_id or self._leader is None:
                    self._members(stub)
                    address = self._leader or address
                    stub = pdpb_pb2_grpc.PDStub(channel := self._channel(address))
                reply = ask(stub, pdpb_pb2.RequestHeader(cluster_id=self._cluster_id))
                last = self._header_error(name, reply)
                if not last:
                    return reply
            except grpc.RpcError as error:
                last = self._judge(name, address, error)
                if error.code() is grpc.StatusCode.UNAVAILABLE and self.channels.tls.enabled:
                    self._open.forget(address, channel)  # its certificates may have been renewed
                    refusal = self.channels.refusal(address)
                    if refusal is not None:
                        distrusted[address], last = refusal, str(refusal)
            except TlsRefusedError as refusal:
                distrusted[address], last = refusal, str(refusal)
            # The channel was closed under the call; no probe gets through; or our files are away, as while renewed.
            except (ValueError, OSError, TlsFileError) as error:
                last = f"{address}: {error}"
            self._pass_over(address)
            if distrusted.keys() >= set(self._addresses):
                raise distrusted[address]
            if time.monotonic() + wait_s > deadline or self._closed.wait(wait_s):
                break
            wait_s = min(2 * wait_s, RETRY_MAX_S)
        raise PdUnreachableError(
            "PD does not answer", call=name, addresses=",".join(self._addresses), tries=tries, last=last
        )

    def _members(self, stub: pdpb_pb2_grpc.PDStub) -> pdpb_pb2.GetMembersResponse:
        """Learn who the members are, and who leads.

        Raises:
            ConnectionError: this member has only just started, and does not know its cluster yet.
        """
        reply = stub.GetMembers(pdpb_pb2.GetMembersRequest(), timeout=self._try_s)
        cluster_id = reply.header.cluster_id
        if (said := self._header_error("GetMembers", reply)) or not cluster_id:
            raise ConnectionError(said or "the member does not know its cluster yet")
        with self._lock:
            if self._cluster_id and cluster_id != self._cluster_id:
                raise ClusterMismatchError(
                    "PD belongs to another cluster", pd_cluster=cluster_id, our_cluster=self._cluster_id
                )
            self._cluster_id = cluster_id
            if reply.leader.client_urls:
                self._leader = _plain(reply.leader.client_urls[0])
            known = [_plain(url) for member in reply.members for url in member.client_urls]
            self._addresses += [address for address in known if address not in self._addresses]
        return reply

    def _pass_over(self, address: str) -> None:
        """Ask the member behind this one next, by this call or another."""
        with self._lock:
            self._leader = None
            if address in self._addresses:
                self._next = self._addresses.index(address) + 1

    def _channel(self, address: str) -> grpc.Channel:
        looks = self.channels.tls.allowed_cn and address not in self._open
        if looks and (refusal := self.channels.probe(address)) is not None:
            raise refusal
        return self._open.of(address)

    def _header_error(self, name: str, reply: object) -> str:
        """Return why a reply that came is no answer ('' if it is one)."""
        header = getattr(reply, "header", None)
        if header is None or header.error.type == pdpb_pb2.OK:
            return ""
        kind, said = header.error.type, header.error.message
        # UNKNOWN is whatever PD has no name for, mostly trouble that passes.
        if kind in _PASSING and _BARRIER_TOO_LATE not in said:
            return str(said or pdpb_pb2.ErrorType.Name(kind))
        raise PdRefusedError("PD refuses the call", call=name, kind=pdpb_pb2.ErrorType.Name(kind), said=said)

    def _judge(self, name: str, address: str, error: grpc.RpcError) -> str:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.FAILED_PRECONDITION and "cluster id" in details:
            raise ClusterMismatchError(
                "PD belongs to another cluster", address=address, our_cluster=self._cluster_id, said=details
            ) from error
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise PdUnimplementedError("PD does not know the call", call=name, address=address, said=details) from error
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED):
            raise PdRefusedError("PD refuses the call", call=name, address=address, said=details) from error
        return f"{address}: {code.name} {details}".strip()


def _plain(address: str) -> str:
    return address.strip().removeprefix("http://").removeprefix("https://").rstrip("/")


def _region(meta: metapb_pb2.Region, leader: metapb_pb2.Peer) -> RegionInfo:
    return RegionInfo(
        region_id=RegionId(meta.id),
        range=EncodedRange(meta.start_key, meta.end_key or KEY_END),
        version=meta.region_epoch.version,
        conf_ver=meta.region_epoch.conf_ver,
        # A region without a known leader has an empty Peer.
        leader=Peer(leader.id, StoreId(leader.store_id)) if leader.store_id else None,
        peers=tuple(Peer(peer.id, StoreId(peer.store_id)) for peer in meta.peers),
    )
