"""A transaction as TiDB's client runs it, one step at a time, so that whoever writes can stop, crash or interleave.

    optimistic   begin, write…, prewrite, commit (the primary first: that is the moment it happens; then the rest)
    pessimistic  begin, lock… (at a for_update_ts of its own), write…, prewrite, commit
    async commit the prewrite itself decides: committed once all keys are locked, at the greatest min_commit_ts
    1PC          one command writes versions at once, where all keys lie in one region
    pipelined    begin, write…, flush, write…, flush, …: each flush locks with its generation; then commit

Steps raise what the store refuses (:mod:`core.refusals`); nothing is retried here but a commit_ts that a reader has
pushed away.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from producers.region_server.core.store.commands import (
    Command,
    Commit,
    Mutation,
    PessimisticLock,
    PessimisticRollback,
    Prewrite,
    Rollback,
    Txn,
    TxnHeartbeat,
)
from producers.region_server.core.store.mvcc import RegionData
from producers.region_server.core.store.refusals import CommandRefusedError, CommitTsExpiredError, WriteConflictError
from producers.region_server.core.store.txn_status import check_commit
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts

DEFAULT_TTL_MS = 3000


class TransactionalStore(Protocol):
    """The store that transactions run on."""

    def apply(self, command: Command) -> None:
        """Apply one command."""

    def data_of(self, key: bytes) -> RegionData:
        """The data of the region that holds a key."""


class ServerTransaction:
    """One transaction. Whatever is written replaces what it had written to that key."""

    def __init__(
        self,
        store: TransactionalStore,
        tso: Callable[[], Ts],
        mutations: Iterable[Mutation] = (),
        *,
        txn_source: int = 0,
        ttl_ms: int = DEFAULT_TTL_MS,
        start_ts: Ts | None = None,
    ) -> None:
        self._store = store
        self._tso = tso
        self._writes = {mutation.key: mutation for mutation in mutations}
        self._locked: dict[bytes, None] = {}
        self._flushed: dict[bytes, None] = {}
        self._generation = 0
        self._prewritten: dict[bytes, None] = {}
        self._txn_source = txn_source
        self._ttl_ms = ttl_ms
        self._async_commit = False
        self._for_update_ts = Ts(0)
        self._primary: bytes | None = None
        self._min_commit_ts = Ts(0)
        self.start_ts = tso() if start_ts is None else start_ts
        self.commit_ts = Ts(0)
        """Once it is known."""

    # What it is about ------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> list[bytes]:
        """All keys that it locks or writes, in the order in which they came."""
        return list({**self._locked, **self._flushed, **self._writes})

    @property
    def primary(self) -> bytes:
        """The key that decides: the first one; once it is in a lock it stays.

        Raises:
            InvariantBrokenError: the transaction has no key.
        """
        if self._primary is None:
            if not self.keys:
                raise InvariantBrokenError("transaction has no key", start_ts=self.start_ts)
            self._primary = self.keys[0]
        return self._primary

    def write(self, *mutations: Mutation) -> None:
        """Remember what to write; a ``lock`` mutation holds its key until commit and changes nothing."""
        self._writes.update((mutation.key, mutation) for mutation in mutations)

    # Steps -----------------------------------------------------------------------------------------------------------

    def lock(self, *keys: bytes) -> None:
        """Lock keys before writing them (SELECT FOR UPDATE): from here on the transaction is pessimistic.

        Raises:
            KeyLockedError: another transaction holds one of them.
        """
        # A newer version than start_ts is no conflict: for_update_ts is newer still, and the statement reads at it.
        for_update_ts = self._tso()
        before, self._for_update_ts = self._for_update_ts, for_update_ts
        fresh = dict.fromkeys(keys)
        primary = self._primary or next(iter({**self._locked, **fresh}))
        try:
            self._store.apply(PessimisticLock(txn=self._txn(primary), keys=keys))
        except CommandRefusedError:
            # One region may have locked its part before another refused.
            gone = tuple(key for key in fresh if key not in self._locked)
            self._store.apply(PessimisticRollback(start_ts=self.start_ts, keys=gone))
            self._for_update_ts = before
            raise
        self._primary = primary
        self._locked.update(fresh)

    def flush(self) -> None:
        """Pipelined DML: lock what was written since the last flush, as the next generation.

        Raises:
            KeyLockedError: another transaction holds a key.
            WriteConflictError: a key changed after the transaction began.
        """
        self._generation += 1
        primary, mutations = self.primary, list(self._writes.values())
        # Before the store answers: where one region refuses, another may have locked its part.
        self._flushed.update(dict.fromkeys(self._writes))
        self._writes = {}
        self._store.apply(Prewrite(txn=self._txn(primary), mutations=mutations))

    def prewrite(self, keys: Sequence[bytes] | None = None, *, async_commit: bool = False) -> None:
        """Lock keys with their values; all keys unless some are named. Keys only locked so far become LOCK records.

        With ``async_commit`` the transaction is committed once all its keys are prewritten.

        Raises:
            KeyLockedError: another transaction holds a key.
            WriteConflictError: a key changed after the transaction began (or, pessimistic, was never locked and did).
        """
        chosen = [key for key in (self.keys if keys is None else keys) if key not in self._flushed]
        primary = self.primary
        self._async_commit = self._async_commit or async_commit
        if self._async_commit:
            self._min_commit_ts = max(self._min_commit_ts, self._tso())
        mutations = [self._writes.get(key) or Mutation("lock", key) for key in chosen]
        self._check_unlocked(chosen)
        # Before the store answers: where one region refuses, another may have locked its part.
        self._prewritten.update(dict.fromkeys(chosen))
        self._store.apply(Prewrite(txn=self._txn(primary), mutations=mutations))

    def commit(self) -> Ts:
        """Commit all keys in one step; return the commit_ts.

        Raises:
            LockNotFoundError: somebody rolled it back.
        """
        commit_ts = self._decide()
        self._store.apply(Commit(start_ts=self.start_ts, commit_ts=commit_ts, keys=self.keys))
        return commit_ts

    def commit_primary(self) -> Ts:
        """Commit the primary alone: the transaction has happened, though its other keys are still locked.

        Raises:
            LockNotFoundError: somebody rolled it back.
        """
        commit_ts = self._decide()
        self._store.apply(Commit(start_ts=self.start_ts, commit_ts=commit_ts, keys=[self.primary]))
        return commit_ts

    def commit_secondaries(self, keys: Sequence[bytes] | None = None) -> None:
        """Commit the other keys, or some of them; whoever meets one first may have done it already."""
        others = [key for key in (self.keys if keys is None else keys) if key != self.primary]
        if others:
            self._store.apply(Commit(start_ts=self.start_ts, commit_ts=self.commit_ts, keys=others))

    def commit_at_once(self) -> Ts:
        """1PC: all keys in one command, without a lock in between; return the commit_ts.

        Raises:
            KeyLockedError: another transaction holds a key.
            WriteConflictError: a key changed after the transaction began.
        """
        self._check_unlocked(self.keys)
        self.commit_ts = self._tso()
        mutations = [self._writes.get(key) or Mutation("lock", key) for key in self.keys]
        self._store.apply(
            Prewrite(txn=self._txn(self.primary), mutations=mutations, one_pc_commit_ts=self.commit_ts)
        )  # fmt: skip
        return self.commit_ts

    def rollback(self) -> None:
        """Give up: keys whose prewrite or flush was tried get a rollback, keys only locked are let go."""
        written = [key for key in self.keys if key in self._prewritten or key in self._flushed]
        only_locked = tuple(key for key in self._locked if key not in self._prewritten)
        if written:
            self._store.apply(Rollback(start_ts=self.start_ts, keys=written))
        if only_locked:
            self._store.apply(PessimisticRollback(start_ts=self.start_ts, keys=only_locked))

    def heartbeat(self, ttl_ms: int) -> None:
        """Keep the primary's lock alive for so long from start_ts on."""
        self._store.apply(TxnHeartbeat(start_ts=self.start_ts, primary=self.primary, ttl_ms=ttl_ms))

    # Parts -----------------------------------------------------------------------------------------------------------

    def _decide(self) -> Ts:
        """The commit_ts: above every push of a reader, and for async commit the one that the locks already say."""
        self.commit_ts = self.commit_ts or (self._min_commit_ts if self._async_commit else self._tso())
        data = self._store.data_of(self.primary)
        while True:
            try:
                check_commit(data, self.start_ts, self.commit_ts, self.primary)
            except CommitTsExpiredError as expired:
                self.commit_ts = max(self._tso(), expired.min_commit_ts)
            else:
                return self.commit_ts

    def _check_unlocked(self, keys: Iterable[bytes]) -> None:
        """A pessimistic transaction checks keys that it writes without having locked them, at its for_update_ts."""
        if not self._for_update_ts:
            return
        for key in keys:
            head = self._store.data_of(key).writes.get(key)
            if key not in self._locked and head is not None and head.commit_ts > self._for_update_ts:
                raise WriteConflictError(
                    "key changed after the transaction locked others", key, start_ts=self.start_ts,
                    for_update_ts=self._for_update_ts, conflict_commit_ts=head.commit_ts,
                )  # fmt: skip

    def _txn(self, primary: bytes) -> Txn:
        return Txn(
            start_ts=self.start_ts,
            primary=primary,
            txn_source=self._txn_source,
            ttl_ms=self._ttl_ms,
            for_update_ts=self._for_update_ts,
            # As TiDB's client: a reader that meets a lock of its may push it further.
            min_commit_ts=max(self._min_commit_ts, Ts(self.start_ts + 1), Ts(self._for_update_ts + 1)),
            size=len(self.keys),
            use_async_commit=self._async_commit,
            secondaries=tuple(key for key in self.keys if key != primary) if self._async_commit else (),
            generation=self._generation,
        )
