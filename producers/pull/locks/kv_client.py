"""Unary calls to TiKV: each goes to the leader of a key's region, with the region's epoch (kvrpcpb.Context)."""

from collections.abc import Iterable
from typing import Any, Final

import grpc

from producers.channels import KeptChannels
from producers.errors import KvRefusedError, RegionMovedError, StoreUnavailableError
from producers.pull.core.regions.call_errors import decide_call
from producers.pull.core.regions.region_map import KEY_END, Peer, RegionInfo
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.pd.region_cache import RegionCache
from schemas.proto import kvrpcpb_pb2, metapb_pb2, tikvpb_pb2_grpc
from schemas.tidb.codec import decode_bytes, encode_bytes

CALL_TIMEOUT_S: Final = 20.0
"""For one call: a store that resolves the locks of a whole region needs seconds."""
_TOO_MUCH: Final = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
_OPTIONS: Final = [("grpc.max_receive_message_length", 1 << 28), ("grpc.max_reconnect_backoff_ms", 2_000)]


class KvClient:
    """Calls by raw key. Safe from any thread; calls block."""

    def __init__(self, cache: RegionCache) -> None:
        self.cache = cache
        self._channels = KeptChannels(cache.open_channel, _OPTIONS)

    def close(self) -> None:
        """Close connections; calls under way fail."""
        self._channels.close()

    def region_of(self, key: bytes) -> RegionInfo:
        """Return the region of a raw key, with a leader.

        Raises:
            RegionMovedError: it has no leader at the moment.
            RegionsUnknownError: PD does not know it.
            PdUnreachableError: PD does not answer.
        """
        region = self.cache.locate(_around(key))[0]
        if region.leader is None:
            self.cache.drop(_around(key))
            raise RegionMovedError("region has no leader", region_id=region.region_id)
        return region

    def by_region(self, keys: Iterable[bytes]) -> list[tuple[RegionInfo, tuple[bytes, ...]]]:
        """Group raw keys by their regions.

        Raises:
            RegionMovedError: as :meth:`region_of`.
        """
        groups: dict[int, tuple[RegionInfo, list[bytes]]] = {}
        for key in keys:
            region = self.region_of(key)
            groups.setdefault(region.region_id, (region, []))[1].append(key)
        return [(region, tuple(group)) for region, group in groups.values()]

    def call(
        self,
        name: str,
        region: RegionInfo,
        request: Any,
        *,
        at: Peer | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any:
        """Make one call; where ``request.context`` says which region is meant, it is filled in here.

        Args:
            name: of the call.
            region: with a leader.
            request: without a region in its context.
            at: a follower that is asked instead of the leader.
            timeout_s: for the answer.

        Raises:
            RegionMovedError: the store does not serve the region as we know it, or does not answer. The cache has
                dropped what was wrong: locate again.
            KvRefusedError: the store does not know the call.
            StoreUnavailableError: PD does not know the store, or there is no TLS with it at the moment. If it is the
                leader's, the cache has dropped the region: the store may have left the cluster long ago.
        """
        peer = at or region.leader
        assert peer is not None, "region_of gives only regions with a leader"
        try:
            address = self.cache.address(peer.store_id)
        except StoreUnavailableError:
            if peer == region.leader:
                self.cache.drop(region.range)
            raise
        request.context.MergeFrom(context_of(region, peer))
        channel = None
        try:
            channel = self._channels.of(address)
            reply = getattr(tikvpb_pb2_grpc.TikvStub(channel), name)(request, timeout=timeout_s)
        except ValueError as error:  # the channel was closed under the call
            raise RegionMovedError("the client is closed", call=name, address=address) from error
        except grpc.RpcError as error:
            said = f"{error.code().name} {error.details()}"
            if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED):
                raise KvRefusedError("store refuses the call", call=name, address=address, said=said) from error
            if error.code() is grpc.StatusCode.UNAVAILABLE and self.cache.pd.channels.tls.enabled:
                self._channels.forget(address, channel)  # its certificates may have been renewed
            self.cache.drop(region.range)
            self.cache.forget_stores()
            unanswered = RegionMovedError("store does not answer", call=name, address=address, said=said)
            unanswered.is_too_much = error.code() in _TOO_MUCH
            unanswered.is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise unanswered from error
        if reply.HasField("region_error"):
            decision = decide_call(reply.region_error)
            if decision.new_leader is not None:
                self.cache.set_leader(region.region_id, region.range, decision.new_leader)
            elif not decision.keep:
                self.cache.drop(region.range)
            moved = RegionMovedError(
                "region has moved",
                call=name,
                region_id=region.region_id,
                kind=decision.kind,
                said=" ".join(str(reply.region_error).split()),
            )
            moved.wait_ms = decision.wait_ms
            raise moved
        return reply


def context_of(region: RegionInfo, peer: Peer) -> kvrpcpb_pb2.Context:
    """Return which region at which epoch, and which replica of it, a request means."""
    return kvrpcpb_pb2.Context(
        region_id=region.region_id,
        region_epoch=metapb_pb2.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
        peer=metapb_pb2.Peer(id=peer.peer_id, store_id=peer.store_id),
    )


def raw_end(region: RegionInfo, end: bytes) -> bytes:
    """Return the lesser of a raw end key and the region's."""
    if region.range.end in (b"", KEY_END):
        return end
    return min(end, decode_bytes(region.range.end)[0])


def _around(key: bytes) -> EncodedRange:
    return EncodedRange(encode_bytes(key), encode_bytes(key + b"\0"))
