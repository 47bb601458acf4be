"""The event feed against the embedded cluster: a real TiDB's recorded traffic must come out whole.

The oracle is `tests.support.recorded.recording`: the fold of the recorded write requests, which shares no code with the
product.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection

import pytest

from producers.pull.core.match.change_columns import Change
from producers.pull.feed.event_feed import EventFeed
from producers.pull.feed.types import FeedSettings
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Txn
from producers.region_server.kv.store import ClusterStore
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.errors import BusError
from schemas.ids import RegionId, TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.spans import TableSpan
from tests.support.recorded.recording import TIDB_DATA, committed_changes, row_table_id

pytestmark = pytest.mark.integration


class Collected:
    """A sink that keeps everything and holds the feed to its word about resolved ts."""

    def __init__(self) -> None:
        self.changes: dict[TableId, set[Change]] = defaultdict(set)
        self.live_repeats = 0
        self.resolved_ts: dict[TableId, Ts] = {}
        self.errors: list[BusError] = []

    def rows(self, span: TableSpan, region_id: RegionId, changes: Collection[Change], *, may_repeat: bool) -> None:
        resolved_ts = self.resolved_ts.get(span.table_id, 0)
        known = self.changes[span.table_id]
        for change in changes:
            if change in known:
                assert may_repeat, f"a live change came twice: {change}"
            else:
                assert change[0] > resolved_ts, f"new change at or below the resolved ts {resolved_ts}: {change}"
        known.update(changes)

    def resolved(self, span: TableSpan, ts: Ts) -> None:
        assert ts > self.resolved_ts.get(span.table_id, 0)
        self.resolved_ts[span.table_id] = ts

    def turn(self, now_s: float) -> float:
        return 0.05

    def saturated(self) -> bool:
        return False


def wait_until(done: Callable[[], bool], sink: Collected, feed: EventFeed, timeout_s: float = 180.0) -> None:
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


def break_a_stream(feed: EventFeed, dice: random.Random) -> None:
    """Cut one connection, as a store that restarts does."""
    with feed.lock:
        streams = list(feed._streams)
    if streams:
        dice.choice(streams).transport._call.cancel()


REPLAY_SPEED = 4.0
"""The recording's 14 s in 4, so that trouble comes while rows do on a fast machine too."""
SHAKES_MIN = 60


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
    sink = Collected()
    server = RegionServer(stores=3, min_ts_interval_ms=50)
    replay = Replay(server, read_recording(TIDB_DATA))
    with server:
        wanted = recorded_changes(replay.bootstrap_ts)
        pd = PdClient(server.pd_address)
        feed = EventFeed(RegionCache(pd), sink, sink.errors.append, FeedSettings(multiplexing=multiplexing))

        def resolved_ts(table_id: TableId) -> Ts:
            return sink.resolved_ts.get(table_id, replay.bootstrap_ts)

        feed.start()
        try:
            for table_id in wanted:
                feed.subscribe(TableSpan.of_table(table_id), replay.bootstrap_ts)
            running = server.spawn(replay.run(REPLAY_SPEED, wait_for_subscriber=True))
            shakes, turned = 0, list(wanted)[::3]
            while not running.done() or shakes < SHAKES_MIN:
                server.act(lambda store: shake(store, dice))
                shakes += 1
                if dice.random() < 0.1:
                    break_a_stream(feed, dice)
                if turned and dice.random() < 0.3:
                    table_id = turned.pop()
                    with feed.lock:  # as when the owner takes a table away and gives it back
                        feed.unsubscribe(table_id)
                        feed.subscribe(TableSpan.of_table(table_id), resolved_ts(table_id))
                time.sleep(0.05)
            running.result()
            break_a_stream(feed, dice)
            end_ts = replay.progress.last_ts
            wait_until(lambda: all(sink.resolved_ts.get(t, 0) >= end_ts for t in wanted), sink, feed)
            assert feed.counters.region_errors > 20
            assert feed.counters.stream_failures > 0
        finally:
            feed.stop()
            pd.close()
    for table_id, changes in wanted.items():
        assert sink.changes[table_id] == changes, f"table {table_id}"


