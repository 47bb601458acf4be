"""Reads at a version as TiKV serves them, over gRPC: past locks, by followers, and with planted trouble."""

from collections.abc import Iterator

import grpc
import pytest

from producers.region_server.core import chaos
from producers.region_server.core.store.commands import Mutation
from producers.region_server.server import RegionServer
from schemas.errors import ConfigError
from schemas.ids import StoreId, Ts
from schemas.proto import kvrpcpb_pb2, tikvpb_pb2_grpc
from tests.support.upstream.raw_feed import Pd

MINUTES_10_MS = 600_000


@pytest.fixture
def server() -> Iterator[RegionServer]:
    with RegionServer(stores=3, replica_lag_ms=0) as running:
        before = running.begin(*(Mutation("put", key, b"old") for key in (b"a", b"b", b"c")))
        running.act(lambda _: before.commit_at_once())
        yield running


def scan(server: RegionServer, version: int, store_id: int = 0, **context: object) -> kvrpcpb_pb2.ScanResponse:
    """Scan the one region, at its leader or at a store."""
    pd = Pd(server.pd_address)
    (region,) = pd.regions()
    peer = next(p for p in region.region.peers if p.store_id == (store_id or region.leader.store_id))
    with grpc.insecure_channel(pd.stores()[peer.store_id]) as channel:
        made = kvrpcpb_pb2.Context(
            region_id=region.region.id, region_epoch=region.region.region_epoch, peer=peer, **context  # type: ignore[arg-type]
        )  # fmt: skip
        request = kvrpcpb_pb2.ScanRequest(context=made, start_key=b"", end_key=b"z", limit=10, version=version)
        return tikvpb_pb2_grpc.TikvStub(channel).KvScan(request)


def rows(response: kvrpcpb_pb2.ScanResponse) -> list[tuple[bytes, bytes]]:
    """Return keys and values."""
    assert not response.HasField("region_error"), response.region_error
    return [(pair.key, pair.value) for pair in response.pairs]


def region_error(response: kvrpcpb_pb2.ScanResponse) -> str:
    """Return which region error it is."""
    return next(field.name for field, _ in response.region_error.ListFields() if field.name != "message")


def follower_of(server: RegionServer) -> int:
    """Return a store that does not lead the region."""
    leader = server.act(lambda store: next(iter(store.regions)).leader)
    return int(leader) % 3 + 1


def test_locked_keys_come_with_all_that_a_reader_needs_to_know(server: RegionServer) -> None:
    long = server.begin(Mutation("put", b"b", b"new"), Mutation("delete", b"c"))
    server.act(lambda _: long.prewrite())
    response = scan(server, server.tso())
    assert [(pair.key, pair.HasField("error")) for pair in response.pairs] == [(b"a", False), (b"", True), (b"", True)]
    lock = response.pairs[1].error.locked
    assert (lock.key, lock.primary_lock, lock.lock_version, lock.txn_size) == (b"b", b"b", long.start_ts, 2)
    assert (lock.lock_ttl, lock.lock_type, lock.min_commit_ts) == (3_000, kvrpcpb_pb2.Put, long.start_ts + 1)
    assert response.pairs[2].error.locked.lock_type == kvrpcpb_pb2.Del


