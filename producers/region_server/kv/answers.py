"""Locks and refusals in kvrpcpb's words."""

from collections.abc import Iterable

from producers.region_server.core.store import refusals
from producers.region_server.core.store.mvcc import Lock, LockKind
from producers.region_server.core.store.snapshot_read import Blocked, SeenRow
from schemas.proto import kvrpcpb_pb2

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
        txn_size=txn.size,
        lock_type=_LOCK_TYPES[lock.kind],
        lock_for_update_ts=txn.for_update_ts,
        use_async_commit=txn.use_async_commit,
        min_commit_ts=txn.min_commit_ts,
        secondaries=txn.secondaries if key == txn.primary else (),
    )


def locked(blocked: Blocked) -> kvrpcpb_pb2.KeyError:
    """What a reader hears of a key that it may not read yet."""
    return kvrpcpb_pb2.KeyError(locked=lock_info(blocked.key, blocked.lock))


def scan_response(rows: Iterable[SeenRow | Blocked], *, key_only: bool) -> kvrpcpb_pb2.ScanResponse:
    """A page; a locked key comes as a pair with an error and nothing else, as TiKV's do."""
    response = kvrpcpb_pb2.ScanResponse()
    add = response.pairs.add
    for row in rows:
        if isinstance(row, Blocked):
            add(error=locked(row))
        else:
            add(key=row.key, value=b"" if key_only else row.value, commit_ts=row.commit_ts)
    return response


def key_error(error: refusals.CommandRefusedError, lock: kvrpcpb_pb2.LockInfo | None = None) -> kvrpcpb_pb2.KeyError:
    """A refusal; ``lock`` is the one on the key, where the error speaks of one."""
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
