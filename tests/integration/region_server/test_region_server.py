"""The embedded cluster over its real gRPC ports: what a client makes of the feed is what was written."""

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Rollback, Txn
from producers.region_server.core.store.mvcc import Write
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.kv.store import ClusterStore
from producers.region_server.main import RunOptions, run
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ids import StoreId
from schemas.proto import cdcpb_pb2, cdcpb_pb2_grpc, kvrpcpb_pb2, pdpb_pb2, tikvpb_pb2_grpc
from tests.support.recorded.recording import TIDB_DATA, committed_changes
from tests.support.upstream.raw_feed import VERSION, Pd, RawFeed, encode
from tests.support.upstream.region_workload import split

USER_TABLES = (b"t\x80\x00\x00\x00\x00\x00\x00\x72", b"t\x80\x00\x00\x01")
"""Table ids from 114 on, below the reserved ones at the end of the 48-bit range."""
LOSSY_DDL = 0xFF00


@pytest.fixture
def server() -> Iterator[RegionServer]:
    with RegionServer(min_ts_interval_ms=20) as running:
        yield running


def expected_of_recording(bootstrap_ts: int, start: bytes, end: bytes) -> dict[tuple[bytes, int, int], object]:
    ops = {"put": 1, "delete": 2}
    return {
        (change.key, change.commit_ts, change.start_ts): (
            ops[change.op], change.value, change.old_value, change.txn_source,
        )
        for change in committed_changes()
        if change.commit_ts > bootstrap_ts and start <= change.key < end and not change.txn_source & LOSSY_DDL
    }  # fmt: skip


@pytest.mark.parametrize(("v2", "live"), [(True, True), (False, True), (True, False)])
def test_feed_of_the_recording_equals_the_recordings_fold(v2: bool, live: bool) -> None:
    recording = read_recording(TIDB_DATA)
    start, end = USER_TABLES
    with RegionServer(min_ts_interval_ms=10, region_max_keys=4000) as server:
        replay = Replay(server, recording)
        server.call(replay.load())
        pd = Pd(server.pd_address)
        assert pd.tso() == replay.bootstrap_ts
        if live:
            feed = RawFeed(pd, replay.bootstrap_ts, start=start, end=end, v2=v2)
            replaying = server.spawn(replay.run(wait_for_subscriber=True))
        else:
            replaying = server.spawn(replay.run())
            replaying.result(60)
            feed = RawFeed(pd, replay.bootstrap_ts, start=start, end=end, v2=v2)
        feed.read_until(recording.end_ts)
        replaying.result(1)
        feed.close()
    expected = expected_of_recording(replay.bootstrap_ts, start, end)
    assert len(expected) > 30_000
    assert feed.changes == expected
    assert feed.counts["COMMITTED"] > 0
    if live:
        assert min(feed.counts["PREWRITE"], feed.counts["COMMIT"], feed.counts["epoch_not_match"]) > 0
        assert replay.progress.finished


def test_resolved_ts_under_a_paced_replay_never_passes_a_later_commit() -> None:
    # 40 times recorded speed with rounds of 5 ms: many resolved ts fall between prewrite and commit. RawFeed asserts.
    recording = read_recording(TIDB_DATA)
    with RegionServer(min_ts_interval_ms=5) as server:
        replay = Replay(server, recording)
        server.call(replay.load())
        feed = RawFeed(Pd(server.pd_address), replay.bootstrap_ts, start=USER_TABLES[0], end=USER_TABLES[1])
        replaying = server.spawn(replay.run(speed=40, wait_for_subscriber=True))
        feed.read_until(recording.end_ts)
        replaying.result(1)
        feed.close()
    assert feed.changes == expected_of_recording(replay.bootstrap_ts, *USER_TABLES)


