"""The KV calls of a lock resolver and PD's two ways to keep history, over gRPC."""

from collections.abc import Iterator
from functools import partial

import grpc
import pytest

from producers.region_server.core import chaos
from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Txn
from producers.region_server.kv.store import ClusterStore
from producers.region_server.server import RegionServer
from schemas.ids import StoreId
from schemas.proto import kvrpcpb_pb2, pdpb_pb2, tikvpb_pb2_grpc
from tests.support.upstream.raw_feed import Pd, RawFeed, encode

TS_MAX = (1 << 64) - 1


@pytest.fixture
def server() -> Iterator[RegionServer]:
    with RegionServer(min_ts_interval_ms=20) as running:
        running.act(lambda store: store.split(b"m"))
        yield running


class Kv:
    """The calls of one region's leader."""

    def __init__(self, pd: Pd, key: bytes = b"") -> None:
        region = next(known for known in pd.regions() if not known.region.end_key or encode(key) < known.region.end_key)
        self.leader, self.address = region.leader, pd.stores()[region.leader.store_id]
        self.stub = tikvpb_pb2_grpc.TikvStub(grpc.insecure_channel(self.address))
        self.context = kvrpcpb_pb2.Context(
            region_id=region.region.id, region_epoch=region.region.region_epoch, peer=region.leader
        )

    def locks(self, limit: int = 0, start: bytes = b"") -> list[tuple[bytes, bytes]]:
        request = kvrpcpb_pb2.ScanLockRequest(
            context=self.context, max_version=TS_MAX, start_key=start, limit=limit
        )  # fmt: skip
        return [(lock.key, lock.primary_lock) for lock in self.stub.KvScanLock(request).locks]


