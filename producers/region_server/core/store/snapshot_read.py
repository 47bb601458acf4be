"""What a reader at a version sees of a region: TiKV's snapshot isolation, key by key.

The rules are TiKV's (``components/txn_types/src/lock.rs``, ``check_ts_conflict_si``; ``src/storage/mvcc/reader``, Aug
2026). A lock keeps a reader out while its transaction could still commit at or below the reader's version. Two sets
of transactions, which the reader has asked about, change that: ``resolved`` ones never commit at or below it, so their
locks are passed by; ``committed`` ones have, so a lock of theirs is read as the version that it will become.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from producers.region_server.core.store.mvcc import Lock, LockKind, RegionData
from schemas.ids import Ts

_NONE: Final = frozenset[Ts]()
_BLOCK_KEYS: Final = 1024


@dataclass(frozen=True, slots=True)
class ReadView:
    """At which version somebody reads, and what is known to them of transactions whose locks are in the way."""

    ts: Ts
    resolved: frozenset[Ts] = _NONE
    committed: frozenset[Ts] = _NONE


@dataclass(frozen=True, slots=True)
class SeenRow:
    """A key with a value. ``commit_ts`` 0: it was read out of a lock, which does not know it."""

    key: bytes
    value: bytes
    commit_ts: Ts


@dataclass(frozen=True, slots=True)
class Blocked:
    """A key whose lock keeps the reader out."""

    key: bytes
    lock: Lock


def read(data: RegionData, key: bytes, view: ReadView) -> SeenRow | Blocked | None:
    """Return what the key holds at the version; None: nothing."""
    if data.locks:
        lock = data.blocking_lock(key, view.ts)
        if lock is not None:
            start_ts = lock.txn.start_ts
            if start_ts in view.committed:
                return SeenRow(key, lock.value, Ts(0)) if lock.kind is LockKind.PUT else None
            if start_ts not in view.resolved:
                return Blocked(key, lock)
    write = data.version_at(key, view.ts)
    if write is None or write.op is not LockKind.PUT:
        return None
    return SeenRow(key, write.value, write.commit_ts)


def scan(
    data: RegionData, start: bytes, end: bytes, view: ReadView, limit: int, *, reverse: bool = False
) -> list[SeenRow | Blocked]:
    """Return the first ``limit`` keys with values in ``[start, end)``, ascending or, ``reverse``, from its end down.

    A blocked key counts, and the scan goes on behind it, as TiKV's does.
    """
    seen: list[SeenRow | Blocked] = []
    for key in _keys(data, start, end, reverse=reverse):
        if len(seen) >= limit:
            break
        row = read(data, key, view)
        if row is not None:
            seen.append(row)
    return seen


def safe_ts(data: RegionData, upto: Ts) -> Ts:
    """Return up to which version a stale read sees all: ``upto``, but below every transaction under way."""
    return min([upto, *(Ts(lock.txn.start_ts - 1) for lock in data.locks.values() if lock.writes_data)])


def _keys(data: RegionData, start: bytes, end: bytes, *, reverse: bool) -> Iterator[bytes]:
    """Yield keys with versions or locks in ``[start, end)``. A page takes no copy of a whole region's keys."""
    locked = [key for key, lock in data.locked_between(start, end) if lock.writes_data and key not in data.writes]
    if reverse or locked:
        yield from sorted([*data.keys_between(start, end), *locked], reverse=reverse)
        return
    while True:
        block = data.keys_between(start, end, _BLOCK_KEYS)
        yield from block
        if len(block) < _BLOCK_KEYS:
            return
        start = block[-1] + b"\0"
