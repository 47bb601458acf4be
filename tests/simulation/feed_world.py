"""A world of one event feed and one embedded cluster, driven step by step; its oracle is the store's write records.

A schedule is a list of steps ``(kind, a, b)``. The numbers choose among what there is at that moment (keys, open
transactions, regions, streams), so that a schedule stays valid whatever is taken out of it: that is how it is shrunk.
"""

import asyncio
import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc

from producers.core.matcher import Change
from producers.core.subscription import TableSpan
from producers.event_feed import EventFeed
from producers.feed_types import FeedSettings
from producers.locator import Locator
from producers.region_cache import RegionCache
from producers.region_server.core.chaos import NO_STORE
from producers.region_server.core.commands import (
    Commit,
    Mutation,
    PessimisticLock,
    PessimisticRollback,
    Prewrite,
    ResolveLock,
    Rollback,
    Txn,
)
from producers.region_server.core.mvcc import LockKind
from producers.region_server.core.regions import Region
from schemas.errors import BusError
from schemas.ids import RegionId, StoreId, TableId, Ts
from schemas.tidb.keys import row_key, table_span
from tests.simulation.feed_cluster import SimCluster, SimStream

Step = tuple[str, int, int]
TABLES = (TableId(45), TableId(46))
KEYS = tuple(row_key(table, handle) for table in TABLES for handle in range(5))
LOSSY_SOURCE = 1 << 8
"""A row of a lossy column change: never delivered."""
SETTLE_TURNS = 600
"""Of 0.25 s: far more than the longest back-off (2 s) and every store's second of rest need."""

WRITES = (
    "prewrite", "prewrite", "pessimistic", "lock_only", "async", "pipelined", "flush", "one_pc", "one_pc",
    "take_commit_ts", "commit", "commit", "commit", "commit_one", "commit_one", "rollback", "rollback_unknown",
    "resolve", "heartbeat",
)  # fmt: skip
CLUSTER = (
    "split", "split", "split", "merge", "merge", "transfer", "transfer", "stop_store", "start_store", "start_store",
    "start_store", "lose_leader", "elect", "hold_scans", "go_on", "fail_region", "refuse", "pd_lags", "pd_knows",
    "pd_knows", "hide_region", "show_regions",
)  # fmt: skip
WIRE = (
    "turn",
    "turn",
    "deliver",
    "deliver",
    "deliver",
    "deliver_all",
    "drop_stream",
    "round",
    "round_one",
    "round_one",
)
CLIENT = ("tick", "tick", "tick", "resubscribe")
FLOW = ("flow", "flow_slow")


class LawBrokenError(AssertionError):
    """The feed lost, invented or overtook a change, or got stuck."""


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


class Landed:
    """The feed's sink: keeps what came and holds the feed to its resolved ts."""

    def __init__(self) -> None:
        self.changes: dict[TableId, set[Change]] = {table: set() for table in TABLES}
        self.resolved_ts: dict[TableId, Ts] = dict.fromkeys(TABLES, Ts(0))

    def rows(self, table_id: TableId, region_id: RegionId, changes: list[Change], *, may_repeat: bool) -> None:
        known, resolved_ts = self.changes[table_id], self.resolved_ts[table_id]
        for change in changes:
            if change in known:
                if not may_repeat:
                    raise LawBrokenError(f"a live change came twice: {change}")
            elif change[0] <= resolved_ts:
                raise LawBrokenError(f"a new change at or below the resolved ts {resolved_ts}: {change}")
        known.update(changes)

    def resolved(self, table_id: TableId, ts: Ts) -> None:
        if ts <= self.resolved_ts[table_id]:
            raise LawBrokenError(f"resolved ts went from {self.resolved_ts[table_id]} to {ts}")
        self.resolved_ts[table_id] = ts

    def turn(self, now_s: float) -> float:
        return 1.0

    def saturated(self) -> bool:
        return False


