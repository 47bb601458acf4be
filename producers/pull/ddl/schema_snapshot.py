"""Reads raw keys as they stood at a ts, by KvScan, region by region (docs/formats/cdcpb.md §7, last table)."""

import logging
import time
from collections.abc import Iterator
from typing import Final

import grpc

from producers.channels import KeptChannels
from producers.errors import RegionsUnknownError, SnapshotFailedError, StoreUnavailableError
from producers.pull.core.ddl.meta_snapshot import KeyValue
from producers.pull.core.regions.region_map import KEY_END, RegionInfo
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.locks.resolver import LockResolver, lock_of
from producers.pull.pd.region_cache import RegionCache
from schemas.ids import Ts
from schemas.proto import kvrpcpb_pb2, metapb_pb2, tikvpb_pb2_grpc
from schemas.tidb.codec import decode_bytes, encode_bytes

log = logging.getLogger(__name__)

SCAN_LIMIT: Final = 256
"""Pairs of one answer: a TableInfo has some 10 KiB, a wide one a hundred times as much."""
CALL_TIMEOUT_S: Final = 20.0
_OPTIONS: Final = [("grpc.max_receive_message_length", 1 << 28)]
RETRY_S: Final = 0.2
DEADLINE_S: Final = 60.0
"""Without progress. A lock's transaction ends, or its TTL does, well within it."""


class SnapshotReader:
    """Reads at one version. Close it when done."""

    def __init__(
        self, cache: RegionCache, version: Ts, resolver: LockResolver | None = None, *, deadline_s: float = DEADLINE_S
    ) -> None:
        """``resolver`` ends locks that are met and that nobody lives to end; without one they are waited for."""
        self._resolver = resolver
        self._cache = cache
        self._version = version
        self._deadline_s = deadline_s
        self._channels = KeptChannels(cache.open_channel, _OPTIONS)

    def close(self) -> None:
        """Close connections."""
        self._channels.close()

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        """Yield the keys and values in ``[start, end)`` (raw), ascending.

        Raises:
            SnapshotFailedError: no progress until the deadline; it says what the store answered last.
            PdUnreachableError: PD does not answer.
        """
        cursor, deadline = start, time.monotonic() + self._deadline_s
        while cursor < end:
            try:
                pairs, cursor_next, trouble = self._page(cursor, end)
            except (RegionsUnknownError, StoreUnavailableError) as error:
                # The store of the leader that is known may have left the cluster long ago.
                self._cache.drop(EncodedRange(encode_bytes(cursor), encode_bytes(end)))
                pairs, cursor_next, trouble = [], cursor, str(error)
            yield from pairs
            if cursor_next > cursor:
                cursor, deadline = cursor_next, time.monotonic() + self._deadline_s
                continue
            if time.monotonic() > deadline:
                raise SnapshotFailedError(
                    "schema snapshot does not get on", key=cursor.hex(), version=self._version, last=trouble
                )
            time.sleep(RETRY_S)

    def _page(self, cursor: bytes, end: bytes) -> tuple[list[KeyValue], bytes, str]:
        """Read one page of the region of ``cursor``; return pairs, the next cursor, and why it did not move ('')."""
        encoded = EncodedRange(encode_bytes(cursor), encode_bytes(end))
        region = self._cache.locate(encoded)[0]
        if region.leader is None:
            self._cache.drop(encoded)
            return [], cursor, f"region {region.region_id} has no leader"
        stop = end if region.range.end in (b"", KEY_END) else min(end, decode_bytes(region.range.end)[0])
        address = self._cache.address(region.leader.store_id)
        try:
            reply = self._ask(address, region, cursor, stop)
        except grpc.RpcError as error:
            self._cache.drop(encoded)
            self._cache.forget_stores()
            return [], cursor, f"{address}: {error.code().name} {error.details()}"
        if reply.HasField("region_error"):
            self._cache.drop(encoded)
            return [], cursor, f"region {region.region_id}: {str(reply.region_error).strip()}"
        if reply.HasField("error"):
            return [], cursor, self._locked(reply.error)
        pairs: list[KeyValue] = []
        for pair in reply.pairs:
            if pair.HasField("error"):
                # What stands before the lock is good; the lock's key is read again.
                return pairs, (pairs[-1][0] + b"\0" if pairs else cursor), self._locked(pair.error)
            pairs.append((pair.key, pair.value))
        return pairs, (pairs[-1][0] + b"\0" if len(pairs) >= SCAN_LIMIT else stop), ""

    def _locked(self, error: kvrpcpb_pb2.KeyError) -> str:
        """Resolve the lock that was met, if its transaction has ended or expired; return what to say of it."""
        if not error.HasField("locked"):
            return " ".join(str(error).split())
        lock = error.locked
        text = f"key {lock.key.hex()} is locked by transaction {lock.lock_version} (ttl {lock.lock_ttl} ms)"
        if self._resolver is None:
            return text
        task = self._resolver.resolve([lock_of(lock)])
        return "; ".join([text, *(f"transaction is alive: ttl {live.ttl_ms} ms" for live in task.held), *task.troubles])

    def _ask(self, address: str, region: RegionInfo, start: bytes, end: bytes) -> kvrpcpb_pb2.ScanResponse:
        assert region.leader is not None
        return tikvpb_pb2_grpc.TikvStub(self._channels.of(address)).KvScan(
            kvrpcpb_pb2.ScanRequest(
                context=kvrpcpb_pb2.Context(
                    region_id=region.region_id,
                    region_epoch=metapb_pb2.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
                    peer=metapb_pb2.Peer(id=region.leader.peer_id, store_id=region.leader.store_id),
                ),
                start_key=start,
                end_key=end,
                limit=SCAN_LIMIT,
                version=self._version,
            ),
            timeout=CALL_TIMEOUT_S,
        )
