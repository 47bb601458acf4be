"""The PD client against the embedded PD, and against nobody."""

import time

import pytest

from producers.errors import HistoryGoneError, PdRefusedError, PdUnreachableError
from producers.pull.core.regions.region_map import KEY_END
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.pull.pd.safe_point import keep_safe_point
from producers.region_server.kv.store import ClusterStore
from producers.region_server.server import RegionServer
from schemas.errors import Action
from schemas.ids import Ts, physical_ms
from schemas.tidb.codec import encode_bytes

pytestmark = pytest.mark.integration


def test_pd_client_asks_for_ts_then_they_grow_and_are_of_now() -> None:
    with RegionServer(stores=1) as server:
        pd = PdClient(f"http://{server.pd_address}")
        first, second = pd.now(), pd.now()
        assert first < second
        assert abs(physical_ms(second) / 1000 - time.time()) < 5
        assert pd.cluster_id == server.options.cluster_id
        pd.close()


def test_pd_client_and_cache_after_splits_then_regions_cover_any_range_in_order() -> None:
    with RegionServer(stores=3) as server:

        def split(store: ClusterStore) -> None:
            for key in (b"t1", b"t3", b"t5"):
                store.split(key)

        server.act(split)
        pd = PdClient(server.pd_address)
        cache = RegionCache(pd)
        everything = cache.locate(EncodedRange(b"", KEY_END))
        assert [region.range.start for region in everything] == [b"", *(encode_bytes(k) for k in (b"t1", b"t3", b"t5"))]
        assert [region.range.end for region in everything] == [
            *(region.range.start for region in everything[1:]),
            KEY_END,
        ]
        part = cache.locate(EncodedRange(encode_bytes(b"t2"), encode_bytes(b"t4")))
        assert part == everything[1:3]
        leader = part[0].leader
        assert leader is not None
        assert cache.address(leader.store_id) == server.pd.addresses[leader.store_id]
        pd.close()


def test_pd_client_safe_point_then_history_is_kept_or_the_loss_is_told() -> None:
    with RegionServer(stores=1) as server:
        pd = PdClient(server.pd_address)
        now = pd.now()
        keep_safe_point(pd, "tidebus-u", now, 60)
        assert pd.update_service_gc_safe_point("gc_worker", Ts(now + 100), (1 << 63) - 1) == now - 1
        keep_safe_point(pd, "tidebus-u", Ts(now + 51), 60)
        pd.update_service_gc_safe_point("gc_worker", Ts(now + 100), (1 << 63) - 1)
        with pytest.raises(HistoryGoneError) as caught:
            keep_safe_point(pd, "tidebus-late", now, 60)
        assert caught.value.action is Action.STOP_CHANGEFEED
        pd.close()


def test_pd_client_asks_for_the_clusters_source_id_then_1_stands_for_none_set() -> None:
    with RegionServer(stores=1) as server:
        pd = PdClient(server.pd_address)
        assert pd.source_id() == 1
        for value, expected in (("2", 2), ("", 1), ("0", 1)):
            server.pd.global_config["source_id"] = value
            assert pd.source_id() == expected
        server.pd.global_config["source_id"] = "two"
        with pytest.raises(PdRefusedError, match="source_id"):
            pd.source_id()
        pd.close()


def test_pd_client_when_nobody_listens_then_the_error_names_call_addresses_and_tries() -> None:
    pd = PdClient("127.0.0.1:1,127.0.0.1:2", deadline_s=0.8)
    with pytest.raises(PdUnreachableError) as caught:
        pd.now()
    assert caught.value.action is Action.RETRY
    assert caught.value.fields["addresses"] == "127.0.0.1:1,127.0.0.1:2"
    assert caught.value.fields["call"] == "Tso"
    assert int(str(caught.value.fields["tries"])) >= 2
    pd.close()