class FeedWorld:
    """See the module's text. Use :func:`run_schedule`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, *, multiplexing: bool) -> None:
        self.now_s = 100.0
        dice = random.Random(seed)
        self.cluster = SimCluster(loop, lambda: self.now_s, fake_prewrites=seed % 5 == 4)
        self.landed, self.fatal = Landed(), list[BusError]()
        self.feed = EventFeed(
            RegionCache(self.cluster.pd),
            self.landed,
            self.fatal.append,
            FeedSettings(multiplexing=multiplexing),
            clock=lambda: self.now_s,
            open_stream=functools.partial(SimStream, self.cluster),
            locator=self._make_locator(dice),
        )
        self.open: list[Open] = []
        self.committed: dict[tuple[bytes, Ts], tuple[Ts, LockKind, bytes, int]] = {}
        """What the coordinators know to be committed: (start_ts, op, value, txn_source) by (key, commit_ts)."""
        self._values = 0
        for table in TABLES:
            self.feed.subscribe(TableSpan(table, *table_span(table)), Ts(0))

    def _make_locator(self, dice: random.Random) -> Callable[..., Locator]:
        def make(cache: RegionCache, deliver: Callable[..., None]) -> Locator:
            self.locator = Locator(cache, deliver, clock=lambda: self.now_s, jitter=dice.random)
            return self.locator

        return make

    def do(self, step: Step) -> None:
        """Take one step; one that does not apply at this moment does nothing."""
        kind, a, b = step
        getattr(self, f"_{kind}")(a, b)

    # Transactions ----------------------------------------------------------------------------------------------------

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
        flushing = [one for one in self.open if one.txn.generation and not one.decided and not one.commit_ts]
        if flushing:
            one = flushing[a % len(flushing)]
            again = [key for at, key in enumerate(one.ops) if b >> at & 1]
            more = [key for key in self._free(a)[:1] if not self._changed_after(key, one.txn.start_ts)]
            mutations = self._mutations([*again, *more], b)
            one.txn = Txn(
                start_ts=one.txn.start_ts,
                primary=one.txn.primary,
                txn_source=one.txn.txn_source,
                generation=one.txn.generation + 1,
            )
            self.cluster.store.apply(Prewrite(txn=one.txn, mutations=mutations))
            one.ops |= {mutation.key: mutation for mutation in mutations}

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
        one = self.open[a % len(self.open)] if self.open else None
        if one is not None and one.only_locked:
            self.cluster.store.apply(Prewrite(txn=one.txn, mutations=tuple(one.ops.values())))
            one.only_locked = set()
            return None  # now it is prewritten; another step may commit it
        return one

    def _take_commit_ts(self, a: int, b: int) -> None:
        """The coordinator has its commit_ts from PD, and the commit takes its time."""
        if (one := self._chosen(a)) is not None and not one.commit_ts:
            one.commit_ts = self.cluster.oracle.tso()

    def _commit(self, a: int, b: int) -> None:
        if (one := self._chosen(a)) is not None:
            self._commit_keys(one, list(one.ops))

    def _commit_one(self, a: int, b: int) -> None:
        """One key of it: the primary first, the others when they come."""
        if (one := self._chosen(a)) is not None:
            keys = list(one.ops)
            self._commit_keys(one, [keys[b % len(keys)] if one.decided else one.txn.primary])

    def _commit_keys(self, one: Open, keys: list[bytes]) -> None:
        one.commit_ts = one.commit_ts or self.cluster.oracle.tso()
        one.decided = True
        self.cluster.store.apply(Commit(start_ts=one.txn.start_ts, commit_ts=one.commit_ts, keys=tuple(keys)))
        for key in keys:
            self._know(one, one.ops.pop(key), one.commit_ts)
        if not one.ops:
            self.open.remove(one)

    def _know(self, one: Open, mutation: Mutation, commit_ts: Ts) -> None:
        if mutation.op != "lock":
            kind = LockKind.PUT if mutation.op == "put" else LockKind.DELETE
            value = (one.txn.start_ts, kind, mutation.value, one.txn.txn_source)
            self.committed[mutation.key, commit_ts] = value

    def _rollback(self, a: int, b: int) -> None:
        one = self.open[a % len(self.open)] if self.open else None
        if one is not None and not one.decided:
            self.cluster.store.apply(Rollback(start_ts=one.txn.start_ts, keys=tuple(one.ops)))
            self.open.remove(one)

    def _rollback_unknown(self, a: int, b: int) -> None:
        """A reader rolls a transaction back whose prewrite never came."""
        self.cluster.store.apply(Rollback(start_ts=self.cluster.oracle.tso(), keys=(KEYS[a % len(KEYS)],)))

    def _resolve(self, a: int, b: int) -> None:
        """A reader ends what a crashed client left: as its primary says."""
        one = self._chosen(a)
        if one is not None and one.decided and one.txn.primary not in one.ops:
            self.cluster.store.apply(ResolveLock(start_ts=one.txn.start_ts, commit_ts=one.commit_ts))
            for mutation in one.ops.values():
                self._know(one, mutation, one.commit_ts)
            self.open.remove(one)

    def _heartbeat(self, a: int, b: int) -> None:
        one = self._chosen(a)
        if one is not None and one.txn.primary in one.ops:
            region = self.cluster.store.regions.of_key(one.txn.primary)
            changes = region.data.refresh(one.txn.start_ts, one.txn.primary, ttl_ms=20_000 + b)
            self.cluster.store.applied(region, changes)

    # The cluster -----------------------------------------------------------------------------------------------------

    def _split(self, a: int, b: int) -> None:
        self.cluster.store.split(KEYS[a % len(KEYS)])

    def _merge(self, a: int, b: int) -> None:
        regions = list(self.cluster.store.regions)
        if len(regions) > 1:
            self.cluster.store.merge(regions[a % (len(regions) - 1)].region_id)

    def _region(self, a: int) -> Region:
        regions = list(self.cluster.store.regions)
        return regions[a % len(regions)]

    def _transfer(self, a: int, b: int) -> None:
        up = self.cluster.store.regions.up
        if up:
            self.cluster.store.transfer_leader(self._region(a).region_id, up[b % len(up)], hint=b % 4 == 0)

    def _lose_leader(self, a: int, b: int) -> None:
        self.cluster.store.transfer_leader(self._region(a).region_id, NO_STORE, hint=False)

    def _elect(self, a: int, b: int) -> None:
        up = self.cluster.store.regions.up
        for region in self.cluster.store.regions:
            if region.leader == NO_STORE and up:
                self.cluster.store.transfer_leader(region.region_id, up[b % len(up)], hint=False)

    def _stop_store(self, a: int, b: int) -> None:
        self.cluster.stop_store(StoreId(1 + a % 3), b % 8, leads_on=b % 3 == 0)

    def _start_store(self, a: int, b: int) -> None:
        self.cluster.start_store(StoreId(1 + a % 3))

    def _hold_scans(self, a: int, b: int) -> None:
        """Live rows overtake those of the scans: a COMMIT comes before its PREWRITE."""
        self.cluster.endpoints[StoreId(1 + a % 3)].hold_scans(True)

    def _go_on(self, a: int, b: int) -> None:
        for endpoint in self.cluster.endpoints.values():
            endpoint.hold_scans(False)

    def _fail_region(self, a: int, b: int) -> None:
        region, error = self._region(a), ("region_not_found", "congested", "server_is_busy", "none")[b % 4]
        if region.leader != NO_STORE:
            self.cluster.endpoints[region.leader].fail_region(region.region_id, error)

    def _refuse(self, a: int, b: int) -> None:
        self.cluster.endpoints[StoreId(1 + a % 3)].refuse(1 + b % 4, 100)

    def _hide_region(self, a: int, b: int) -> None:
        """PD's answer has a hole, as between a split and its report."""
        self._region(a).hidden = True

    def _show_regions(self, a: int, b: int) -> None:
        for region in self.cluster.store.regions:
            region.hidden = False

    def _pd_lags(self, a: int, b: int) -> None:
        """PD has heard nothing new from now on."""
        self.cluster.pd.view = self.cluster.pd.regions()

    def _pd_knows(self, a: int, b: int) -> None:
        self.cluster.pd.view = None

    # The wire --------------------------------------------------------------------------------------------------------

    def _turn(self, a: int, b: int) -> None:
        self.cluster.turn(1 + a % 4)

    def _deliver(self, a: int, b: int) -> None:
        waiting = [stream for stream in self.cluster.streams if stream.wire]
        if waiting:
            stream = waiting[a % len(waiting)]
            for _ in range(min(len(stream.wire), 1 + b % 3)):
                stream.deliver()
            self.feed.step()

    def _deliver_all(self, a: int, b: int) -> None:
        for stream in list(self.cluster.streams):
            while stream.wire and not stream.closed:
                stream.deliver()
        self.feed.step()

    def _drop_stream(self, a: int, b: int) -> None:
        if streams := self.cluster.streams:
            streams[a % len(streams)].end(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer", keep=b % 5)

    def _round(self, a: int, b: int) -> None:
        min_ts = self.cluster.oracle.tso()
        for endpoint in self.cluster.endpoints.values():
            endpoint.advance(min_ts)

    def _round_one(self, a: int, b: int) -> None:
        """The others are slow: they send their resolved ts another time."""
        self.cluster.endpoints[StoreId(1 + a % 3)].advance(self.cluster.oracle.tso())

    def _flow(self, a: int, b: int) -> None:
        """All goes well for a moment: located, registered, scanned, resolved, delivered."""
        self._tick(a % 3, 0)
        self.cluster.turn(4)
        self._round(0, 0)
        self.cluster.turn(1)
        self._deliver_all(0, 0)

    def _flow_slow(self, a: int, b: int) -> None:
        """As :meth:`_flow`, but one store's messages stay on the wire, and its resolved ts are old."""
        self._tick(a % 3, 0)
        self.cluster.turn(4)
        min_ts = self.cluster.oracle.tso()
        for store_id, endpoint in self.cluster.endpoints.items():
            if store_id != 1 + b % 3:
                endpoint.advance(min_ts)
        self.cluster.turn(1)
        for stream in [stream for stream in self.cluster.streams if stream.store_id != 1 + b % 3]:
            while stream.wire and not stream.closed:
                stream.deliver()
        self.feed.step()

    # The client ------------------------------------------------------------------------------------------------------

    def _tick(self, a: int, b: int) -> None:
        self.now_s += (0.001, 0.03, 0.2, 1.1)[a % 4]
        while self.locator.step():
            pass
        self.feed.step()

    def _resubscribe(self, a: int, b: int) -> None:
        """The owner takes a table away and gives it back, from what was resolved or from further back."""
        table = TABLES[a % len(TABLES)]
        self.feed.subscribe(TableSpan(table, *table_span(table)), self.landed.resolved_ts[table])

    # The end ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """End every transaction, mend everything, and wait until the spans are resolved past all commits."""
        while self.open:
            one = self.open[0]
            if one.decided or len(one.ops) % 2:
                self._commit(0, 0)
            else:
                self._rollback(0, 0)
        for store_id in self.cluster.store.store_ids:
            self.cluster.start_store(store_id)
        for mend in (self._elect, self._go_on, self._show_regions, self._pd_knows):
            mend(0, 0)
        end_ts = self.cluster.oracle.tso()
        for _ in range(SETTLE_TURNS):
            self._tick(2, 0)
            self.cluster.turn(6)
            self._round(0, 0)
            self.cluster.turn(2)
            self._deliver_all(0, 0)
            if self.fatal:
                raise LawBrokenError(f"the feed ended: {self.fatal[0]}")
            if min(self.landed.resolved_ts.values()) >= end_ts:
                return
        raise LawBrokenError(f"stuck: {[span for span in self.feed.status() if span.reason or span.still_s > 5]}")

    def check(self) -> None:
        """Compare what landed with the store's write records, and those with what the coordinators know; look at the
        streams' rules."""
        if self.cluster.broken:
            raise self.cluster.broken[0]
        wanted: dict[TableId, set[Change]] = {table: set() for table in TABLES}
        recorded: dict[tuple[bytes, Ts], tuple[Ts, LockKind, bytes, int]] = {}
        for region in self.cluster.store.regions:
            for key, newest in region.data.writes.items():
                table = next(table for table in TABLES if table_span(table)[0] <= key < table_span(table)[1])
                write = newest
                while write is not None:
                    recorded[key, write.commit_ts] = (write.start_ts, write.op, write.value, write.txn_source)
                    if write.txn_source < LOSSY_SOURCE:
                        before = write.previous.value if write.previous is not None else b""
                        wanted[table].add(
                            (write.commit_ts, write.start_ts, int(write.op), key, write.value, before, write.txn_source)
                        )
                    write = write.previous  # type: ignore[assignment]
        if recorded != self.committed:
            raise LawBrokenError(f"the store's records differ: {sorted(recorded.items() ^ self.committed.items())[:3]}")
        for table in TABLES:
            missing, extra = wanted[table] - self.landed.changes[table], self.landed.changes[table] - wanted[table]
            if missing or extra:
                raise LawBrokenError(f"table {table}: missing {sorted(missing)[:3]}, invented {sorted(extra)[:3]}")
