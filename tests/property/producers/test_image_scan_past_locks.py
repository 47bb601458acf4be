"""Scans of table images over transactions of all kinds, and regions that move: exactly what stood at the version.

Everything but the sockets is real: the page reader, the resolver, the KV client and its cache against the region
server's own KV calls.
"""

import threading
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.errors import ImageVersionGoneError
from producers.pull.images.page_reader import PageReader
from producers.pull.images.quotas import StoreQuotas
from producers.pull.images.scanner import check_version
from producers.pull.images.settings import ImageScanSettings, ReadFrom
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.chaos import CALL_ERRORS
from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Rollback, Txn
from schemas.ids import StoreId, Ts, compose_ts
from tests.support.upstream.direct_cluster import NOW_MS, DirectCluster, DirectPd

KEYS = [b"t%02d" % number for number in range(40)]
START, END = b"t", b"u"
VERSION = compose_ts(NOW_MS, 1)
LIVE_TTL_MS = 10 * NOW_MS


@dataclass(frozen=True)
class Plan:
    """One transaction over keys of its own, begun before the version, and how far it got."""

    keys: tuple[bytes, ...]
    deletes: bool
    live: bool
    committed: int
    """How many of its keys, from the primary on; 0: none. All others are locked."""
    commits_below: bool
    rolled_back: bool
    """Its primary was, its other keys are still locked."""


@st.composite
def plans(draw: st.DrawFn) -> list[Plan]:
    """Draw transactions."""
    keys, out = draw(st.permutations(KEYS)), list[Plan]()
    while keys and len(out) < 6:
        size = draw(st.integers(1, 8))
        own, keys = tuple(keys[:size]), keys[size:]
        committed = draw(st.integers(0, size))
        out.append(
            Plan(own, draw(st.booleans()), draw(st.booleans()), committed, draw(st.booleans()),
                 not committed and draw(st.booleans()))
        )  # fmt: skip
    return out


def write(cluster: DirectCluster, plan: Plan, start_ts: Ts, number: int) -> dict[bytes, bytes | None]:
    """Write what the transaction wrote; return what of it a reader at VERSION must see (None: deleted)."""
    op, value = ("delete", b"") if plan.deletes else ("put", b"new%d" % number)
    txn = Txn(
        start_ts=start_ts,
        primary=plan.keys[0],
        ttl_ms=LIVE_TTL_MS if plan.live else 3_000,
        min_commit_ts=Ts(start_ts + 1),
        size=len(plan.keys),
    )
    cluster.store.apply(Prewrite(txn=txn, mutations=[Mutation(op, key, value) for key in plan.keys]))  # type: ignore[arg-type]
    commit_ts = Ts(start_ts + 10) if plan.commits_below else Ts(VERSION + 10)
    if plan.committed:
        cluster.store.apply(Commit(start_ts=start_ts, commit_ts=commit_ts, keys=plan.keys[: plan.committed]))
    elif plan.rolled_back:
        cluster.store.apply(Rollback(start_ts=start_ts, keys=plan.keys[:1]))
    seen = plan.committed and plan.commits_below
    return dict.fromkeys(plan.keys, None if plan.deletes else value) if seen else {}


def reader(cluster: DirectCluster, read_from: ReadFrom = "leader", **more: float) -> tuple[PageReader, DirectPd]:
    """Return a reader of the cluster whose waits cost nothing."""
    pd = DirectPd(cluster)
    kv = KvClient(RegionCache(pd))
    resolver = LockResolver(kv)
    resolver._closed.wait = lambda timeout=None: False  # type: ignore[method-assign]
    stopped = threading.Event()
    stopped.wait = lambda timeout=None: False  # type: ignore[method-assign]
    chosen = ImageScanSettings(read_from=read_from, scan_s_max=more.pop("scan_s_max", 60.0))
    return PageReader(kv, resolver, StoreQuotas(chosen), chosen, stopped), pd


def scanned(pages: PageReader, bytes_max: int = 1 << 30, version: Ts = VERSION) -> tuple[dict[bytes, bytes], bytes]:
    """Return all rows and how far the scan came; keys must ascend over all pages, and pages must join."""
    rows, keys, at = dict[bytes, bytes](), list[bytes](), START
    for page in pages.pages(START, END, version, bytes_max):
        assert page.start == at
        at = page.next_key
        new = page.rows.key.to_pylist()
        assert all(page.start <= key < page.next_key for key in new)
        keys += new
        rows |= dict(zip(new, page.rows.value.to_pylist(), strict=True))
    assert keys == sorted(set(keys))
    return rows, at


EVENTS = st.lists(
    st.tuples(st.sampled_from(["split", "merge", "move", *CALL_ERRORS]), st.integers(0, 1_000)), max_size=40
)


