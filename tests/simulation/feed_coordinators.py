"""The coordinators of a simulated cluster: transactions of every kind under way, step by step, on a few keys."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from producers.region_server.core.store.commands import (
    Commit,
    Mutation,
    PessimisticLock,
    PessimisticRollback,
    Prewrite,
    ResolveLock,
    Rollback,
    Txn,
)
from producers.region_server.core.store.mvcc import LockKind
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from tests.simulation.feed_cluster import SimCluster

TABLES = (TableId(45), TableId(46))
KEYS = tuple(row_key(table, handle) for table in TABLES for handle in range(5))
LOSSY_SOURCE = 1 << 8
"""A row of a lossy column change: never delivered."""

WRITES = (
    "prewrite", "prewrite", "pessimistic", "lock_only", "async", "pipelined", "flush", "one_pc", "one_pc",
    "take_commit_ts", "commit", "commit", "commit", "commit_one", "commit_one", "rollback", "rollback_unknown",
    "resolve", "heartbeat",
)  # fmt: skip


@dataclass(eq=False)
class Open:
    """A transaction under way."""

    txn: Txn
    ops: dict[bytes, Mutation]
    """What it has prewritten, the newest of each key."""
    only_locked: set[bytes] = field(default_factory=set)
    commit_ts: Ts = Ts(0)
    decided: bool = False
    """Its primary is committed: it can only go on to commit."""


class Coordinators:
    """Steps that write. Each takes two numbers; one that does not apply at this moment does nothing."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.open: list[Open] = []
        self.committed: dict[tuple[bytes, Ts], tuple[Ts, LockKind, bytes, int]] = {}
        """What the coordinators know to be committed: (start_ts, op, value, txn_source) by (key, commit_ts)."""
        self._values = 0

    def _free(self, bits: int) -> list[bytes]:
        locked = {key for region in self.cluster.store.regions for key in region.data.locks}
        return [key for at, key in enumerate(KEYS) if bits >> at & 1 and key not in locked][:4]

    def _changed_after(self, key: bytes, ts: Ts) -> bool:
        newest = self.cluster.store.regions.of_key(key).data.writes.get(key)
        return newest is not None and newest.commit_ts > ts

    def _mutations(self, keys: Sequence[bytes], how: int) -> tuple[Mutation, ...]:
        self._values += 1
        value = b"v%d" % self._values + bytes(300 if how % 7 == 3 else 0)  # a long value does not stand in the COMMIT
        return tuple(
            Mutation("delete", key) if (how + at) % 4 == 0 else Mutation("put", key, value)
            for at, key in enumerate(keys)
        )

    def _begin(self, a: int, b: int, **txn: object) -> Open | None:
        keys = self._free(a)
        if not keys:
            return None
        source = LOSSY_SOURCE if b % 11 == 5 else 0
        start_ts = self.cluster.oracle.tso()
        made = Txn(start_ts=start_ts, primary=keys[0], txn_source=source, **txn)  # type: ignore[arg-type]
        mutations = self._mutations(keys, b)
        return Open(made, {mutation.key: mutation for mutation in mutations})

    def _put(self, begun: Open | None) -> None:
        if begun is not None:
            self.cluster.store.apply(Prewrite(txn=begun.txn, mutations=tuple(begun.ops.values())))
            self.open.append(begun)

    def _prewrite(self, a: int, b: int) -> None:
        self._put(self._begin(a, b))

    def _async(self, a: int, b: int) -> None:
        begun = self._begin(a, b, use_async_commit=True)
        if begun is not None:
            begun.commit_ts = begun.txn.min_commit_ts = self.cluster.oracle.tso()
            begun.decided = True  # once all keys are prewritten it is committed, whoever comes to see it
        self._put(begun)

    def _pipelined(self, a: int, b: int) -> None:
        self._put(self._begin(a, b, generation=1))

    def _flush(self, a: int, b: int) -> None:
        flushing = [
            opened for opened in self.open if opened.txn.generation and not opened.decided and not opened.commit_ts
        ]
        if flushing:
            opened = flushing[a % len(flushing)]
            again = [key for at, key in enumerate(opened.ops) if b >> at & 1]
            more = [key for key in self._free(a)[:1] if not self._changed_after(key, opened.txn.start_ts)]
            mutations = self._mutations([*again, *more], b)
            opened.txn = Txn(
                start_ts=opened.txn.start_ts,
                primary=opened.txn.primary,
                txn_source=opened.txn.txn_source,
                generation=opened.txn.generation + 1,
            )
            self.cluster.store.apply(Prewrite(txn=opened.txn, mutations=mutations))
            opened.ops |= {mutation.key: mutation for mutation in mutations}

    def _lock_only(self, a: int, b: int) -> None:
        begun = self._begin(a, b)
        if begun is not None:
            begun.ops = {
                key: Mutation("lock", key) if at % 2 == b % 2 else mutation
                for at, (key, mutation) in enumerate(begun.ops.items())
            }
        self._put(begun)

    def _pessimistic(self, a: int, b: int) -> None:
        begun = self._begin(a, b)
        if begun is None:
            return
        begun.txn.for_update_ts = self.cluster.oracle.tso()
        self.cluster.store.apply(PessimisticLock(txn=begun.txn, keys=tuple(begun.ops)))
        if b % 5 == 0:
            self.cluster.store.apply(PessimisticRollback(start_ts=begun.txn.start_ts, keys=tuple(begun.ops)))
        else:
            begun.only_locked = set(begun.ops)
            self.open.append(begun)

    def _one_pc(self, a: int, b: int) -> None:
        begun = self._begin(a, b)
        if begun is not None:
            commit_ts = self.cluster.oracle.tso()
            mutations = tuple(begun.ops.values())
            self.cluster.store.apply(Prewrite(txn=begun.txn, mutations=mutations, one_pc_commit_ts=commit_ts))
            for mutation in mutations:
                self._know(begun, mutation, commit_ts)

    def _chosen(self, a: int) -> Open | None:
        opened = self.open[a % len(self.open)] if self.open else None
        if opened is not None and opened.only_locked:
            self.cluster.store.apply(Prewrite(txn=opened.txn, mutations=tuple(opened.ops.values())))
            opened.only_locked = set()
            return None  # now it is prewritten; another step may commit it
        return opened

    def _take_commit_ts(self, a: int, b: int) -> None:
        """The coordinator has its commit_ts from PD, and the commit takes its time."""
        if (opened := self._chosen(a)) is not None and not opened.commit_ts:
            opened.commit_ts = self.cluster.oracle.tso()

    def _commit(self, a: int, b: int) -> None:
        if (opened := self._chosen(a)) is not None:
            self._commit_keys(opened, list(opened.ops))

    def _commit_one(self, a: int, b: int) -> None:
        """One key of it: the primary first, the others when they come."""
        if (opened := self._chosen(a)) is not None:
            keys = list(opened.ops)
            self._commit_keys(opened, [keys[b % len(keys)] if opened.decided else opened.txn.primary])

    def _commit_keys(self, opened: Open, keys: list[bytes]) -> None:
        opened.commit_ts = opened.commit_ts or self.cluster.oracle.tso()
        opened.decided = True
        self.cluster.store.apply(Commit(start_ts=opened.txn.start_ts, commit_ts=opened.commit_ts, keys=tuple(keys)))
        for key in keys:
            self._know(opened, opened.ops.pop(key), opened.commit_ts)
        if not opened.ops:
            self.open.remove(opened)

    def _know(self, opened: Open, mutation: Mutation, commit_ts: Ts) -> None:
        if mutation.op != "lock":
            kind = LockKind.PUT if mutation.op == "put" else LockKind.DELETE
            value = (opened.txn.start_ts, kind, mutation.value, opened.txn.txn_source)
            self.committed[mutation.key, commit_ts] = value

    def _rollback(self, a: int, b: int) -> None:
        opened = self.open[a % len(self.open)] if self.open else None
        if opened is not None and not opened.decided:
            self.cluster.store.apply(Rollback(start_ts=opened.txn.start_ts, keys=tuple(opened.ops)))
            self.open.remove(opened)

    def _rollback_unknown(self, a: int, b: int) -> None:
        """A reader rolls a transaction back whose prewrite never came."""
        self.cluster.store.apply(Rollback(start_ts=self.cluster.oracle.tso(), keys=(KEYS[a % len(KEYS)],)))

    def _resolve(self, a: int, b: int) -> None:
        """A reader ends what a crashed client left: as its primary says."""
        opened = self._chosen(a)
        if opened is not None and opened.decided and opened.txn.primary not in opened.ops:
            self.cluster.store.apply(ResolveLock(start_ts=opened.txn.start_ts, commit_ts=opened.commit_ts))
            for mutation in opened.ops.values():
                self._know(opened, mutation, opened.commit_ts)
            self.open.remove(opened)

    def _heartbeat(self, a: int, b: int) -> None:
        opened = self._chosen(a)
        if opened is not None and opened.txn.primary in opened.ops:
            region = self.cluster.store.regions.of_key(opened.txn.primary)
            changes = region.data.refresh(opened.txn.start_ts, opened.txn.primary, ttl_ms=20_000 + b)
            self.cluster.store.applied(region, changes)