def test_feed_of_generated_rows_equals_what_the_store_holds(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    feed = RawFeed(pd, pd.tso())
    options = GeneratorOptions(shapes=("sbtest1", "order_line"), rows_per_s=0, rows_max=5000, rollback_share=0.1)
    generator = Generator(server, options)
    server.spawn(generator.run()).result(60)
    feed.read_until(pd.tso())
    feed.close()

    def versions(store: object) -> dict[tuple[bytes, int, int], object]:
        versions_seen: dict[tuple[bytes, int, int], object] = {}
        for region in server.store.regions:
            for key, newest in region.data.writes.items():
                write: Write | None = newest
                while write is not None:
                    versions_seen[key, write.commit_ts, write.start_ts] = (
                        int(write.op),
                        write.value,
                        write.old_value,
                        0,
                    )
                    write = write.previous
        return versions_seen

    assert feed.changes == server.act(versions)
    assert sum(key.startswith(b"t\x80\x00\x00\x00\x00") for key, _, _ in feed.changes) == generator.rows_committed


def lead_all(store: ClusterStore, to: StoreId) -> None:
    for region in store.regions:
        store.transfer_leader(region.region_id, to)


def test_feed_goes_on_when_regions_split_merge_and_change_leader(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    feed = RawFeed(pd, pd.tso())
    for number in range(60):
        key = b"k%03d" % (number * 37 % 60)
        start_ts = server.tso()
        server.apply(
            Prewrite(txn=Txn(start_ts=start_ts, primary=key), mutations=[Mutation("put", key, b"%d" % number)])
        )
        if number % 6 == 2:
            server.act(partial(ClusterStore.split, key=key))
        if number % 6 == 5:
            server.act(lambda store: store.merge(next(iter(store.regions)).region_id))
        if number % 6 == 3:
            server.act(partial(lead_all, to=StoreId(1 + number // 6 % 3)))
        if number % 3 == 2:
            feed.read_until(start_ts)  # registered again; the open lock holds resolved ts at its own start_ts
        server.apply(Commit(start_ts=start_ts, commit_ts=server.tso(), keys=[key]))
    feed.read_until(pd.tso())
    feed.close()
    assert sorted(value for _, value, _, _ in feed.changes.values()) == sorted(b"%d" % n for n in range(60))
    assert feed.counts["epoch_not_match"] > 0
    assert feed.counts["not_leader"] > 0


def ask(
    server: RegionServer, *requests: cdcpb_pb2.ChangeDataRequest, features: str = ""
) -> list[cdcpb_pb2.ChangeDataEvent]:
    """Send requests to the first region's leader, half-close, and return everything that comes back."""
    pd = Pd(server.pd_address)
    leader = pd.regions()[0].leader.store_id
    stub = cdcpb_pb2_grpc.ChangeDataStub(grpc.insecure_channel(pd.stores()[leader]))
    if features:
        return list(stub.EventFeedV2(iter(requests), metadata=(("features", features),)))
    return list(stub.EventFeed(iter(requests)))


def register(server: RegionServer, **changed: object) -> cdcpb_pb2.ChangeDataRequest:
    pd = Pd(server.pd_address)
    region = pd.regions()[0].region
    fields = {
        "header": cdcpb_pb2.Header(cluster_id=pd.cluster_id, ticdc_version=VERSION),
        "region_id": region.id,
        "region_epoch": region.region_epoch,
        "request_id": 3,
    }
    return cdcpb_pb2.ChangeDataRequest(**{**fields, **changed})  # type: ignore[arg-type]


def errors(messages: list[cdcpb_pb2.ChangeDataEvent]) -> list[str]:
    errors_seen = [event.error for message in messages for event in message.events if event.HasField("error")]
    return [error.ListFields()[0][0].name for error in errors_seen]


def test_register_checks_stand_in_tikvs_order(server: RegionServer) -> None:
    wrong_cluster = cdcpb_pb2.Header(cluster_id=5, ticdc_version=VERSION)
    old_client = cdcpb_pb2.Header(cluster_id=5, ticdc_version="5.2.9")
    bad: dict[str, object] = {"kv_api": 2, "region_id": 999_999}
    assert errors(ask(server, register(server, header=wrong_cluster, **bad))) == ["cluster_id_mismatch"]
    assert errors(ask(server, register(server, header=old_client, **bad))) == ["compatibility"]
    assert errors(ask(server, register(server, region_id=999_999))) == ["region_not_found"]
    stale = register(server)
    stale.region_epoch.version += 1
    assert errors(ask(server, stale)) == ["epoch_not_match"]
    stale.region_epoch.conf_ver += 7
    fresh = register(server)
    fresh.region_epoch.conf_ver += 7  # CDC does not compare conf_ver
    assert errors(ask(server, fresh)) == []
    # The duplicate is seen before the epoch, and one stream without multiplexing takes a region once, whatever the id.
    stale.request_id = 4
    assert errors(ask(server, fresh, stale)) == ["duplicate_request"]
    assert errors(ask(server, fresh, stale, features="stream-multiplexing")) == ["epoch_not_match"]


def test_event_feed_v2_with_an_unknown_feature_is_unimplemented(server: RegionServer) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        ask(server, features="stream-multiplexing, time-travel")
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert raised.value.details() == "time-travel"
    assert ask(server, features="stream-multiplexing") == []  # TiCDC's probe: half-close at once, read the end


def test_event_feed_with_a_malformed_range_ends_with_a_clear_error(server: RegionServer) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        ask(server, register(server, start_key=b"abc"))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_client_before_4_0_8_gets_resolved_ts_by_region(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    region = pd.regions()[0]
    stub = cdcpb_pb2_grpc.ChangeDataStub(grpc.insecure_channel(pd.stores()[region.leader.store_id]))
    until = threading.Event()
    request = register(server, header=cdcpb_pb2.Header(cluster_id=pd.cluster_id, ticdc_version="4.0.7"))

    def requests() -> Iterator[cdcpb_pb2.ChangeDataRequest]:
        yield request
        until.wait(180)

    for message in stub.EventFeed(requests()):
        assert not message.HasField("resolved_ts")
        if any(event.resolved_ts for event in message.events):
            break
    until.set()


def test_rows_of_another_cdc_are_dropped_with_filter_loop(server: RegionServer) -> None:
    pd = Pd(server.pd_address)
    began = pd.tso()
    for key, source in ((b"own", 0), (b"other-cdc", 1), (b"lossy", 0x100), (b"import", 1 << 16)):
        start_ts = server.tso()
        txn = Txn(start_ts=start_ts, primary=key, txn_source=source)
        server.apply(Prewrite(txn=txn, mutations=[Mutation("put", key, b"v")]))
        server.apply(Commit(start_ts=start_ts, commit_ts=server.tso(), keys=[key]))
    for filter_loop, keys in ((False, [b"other-cdc", b"own"]), (True, [b"own"])):
        feed = RawFeed(pd, began, filter_loop=filter_loop)
        feed.read_until(pd.tso())
        feed.close()
        assert sorted(key for key, _, _ in feed.changes) == keys


def test_kv_reads_at_a_version_and_says_who_holds_a_lock(server: RegionServer) -> None:
    before = server.tso()
    start_ts = server.tso()
    both = [Mutation("put", b"a", b"1"), Mutation("put", b"b", b"2")]
    server.apply(Prewrite(txn=Txn(start_ts=start_ts, primary=b"a"), mutations=both))
    pd = Pd(server.pd_address)
    region = pd.regions()[0]
    stub = tikvpb_pb2_grpc.TikvStub(grpc.insecure_channel(pd.stores()[region.leader.store_id]))
    context = kvrpcpb_pb2.Context(
        region_id=region.region.id, region_epoch=region.region.region_epoch, peer=region.leader
    )

    def scan(version: int) -> kvrpcpb_pb2.ScanResponse:
        return stub.KvScan(
            kvrpcpb_pb2.ScanRequest(context=context, start_key=b"a", end_key=b"z", limit=9, version=version)
        )

    assert list(scan(before).pairs) == []
    assert [pair.error.locked.lock_version for pair in scan(pd.tso()).pairs] == [start_ts, start_ts]
    locked = stub.KvGet(kvrpcpb_pb2.GetRequest(context=context, key=b"b", version=pd.tso()))
    assert (locked.error.locked.primary_lock, locked.error.locked.key) == (b"a", b"b")
    commit_ts = server.tso()
    server.apply(Commit(start_ts=start_ts, commit_ts=commit_ts, keys=[b"a"]), Rollback(start_ts=start_ts, keys=[b"b"]))
    assert [(pair.key, pair.value) for pair in scan(pd.tso()).pairs] == [(b"a", b"1")]
    assert list(scan(commit_ts - 1).pairs) == []
    assert stub.KvGet(kvrpcpb_pb2.GetRequest(context=context, key=b"b", version=pd.tso())).not_found
    context.region_epoch.version += 1
    assert stub.KvGet(kvrpcpb_pb2.GetRequest(context=context, key=b"b")).region_error.HasField("epoch_not_match")


def test_pd_answers_as_a_pd_leader_does(server: RegionServer) -> None:
    split(server, b"b", b"d")
    pd = Pd(server.pd_address)
    header = pd.header
    first, second = pd.tso(), pd.tso(10)
    assert second >= first + 10
    middle = pd.stub.GetRegion(pdpb_pb2.GetRegionRequest(header=header, region_key=encode(b"c")))
    assert (middle.region.start_key, middle.region.end_key) == (encode(b"b"), encode(b"d"))
    same = pd.stub.GetRegionByID(pdpb_pb2.GetRegionByIDRequest(header=header, region_id=middle.region.id))
    assert same.region == middle.region
    assert not pd.stub.GetRegionByID(pdpb_pb2.GetRegionByIDRequest(header=header, region_id=77)).HasField("region")
    assert [known.region.end_key for known in pd.regions(encode(b"a"), encode(b"d"))] == [encode(b"b"), encode(b"d")]
    overlapping = [
        pdpb_pb2.KeyRange(start_key=encode(b"a"), end_key=encode(b"c")),
        pdpb_pb2.KeyRange(start_key=encode(b"b")),
    ]
    reply = pd.stub.BatchScanRegions(pdpb_pb2.BatchScanRegionsRequest(header=header, ranges=overlapping))
    assert reply.header.error.type == pdpb_pb2.UNKNOWN
    missing = pd.stub.GetStore(pdpb_pb2.GetStoreRequest(header=header, store_id=9))
    assert missing.header.error.type == pdpb_pb2.UNKNOWN
    with pytest.raises(grpc.RpcError, match="mismatch cluster id"):
        pd.stub.GetAllStores(pdpb_pb2.GetAllStoresRequest(header=pdpb_pb2.RequestHeader(cluster_id=1)))
    kept = pd.stub.UpdateServiceGCSafePoint(
        pdpb_pb2.UpdateServiceGCSafePointRequest(header=header, service_id=b"cdc", TTL=60, safe_point=first)
    )
    assert (kept.service_id, kept.min_safe_point) == (b"gc_worker", 0)


def test_gc_keeps_what_a_service_safe_point_asks_for() -> None:
    with RegionServer(min_ts_interval_ms=20, gc_life_time_s=0.0, gc_interval_s=0.02) as server:
        pd = Pd(server.pd_address)
        stamps = []
        for value in (b"1", b"2", b"3"):
            start_ts = server.tso()
            server.apply(Prewrite(txn=Txn(start_ts=start_ts, primary=b"k"), mutations=[Mutation("put", b"k", value)]))
            stamps.append(server.tso())
            server.apply(Commit(start_ts=start_ts, commit_ts=stamps[-1], keys=[b"k"]))
            if value == b"1":
                pd.stub.UpdateServiceGCSafePoint(
                    pdpb_pb2.UpdateServiceGCSafePointRequest(
                        header=pd.header, service_id=b"cdc", TTL=60, safe_point=stamps[0]
                    )
                )
        while pd.stub.GetGCSafePoint(pdpb_pb2.GetGCSafePointRequest(header=pd.header)).safe_point < stamps[0]:
            time.sleep(0.01)
        feed = RawFeed(pd, stamps[0])
        feed.read_until(pd.tso())
        feed.close()
        assert sorted(commit_ts for _, commit_ts, _ in feed.changes) == stamps[1:]
        pd.stub.UpdateServiceGCSafePoint(
            pdpb_pb2.UpdateServiceGCSafePointRequest(header=pd.header, service_id=b"cdc", TTL=0)
        )
        collected = pdpb_pb2.GetGCSafePointRequest(header=pd.header)
        while pd.stub.GetGCSafePoint(collected).safe_point < stamps[-1]:
            time.sleep(0.01)
        feed = RawFeed(pd, 0)
        feed.read_until(pd.tso())
        feed.close()
        assert [commit_ts for _, commit_ts, _ in feed.changes] == stamps[2:]


def test_run_reports_where_it_listens_and_when_all_is_in() -> None:
    stop, events = threading.Event(), list[dict[str, Any]]()

    def emit(line: str) -> None:
        events.append(json.loads(line))
        if events[-1]["event"] == "generated":
            stop.set()

    generator = GeneratorOptions(rows_per_s=0, rows_max=200, tables=2)
    run(RunOptions(recording=TIDB_DATA, wait_for_subscriber=False, generator=generator), stop, emit)
    events = [event for event in events if event["event"] != "progress"]
    assert [event["event"] for event in events] == ["listening", "replayed", "generated"]
    stamps = [event[name] for event, name in zip(events, ("bootstrap_ts", "end_ts", "last_commit_ts"), strict=True)]
    assert stamps == sorted(stamps)
