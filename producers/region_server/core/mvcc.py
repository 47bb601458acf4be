"""The multi-version data of one region: locks and committed versions by raw key, and TiKV's write commands over them.

Versions of a key are a chain from the newest to the oldest, and links never change except that :meth:`RegionData.gc`
cuts old ends off. So the head of a chain is a snapshot of it for free: an incremental scan keeps heads and is exact,
whatever is written while it runs.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from producers.region_server.core.commands import Mutation, Txn
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


class RolledBack(NamedTuple):
    """A rollback mark was written, and the lock of ``start_ts``, if there was one, is gone."""

    key: bytes
    start_ts: Ts


class Unlocked(NamedTuple):
    """A lock that had shown as :class:`Locked` went away without any write (a pessimistic lock took its place)."""

    key: bytes


Change = Locked | Committed | RolledBack | Unlocked


class RegionData:
    """Locks and versions of the keys of one region. Commands return what an observer of applied writes must see."""

    __slots__ = ("_fresh", "_ordered", "locks", "writes")

    def __init__(self) -> None:
        self.locks: dict[bytes, Lock] = {}
        self.writes: dict[bytes, Write] = {}
        # Keys in order, for scans. New keys wait unsorted in `_fresh`: sorting once a scan is far cheaper than
        # keeping order with every insert, and Python's sort is linear on two sorted runs.
        self._ordered: list[bytes] = []
        self._fresh: list[bytes] = []

    def __len__(self) -> int:
        return len(self.writes)

    # Commands ------------------------------------------------------------------------------------------------------

    def prewrite(self, txn: Txn, mutations: Iterable[Mutation]) -> list[Change]:
        """Lock and leave values. A lock of the same transaction is replaced, unless an older flush comes late.

        Raises:
            InvariantBrokenError: another transaction holds the key; its client would have resolved that lock first.
        """
        changes: list[Change] = []
        locks, writes = self.locks, self.writes
        for op, key, value in mutations:
            held = locks.get(key)
            if held is not None:
                if held.txn.start_ts != txn.start_ts:
                    raise InvariantBrokenError(
                        "prewrite met the lock of another transaction",
                        key=key.hex(), start_ts=txn.start_ts, held_by=held.txn.start_ts,
                    )  # fmt: skip
                if held.txn.generation > txn.generation:
                    continue
            lock = locks[key] = Lock(txn, _KIND_OF[op], value)
            if lock.kind <= LockKind.DELETE:
                head = writes.get(key)
                changes.append(Locked(key, lock, head.value if head is not None else b""))
            elif held is not None and held.writes_data:
                changes.append(Unlocked(key))
        return changes

    def commit_at_once(self, txn: Txn, mutations: Iterable[Mutation], commit_ts: Ts) -> list[Change]:
        """1PC: write versions without a lock; a pessimistic lock of the same transaction goes away."""
        changes: list[Change] = []
        for op, key, value in mutations:
            self.locks.pop(key, None)
            if op != "lock":
                changes.append(
                    Committed(key, self._write(key, commit_ts, txn, _KIND_OF[op], value), one_pc=True)
                )  # fmt: skip
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
        return changes

    def rollback(self, start_ts: Ts, keys: Iterable[bytes]) -> list[Change]:
        """Drop locks of ``start_ts`` and mark the keys; a transaction that has committed a key stays committed."""
        changes: list[Change] = []
        for key in keys:
            lock = self.locks.get(key)
            if lock is not None and lock.txn.start_ts == start_ts:
                del self.locks[key]
            elif self.committed_by(key, start_ts) is not None:
                continue
            changes.append(RolledBack(key, start_ts))
        return changes

    def pessimistic_lock(self, txn: Txn, keys: Iterable[bytes]) -> None:
        """Lock keys without values; a prewritten lock of the same transaction stays."""
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

    def keys_between(self, start: bytes, end: bytes) -> list[bytes]:
        """Keys with versions in ``[start, end)``, ascending; an empty ``end`` is no bound."""
        if self._fresh:
            self._fresh.sort()
            self._ordered += self._fresh
            self._ordered.sort()
            self._fresh = []
        low = bisect_left(self._ordered, start)
        return self._ordered[low : bisect_left(self._ordered, end) if end else None]

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
        return given

    def absorb(self, lower: "RegionData") -> None:
        """Take over the data of the region just below."""
        self._ordered = lower.keys_between(b"", b"") + self._ordered
        self.writes.update(lower.writes)
        self.locks.update(lower.locks)

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
        if vanished:
            self._ordered, self._fresh = sorted(self.writes), []
        return len(vanished)
