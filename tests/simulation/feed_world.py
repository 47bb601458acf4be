"""A world of one event feed and one embedded cluster, driven step by step; its oracle is the store's write records.

A schedule is a list of steps ``(kind, a, b)``. The numbers choose among what there is at that moment (keys, open
transactions, regions, streams), so that a schedule stays valid whatever is taken out of it: that is how it is shrunk.
"""

import asyncio
import functools
import random
from collections.abc import Callable, Collection

import grpc

from producers.pull.core.match.change_columns import Change
from producers.pull.feed.event_feed import EventFeed
from producers.pull.feed.locator import Locator
from producers.pull.feed.types import FeedSettings
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.chaos import NO_STORE
from producers.region_server.core.store.mvcc import LockKind
from producers.region_server.core.store.regions import Region
from schemas.errors import BusError
from schemas.ids import RegionId, StoreId, TableId, Ts
from schemas.tidb.keys import table_span
from schemas.tidb.spans import TableSpan
from tests.simulation.feed_cluster import SimCluster, SimStream
from tests.simulation.feed_coordinators import KEYS, LOSSY_SOURCE, TABLES, Coordinators

Step = tuple[str, int, int]
SETTLE_TURNS = 600
"""Of 0.25 s: far more than the longest back-off (2 s) and every store's second of rest need."""

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
    "lose_call",
    "round",
    "round_one",
    "round_one",
)
CLIENT = ("tick", "tick", "tick", "resubscribe")
FLOW = ("flow", "flow_slow")


class LawBrokenError(AssertionError):
    """The feed lost, invented or overtook a change, or got stuck."""


class Landed:
    """The feed's sink: keeps what came and holds the feed to its resolved ts."""

    def __init__(self) -> None:
        self.changes: dict[TableId, set[Change]] = {table: set() for table in TABLES}
        self.resolved_ts: dict[TableId, Ts] = dict.fromkeys(TABLES, Ts(0))

    def rows(self, span: TableSpan, region_id: RegionId, changes: Collection[Change], *, may_repeat: bool) -> None:
        known, resolved_ts = self.changes[span.table_id], self.resolved_ts[span.table_id]
        for change in changes:
            if change in known:
                if not may_repeat:
                    raise LawBrokenError(f"a live change came twice: {change}")
            elif change[0] <= resolved_ts:
                raise LawBrokenError(f"a new change at or below the resolved ts {resolved_ts}: {change}")
        known.update(changes)

    def resolved(self, span: TableSpan, ts: Ts) -> None:
        if ts <= self.resolved_ts[span.table_id]:
            raise LawBrokenError(f"resolved ts went from {self.resolved_ts[span.table_id]} to {ts}")
        self.resolved_ts[span.table_id] = ts

    def turn(self, now_s: float) -> float:
        return 1.0

    def saturated(self) -> bool:
        return False


class FeedWorld(Coordinators):
    """See the module's text. Use :func:`tests.simulation.feed_schedules.run_schedule`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, *, multiplexing: bool) -> None:
        self.now_s = 100.0
        dice = random.Random(seed)
        super().__init__(SimCluster(loop, lambda: self.now_s, fake_prewrites=seed % 5 == 4))
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
        for table in TABLES:
            self.feed.subscribe(TableSpan.of_table(table), Ts(0))

    def _make_locator(self, dice: random.Random) -> Callable[..., Locator]:
        def make(cache: RegionCache, deliver: Callable[..., None]) -> Locator:
            self.locator = Locator(cache, deliver, clock=lambda: self.now_s, jitter=dice.random)
            return self.locator

        return make

    def do(self, step: Step) -> None:
        """Take one step; one that does not apply at this moment does nothing."""
        kind, a, b = step
        getattr(self, f"_{kind}")(a, b)

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

    def _lose_call(self, a: int, b: int) -> None:
        """The next stream to a store reaches nobody: it shuts down or starts at that moment. Nothing comes of it."""
        self.cluster.losing.add(StoreId(1 + a % 3))

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
        self.feed.subscribe(TableSpan.of_table(table), self.landed.resolved_ts[table])

    # The end ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """End every transaction, mend everything, and wait until the spans are resolved past all commits."""
        while self.open:
            opened = self.open[0]
            if opened.decided or len(opened.ops) % 2:
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
        if self.feed.counters.stranger_events:
            raise LawBrokenError(f"{self.feed.counters.stranger_events} events of what was never registered")
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