def test_resolver_ends_an_orphan_and_resolved_ts_goes_on(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    feed = RawFeed(pd, pd.tso())
    orphan = server.begin(Mutation("put", b"a", b"1"), Mutation("put", b"b", b"1"), Mutation("put", b"x", b"1"))
    server.act(lambda _: orphan.prewrite())
    low, high = Kv(pd, b"a"), Kv(pd, b"x")
    assert low.locks(limit=1) == [(b"a", b"a")]
    assert low.locks(start=b"a\0") == [(b"b", b"a")]
    ask = kvrpcpb_pb2.CheckTxnStatusRequest(
        context=low.context, primary_key=b"a", lock_ts=orphan.start_ts, current_ts=pd.tso(), verify_is_primary=True
    )
    alive = low.stub.KvCheckTxnStatus(ask)
    assert (alive.lock_ttl, alive.action, alive.lock_info.key) == (3000, kvrpcpb_pb2.NoAction, b"a")
    wrong = kvrpcpb_pb2.CheckTxnStatusRequest(
        context=low.context, primary_key=b"b", lock_ts=orphan.start_ts, verify_is_primary=True
    )
    assert low.stub.KvCheckTxnStatus(wrong).error.primary_mismatch.lock_info.primary_lock == b"a"
    ask.current_ts = TS_MAX
    dead = low.stub.KvCheckTxnStatus(ask)
    assert (dead.action, dead.commit_version, dead.lock_ttl) == (kvrpcpb_pb2.TTLExpireRollback, 0, 0)
    for kv in (low, high):
        kv.stub.KvResolveLock(kvrpcpb_pb2.ResolveLockRequest(context=kv.context, start_version=orphan.start_ts))
        assert kv.locks() == []
    feed.read_until(pd.tso())
    feed.close()
    assert (feed.changes, feed.counts["ROLLBACK"]) == ({}, 3)


def test_committed_primary_lets_the_resolver_commit_the_rest(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    feed = RawFeed(pd, pd.tso())
    txn = server.begin(Mutation("put", b"a", b"1"), Mutation("put", b"x", b"1"))
    server.act(lambda _: txn.prewrite())
    server.act(lambda _: txn.commit_primary())
    low, high = Kv(pd, b"a"), Kv(pd, b"x")
    status = low.stub.KvCheckTxnStatus(
        kvrpcpb_pb2.CheckTxnStatusRequest(context=low.context, primary_key=b"a", lock_ts=txn.start_ts)
    )
    assert status.commit_version == txn.commit_ts
    commit = kvrpcpb_pb2.ResolveLockRequest(context=high.context)
    commit.txn_infos.add(txn=txn.start_ts, status=txn.commit_ts)
    high.stub.KvResolveLock(commit)
    feed.read_until(pd.tso())
    feed.close()
    assert sorted((key, ts) for key, ts, _ in feed.changes) == [(b"a", txn.commit_ts), (b"x", txn.commit_ts)]


def test_async_commit_is_told_by_its_secondaries(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    txn = server.begin(Mutation("put", b"a", b"1"), Mutation("put", b"x", b"1"))
    server.act(lambda _: txn.prewrite([b"a"], async_commit=True))
    low, high = Kv(pd, b"a"), Kv(pd, b"x")
    ask = kvrpcpb_pb2.CheckTxnStatusRequest(
        context=low.context, primary_key=b"a", lock_ts=txn.start_ts, current_ts=TS_MAX
    )  # fmt: skip
    primary = low.stub.KvCheckTxnStatus(ask).lock_info
    assert (primary.use_async_commit, list(primary.secondaries)) == (True, [b"x"])
    rest = kvrpcpb_pb2.CheckSecondaryLocksRequest(context=high.context, keys=[b"x"], start_version=txn.start_ts)
    answer = high.stub.KvCheckSecondaryLocks(rest)
    assert (list(answer.locks), answer.commit_ts) == ([], 0)
    late = server.act(lambda store: store.data_of(b"x").record_of(b"x", txn.start_ts))
    assert late == 0  # rolled back for good: the prewrite of x can no longer come


def test_key_errors_are_told_in_kvrpcpbs_words(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    low = Kv(pd, b"a")
    unknown = kvrpcpb_pb2.CheckTxnStatusRequest(context=low.context, primary_key=b"a", lock_ts=5)
    missing = low.stub.KvCheckTxnStatus(unknown).error.txn_not_found
    assert (missing.start_ts, missing.primary_key) == (5, b"a")
    commit = kvrpcpb_pb2.ResolveLockRequest(context=low.context, start_version=5, commit_version=6, keys=[b"a"])
    assert low.stub.KvResolveLock(commit).error.retryable
    txn = Txn(start_ts=server.tso(), primary=b"a", min_commit_ts=server.tso(100))
    server.apply(Prewrite(txn=txn, mutations=[Mutation("put", b"a", b"1")]))
    early = kvrpcpb_pb2.ResolveLockRequest(
        context=low.context, start_version=txn.start_ts, commit_version=txn.start_ts + 1, keys=[b"a"]
    )
    expired = low.stub.KvResolveLock(early).error.commit_ts_expired
    assert (expired.min_commit_ts, expired.attempted_commit_ts) == (txn.min_commit_ts, txn.start_ts + 1)
    push = kvrpcpb_pb2.CheckTxnStatusRequest(
        context=low.context, primary_key=b"a", lock_ts=txn.start_ts, caller_start_ts=server.tso(), current_ts=1
    )
    assert low.stub.KvCheckTxnStatus(push).action == kvrpcpb_pb2.MinCommitTSPushed
    server.apply(Commit(start_ts=txn.start_ts, commit_ts=server.tso(), keys=[b"a"]))
    undo = kvrpcpb_pb2.ResolveLockRequest(context=low.context, start_version=txn.start_ts, keys=[b"a"])
    assert "committed" in low.stub.KvResolveLock(undo).error.abort


def test_region_errors_are_checked_from_the_context_in_tikvs_order(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    kv = Kv(pd, b"a")

    def error_of(**changed: object) -> str:
        context = kvrpcpb_pb2.Context()
        context.CopyFrom(kv.context)
        for name, value in changed.items():
            if name == "version":
                context.region_epoch.version = int(value)  # type: ignore[call-overload]
            elif name == "store":
                context.peer.store_id = int(value)  # type: ignore[call-overload]
            elif name == "region":
                context.region_id = int(value)  # type: ignore[call-overload]
        key = changed.get("key", b"a")
        reply = kv.stub.KvResolveLock(kvrpcpb_pb2.ResolveLockRequest(context=context, start_version=1, keys=[key]))  # type: ignore[list-item]
        return next((field.name for field, _ in reply.region_error.ListFields() if field.name != "message"), "")

    assert error_of() == ""
    assert error_of(key=b"z") == "key_not_in_region"
    assert error_of(key=b"z", version=99) == "epoch_not_match"
    server.act(partial(_transfer, region_id=kv.context.region_id, to=kv.leader.store_id % 3 + 1))
    assert error_of(key=b"z", version=99) == "not_leader"
    assert error_of(key=b"z", version=99, region=999) == "region_not_found"
    assert error_of(key=b"z", version=99, region=999, store=9) == "store_not_match"


def _transfer(store: ClusterStore, region_id: int, to: int) -> None:
    region = store.regions.get(region_id)
    assert region is not None
    store.transfer_leader(region.region_id, StoreId(to))


def barrier(pd: Pd, barrier_id: str, ts: int, ttl_s: int = 60) -> pdpb_pb2.SetGCBarrierResponse:
    return pd.stub.SetGCBarrier(
        pdpb_pb2.SetGCBarrierRequest(header=pd.header, barrier_id=barrier_id, barrier_ts=ts, ttl_seconds=ttl_s)
    )


def service(pd: Pd, name: bytes, ts: int, ttl_s: int = 60) -> int:
    request = pdpb_pb2.UpdateServiceGCSafePointRequest(header=pd.header, service_id=name, TTL=ttl_s, safe_point=ts)
    return int(pd.stub.UpdateServiceGCSafePoint(request).min_safe_point)


def test_gc_barriers_hold_history_and_are_refused_behind_it() -> None:
    with RegionServer(stores=1, gc_api="both", gc_life_time_s=0.0, gc_interval_s=0.02) as server:
        pd = Pd(server.pd_address)
        wanted = pd.tso()
        assert barrier(pd, "cdc", wanted).new_barrier_info.barrier_ts == wanted
        state = pdpb_pb2.GetGCStateRequest(header=pd.header)

        def txn_safe_point() -> int:
            return int(pd.stub.GetGCState(state).gc_state.txn_safe_point)

        while txn_safe_point() < wanted:
            pass
        assert service(pd, b"other", wanted) == wanted  # mapped to a barrier; its answer is the txn safe point
        (held, other) = pd.stub.GetGCState(state).gc_state.gc_barriers
        assert [(held.barrier_id, held.barrier_ts), other.barrier_id] == [("cdc", wanted), "other"]
        assert "ErrGCBarrierTSBehindTxnSafePoint" in barrier(pd, "late", wanted - 1).header.error.message
        assert service(pd, b"late", wanted - 1) > wanted - 1
        for name in ("", "gc_worker"):
            assert barrier(pd, name, wanted).header.error.message
        assert barrier(pd, "cdc", wanted, ttl_s=0).header.error.message
        deleted = pd.stub.DeleteGCBarrier(pdpb_pb2.DeleteGCBarrierRequest(header=pd.header, barrier_id="cdc"))
        assert deleted.deleted_barrier_info.barrier_ts == wanted
        service(pd, b"other", TS_MAX >> 1, ttl_s=0)
        while txn_safe_point() == wanted:
            pass


@pytest.mark.parametrize(("gc_api", "barriers", "services"), [("service_safe_points", 0, 1), ("barriers", 1, 0)])
def test_either_way_of_keeping_history_can_be_missing(gc_api: str, barriers: int, services: int) -> None:
    with RegionServer(stores=1, gc_api=gc_api) as server:
        pd = Pd(server.pd_address)
        served = []
        for ask in (lambda: barrier(pd, "cdc", pd.tso()), lambda: service(pd, b"cdc", pd.tso())):
            try:
                ask()
                served.append(1)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED
                served.append(0)
        assert served == [barriers, services]


def test_tso_of_many_is_one_run_within_a_millisecond() -> None:
    with RegionServer(stores=1) as server:
        pd = Pd(server.pd_address)
        last = 0
        for count in (1, 5, 200_000, 200_000, 3, 1):
            ts = pd.tso(count)
            assert ts - count + 1 > last
            assert (ts - count + 1) >> 18 == ts >> 18
            last = ts


def test_calls_of_a_slow_store_are_late(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    kv = Kv(pd, b"a")
    server.perform(chaos.SlowStore(StoreId(kv.leader.store_id), 10_000, 60_000))
    with pytest.raises(grpc.RpcError) as raised:
        kv.stub.KvScanLock(kvrpcpb_pb2.ScanLockRequest(context=kv.context, max_version=1), timeout=0.2)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
