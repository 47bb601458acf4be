"""The event feed against the embedded cluster: a real TiDB's recorded traffic must come out whole.

The oracle is `tests.support.recording`: the fold of the recorded write requests, which shares no code with the product.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

from producers.core.matcher import Change
from producers.core.subscription import TableSpan
from producers.event_feed import EventFeed, FeedSettings
from producers.pd_client import PdClient
from producers.region_cache import RegionCache
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from producers.region_server.store import ClusterStore
from schemas.errors import BusError
from schemas.ids import RegionId, TableId, Ts
from schemas.tidb.keys import table_span
from tests.support.recording import TIDB_DATA, committed_changes, row_table_id

pytestmark = pytest.mark.integration


class Collected:
    """A sink that keeps everything and holds the feed to its word about resolved ts."""

    def __init__(self) -> None:
        self.changes: dict[TableId, set[Change]] = defaultdict(set)
        self.live_repeats = 0
        self.resolved_ts: dict[TableId, Ts] = {}
        self.errors: list[BusError] = []

    def rows(self, table_id: TableId, region_id: RegionId, changes: list[Change], *, may_repeat: bool) -> None:
        resolved_ts = self.resolved_ts.get(table_id, 0)
        known = self.changes[table_id]
        for change in changes:
            if change in known:
                assert may_repeat, f"a live change came twice: {change}"
            else:
                assert change[0] > resolved_ts, f"new change at or below the resolved ts {resolved_ts}: {change}"
        known.update(changes)

    def resolved(self, table_id: TableId, ts: Ts) -> None:
        assert ts > self.resolved_ts.get(table_id, 0)
        self.resolved_ts[table_id] = ts

    def turn(self, now_s: float) -> float:
        return 0.05

    def saturated(self) -> bool:
        return False


def wait_until(done: Callable[[], bool], sink: Collected, feed: EventFeed, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert not sink.errors, sink.errors
        assert time.monotonic() < deadline, [span for span in feed.status() if span.reason or span.still_s > 5]
        time.sleep(0.05)


def recorded_changes(after_ts: int) -> dict[TableId, set[Change]]:
    wanted: dict[TableId, set[Change]] = defaultdict(set)
    for change in committed_changes():
        table_id = row_table_id(change.key)
        if table_id is not None and change.commit_ts > after_ts and change.txn_source < 1 << 8:
            op = 1 if change.op == "put" else 2
            wanted[TableId(table_id)].add(
                (change.commit_ts, change.start_ts, op, change.key, change.value, change.old_value, change.txn_source)
            )
    return wanted


def shake(store: ClusterStore, dice: random.Random) -> None:
    """Move a leader, split a region or merge two."""
    regions = list(store.regions)
    region = dice.choice(regions)
    kind = dice.random()
    if kind < 0.4:
        store.transfer_leader(region.region_id, dice.choice(store.store_ids))
    elif kind < 0.7 and (keys := region.data.keys_between(b"", b"")):
        store.split(dice.choice(keys))
    elif region is not regions[-1]:
        store.merge(region.region_id)


@pytest.mark.parametrize("multiplexing", [True, False])
def test_event_feed_over_a_recording_under_region_trouble_gives_every_change(multiplexing: bool) -> None:
    dice = random.Random(7)
    recording = read_recording(TIDB_DATA)
    sink = Collected()
    with RegionServer(stores=3, min_ts_interval_ms=50) as server:
        replay = Replay(server, recording)
        server.call(replay.load())
        wanted = recorded_changes(replay.bootstrap_ts)
        pd = PdClient(server.pd_address)
        feed = EventFeed(RegionCache(pd), sink, sink.errors.append, FeedSettings(multiplexing=multiplexing))
        feed.start()
        try:
            for table_id in wanted:
                feed.subscribe(TableSpan(table_id, *table_span(table_id)), replay.bootstrap_ts)
            running = server.spawn(replay.run(wait_for_subscriber=True))
            while not running.done():
                server.act(lambda store: shake(store, dice))
                time.sleep(0.05)
            running.result()
            end_ts = replay.progress.last_ts
            wait_until(lambda: all(sink.resolved_ts.get(t, 0) >= end_ts for t in wanted), sink, feed)
            assert feed.counters.region_errors > 20
        finally:
            feed.stop()
            pd.close()
    for table_id, changes in wanted.items():
        assert sink.changes[table_id] == changes, f"table {table_id}"