def test_push_of_the_primary_lets_a_reader_pass_by_all_locks_and_the_commit_goes_above(server: RegionServer) -> None:
    long = server.begin(Mutation("put", b"b", b"new"), Mutation("delete", b"c"))
    server.act(lambda _: long.prewrite())
    version = server.tso()
    pd = Pd(server.pd_address)
    (region,) = pd.regions()
    with grpc.insecure_channel(pd.stores()[region.leader.store_id]) as channel:
        status = tikvpb_pb2_grpc.TikvStub(channel).KvCheckTxnStatus(
            kvrpcpb_pb2.CheckTxnStatusRequest(
                context=kvrpcpb_pb2.Context(
                    region_id=region.region.id, region_epoch=region.region.region_epoch, peer=region.leader
                ),
                primary_key=b"b",
                lock_ts=long.start_ts,
                caller_start_ts=version,
                current_ts=version,
            )
        )
    assert (status.action, status.lock_ttl) == (kvrpcpb_pb2.MinCommitTSPushed, 3_000)
    old = [(b"a", b"old"), (b"b", b"old"), (b"c", b"old")]
    # The primary's lock says it by itself; c's does not know of the push.
    assert [pair.HasField("error") for pair in scan(server, version).pairs] == [False, False, True]
    assert rows(scan(server, version, resolved_locks=[long.start_ts])) == old
    assert server.act(lambda _: long.commit()) > version
    assert rows(scan(server, version)) == old
    assert rows(scan(server, server.tso())) == [(b"a", b"old"), (b"b", b"new")]


def test_locks_of_a_committed_transaction_are_read_through(server: RegionServer) -> None:
    half = server.begin(Mutation("put", b"a", b"new"), Mutation("put", b"b", b"new"), Mutation("delete", b"c"))
    server.act(lambda _: half.prewrite())
    server.act(lambda _: half.commit_primary())
    assert rows(scan(server, server.tso(), committed_locks=[half.start_ts])) == [(b"a", b"new"), (b"b", b"new")]


def test_follower_serves_only_reads_that_say_so_and_needs_a_leader_for_fresh_ones(server: RegionServer) -> None:
    follower, version = follower_of(server), server.tso()
    assert region_error(scan(server, version, follower)) == "not_leader"
    assert len(rows(scan(server, version, follower, replica_read=True))) == 3
    assert len(rows(scan(server, version, follower, stale_read=True))) == 3
    region_id = server.act(lambda store: next(iter(store.regions)).region_id)
    server.act(lambda store: store.transfer_leader(region_id, chaos.NO_STORE))
    assert region_error(scan(server, version, 1, replica_read=True)) == "not_leader"
    assert len(rows(scan(server, version, 1, stale_read=True))) == 3


def test_stale_read_above_safe_ts_is_not_ready_and_says_where_it_is(server: RegionServer) -> None:
    open_one = server.begin(Mutation("put", b"b", b"new"))
    server.act(lambda _: open_one.prewrite())
    response = scan(server, server.tso(), follower_of(server), stale_read=True)
    assert response.region_error.data_is_not_ready.safe_ts == open_one.start_ts - 1
    assert len(rows(scan(server, open_one.start_ts - 1, follower_of(server), stale_read=True))) == 3


@pytest.mark.parametrize("error", [error for error in chaos.CALL_ERRORS if error != "none"])
def test_planted_refusals_answer_as_many_calls_as_they_should(server: RegionServer, error: str) -> None:
    leader = server.act(lambda store: next(iter(store.regions)).leader)
    server.perform(chaos.RefuseCalls(leader, error, 2, 7))
    first, second, third = (scan(server, server.tso()) for _ in range(3))
    assert (region_error(first), region_error(second)) == (error, error)
    assert first.region_error.server_is_busy.backoff_ms == (7 if error == "server_is_busy" else 0)
    assert len(rows(third)) == 3


def test_planted_refusal_that_does_not_exist_is_refused_itself(server: RegionServer) -> None:
    with pytest.raises(ConfigError):
        server.perform(chaos.RefuseCalls(StoreId(1), "tired"))


def test_versions_that_were_collected_are_missing_and_no_error_says_so() -> None:
    with RegionServer(stores=1) as server:
        for value in (b"1", b"2"):
            writing = server.begin(Mutation("put", b"a", value))
            first_ts = Ts(server.act(lambda _, step=writing: step.commit_at_once()))  # type: ignore[misc]
        old_ts = Ts(first_ts - 1)
        assert rows(scan(server, old_ts)) == [(b"a", b"1")]
        server.act(lambda store: store.gc(server.oracle.last))
        # As real: nothing says so. A reader asks PD for the safe point once it has read.
        assert rows(scan(server, old_ts)) == []
