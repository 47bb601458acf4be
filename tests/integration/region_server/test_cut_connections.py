"""The client over real sockets that are cut at random bytes: in a request, in a header, in the middle of a message.

What it folds to is compared with the store's own write records, walked here.
"""

import contextlib
import functools
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from compose.foresight.feed_dry_run import FeedCollector, play, read_spans
from producers.pull.core.match.change_columns import Change
from producers.pull.core.regions import stream_errors
from producers.pull.feed.event_feed import EventFeed
from producers.pull.feed.types import FeedSettings
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Rollback, Txn
from producers.region_server.kv.store import ClusterStore
from producers.region_server.replay.player import FeedReplayServer, read_feed_folder
from producers.region_server.server import RegionServer
from schemas.errors import BusError
from schemas.ids import StoreId, TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.spans import TableSpan
from tests.support.recorded.recording import read_jsonl
from tests.support.upstream.cutting_proxy import CuttingProxy

FEED = Path(__file__).parents[2] / "data" / "tikv-feed"
TABLE = TableId(45)
KEYS = [row_key(TABLE, handle) for handle in range(200)]
CUTS_MIN = 25


@pytest.fixture(autouse=True)
def _short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose stream broke is left alone for a second; here connections break all the time."""
    monkeypatch.setattr(stream_errors, "REOPEN_MS", 50)


def put_proxies(
    stack: contextlib.ExitStack, addresses: dict[StoreId, str], seed: int, **lives: int
) -> list[CuttingProxy]:
    """Put a proxy before every store and write its address in the place of the store's."""
    made = []
    for store_id, address in list(addresses.items()):
        made.append(stack.enter_context(CuttingProxy(address, seed + store_id, **lives)))
        addresses[store_id] = made[-1].address
    return made


def wait_until(done: Callable[[], bool], errors: list[BusError], feed: EventFeed, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert not errors, errors
        assert time.monotonic() < deadline, feed.status()
        time.sleep(0.02)


def write_records(store: ClusterStore, after_ts: Ts) -> set[Change]:
    """Return every version that the store holds above a ts."""
    changes_seen = set[Change]()
    for region in store.regions:
        for key, newest in region.data.writes.items():
            write = newest
            while write is not None and write.commit_ts > after_ts:
                before = write.previous.value if write.previous is not None else b""
                changes_seen.add(
                    (write.commit_ts, write.start_ts, int(write.op), key, write.value, before, write.txn_source)
                )
                write = write.previous  # type: ignore[assignment]
    return changes_seen


class Writer:
    """Random transactions, one at a time; some are rolled back, some keys are deleted, some rows are large."""

    def __init__(self, server: RegionServer, seed: int) -> None:
        self._server = server
        self._dice = random.Random(seed)

    def write(self) -> Ts:
        """Run one and return a ts above it."""
        dice, server = self._dice, self._server
        keys = dice.sample(KEYS, dice.randrange(1, 30))
        size = dice.choice((10, 100, 4_000))
        mutations = tuple(
            Mutation("delete", key) if dice.random() < 0.2 else Mutation("put", key, dice.randbytes(size))
            for key in keys
        )
        txn = Txn(start_ts=server.tso(), primary=keys[0])
        server.apply(Prewrite(txn=txn, mutations=mutations))
        if dice.random() < 0.15:
            server.apply(Rollback(start_ts=txn.start_ts, keys=tuple(keys)))
        else:
            server.apply(Commit(start_ts=txn.start_ts, commit_ts=server.tso(), keys=tuple(keys)))
        if dice.random() < 0.05:
            server.act(lambda store: store.split(dice.choice(KEYS)))
        return server.tso()


@pytest.mark.parametrize("multiplexing", [True, False])
def test_event_feed_when_streams_are_cut_at_random_bytes_then_it_folds_to_the_committed_history(
    multiplexing: bool,
) -> None:
    sink, errors = FeedCollector(), list[BusError]()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(RegionServer(stores=3, min_ts_interval_ms=20))
        cutters = put_proxies(stack, server.pd.addresses, 11)
        writer = Writer(server, 5)
        start_ts = writer.write()
        for at in (50, 100, 150):
            server.act(functools.partial(ClusterStore.split, key=KEYS[at]))
        pd = PdClient(server.pd_address)
        feed = EventFeed(RegionCache(pd), sink, errors.append, FeedSettings(multiplexing=multiplexing))
        feed.start()
        try:
            feed.subscribe(TableSpan.of_table(TABLE), start_ts)
            end_ts, deadline = start_ts, time.monotonic() + 120
            while sum(proxy.cuts for proxy in cutters) < CUTS_MIN:
                assert not errors, errors
                assert time.monotonic() < deadline, feed.status()
                end_ts = writer.write()
                time.sleep(0.01)
            for proxy in cutters:
                proxy.calm()
            wait_until(lambda: sink.resolved_ts.get(TABLE, 0) >= end_ts, errors, feed)
            wanted = server.act(lambda store: write_records(store, start_ts))
        finally:
            feed.stop()
            pd.close()
    assert sink.changes[TABLE] == wanted
    assert len(wanted) > 500
    assert feed.counters.stream_failures > CUTS_MIN / 2


def test_event_feed_on_a_recorded_feed_when_streams_are_cut_then_every_expected_change_lands() -> None:
    """The recorded stores go on from whatever ts the client asks: each cut costs only what was under way."""
    spans, cutters = read_spans(FEED), list[CuttingProxy]()
    with contextlib.ExitStack() as stack:

        def on_listening(server: FeedReplayServer) -> None:
            # One scan of 20,000 rows takes megabytes, and must come through in one piece now and then.
            cutters.extend(put_proxies(stack, server.addresses, 30, bytes_min=5_000, bytes_max=6_000_000))

        played = play(read_feed_folder(FEED), spans, speed=30.0, on_listening=on_listening)
    named = {span.span.table_id: span for span in spans}
    landed = {
        (named[table_id].name, commit_ts, start_ts, key.hex(), value.hex(), old_value.hex())
        for table_id, changes in played.collected.changes.items()
        for commit_ts, start_ts, _, key, value, old_value, _ in changes
        if commit_ts <= named[table_id].until
    }
    assert landed == {
        (row["sub"], row["commit_ts"], row["start_ts"], row["key"], row["value"] or "", row["old_value"] or "")
        for row in read_jsonl(FEED / "expected.jsonl.zst")
    }
    assert sum(proxy.cuts for proxy in cutters) >= 3
