"""``tikvpb.Tikv`` of one store: reads at a version, as a schema snapshot needs them."""

from typing import Any

import grpc

from producers.region_server.core.mvcc import Lock, LockKind
from producers.region_server.core.regions import Region
from producers.region_server.store import ClusterStore
from producers.region_server.wire import not_leader, region_meta
from schemas.ids import StoreId, Ts
from schemas.proto import errorpb_pb2, kvrpcpb_pb2, tikvpb_pb2_grpc

_LOCK_TYPES = {
    LockKind.PUT: kvrpcpb_pb2.Put,
    LockKind.DELETE: kvrpcpb_pb2.Del,
    LockKind.LOCK: kvrpcpb_pb2.Lock,
    LockKind.PESSIMISTIC: kvrpcpb_pb2.PessimisticLock,
}


def lock_info(key: bytes, lock: Lock) -> kvrpcpb_pb2.LockInfo:
    """A lock as readers and lock resolvers see it."""
    txn = lock.txn
    return kvrpcpb_pb2.LockInfo(
        primary_lock=txn.primary,
        lock_version=txn.start_ts,
        key=key,
        lock_ttl=txn.ttl_ms,
        lock_type=_LOCK_TYPES[lock.kind],
        lock_for_update_ts=txn.for_update_ts,
        use_async_commit=txn.use_async_commit,
        min_commit_ts=txn.min_commit_ts,
        secondaries=txn.secondaries if key == txn.primary else (),
    )


class TikvService(tikvpb_pb2_grpc.TikvServicer):
    """Reads. The calls that resolve locks answer UNIMPLEMENTED."""

    def __init__(self, store_id: StoreId, store: ClusterStore) -> None:
        self._store_id = store_id
        self._store = store

    async def KvGet(self, request: kvrpcpb_pb2.GetRequest, context: Any) -> kvrpcpb_pb2.GetResponse:  # noqa: N802
        """Read one key at a version."""
        region, error = self._region(request.context, request.key)
        if region is None:
            return kvrpcpb_pb2.GetResponse(region_error=error)
        data, version = region.data, Ts(request.version)
        lock = data.blocking_lock(request.key, version)
        if lock is not None:
            return kvrpcpb_pb2.GetResponse(error=kvrpcpb_pb2.KeyError(locked=lock_info(request.key, lock)))
        write = data.version_at(request.key, version)
        if write is None or write.op is LockKind.DELETE:
            return kvrpcpb_pb2.GetResponse(not_found=True)
        return kvrpcpb_pb2.GetResponse(value=write.value, commit_ts=write.commit_ts)

    async def KvScan(self, request: kvrpcpb_pb2.ScanRequest, context: Any) -> kvrpcpb_pb2.ScanResponse:  # noqa: N802
        """Read ``[start_key, end_key)`` at a version, within one region; a locked key comes as a pair with an error.

        A reverse scan runs from ``start_key`` (excluded) down to ``end_key``, as in TiKV.
        """
        low, high = (request.end_key, request.start_key) if request.reverse else (request.start_key, request.end_key)
        region, error = self._region(request.context, low)
        if region is None:
            return kvrpcpb_pb2.ScanResponse(region_error=error)
        data, version = region.data, Ts(request.version)
        end = min(high, region.end) if high and region.end else high or region.end
        locked = {key for key, lock in data.locked_between(low, end) if lock.writes_data}
        present = data.keys_between(low, end)
        keys = sorted({*present, *locked}) if locked else present
        response = kvrpcpb_pb2.ScanResponse()
        for key in reversed(keys) if request.reverse else keys:
            if len(response.pairs) >= request.limit:
                break
            lock = data.blocking_lock(key, version)
            if lock is not None:
                response.pairs.add(error=kvrpcpb_pb2.KeyError(locked=lock_info(key, lock)), key=key)
                continue
            write = data.version_at(key, version)
            if write is not None and write.op is LockKind.PUT:
                response.pairs.add(key=key, value=b"" if request.key_only else write.value, commit_ts=write.commit_ts)
        return response

    async def KvScanLock(self, request: kvrpcpb_pb2.ScanLockRequest, context: Any) -> kvrpcpb_pb2.ScanLockResponse:  # noqa: N802
        """Not served."""
        raise await _unimplemented(context)

    async def KvCheckTxnStatus(  # noqa: N802
        self, request: kvrpcpb_pb2.CheckTxnStatusRequest, context: Any
    ) -> kvrpcpb_pb2.CheckTxnStatusResponse:
        """Not served."""
        raise await _unimplemented(context)

    async def KvCheckSecondaryLocks(  # noqa: N802
        self, request: kvrpcpb_pb2.CheckSecondaryLocksRequest, context: Any
    ) -> kvrpcpb_pb2.CheckSecondaryLocksResponse:
        """Not served."""
        raise await _unimplemented(context)

    async def KvResolveLock(  # noqa: N802
        self, request: kvrpcpb_pb2.ResolveLockRequest, context: Any
    ) -> kvrpcpb_pb2.ResolveLockResponse:
        """Not served."""
        raise await _unimplemented(context)

    def _region(self, context: kvrpcpb_pb2.Context, key: bytes) -> tuple[Region | None, errorpb_pb2.Error | None]:
        """The region that the request means, or the error that tells the client to look again."""
        region = self._store.regions.get(context.region_id)
        if region is None:
            missing = errorpb_pb2.RegionNotFound(region_id=context.region_id)
            return None, errorpb_pb2.Error(message="region not found", region_not_found=missing)
        if region.leader != self._store_id:
            return None, errorpb_pb2.Error(message="not leader", not_leader=not_leader(region))
        if context.region_epoch.version != region.version:
            moved = errorpb_pb2.EpochNotMatch(current_regions=[region_meta(region, self._store.store_ids)])
            return None, errorpb_pb2.Error(message="epoch not match", epoch_not_match=moved)
        if not region.covers(key):
            outside = errorpb_pb2.KeyNotInRegion(
                key=key, region_id=region.region_id, start_key=region.start, end_key=region.end
            )
            return None, errorpb_pb2.Error(message="key not in region", key_not_in_region=outside)
        return region, None


async def _unimplemented(context: Any) -> NotImplementedError:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this store resolves no locks")
    return NotImplementedError()
