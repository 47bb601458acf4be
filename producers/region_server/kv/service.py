"""``tikvpb.Tikv`` of one store: reads at a version, and what a lock resolver asks.

A request names its region, epoch and store in the Context (:mod:`producers.region_server.kv.call_gate`); the answer to
a mistake is a region error, never a gRPC status.
"""

from collections.abc import Sequence

from producers.region_server.core.store import refusals, snapshot_read, txn_status
from producers.region_server.core.store.mvcc import Change
from producers.region_server.core.store.regions import Region
from producers.region_server.kv.answers import key_error, lock_info, locked, scan_response
from producers.region_server.kv.call_gate import CallGate
from producers.region_server.kv.store import ClusterStore
from schemas.ids import Ts
from schemas.proto import kvrpcpb_pb2, tikvpb_pb2_grpc


class TikvService(tikvpb_pb2_grpc.TikvServicer):
    """The unary calls. Each is one step on the event loop, so no other write comes in between."""

    def __init__(self, store: ClusterStore, gate: CallGate) -> None:
        self._store = store
        self._gate = gate

    async def KvGet(self, request: kvrpcpb_pb2.GetRequest, context: object) -> kvrpcpb_pb2.GetResponse:  # noqa: N802
        """Read one key at a version."""
        version = Ts(request.version)
        region, error = await self._gate.region(request.context, request.key, version=version)
        if region is None:
            return kvrpcpb_pb2.GetResponse(region_error=error)
        row = snapshot_read.read(region.data, request.key, _view(request.context, version))
        if row is None:
            return kvrpcpb_pb2.GetResponse(not_found=True)
        if isinstance(row, snapshot_read.Blocked):
            return kvrpcpb_pb2.GetResponse(error=locked(row))
        return kvrpcpb_pb2.GetResponse(value=row.value, commit_ts=row.commit_ts)

    async def KvScan(self, request: kvrpcpb_pb2.ScanRequest, context: object) -> kvrpcpb_pb2.ScanResponse:  # noqa: N802
        """Read ``[start_key, end_key)`` at a version, within one region; a locked key comes as a pair with an error.

        A reverse scan runs from ``start_key`` (excluded) down to ``end_key``, as in TiKV.
        """
        low, high = (request.end_key, request.start_key) if request.reverse else (request.start_key, request.end_key)
        version = Ts(request.version)
        region, error = await self._gate.region(request.context, low, version=version)
        if region is None:
            return kvrpcpb_pb2.ScanResponse(region_error=error)
        end = min(high, region.end) if high and region.end else high or region.end
        rows = snapshot_read.scan(
            region.data, low, end, _view(request.context, version), request.limit, reverse=request.reverse
        )
        return scan_response(rows, key_only=request.key_only)

    async def KvScanLock(self, request: kvrpcpb_pb2.ScanLockRequest, context: object) -> kvrpcpb_pb2.ScanLockResponse:  # noqa: N802
        """Locks with start_ts <= ``max_version``, by key, at most ``limit`` (0: all); page by the last key."""
        region, error = await self._gate.region(request.context, request.start_key)
        if region is None:
            return kvrpcpb_pb2.ScanLockResponse(region_error=error)
        high = request.end_key
        end = min(high, region.end) if high and region.end else high or region.end
        locks = txn_status.scan_locks(region.data, request.start_key, end, Ts(request.max_version), request.limit)
        return kvrpcpb_pb2.ScanLockResponse(locks=[lock_info(key, lock) for key, lock in locks])

    async def KvCheckTxnStatus(  # noqa: N802
        self, request: kvrpcpb_pb2.CheckTxnStatusRequest, context: object
    ) -> kvrpcpb_pb2.CheckTxnStatusResponse:
        """What became of a transaction, by its primary key; ends it there if its time is up."""
        region, error = await self._gate.region(request.context, request.primary_key)
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
        self, request: kvrpcpb_pb2.CheckSecondaryLocksRequest, context: object
    ) -> kvrpcpb_pb2.CheckSecondaryLocksResponse:
        """Which keys of an async-commit transaction are locked; one that is not is rolled back, which decides."""
        region, error = await self._gate.region(request.context, *request.keys)
        if region is None:
            return kvrpcpb_pb2.CheckSecondaryLocksResponse(region_error=error)
        status = txn_status.check_secondary_locks(region.data, Ts(request.start_version), request.keys)
        self._store.applied(region, status.changes)
        locks = [lock_info(key, lock) for key, lock in status.locks]
        return kvrpcpb_pb2.CheckSecondaryLocksResponse(locks=locks, commit_ts=status.commit_ts)

    async def KvResolveLock(  # noqa: N802
        self, request: kvrpcpb_pb2.ResolveLockRequest, context: object
    ) -> kvrpcpb_pb2.ResolveLockResponse:
        """End a transaction on some keys, or one or several on the whole region."""
        region, error = await self._gate.region(request.context, *request.keys)
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


def _view(context: kvrpcpb_pb2.Context, version: Ts) -> snapshot_read.ReadView:
    """At which version a request reads, and past which locks. Isolation levels other than SI are read as SI."""
    return snapshot_read.ReadView(
        version, frozenset(map(Ts, context.resolved_locks)), frozenset(map(Ts, context.committed_locks))
    )
