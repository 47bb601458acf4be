"""Transactions whose writers die anywhere, over regions that move meanwhile: the resolver ends each as one whole.

Everything but the sockets is real: the resolver, the KV client and its cache against the region server's own KV calls.
"""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Txn
from producers.region_server.kv.store import ClusterStore
from schemas.ids import Ts, compose_ts
from tests.support.upstream.direct_cluster import NOW_MS, DirectCluster, DirectPd

KEYS = [b"t%02d" % number for number in range(40)]
START, END = b"t", b"u"
LIVE_TTL_MS = 10 * NOW_MS


@dataclass(frozen=True)
class Plan:
    """One transaction, and how far its writer got."""

    keys: tuple[bytes, ...]
    is_async: bool
    live: bool
    prewritten: frozenset[bytes]
    committed: frozenset[bytes]
    """Keys that carry the commit already; for 2PC the primary is among them, or none is."""

    @property
    def is_committed(self) -> bool:
        """Say whether the writer could have told its user so."""
        return bool(self.committed) or (self.is_async and self.prewritten == set(self.keys))


@st.composite
def plans(draw: st.DrawFn) -> list[Plan]:
    """Draw transactions over keys of their own."""
    keys, out = draw(st.permutations(KEYS)), list[Plan]()
    while keys and len(out) < 5:
        size = draw(st.integers(1, 8))
        own, keys = tuple(keys[:size]), keys[size:]
        is_async = draw(st.booleans())
        prewritten = frozenset(own if draw(st.booleans()) else draw(st.sets(st.sampled_from(own))))
        committed = frozenset[bytes]()
        if prewritten == set(own) and draw(st.booleans()):
            committed = frozenset(draw(st.sets(st.sampled_from(own), min_size=1)))
            committed |= frozenset() if is_async else {own[0]}
        out.append(Plan(own, is_async, draw(st.booleans()), prewritten, committed))
    return out


def write(store: ClusterStore, plan: Plan, start_ts: Ts) -> Ts:
    """Do what the writer did before it died; return the commit_ts that a commit of it has."""
    min_commit_ts = Ts(start_ts + 100) if plan.is_async else Ts(0)
    txn = Txn(
        start_ts=start_ts,
        primary=plan.keys[0],
        ttl_ms=LIVE_TTL_MS if plan.live else 3_000,
        use_async_commit=plan.is_async,
        min_commit_ts=min_commit_ts,
        secondaries=plan.keys[1:] if plan.is_async else (),
    )
    if plan.prewritten:
        store.apply(Prewrite(txn=txn, mutations=[Mutation("put", key, b"v") for key in sorted(plan.prewritten)]))
    commit_ts = min_commit_ts or Ts(start_ts + 200)
    if plan.committed:
        store.apply(Commit(start_ts=start_ts, commit_ts=commit_ts, keys=sorted(plan.committed)))
    return commit_ts


EVENTS = st.lists(st.tuples(st.sampled_from(["split", "merge", "move"]), st.integers(0, 1_000)), max_size=30)


@given(plans(), EVENTS, st.lists(st.sampled_from(KEYS), max_size=5))
@settings(deadline=None, max_examples=150)
def test_resolver_writers_died_anywhere_then_every_transaction_ends_whole_or_is_left_whole(
    made: list[Plan], events: list[tuple[str, int]], split_at: list[bytes]
) -> None:
    cluster = DirectCluster(events)
    cluster.split_keys = KEYS
    for key in split_at:
        cluster.store.split(key)
    starts = [compose_ts(NOW_MS - 60_000, number * 1_000) for number in range(len(made))]
    commits = [write(cluster.store, plan, start_ts) for plan, start_ts in zip(made, starts, strict=True)]
    pd = DirectPd(cluster)
    resolver = LockResolver(KvClient(RegionCache(pd)))
    resolver._closed.wait = lambda timeout=None: False  # type: ignore[method-assign]
    task = resolver.resolve_range(START, END, pd.now())
    assert task.troubles == ()
    locks = {key: lock.txn.start_ts for region in cluster.store.regions for key, lock in region.data.locks.items()}
    for plan, start_ts, commit_ts in zip(made, starts, commits, strict=True):
        mine = {key for key, holder in locks.items() if holder == start_ts}
        writes = {key: cluster.store.regions.of_key(key).data.committed_by(key, start_ts) for key in plan.keys}
        at = {write.commit_ts for write in writes.values() if write is not None}
        primary_locked = plan.keys[0] in plan.prewritten - plan.committed
        if plan.live and primary_locked:
            assert mine == plan.prewritten - plan.committed, "a live transaction is left alone"
        elif plan.is_committed:
            assert mine == set()
            assert at == {commit_ts}
            assert None not in writes.values(), "all of it"
        else:
            assert at == set(), "none of it"
            # A live writer that has not reached its primary yet is waited for, and then given up for this time.
            assert mine == set() or plan.live
