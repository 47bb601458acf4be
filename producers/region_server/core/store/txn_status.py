"""What a lock resolver asks of a region: whose locks are there, what became of a transaction, end it here.

The rules are TiKV's (``src/storage/txn``: ``actions/check_txn_status.rs``, ``commands/check_secondary_locks.rs``,
``commands/resolve_lock.rs``, Aug 2026). A transaction's fate is its primary key's: a lock there means undecided, a
record means committed or rolled back, neither means that it may still come; then the asker can have a rollback written,
against which a late prewrite fails. Async commit is decided by **all** its keys: who finds one missing rolls it back.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from producers.region_server.core.store.mvcc import ROLLED_BACK, Change, Lock, LockKind, RegionData
from producers.region_server.core.store.refusals import (
    CommittedError,
    CommitTsExpiredError,
    LockNotFoundError,
    PrimaryMismatchError,
    TxnNotFoundError,
)
from schemas.ids import Ts, physical_ms

TS_MAX: Final = Ts((1 << 64) - 1)
"""As ``current_ts``: take every lock for expired; as ``caller_start_ts``: an autocommit point read."""


class StatusAction(Enum):
    """kvrpcpb's ``Action``: what the check itself has done."""

    NONE = 0
    TTL_EXPIRE_ROLLBACK = 1
    LOCK_NOT_EXIST_ROLLBACK = 2
    MIN_COMMIT_TS_PUSHED = 3
    TTL_EXPIRE_PESSIMISTIC_ROLLBACK = 4
    LOCK_NOT_EXIST_DO_NOTHING = 5


@dataclass(frozen=True, slots=True)
class TxnStatus:
    """``lock`` is the primary's, while the transaction is undecided; else ``commit_ts`` > 0 means committed."""

    action: StatusAction = StatusAction.NONE
    commit_ts: Ts = ROLLED_BACK
    lock: Lock | None = None
    changes: Sequence[Change] = ()
    """What observers must see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQuestion:
    """KvCheckTxnStatus, without its context. Times are PD's."""

    primary: bytes
    lock_ts: Ts
    caller_start_ts: Ts = Ts(0)
    """A reader that would like to pass the lock; 0: nobody, and min_commit_ts stays."""
    current_ts: Ts = Ts(0)
    rollback_if_not_exist: bool = False
    force_sync_commit: bool = False
    """Treat an async-commit lock as an ordinary one: some of its keys turned out not to be async."""
    resolving_pessimistic_lock: bool = False
    verify_is_primary: bool = False


def scan_locks(data: RegionData, start: bytes, end: bytes, max_ts: Ts, limit: int) -> list[tuple[bytes, Lock]]:
    """Locks of any kind in ``[start, end)`` with start_ts <= ``max_ts``, by key; ``limit`` 0: all."""
    locks = ((key, lock) for key, lock in data.locked_between(start, end) if lock.txn.start_ts <= max_ts)
    return heapq.nsmallest(limit, locks, key=lambda item: item[0]) if limit else sorted(locks, key=lambda item: item[0])


def check_txn_status(data: RegionData, ask: StatusQuestion) -> TxnStatus:
    """Say what became of a transaction, by its primary key; end it there if its time is up.

    Raises:
        PrimaryMismatchError: ``verify_is_primary``, and the lock names another primary.
        TxnNotFoundError: neither lock nor record, and ``rollback_if_not_exist`` is not set.
    """
    lock = data.locks.get(ask.primary)
    if lock is None or lock.txn.start_ts != ask.lock_ts:
        return _missing(data, ask)
    txn = lock.txn
    if ask.verify_is_primary and txn.primary != ask.primary:
        raise PrimaryMismatchError("lock names another primary", ask.primary, primary=txn.primary.hex())
    if txn.use_async_commit and not ask.force_sync_commit:
        # Whether it is committed is for all its keys to say, so nothing is rolled back or pushed here.
        return TxnStatus(lock=lock)
    if is_expired(lock, ask.current_ts):
        if ask.resolving_pessimistic_lock and lock.kind is LockKind.PESSIMISTIC:
            data.pessimistic_rollback(ask.lock_ts, [ask.primary])
            return TxnStatus(StatusAction.TTL_EXPIRE_PESSIMISTIC_ROLLBACK)
        return TxnStatus(StatusAction.TTL_EXPIRE_ROLLBACK, changes=data.rollback(ask.lock_ts, [ask.primary]))
    return _push(data, ask, lock)


def is_expired(lock: Lock, current_ts: Ts) -> bool:
    """Whether the lock's time is up, by PD's clock; TiKV wants strictly more than the ttl to have passed."""
    return physical_ms(lock.txn.start_ts) + lock.txn.ttl_ms < physical_ms(current_ts)


