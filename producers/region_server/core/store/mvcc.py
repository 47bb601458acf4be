"""The multi-version data of one region: locks and committed versions by raw key, and TiKV's write commands over them.

Versions of a key are a chain from the newest to the oldest, and links never change except that :meth:`RegionData.gc`
cuts old ends off. So the head of a chain is a snapshot of it for free: an incremental scan keeps heads and is exact,
whatever is written while it runs.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from producers.region_server.core.store.commands import Mutation, Txn
from producers.region_server.core.store.refusals import KeyLockedError, WriteConflictError
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts


class LockKind(IntEnum):
    """PUT and DELETE have cdcpb's ``OpType`` numbers and become versions; the others change no data."""

    PUT = 1
    DELETE = 2
    LOCK = 3
    PESSIMISTIC = 4


_KIND_OF = {"put": LockKind.PUT, "delete": LockKind.DELETE, "lock": LockKind.LOCK}


@dataclass(slots=True, eq=False)
class Lock:
    """An open lock and the value that a commit would make visible."""

    txn: Txn
    kind: LockKind
    value: bytes

    @property
    def writes_data(self) -> bool:
        """Whether a commit of it makes a version."""
        return self.kind <= LockKind.DELETE


@dataclass(slots=True, eq=False)
class Write:
    """One committed version. ``op`` is PUT or DELETE. Only garbage collection ever changes it (``previous``)."""

    commit_ts: Ts
    start_ts: Ts
    op: LockKind
    value: bytes
    txn_source: int
    previous: "Write | None"

    @property
    def old_value(self) -> bytes:
        """The row before this version; empty where there was none."""
        return self.previous.value if self.previous is not None else b""


class Locked(NamedTuple):
    """A lock that will become a version was written (or written again, by a later flush)."""

    key: bytes
    lock: Lock
    old_value: bytes


class Committed(NamedTuple):
    """A version was written. ``one_pc``: without a lock before it."""

    key: bytes
    write: Write
    one_pc: bool


PROTECTED_MARK = b"p"
"""What a protected rollback holds instead of a row. Source: tikv ``txn_types``, ``PROTECTED_ROLLBACK_SHORT_VALUE``."""


class RolledBack(NamedTuple):
    """A rollback mark was written, and the lock of ``start_ts``, if there was one, is gone.

    ``mark`` is what the record holds: nothing, or :data:`PROTECTED_MARK`.
    """

    key: bytes
    start_ts: Ts
    mark: bytes = b""


class Refreshed(NamedTuple):
    """A lock that writes data was written again with another ttl or min_commit_ts, and without its value."""

    key: bytes
    lock: Lock
    old_value: bytes


class Unlocked(NamedTuple):
    """A lock that had shown as :class:`Locked` went away without a version or a rollback mark.

    A LOCK-type lock took its place, or its rollback overlaps another transaction's version.
    """

    key: bytes


Change = Locked | Committed | RolledBack | Refreshed | Unlocked
ROLLED_BACK = Ts(0)