@given(plans(), EVENTS, st.lists(st.sampled_from(KEYS), max_size=5), st.sampled_from(["leader", "follower", "stale"]))
@settings(deadline=None, max_examples=200)
def test_scan_over_transactions_of_all_kinds_and_moving_regions_gives_what_stood_at_the_version(
    made: list[Plan], events: list[tuple[str, int]], split_at: list[bytes], read_from: ReadFrom
) -> None:
    cluster = DirectCluster(events)
    cluster.split_keys, cluster.resolved_ts = KEYS, VERSION
    for key in split_at:
        cluster.store.split(key)
    before = dict.fromkeys(KEYS[::2], b"old")
    old = Txn(start_ts=Ts(5), primary=b"t")
    cluster.store.apply(
        Prewrite(txn=old, mutations=[Mutation("put", *row) for row in before.items()], one_pc_commit_ts=Ts(6))
    )
    expected: dict[bytes, bytes | None] = dict(before)
    for number, plan in enumerate(made):
        expected |= write(cluster, plan, compose_ts(NOW_MS - 60_000, number * 1_000), number)
    rows, reached = scanned(reader(cluster, read_from)[0])
    assert reached == END
    assert rows == {key: value for key, value in expected.items() if value is not None}


def locked_for_long(cluster: DirectCluster, keys: list[bytes], **more: object) -> Txn:
    """Leave the locks of a transaction that lives for hours, over rows that are there."""
    old = Txn(start_ts=Ts(5), primary=b"t")
    cluster.store.apply(
        Prewrite(txn=old, mutations=[Mutation("put", key, b"old") for key in KEYS], one_pc_commit_ts=Ts(6))
    )
    start_ts = compose_ts(NOW_MS - 60_000)
    txn = Txn(start_ts=start_ts, primary=keys[0], ttl_ms=LIVE_TTL_MS, **more)  # type: ignore[arg-type]
    cluster.store.apply(Prewrite(txn=txn, mutations=[Mutation("put", key, b"new") for key in keys]))
    return txn


def test_scan_over_a_long_transaction_asks_once_and_the_transaction_commits_above() -> None:
    cluster = DirectCluster()
    for key in KEYS[5::5]:
        cluster.store.split(key)
    txn = locked_for_long(cluster, KEYS, min_commit_ts=Ts(compose_ts(NOW_MS - 60_000) + 1))
    rows, reached = scanned(reader(cluster)[0])
    assert (rows, reached) == (dict.fromkeys(KEYS, b"old"), END)
    names = [name for _, name, _ in cluster.calls]
    assert names.count("KvCheckTxnStatus") == 1
    assert names.count("KvResolveLock") == 0
    assert len([name for name in names if name == "KvScan"]) == len(list(cluster.store.regions)) + 1
    assert cluster.store.data_of(KEYS[0]).locks[KEYS[0]].txn.min_commit_ts > VERSION
    assert {key for region in cluster.store.regions for key in region.data.locks} == set(KEYS), txn


def test_scan_over_a_transaction_that_cannot_be_pushed_ends_with_what_stands_before_it() -> None:
    cluster = DirectCluster()
    locked_for_long(cluster, [KEYS[9]], min_commit_ts=Ts(0))
    pages, _ = reader(cluster, scan_s_max=0.2)
    rows, reached = scanned(pages)
    assert rows == dict.fromkeys(KEYS[:9], b"old")
    assert reached == KEYS[8] + b"\0"
    assert "stand" in pages.trouble


def test_scan_up_to_bytes_ends_behind_the_row_that_reaches_them() -> None:
    cluster = DirectCluster()
    locked_for_long(cluster, [b"tzz"], min_commit_ts=Ts(1))
    for bytes_max, count in ((1, 1), (6, 1), (7, 2), (12, 2), (13, 3), (240, 40)):
        rows, reached = scanned(reader(cluster)[0], bytes_max)  # a row has 3 bytes of key and 3 of value
        assert len(rows) == count
        assert reached == KEYS[count - 1] + b"\0"


def test_scan_asks_low_priority_uncached_reads_of_the_replica_it_was_set_to() -> None:
    for read_from in ("leader", "follower", "stale"):
        cluster = DirectCluster()
        cluster.resolved_ts = VERSION
        locked_for_long(cluster, [b"tzz"], min_commit_ts=Ts(VERSION + 1))
        pages, _ = reader(cluster, read_from)
        rows, _ = scanned(pages, version=Ts(7))
        assert len(rows) == len(KEYS)
        address, name, request = cluster.calls[0]
        context = request.context
        assert (name, context.not_fill_cache, context.priority, context.isolation_level) == ("KvScan", True, 1, 0)
        assert (context.replica_read, context.stale_read) == (read_from == "follower", read_from == "stale")
        leader = cluster.store.regions.of_key(START).leader
        assert (address == f"store-{leader}") == (read_from == "leader")


def test_stale_scan_above_the_followers_safe_ts_falls_back_to_the_leader() -> None:
    cluster = DirectCluster()
    locked_for_long(cluster, [b"tzz"], min_commit_ts=Ts(VERSION + 1))
    rows, reached = scanned(reader(cluster, "stale")[0])
    assert (len(rows), reached) == (len(KEYS), END)
    leader = cluster.store.regions.of_key(START).leader
    stores = [StoreId(int(address[-1])) for address, name, _ in cluster.calls if name == "KvScan"]
    assert stores[0] != leader
    assert leader in stores


def test_version_that_garbage_collection_has_passed_is_named() -> None:
    _, pd = reader(DirectCluster())
    check_version(pd, VERSION)
    pd.safe_point = VERSION
    check_version(pd, VERSION)
    pd.safe_point = Ts(VERSION + 1)
    with pytest.raises(ImageVersionGoneError):
        check_version(pd, VERSION)
