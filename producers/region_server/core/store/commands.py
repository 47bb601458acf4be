"""What a transaction layer asks of the store: TiKV's write commands, with the fields that change data or the feed.

A command names raw keys. A real TiDB splits its commands by region; the store splits whatever it gets.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from schemas.ids import Ts

MutationOp = Literal["put", "delete", "lock"]
"""``lock`` holds the key until commit and writes no version."""


class Mutation(NamedTuple):
    """One key of a prewrite. ``value`` is empty unless ``op`` is ``put``."""

    op: MutationOp
    key: bytes
    value: bytes = b""


@dataclass(slots=True, eq=False, kw_only=True)
class Txn:
    """What all locks of one prewrite share; held once, because a transaction may lock a million keys."""

    start_ts: Ts
    primary: bytes
    txn_source: int = 0
    """Bits 0-7: TiDB's CDC write source; 8-15: lossy DDL reorganisation; 16: physical import."""
    ttl_ms: int = 3000
    for_update_ts: Ts = Ts(0)
    """The for_update_ts of a pessimistic transaction, else 0."""
    min_commit_ts: Ts = Ts(0)
    """0: of a client that is too old to let readers push it."""
    size: int = 0
    """How many keys it has; TiKV counts those of a region."""
    use_async_commit: bool = False
    secondaries: tuple[bytes, ...] = ()
    """Async commit: on the primary's lock, all other keys."""
    generation: int = 0
    """Pipelined DML: the number of the flush, from 1; else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewrite:
    """Lock keys and leave their values with the locks; with ``one_pc_commit_ts`` commit at once and leave no lock."""

    txn: Txn
    mutations: tuple[Mutation, ...] | list[Mutation]
    one_pc_commit_ts: Ts = Ts(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PessimisticLock:
    """Lock keys before their values are known. It changes no data and never shows in the feed."""

    txn: Txn
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Turn the locks of ``start_ts`` on ``keys`` into versions; keys without such a lock were committed before."""

    start_ts: Ts
    commit_ts: Ts
    keys: tuple[bytes, ...] | list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Drop the locks of ``start_ts`` on ``keys`` and leave a mark against a late prewrite (so it shows in the feed)."""

    start_ts: Ts
    keys: tuple[bytes, ...] | list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class PessimisticRollback:
    """Drop pessimistic locks only; it leaves no mark and never shows in the feed."""

    start_ts: Ts
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveLock:
    """Commit (``commit_ts`` > 0) or roll back the locks of ``start_ts`` that exist on ``keys`` (empty: anywhere)."""

    start_ts: Ts
    commit_ts: Ts
    keys: tuple[bytes, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnHeartbeat:
    """Keep a large transaction alive: raise the ttl of its primary's lock (milliseconds from start_ts)."""

    start_ts: Ts
    primary: bytes
    ttl_ms: int


Command = Prewrite | PessimisticLock | Commit | Rollback | PessimisticRollback | ResolveLock | TxnHeartbeat
