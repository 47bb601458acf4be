"""The embedded cluster under what happens to real ones: whatever it is, a client that follows the rules gets it all."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from producers.region_server.core import chaos
from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Txn
from producers.region_server.server import RegionServer
from schemas.errors import ConfigError
from schemas.ids import RegionId, StoreId
from schemas.proto import cdcpb_pb2, cdcpb_pb2_grpc, pdpb_pb2, pdpb_pb2_grpc
from tests.support.upstream.raw_feed import VERSION, Pd, RawFeed, encode
from tests.support.upstream.region_workload import Workload, split, versions


@pytest.fixture
def server() -> Iterator[RegionServer]:
    with RegionServer(min_ts_interval_ms=20, pd_members=3) as running:
        yield running


def put(server: RegionServer, key: bytes, value: bytes) -> None:
    start_ts = server.tso()
    server.apply(Prewrite(txn=Txn(start_ts=start_ts, primary=key), mutations=[Mutation("put", key, value)]))
    server.apply(Commit(start_ts=start_ts, commit_ts=server.tso(), keys=[key]))


def await_that(condition: Callable[[], bool], timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def leader_of(server: RegionServer, key: bytes = b"") -> StoreId:
    return server.act(lambda store: store.regions.of_key(key).leader)


def region_of(server: RegionServer, key: bytes = b"") -> RegionId:
    return server.act(lambda store: store.regions.of_key(key).region_id)


def values(feed: RawFeed) -> list[bytes]:
    return sorted(value for _, value, _, _ in feed.changes.values())


@pytest.mark.parametrize("new_address", [False, True])
def test_store_that_stops_ends_its_streams_unavailable_and_its_regions_move(
    server: RegionServer, new_address: bool
) -> None:
    pd = Pd(server.pd_address)
    feed = RawFeed(pd, pd.tso())
    put(server, b"a", b"1")
    feed.read_until(pd.tso())
    store, address = leader_of(server), pd.stores()[leader_of(server)]
    server.perform(chaos.StopStore(store))
    assert leader_of(server) not in (store, chaos.NO_STORE)
    assert pd.stores()[store] == address  # PD calls it up for long
    put(server, b"b", b"2")
    feed.read_until(pd.tso())
    assert [code for code, _ in feed.ends] == [grpc.StatusCode.UNAVAILABLE]
    server.perform(chaos.StartStore(store, new_address))
    assert (pd.stores()[store] != address) == new_address
    server.perform(chaos.TransferLeader(region_of(server), store))
    put(server, b"c", b"3")
    feed.read_until(pd.tso())
    feed.close()
    assert values(feed) == [b"1", b"2", b"3"]


def test_cluster_without_a_store_has_no_leaders_until_one_returns(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    server.perform(*(chaos.StopStore(StoreId(number)) for number in (1, 2, 3)))
    assert [region.leader.store_id for region in pd.regions()] == [0]
    server.perform(chaos.StartStore(StoreId(2)))
    assert [region.leader.store_id for region in pd.regions()] == [2]


@pytest.mark.parametrize("hint", [True, False])
def test_not_leader_names_the_new_leader_only_with_a_hint(server: RegionServer, hint: bool) -> None:
    pd = Pd(server.pd_address)
    before, region_id = leader_of(server), region_of(server)
    to = StoreId(before % 3 + 1)
    server.perform(chaos.TransferLeader(region_id, to, hint, pd_lag_ms=60_000))
    assert pd.regions()[0].leader.store_id == before  # PD has not heard of it yet
    stub = cdcpb_pb2_grpc.ChangeDataStub(grpc.insecure_channel(pd.stores()[before]))
    request = cdcpb_pb2.ChangeDataRequest(
        header=cdcpb_pb2.Header(cluster_id=pd.cluster_id, ticdc_version=VERSION), region_id=region_id
    )
    (message,) = stub.EventFeed(iter([request]))
    error = message.events[0].error
    assert error.HasField("not_leader")
    assert error.not_leader.leader.store_id == (to if hint else 0)


@pytest.mark.parametrize("error", ["region_not_found", "congested", "server_is_busy", "none"])
def test_region_error_on_command_ends_registrations_and_loses_nothing(server: RegionServer, error: str) -> None:
    pd = Pd(server.pd_address)
    feed = RawFeed(pd, pd.tso())
    put(server, b"a", b"1")
    feed.read_until(pd.tso())
    server.perform(chaos.FailRegion(region_of(server), error))
    put(server, b"b", b"2")
    feed.read_until(pd.tso())
    feed.close()
    assert feed.counts[error] == 1
    assert values(feed) == [b"1", b"2"]


def test_refused_registrations_are_told_how_long_to_wait_and_later_ones_pass(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    server.perform(chaos.RefuseRegistrations(leader_of(server), 2, 7))
    feed = RawFeed(pd, pd.tso())
    feed.read_until(pd.tso())
    feed.close()
    assert feed.counts["server_is_busy"] == 2


def test_held_scan_lets_a_commit_overtake_its_prewrite_and_initialized(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    began, start_ts = pd.tso(), server.tso()
    server.apply(Prewrite(txn=Txn(start_ts=start_ts, primary=b"k"), mutations=[Mutation("put", b"k", b"v")]))
    server.perform(chaos.HoldScans(leader_of(server), 500))
    feed = RawFeed(pd, began)
    await_that(lambda: server.registrations == 1)
    server.apply(Commit(start_ts=start_ts, commit_ts=server.tso(), keys=[b"k"]))
    seen: list[str] = []
    while "INITIALIZED" not in seen:
        feed.read(0.05)
        seen += [name for name in feed.counts if name not in seen]
    assert seen == ["COMMIT", "PREWRITE", "INITIALIZED"]
    feed.read_until(pd.tso())
    feed.close()
    assert values(feed) == [b"v"]


def test_region_error_while_scans_stand_still_is_followed_by_a_late_initialized(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    leader = leader_of(server)
    server.perform(chaos.HoldScans(leader, 300))
    feed = RawFeed(pd, pd.tso())
    await_that(lambda: server.registrations == 1)
    server.perform(chaos.TransferLeader(region_of(server), StoreId(leader % 3 + 1)))
    feed.read_until(pd.tso())
    while feed.late_initialized < 1:
        feed.read(0.05)
    feed.close()


def test_slow_store_delays_calls_for_a_while(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    feed = RawFeed(pd, pd.tso())
    feed.read_until(pd.tso())
    server.perform(chaos.SlowStore(leader_of(server), 150, 400))
    put(server, b"a", b"1")
    began = time.monotonic()
    feed.read_until(pd.tso())
    assert time.monotonic() - began >= 0.15
    await_that(lambda: server.endpoints[leader_of(server)].delay_s == 0)
    feed.close()
    assert values(feed) == [b"1"]


def test_hidden_region_is_a_hole_in_scans_and_missing_by_key(server: RegionServer) -> None:
    split(server, b"b", b"d")
    pd = Pd(server.pd_address)
    middle = region_of(server, b"c")
    server.perform(chaos.HideRegion(middle, 300))
    assert [region.region.start_key for region in pd.regions()] == [b"", encode(b"d")]
    whole = pdpb_pb2.BatchScanRegionsRequest(
        header=pd.header, ranges=[pdpb_pb2.KeyRange()], contain_all_key_range=True
    )  # fmt: skip
    assert pd.stub.BatchScanRegions(whole).header.error.type == pdpb_pb2.REGIONS_NOT_CONTAIN_ALL_KEY_RANGE
    by_key = pdpb_pb2.GetRegionRequest(header=pd.header, region_key=encode(b"c"))
    assert not pd.stub.GetRegion(by_key).HasField("region")
    await_that(lambda: pd.stub.GetRegion(by_key).region.id == middle)
    assert not pd.stub.BatchScanRegions(whole).header.HasField("error")


def test_only_the_leading_pd_member_answers_and_a_move_breaks_the_tso_stream(server: RegionServer) -> None:
    stubs = [pdpb_pb2_grpc.PDStub(grpc.insecure_channel(address)) for address in server.pd_addresses]
    members = stubs[2].GetMembers(pdpb_pb2.GetMembersRequest())
    assert [member.client_urls[0].removeprefix("http://") for member in members.members] == server.pd_addresses
    assert members.leader == members.members[0]
    header = pdpb_pb2.RequestHeader(cluster_id=members.header.cluster_id)
    with pytest.raises(grpc.RpcError) as raised:
        stubs[1].GetAllStores(pdpb_pb2.GetAllStoresRequest(header=header))
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.UNAVAILABLE, "not leader")
    go_on = threading.Semaphore()

    def requests() -> Iterator[pdpb_pb2.TsoRequest]:
        while go_on.acquire(timeout=180):
            yield pdpb_pb2.TsoRequest(header=header, count=3)

    stream = iter(stubs[0].Tso(requests()))
    first = next(stream).timestamp
    server.perform(chaos.MovePdLeader(1))
    go_on.release()
    with pytest.raises(grpc.RpcError, match="not leader"):
        next(stream)
    assert stubs[0].GetMembers(pdpb_pb2.GetMembersRequest()).leader == members.members[1]
    later = next(iter(stubs[1].Tso(iter([pdpb_pb2.TsoRequest(header=header, count=1)])))).timestamp
    assert (later.physical, later.logical) > (first.physical, first.logical)
    server.call(server.chaos.stop_pd_member(1))
    assert Pd(server.pd_addresses[0]).tso() > (later.physical << 18) + later.logical
    server.call(server.chaos.start_pd_member(1))
    assert stubs[1].GetMembers(pdpb_pb2.GetMembersRequest(), wait_for_ready=True).leader == members.members[0]


def test_removed_store_is_a_tombstone(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    server.call(server.chaos.remove_store(StoreId(3)))
    store = pd.stub.GetStore(pdpb_pb2.GetStoreRequest(header=pd.header, store_id=3)).store
    assert (store.state, store.node_state) == (2, 3)
    living = pdpb_pb2.GetAllStoresRequest(header=pd.header, exclude_tombstone_stores=True)
    assert [store.id for store in pd.stub.GetAllStores(living).stores] == [1, 2]
    assert server.call(in_loop(server.chaos.view)).down == []


async def in_loop(ask: Callable[[], chaos.ClusterView]) -> chaos.ClusterView:
    return ask()


def test_event_for_what_does_not_exist_is_an_error_or_nothing(server: RegionServer) -> None:
    server.perform(chaos.Merge(RegionId(999)), chaos.TransferLeader(RegionId(999), StoreId(1)))
    for event in (chaos.StopStore(StoreId(9)), chaos.DropStreams(StoreId(1), "TIRED"), chaos.MovePdLeader(7)):
        with pytest.raises(ConfigError):
            server.perform(event)


def test_stream_that_never_gave_a_message_is_given_up_by_the_test_client_and_another_brings_all(
    server: RegionServer,
) -> None:
    pd = Pd(server.pd_address)
    put(server, b"a", b"1")
    server.perform(chaos.HoldScans(leader_of(server), 1500))
    feed = RawFeed(pd, 0, first_word_s=0.3)
    while not feed.given_up:
        feed.read(0.02)
    feed.first_word_s = 60.0
    feed.read_until(pd.tso())
    assert feed.ends == [], "it has ended the stream itself"
    feed.close()
    assert values(feed) == [b"1"]


def test_stream_that_gave_a_message_is_never_given_up_by_the_test_client(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    feed = RawFeed(pd, pd.tso(), first_word_s=0.0)
    await_that(lambda: not feed.unheard)
    feed.read_until(pd.tso())
    feed.close()
    assert feed.given_up == 0


SEEDS = [int(seed) for seed in os.environ.get("TIDEBUS_TROUBLE_SEEDS", "3 11").split()]
"""More of them: TIDEBUS_TROUBLE_SEEDS="$(seq -s ' ' 1 100)"."""


@pytest.mark.parametrize("seed", SEEDS)
def test_feed_under_random_trouble_is_exactly_what_was_committed(server: RegionServer, seed: int) -> None:
    pd, workload = Pd(server.pd_address), Workload(server, seed)
    feed = RawFeed(pd, pd.tso())
    limits = chaos.ChaosLimits(pause_max_ms=100)
    trouble = server.spawn(server.chaos.run(seed, 0.01, limits, events_max=60))
    while not trouble.done() or workload.committed < 200:
        server.act(lambda _: workload.step())
        feed.read(0.0)
    trouble.result(0)
    server.act(lambda _: workload.finish())
    server.perform(*(chaos.StartStore(store) for store in server.call(in_loop(server.chaos.view)).down))
    feed.read_until(pd.tso())
    feed.close()
    assert feed.changes == server.act(versions)
    assert len({type(event) for event in server.chaos.performed}) >= 8
    assert min(feed.counts["PREWRITE"], feed.counts["COMMIT"], feed.counts["COMMITTED"], feed.counts["ROLLBACK"]) > 0


def test_slow_reader_meets_congested_regions_and_then_loses_its_stream() -> None:
    with RegionServer(min_ts_interval_ms=20, stream_quota_bytes=1 << 20, slow_client_s=0.5) as server:
        pd = Pd(server.pd_address)
        stub = cdcpb_pb2_grpc.ChangeDataStub(
            grpc.insecure_channel(
                pd.stores()[leader_of(server)],
                options=[("grpc.http2.lookahead_bytes", 1024), ("grpc.max_receive_message_length", -1)],
            )
        )
        region = pd.regions()[0].region
        done = threading.Event()

        def requests() -> Iterator[cdcpb_pb2.ChangeDataRequest]:
            # Again and again, as a client would after `congested`; what is registered already is a duplicate.
            while not done.wait(0.05):
                yield cdcpb_pb2.ChangeDataRequest(
                    header=cdcpb_pb2.Header(cluster_id=pd.cluster_id, ticdc_version=VERSION),
                    region_id=region.id, region_epoch=region.region_epoch, request_id=1,
                )  # fmt: skip

        stream = stub.EventFeed(requests())
        await_that(lambda: server.registrations == 1)
        (endpoint,) = [served for served in server.endpoints.values() if served.registrations]

        def ended() -> bool:
            put(server, b"k", bytes(200_000))
            return endpoint.streams == 0

        # Nobody reads: what neither the transport nor the quota takes ends the registration, and then the stream.
        await_that(ended)
        ends: list[grpc.StatusCode] = []
        errors: list[cdcpb_pb2.Error] = []
        try:
            for message in stream:
                errors += [event.error for event in message.events if event.HasField("error")]
        except grpc.RpcError as error:
            ends.append(error.code())
            assert "too slowly" in str(error.details())
        done.set()
        assert ends == [grpc.StatusCode.UNKNOWN]


def test_region_that_does_not_fit_the_quota_is_congested_and_the_stream_goes_on() -> None:
    with RegionServer(min_ts_interval_ms=20, stream_quota_bytes=100_000) as server:
        pd = Pd(server.pd_address)
        feed = RawFeed(pd, pd.tso())
        feed.read_until(pd.tso())
        start_ts, keys = server.tso(), [b"k%d" % number for number in range(8)]
        big = [Mutation("put", key, bytes(40_000)) for key in keys]
        # One step: nothing of it can be sent before all of it is written.
        prewrites = [Prewrite(txn=Txn(start_ts=start_ts, primary=keys[0]), mutations=[mutation]) for mutation in big]
        server.apply(*prewrites, Commit(start_ts=start_ts, commit_ts=server.tso(), keys=keys))
        feed.read_until(pd.tso())
        assert feed.counts["congested"] >= 1
        assert feed.ends == []
        feed.close()
        assert sorted(key for key, _, _ in feed.changes) == keys


def test_scans_wait_for_their_turn_and_too_many_are_refused() -> None:
    with RegionServer(min_ts_interval_ms=20, stores=1, scans_at_once=1, scans_max=4) as server:
        keys = [b"k%d" % number for number in range(8)]
        split(server, *keys)
        for key in keys:
            put(server, key, b"v")
        server.perform(chaos.HoldScans(StoreId(1), 300))
        pd = Pd(server.pd_address)
        feed = RawFeed(pd, 0)
        feed.read_until(pd.tso())
        feed.close()
        assert feed.counts["server_is_busy"] >= 5
        assert feed.counts["INITIALIZED"] == 9
        assert sorted(key for key, _, _ in feed.changes) == keys