def _push(data: RegionData, ask: StatusQuestion, lock: Lock) -> TxnStatus:
    """Let the caller read below the transaction, by moving the least ts that it can still commit at."""
    caller, least, changes = ask.caller_start_ts, lock.txn.min_commit_ts, list[Change]()
    # A lock with min_commit_ts 0 is of a client that does not know of pushes and would commit below it.
    if least and caller not in (0, TS_MAX) and caller >= least:
        changes = data.refresh(ask.lock_ts, ask.primary, min_commit_ts=max(Ts(caller + 1), ask.current_ts))
        lock = data.locks[ask.primary]
    pushed = caller == TS_MAX or 0 < caller < lock.txn.min_commit_ts
    return TxnStatus(StatusAction.MIN_COMMIT_TS_PUSHED if pushed else StatusAction.NONE, lock=lock, changes=changes)


def _missing(data: RegionData, ask: StatusQuestion) -> TxnStatus:
    record = data.record_of(ask.primary, ask.lock_ts)
    if record is not None:
        return TxnStatus(commit_ts=record)
    if not ask.rollback_if_not_exist:
        raise TxnNotFoundError("transaction is not found", ask.primary, start_ts=ask.lock_ts)
    if ask.resolving_pessimistic_lock:
        return TxnStatus(StatusAction.LOCK_NOT_EXIST_DO_NOTHING)
    changes = data.rollback(ask.lock_ts, [ask.primary], protected=True)
    return TxnStatus(StatusAction.LOCK_NOT_EXIST_ROLLBACK, changes=changes)


@dataclass(frozen=True, slots=True)
class SecondaryStatus:
    """``locks`` of all keys asked about; or none, and then ``commit_ts`` > 0 says committed, 0 rolled back."""

    locks: Sequence[tuple[bytes, Lock]]
    commit_ts: Ts
    changes: Sequence[Change]


def check_secondary_locks(data: RegionData, start_ts: Ts, keys: Sequence[bytes]) -> SecondaryStatus:
    """Say which keys of an async-commit transaction are locked; a key that is not gets a rollback, which decides."""
    locks, changes = list[tuple[bytes, Lock]](), list[Change]()
    for key in keys:
        lock = data.locks.get(key)
        if lock is not None and lock.txn.start_ts == start_ts and lock.kind is not LockKind.PESSIMISTIC:
            locks.append((key, lock))
            continue
        if lock is not None and lock.txn.start_ts == start_ts:
            # A pessimistic lock promises no value: the prewrite never came here.
            data.pessimistic_rollback(start_ts, [key])
        record = data.record_of(key, start_ts)
        if record is None:
            changes += data.rollback(start_ts, [key], protected=True)
        return SecondaryStatus((), record or ROLLED_BACK, changes)
    return SecondaryStatus(locks, ROLLED_BACK, changes)


def resolve_locks(data: RegionData, start: bytes, end: bytes, fates: Mapping[Ts, Ts]) -> list[Change]:
    """End every lock of the transactions in ``fates`` (start_ts to commit_ts, 0: roll back) within ``[start, end)``.

    Raises:
        CommitTsExpiredError: a commit_ts is below a lock's min_commit_ts. Nothing was changed.
    """
    held = [(key, lock) for key, lock in data.locked_between(start, end) if lock.txn.start_ts in fates]
    for key, lock in held:
        check_commit(data, lock.txn.start_ts, fates[lock.txn.start_ts], key)
    changes: list[Change] = []
    for key, lock in sorted(held, key=lambda item: item[0]):
        start_ts = lock.txn.start_ts
        commit_ts = fates[start_ts]
        changes += data.commit(start_ts, commit_ts, [key]) if commit_ts else data.rollback(start_ts, [key])
    return changes


def resolve_keys(data: RegionData, start_ts: Ts, commit_ts: Ts, keys: Sequence[bytes]) -> list[Change]:
    """The lite form: end the transaction on some keys, whether or not their locks are still there.

    Raises:
        CommitTsExpiredError: as of :func:`resolve_locks`.
        LockNotFoundError: to be committed, but a key was rolled back or never locked. Nothing was changed.
        CommittedError: to be rolled back, but a key is committed. Nothing was changed.
    """
    for key in keys:
        check_commit(data, start_ts, commit_ts, key)
    return data.commit(start_ts, commit_ts, keys) if commit_ts else data.rollback(start_ts, keys)


def check_commit(data: RegionData, start_ts: Ts, commit_ts: Ts, key: bytes) -> None:
    """Refuse what the protocol forbids; ``commit_ts`` 0, a rollback, is refused only where the key is committed.

    Raises:
        CommitTsExpiredError: the lock's min_commit_ts is above the commit_ts.
        LockNotFoundError: to be committed, but the key was rolled back or never locked.
        CommittedError: to be rolled back, but the key is committed.
    """
    lock = data.locks.get(key)
    if lock is not None and lock.txn.start_ts == start_ts:
        least = lock.txn.min_commit_ts
        if 0 < commit_ts < least:
            raise CommitTsExpiredError(
                "commit_ts is below the lock's min_commit_ts",
                key, start_ts=start_ts, commit_ts=commit_ts, min_commit_ts=least,
            )  # fmt: skip
        return
    record = data.record_of(key, start_ts)
    if commit_ts and not record:
        raise LockNotFoundError("transaction holds no lock to commit", key, start_ts=start_ts, commit_ts=commit_ts)
    if not commit_ts and record:
        raise CommittedError("transaction is committed already", key, start_ts=start_ts, commit_ts=record)
