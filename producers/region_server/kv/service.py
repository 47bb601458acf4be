"""``tikvpb.Tikv`` of one store: reads at a version, and what a lock resolver asks.

A request names its region, epoch and store in the Context; they are checked in TiKV's order (store, region, leader,
epoch, key), and the answer to a mistake is a region error, never a gRPC status.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from producers.region_server.core.store import refusals, txn_status
from producers.region_server.core.store.mvcc import Change, Lock, LockKind
from producers.region_server.core.store.regions import Region
from producers.region_server.kv.store import ClusterStore
from producers.region_server.rpc.wire import not_leader, region_bound, region_meta
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


def key_error(error: refusals.CommandRefusedError, lock: kvrpcpb_pb2.LockInfo | None = None) -> kvrpcpb_pb2.KeyError:
    """A refusal in kvrpcpb's words; ``lock`` is the one on the key, where the error speaks of one."""
    fields = error.fields
    match error:
        case refusals.KeyLockedError():
            return kvrpcpb_pb2.KeyError(locked=lock)
        case refusals.TxnNotFoundError():
            missing = kvrpcpb_pb2.TxnNotFound(start_ts=fields["start_ts"], primary_key=error.key)  # type: ignore[arg-type]
            return kvrpcpb_pb2.KeyError(txn_not_found=missing)
        case refusals.PrimaryMismatchError():
            return kvrpcpb_pb2.KeyError(primary_mismatch=kvrpcpb_pb2.PrimaryMismatch(lock_info=lock))
        case refusals.CommitTsExpiredError(min_commit_ts=min_commit_ts):
            expired = kvrpcpb_pb2.CommitTsExpired(
                start_ts=fields["start_ts"], attempted_commit_ts=fields["commit_ts"],  # type: ignore[arg-type]
                key=error.key, min_commit_ts=min_commit_ts,
            )  # fmt: skip
            return kvrpcpb_pb2.KeyError(commit_ts_expired=expired)
        case refusals.LockNotFoundError():
            return kvrpcpb_pb2.KeyError(retryable=str(error))
        case _:
            return kvrpcpb_pb2.KeyError(abort=str(error))