class RegionData:
    """Locks and versions of the keys of one region. Commands return what an observer of applied writes must see."""

    __slots__ = ("_fresh", "_ordered", "locks", "marks", "writes")

    def __init__(self) -> None:
        self.locks: dict[bytes, Lock] = {}
        self.writes: dict[bytes, Write] = {}
        # Write records that are no versions, apart from them so that readers need not skip any: by key, what became of
        # a start_ts. The commit_ts of a LOCK-type record, or ROLLED_BACK.
        self.marks: dict[bytes, dict[Ts, Ts]] = {}
        # Keys in order, for scans. New keys wait unsorted in `_fresh`: sorting once a scan is far cheaper than
        # keeping order with every insert, and Python's sort is linear on two sorted runs.
        self._ordered: list[bytes] = []
        self._fresh: list[bytes] = []

    def __len__(self) -> int:
        return len(self.writes)

    # Commands ------------------------------------------------------------------------------------------------------

    def prewrite(self, txn: Txn, mutations: Sequence[Mutation]) -> list[Change]:
        """Lock and leave values. A lock of the same transaction is replaced, unless an older flush comes late.

        Raises:
            KeyLockedError: another transaction holds a key. Nothing was written.
            WriteConflictError: a key changed after the transaction began, or the transaction was rolled back there.
        """
        for mutation in mutations:
            self._check_free(txn, mutation.key)
        changes: list[Change] = []
        locks, writes = self.locks, self.writes
        for op, key, value in mutations:
            held = locks.get(key)
            if held is not None and held.txn.generation > txn.generation:
                continue
            lock = locks[key] = Lock(txn, _KIND_OF[op], value)
            if lock.kind <= LockKind.DELETE:
                head = writes.get(key)
                changes.append(Locked(key, lock, head.value if head is not None else b""))
            elif held is not None and held.writes_data:
                changes.append(Unlocked(key))
        return changes

    def _check_free(self, txn: Txn, key: bytes) -> None:
        held = self.locks.get(key)
        if held is not None:
            if held.txn.start_ts != txn.start_ts:
                raise KeyLockedError(
                    "key is locked by another transaction", key, start_ts=txn.start_ts, held_by=held.txn.start_ts
                )
            return
        if self.marks and self.marks.get(key, {}).get(txn.start_ts) == ROLLED_BACK:
            raise WriteConflictError("transaction was rolled back on this key", key, start_ts=txn.start_ts)
        head = self.writes.get(key)
        # A pessimistic transaction has seen newer versions when it locked (fair locking grants those locks too).
        if not txn.for_update_ts and head is not None and head.commit_ts > txn.start_ts:
            raise WriteConflictError(
                "key changed after the transaction began", key, start_ts=txn.start_ts, conflict_commit_ts=head.commit_ts
            )

    def commit_at_once(self, txn: Txn, mutations: Sequence[Mutation], commit_ts: Ts) -> list[Change]:
        """1PC: write versions without a lock; a pessimistic lock of the same transaction goes away.

        Raises:
            KeyLockedError: another transaction holds a key. Nothing was written.
            WriteConflictError: as of :meth:`prewrite`.
        """
        for mutation in mutations:
            self._check_free(txn, mutation.key)
        changes: list[Change] = []
        for op, key, value in mutations:
            self.locks.pop(key, None)
            if op == "lock":
                self.marks.setdefault(key, {})[txn.start_ts] = commit_ts
                continue
            write = self._write(key, commit_ts, txn, _KIND_OF[op], value)
            changes.append(Committed(key, write, one_pc=True))
        return changes

    def commit(self, start_ts: Ts, commit_ts: Ts, keys: Iterable[bytes]) -> list[Change]:
        """Turn locks of ``start_ts`` into versions; keys without one are left alone (a repeated commit)."""
        changes: list[Change] = []
        for key in keys:
            lock = self.locks.get(key)
            if lock is None or lock.txn.start_ts != start_ts:
                continue
            del self.locks[key]
            if lock.kind <= LockKind.DELETE:
                write = self._write(key, commit_ts, lock.txn, lock.kind, lock.value)
                changes.append(Committed(key, write, one_pc=False))
            else:
                self.marks.setdefault(key, {})[start_ts] = commit_ts
        return changes

    def rollback(self, start_ts: Ts, keys: Iterable[bytes], *, protected: bool = False) -> list[Change]:
        """Drop locks of ``start_ts`` and mark the keys, so that a late prewrite is refused.

        A transaction that has committed a key stays committed; one that was rolled back there stays so without a
        second mark. A mark that would overlap another transaction's version (its commit_ts equals ``start_ts``) is only
        written if ``protected``, or for the primary of a pessimistic transaction.
        """
        changes: list[Change] = []
        for key in keys:
            lock = self.locks.get(key)
            held = lock is not None and lock.txn.start_ts == start_ts
            if not held and self.record_of(key, start_ts) is not None:
                continue
            keep = protected
            if lock is not None and held:
                del self.locks[key]
                keep = bool(lock.txn.for_update_ts) and key == lock.txn.primary
            overlaps = self._commits_at(key, start_ts)
            if overlaps and not keep:
                if lock is not None and held and lock.writes_data:
                    changes.append(Unlocked(key))
                continue
            self.marks.setdefault(key, {})[start_ts] = ROLLED_BACK
            changes.append(RolledBack(key, start_ts, PROTECTED_MARK if keep and not overlaps else b""))
        return changes

    def refresh(
        self, start_ts: Ts, primary: bytes, *, ttl_ms: int = 0, min_commit_ts: Ts = ROLLED_BACK
    ) -> list[Change]:
        """Raise the ttl (a heartbeat) or min_commit_ts (a reader's push) of the primary's lock; neither goes back."""
        lock = self.locks.get(primary)
        if lock is None or lock.txn.start_ts != start_ts:
            return []
        ttl, least = max(lock.txn.ttl_ms, ttl_ms), max(lock.txn.min_commit_ts, min_commit_ts)
        if (ttl, least) == (lock.txn.ttl_ms, lock.txn.min_commit_ts):
            return []
        # The other keys keep what they were prewritten with: only the primary's lock is written again.
        txn = replace(lock.txn, ttl_ms=ttl, min_commit_ts=least)
        lock = self.locks[primary] = Lock(txn, lock.kind, lock.value)
        head = self.writes.get(primary)
        return [Refreshed(primary, lock, head.value if head is not None else b"")] if lock.writes_data else []

    def pessimistic_lock(self, txn: Txn, keys: Sequence[bytes]) -> None:
        """Lock keys without values; a prewritten lock of the same transaction stays.

        Raises:
            KeyLockedError: another transaction holds a key. Nothing was locked.
            WriteConflictError: the transaction was rolled back on a key.
        """
        for key in keys:
            self._check_free(txn, key)
        for key in keys:
            held = self.locks.get(key)
            if held is None or held.kind is LockKind.PESSIMISTIC:
                self.locks[key] = Lock(txn, LockKind.PESSIMISTIC, b"")

    def pessimistic_rollback(self, start_ts: Ts, keys: Iterable[bytes]) -> None:
        """Drop pessimistic locks of ``start_ts``; prewritten ones stay."""
        for key in keys:
            lock = self.locks.get(key)
            if lock is not None and lock.kind is LockKind.PESSIMISTIC and lock.txn.start_ts == start_ts:
                del self.locks[key]

    def _write(self, key: bytes, commit_ts: Ts, txn: Txn, kind: LockKind, value: bytes) -> Write:
        head = self.writes.get(key)
        if head is None:
            self._fresh.append(key)
        elif head.commit_ts >= commit_ts:
            raise InvariantBrokenError(
                "version is not newer than the newest", key=key.hex(), commit_ts=commit_ts, newest=head.commit_ts
            )
        write = self.writes[key] = Write(commit_ts, txn.start_ts, kind, value, txn.txn_source, head)
        return write

    # Reads ---------------------------------------------------------------------------------------------------------

    def version_at(self, key: bytes, ts: Ts) -> Write | None:
        """The newest version with commit_ts <= ts: it may be a DELETE."""
        write = self.writes.get(key)
        while write is not None and write.commit_ts > ts:
            write = write.previous
        return write

    def blocking_lock(self, key: bytes, ts: Ts) -> Lock | None:
        """The lock that keeps a reader at ``ts`` out: it could still commit at or below ts."""
        lock = self.locks.get(key)
        if lock is None or not lock.writes_data or lock.txn.start_ts > ts or lock.txn.min_commit_ts > ts:
            return None
        return lock

    def committed_by(self, key: bytes, start_ts: Ts) -> Write | None:
        """The version that the transaction of ``start_ts`` wrote."""
        write = self.writes.get(key)
        while write is not None and write.commit_ts > start_ts:
            if write.start_ts == start_ts:
                return write
            write = write.previous
        return None

    def record_of(self, key: bytes, start_ts: Ts) -> Ts | None:
        """What became of the transaction on this key: its commit_ts, ROLLED_BACK, or None where no record says."""
        mark = self.marks.get(key, {}).get(start_ts)
        if mark is not None:
            return mark
        write = self.committed_by(key, start_ts)
        return write.commit_ts if write is not None else None

    def _commits_at(self, key: bytes, ts: Ts) -> bool:
        """Whether a version of the key has exactly this commit_ts."""
        write = self.version_at(key, ts)
        return write is not None and write.commit_ts == ts

    def keys_between(self, start: bytes, end: bytes, limit: int | None = None) -> list[bytes]:
        """Keys with versions in ``[start, end)``, ascending, the first ``limit``; an empty ``end`` is no bound."""
        if self._fresh:
            self._fresh.sort()
            self._ordered += self._fresh
            self._ordered.sort()
            self._fresh = []
        low = bisect_left(self._ordered, start)
        high = bisect_left(self._ordered, end) if end else len(self._ordered)
        return self._ordered[low : high if limit is None else min(high, low + limit)]

    def locked_between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, Lock]]:
        """Locks of any kind in ``[start, end)``, in no order."""
        return ((k, lock) for k, lock in self.locks.items() if k >= start and (not end or k < end))

    # Upkeep --------------------------------------------------------------------------------------------------------

    def split_off(self, low: bytes) -> "RegionData":
        """Give all keys below ``low`` away; they are the returned data."""
        given = RegionData()
        given._ordered = self.keys_between(b"", low)
        self._ordered = self._ordered[len(given._ordered) :]
        given.writes = {key: self.writes.pop(key) for key in given._ordered}
        given.locks = {key: self.locks.pop(key) for key in [k for k in self.locks if k < low]}
        given.marks = {key: self.marks.pop(key) for key in [k for k in self.marks if k < low]}
        return given

    def absorb(self, lower: "RegionData") -> None:
        """Take over the data of the region just below."""
        self._ordered = lower.keys_between(b"", b"") + self._ordered
        self.writes.update(lower.writes)
        self.locks.update(lower.locks)
        self.marks.update(lower.marks)

    def gc(self, safe_point: Ts) -> int:
        """Drop what no reader at or above ``safe_point`` can see; return the number of keys that vanished."""
        vanished = []
        for key, head in self.writes.items():
            write: Write | None = head
            while write is not None and write.commit_ts > safe_point:
                write = write.previous
            if write is None:
                continue
            write.previous = None
            if write is head and write.op is LockKind.DELETE:
                vanished.append(key)
        for key in vanished:
            del self.writes[key]
        kept = {
            key: {start: commit for start, commit in marks.items() if max(start, commit) > safe_point}
            for key, marks in self.marks.items()
        }
        self.marks = {key: marks for key, marks in kept.items() if marks}
        if vanished:
            self._ordered, self._fresh = sorted(self.writes), []
        return len(vanished)