def test_event_feed_when_pd_goes_away_then_the_span_says_so_and_nothing_is_lost_when_it_is_back() -> None:
    sink = Collected()
    with RegionServer(stores=1, min_ts_interval_ms=50) as server:
        table_id = TableId(45)
        key = row_key(table_id, 1)

        def put(value: bytes) -> int:
            txn = Txn(start_ts=server.tso(), primary=key)
            server.apply(Prewrite(txn=txn, mutations=(Mutation("put", key, value),)))
            commit_ts = server.tso()
            server.apply(Commit(start_ts=txn.start_ts, commit_ts=commit_ts, keys=(key,)))
            return commit_ts

        put(b"before")
        start_ts = server.tso()
        pd = PdClient(server.pd_address, deadline_s=0.5)
        assert pd.cluster_id
        address, pd._leader, pd._addresses = pd._leader, "127.0.0.1:1", ["127.0.0.1:1"]
        feed = EventFeed(RegionCache(pd), sink, sink.errors.append)
        feed.start()
        try:
            feed.subscribe(TableSpan.of_table(table_id), start_ts)
            wait_until(lambda: "pd_unreachable" in feed.status()[0].reason, sink, feed)
            assert "127.0.0.1:1" in feed.status()[0].reason
            commit_ts = put(b"after")
            assert address is not None
            pd._addresses = [address]
            wait_until(lambda: sink.resolved_ts.get(table_id, 0) > commit_ts, sink, feed)
        finally:
            feed.stop()
            pd.close()
    assert {(change[0], change[4], change[5]) for change in sink.changes[table_id]} == {
        (commit_ts, b"after", b"before")
    }


@pytest.mark.parametrize("multiplexing", [True, False])
def test_event_feed_when_a_tables_regions_split_and_merge_again_and_again_then_it_goes_on(multiplexing: bool) -> None:
    """Each round ends with one region: parts of it that were registered apart must not wait for each other."""
    sink, dice, table_id, written = Collected(), random.Random(3), TableId(45), set[tuple[int, bytes]]()
    keys = [row_key(table_id, handle) for handle in range(40)]
    with RegionServer(stores=2, min_ts_interval_ms=20) as server:
        pd = PdClient(server.pd_address)
        feed = EventFeed(RegionCache(pd), sink, sink.errors.append, FeedSettings(multiplexing=multiplexing))

        def put() -> int:
            chosen = dice.sample(keys, 5)
            txn = Txn(start_ts=server.tso(), primary=chosen[0])
            server.apply(Prewrite(txn=txn, mutations=tuple(Mutation("put", key, b"v") for key in chosen)))
            commit_ts = server.tso()
            server.apply(Commit(start_ts=txn.start_ts, commit_ts=commit_ts, keys=tuple(chosen)))
            written.update((commit_ts, key) for key in chosen)
            return commit_ts

        feed.start()
        try:
            feed.subscribe(TableSpan.of_table(table_id), server.tso())
            for _ in range(8):
                for key in dice.sample(keys, 3):
                    server.act(lambda store, key=key: store.split(key))  # type: ignore[misc]
                commit_ts = put()
                if dice.random() < 0.7:
                    wait_until(lambda ts=commit_ts: sink.resolved_ts.get(table_id, 0) > ts, sink, feed)  # type: ignore[misc]
                while server.act(lambda store: len(list(store.regions))) > 1:
                    server.act(lambda store: store.merge(dice.choice(list(store.regions)[:-1]).region_id))
                    put()
                    time.sleep(dice.choice([0.0, 0.03, 0.1]))
            commit_ts = put()
            wait_until(lambda: sink.resolved_ts.get(table_id, 0) > commit_ts, sink, feed)
        finally:
            feed.stop()
            pd.close()
    assert {(change[0], change[3]) for change in sink.changes[table_id]} == written