class TikvService(tikvpb_pb2_grpc.TikvServicer):
    """The unary calls. Each is one step on the event loop, so no other write comes in between."""

    def __init__(self, store_id: StoreId, store: ClusterStore, delay_s: Callable[[], float] = lambda: 0.0) -> None:
        self._store_id = store_id
        self._store = store
        self._delay_s = delay_s

    async def KvGet(self, request: kvrpcpb_pb2.GetRequest, context: Any) -> kvrpcpb_pb2.GetResponse:  # noqa: N802
        """Read one key at a version."""
        region, error = await self._region(request.context, request.key)
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
        region, error = await self._region(request.context, low)
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
        """Locks with start_ts <= ``max_version``, by key, at most ``limit`` (0: all); page by the last key."""
        region, error = await self._region(request.context, request.start_key)
        if region is None:
            return kvrpcpb_pb2.ScanLockResponse(region_error=error)
        high = request.end_key
        end = min(high, region.end) if high and region.end else high or region.end
        locks = txn_status.scan_locks(region.data, request.start_key, end, Ts(request.max_version), request.limit)
        return kvrpcpb_pb2.ScanLockResponse(locks=[lock_info(key, lock) for key, lock in locks])

    async def KvCheckTxnStatus(  # noqa: N802
        self, request: kvrpcpb_pb2.CheckTxnStatusRequest, context: Any
    ) -> kvrpcpb_pb2.CheckTxnStatusResponse:
        """What became of a transaction, by its primary key; ends it there if its time is up."""
        region, error = await self._region(request.context, request.primary_key)
        if region is None:
            return kvrpcpb_pb2.CheckTxnStatusResponse(region_error=error)
        ask = txn_status.StatusQuestion(
            primary=request.primary_key,
            lock_ts=Ts(request.lock_ts),
            caller_start_ts=Ts(request.caller_start_ts),
            current_ts=Ts(request.current_ts),
            rollback_if_not_exist=request.rollback_if_not_exist,
            force_sync_commit=request.force_sync_commit,
            resolving_pessimistic_lock=request.resolving_pessimistic_lock,
            verify_is_primary=request.verify_is_primary,
        )
        try:
            status = txn_status.check_txn_status(region.data, ask)
        except refusals.CommandRefusedError as refused:
            return kvrpcpb_pb2.CheckTxnStatusResponse(error=self._key_error(region, refused))
        self._store.applied(region, status.changes)
        lock = status.lock
        return kvrpcpb_pb2.CheckTxnStatusResponse(
            action=status.action.value,  # type: ignore[arg-type]
            commit_version=status.commit_ts,
            lock_ttl=lock.txn.ttl_ms if lock is not None else 0,
            lock_info=lock_info(request.primary_key, lock) if lock is not None else None,
        )

    async def KvCheckSecondaryLocks(  # noqa: N802
        self, request: kvrpcpb_pb2.CheckSecondaryLocksRequest, context: Any
    ) -> kvrpcpb_pb2.CheckSecondaryLocksResponse:
        """Which keys of an async-commit transaction are locked; one that is not is rolled back, which decides."""
        region, error = await self._region(request.context, *request.keys)
        if region is None:
            return kvrpcpb_pb2.CheckSecondaryLocksResponse(region_error=error)
        status = txn_status.check_secondary_locks(region.data, Ts(request.start_version), request.keys)
        self._store.applied(region, status.changes)
        locks = [lock_info(key, lock) for key, lock in status.locks]
        return kvrpcpb_pb2.CheckSecondaryLocksResponse(locks=locks, commit_ts=status.commit_ts)

    async def KvResolveLock(  # noqa: N802
        self, request: kvrpcpb_pb2.ResolveLockRequest, context: Any
    ) -> kvrpcpb_pb2.ResolveLockResponse:
        """End a transaction on some keys, or one or several on the whole region."""
        region, error = await self._region(request.context, *request.keys)
        if region is None:
            return kvrpcpb_pb2.ResolveLockResponse(region_error=error)
        start_ts, commit_ts = Ts(request.start_version), Ts(request.commit_version)
        changes: Sequence[Change]
        try:
            if request.keys:
                changes = txn_status.resolve_keys(region.data, start_ts, commit_ts, request.keys)
            else:
                fates = {Ts(info.txn): Ts(info.status) for info in request.txn_infos} or {start_ts: commit_ts}
                changes = txn_status.resolve_locks(region.data, region.start, region.end, fates)
        except refusals.CommandRefusedError as refused:
            return kvrpcpb_pb2.ResolveLockResponse(error=self._key_error(region, refused))
        self._store.applied(region, changes)
        return kvrpcpb_pb2.ResolveLockResponse()

    def _key_error(self, region: Region, error: refusals.CommandRefusedError) -> kvrpcpb_pb2.KeyError:
        lock = region.data.locks.get(error.key)
        return key_error(error, lock_info(error.key, lock) if lock is not None else None)

    async def _region(
        self, context: kvrpcpb_pb2.Context, *keys: bytes
    ) -> tuple[Region | None, errorpb_pb2.Error | None]:
        """The region that the request means, or the error that tells the client to look again.

        Whatever is slow about the store comes before the checks: from there on a call is one step.
        """
        if delay_s := self._delay_s():
            await asyncio.sleep(delay_s)
        if context.peer.store_id != self._store_id:
            other = errorpb_pb2.StoreNotMatch(request_store_id=context.peer.store_id, actual_store_id=self._store_id)
            return None, errorpb_pb2.Error(message="store not match", store_not_match=other)
        region = self._store.regions.get(context.region_id)
        if region is None:
            missing = errorpb_pb2.RegionNotFound(region_id=context.region_id)
            return None, errorpb_pb2.Error(message="region not found", region_not_found=missing)
        if region.leader != self._store_id:
            return None, errorpb_pb2.Error(message="not leader", not_leader=not_leader(region))
        if context.region_epoch.version != region.version:
            moved = errorpb_pb2.EpochNotMatch(current_regions=[region_meta(region, self._store.store_ids)])
            return None, errorpb_pb2.Error(message="epoch not match", epoch_not_match=moved)
        for key in keys:
            if not region.covers(key):
                outside = errorpb_pb2.KeyNotInRegion(
                    key=region_bound(key), region_id=region.region_id,
                    start_key=region_bound(region.start), end_key=region_bound(region.end),
                )  # fmt: skip
                return None, errorpb_pb2.Error(message="key not in region", key_not_in_region=outside)
        return region, None
