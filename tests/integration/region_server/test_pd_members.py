"""The PD client and several members: leaders that change or die, TSO batches, both error channels and GC interfaces."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from producers.errors import HistoryGoneError, PdRefusedError, PdUnreachableError
from producers.pull.core.regions.region_errors import ClusterMismatchError
from producers.pull.pd.client import PdClient
from producers.pull.pd.safe_point import SafePointKeeper, keep_safe_point, release_safe_point
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.proto import pdpb_pb2
from tests.support.upstream.fake_pd import CLUSTER_ID, FakePd

pytestmark = pytest.mark.integration


@contextmanager
def client(addresses: str, **more: float) -> Iterator[PdClient]:
    """Give a client that is closed in the end."""
    pd = PdClient(addresses, **more)  # type: ignore[arg-type]
    try:
        yield pd
    finally:
        pd.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = 180.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition does not come"
        time.sleep(0.005)


def test_pd_follower_is_given_then_its_leader_is_asked() -> None:
    with FakePd(3) as cluster, client(cluster.addresses[2]) as pd:
        assert pd.cluster_id == CLUSTER_ID
        assert pd.now()
        assert cluster.asked == [(0, "Tso")]


def test_pd_leader_moves_then_calls_and_the_tso_stream_follow() -> None:
    with FakePd(3) as cluster, client(cluster.addresses[0]) as pd:
        first = pd.now()
        cluster.leader = 1
        assert pd.now() > first
        pd.stores()
        assert cluster.asked[-2:] == [(1, "Tso"), (1, "GetAllStores")]


def test_pd_leader_dies_then_the_next_member_is_found_among_those_it_had_named() -> None:
    with FakePd(3) as cluster, client(cluster.addresses[0]) as pd:
        first = pd.now()
        cluster.kill(0)
        cluster.leader = 2
        assert pd.now() > first
        assert cluster.asked[-1] == (2, "Tso")


def test_pd_has_no_leader_for_a_while_then_the_call_waits_for_one() -> None:
    with FakePd(2) as cluster, client(",".join(cluster.addresses)) as pd:
        cluster.leader = None
        elected = threading.Timer(0.5, lambda: setattr(cluster, "leader", 1))
        elected.start()
        assert pd.now()
        elected.join()


def test_pd_never_finds_a_leader_then_the_error_says_what_the_members_said() -> None:
    with FakePd(2) as cluster, client(",".join(cluster.addresses), deadline_s=0.5) as pd:
        cluster.leader = None
        with pytest.raises(PdUnreachableError, match="not leader") as caught:
            pd.now()
        assert caught.value.action is Action.RETRY


def test_pd_of_another_cluster_then_it_is_fatal_at_once() -> None:
    with FakePd(1) as cluster, client(cluster.addresses[0], deadline_s=30.0) as pd:
        assert pd.cluster_id == CLUSTER_ID
        pd._cluster_id = 12
        with pytest.raises(ClusterMismatchError) as caught:
            pd.stores()
        assert caught.value.action is Action.STOP_CHANGEFEED
        with pytest.raises(ClusterMismatchError):
            pd.now()


def test_pd_member_has_only_just_started_then_it_is_of_no_other_cluster_and_waited_for() -> None:
    with FakePd(1) as cluster, client(cluster.addresses[0], deadline_s=30.0) as pd:
        assert pd.cluster_id == CLUSTER_ID
        pd._leader = None
        cluster.starting = {0}
        started = threading.Timer(0.5, cluster.starting.clear)
        started.start()
        pd.stores()
        started.join()


def test_pd_member_never_knows_its_cluster_then_the_error_says_what_it_said() -> None:
    with FakePd(1) as cluster, client(cluster.addresses[0], deadline_s=0.5) as pd:
        cluster.starting = {0}
        with pytest.raises(PdUnreachableError, match="server not started") as caught:
            pd.stores()
        assert caught.value.action is Action.RETRY


def test_pd_first_member_is_a_black_hole_then_short_calls_get_past_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole, FakePd(1) as cluster:  # connects, and never answers
        addresses = f"127.0.0.1:{hole.getsockname()[1]},{cluster.addresses[0]}"
        with client(addresses, deadline_s=0.1) as pd:
            with pytest.raises(PdUnreachableError):
                pd.now()
            wait_until(lambda: _answers(pd))
            assert cluster.asked


def _answers(pd: PdClient) -> bool:
    try:
        return pd.now() > 0
    except PdUnreachableError:
        return False


def test_pd_error_in_the_header_of_a_good_reply_then_it_is_heeded() -> None:
    with FakePd(1) as cluster, client(cluster.addresses[0], deadline_s=0.5) as pd:
        cluster.header_error = pdpb_pb2.Error(type=pdpb_pb2.INCOMPATIBLE_VERSION, message="too old")
        with pytest.raises(PdRefusedError, match="too old"):
            pd.stores()
        for passing in (pdpb_pb2.NOT_BOOTSTRAPPED, pdpb_pb2.UNKNOWN):
            cluster.header_error = pdpb_pb2.Error(type=passing, message="wait for it")
            with pytest.raises(PdUnreachableError, match="wait for it"):
                pd.stores()


def test_tso_many_callers_wait_for_one_answer_then_the_next_request_is_for_all_of_them() -> None:
    got: list[Ts] = []
    with FakePd(1) as cluster, client(cluster.addresses[0]) as pd:
        pd.now()
        cluster.tso_delay.clear()
        threads = [threading.Thread(target=lambda: got.append(pd.now())) for _ in range(25)]
        for thread in threads:
            thread.start()
        wait_until(lambda: pd._tso is not None and len(pd._tso._waiting) == 24)
        cluster.tso_delay.set()
        for thread in threads:
            thread.join(180)
        assert sorted(got) == [Ts((1_000 << 18) + logical) for logical in range(2, 27)]
        assert cluster.tso_requests == 3


def test_tso_many_callers_ask_again_and_again_then_nobody_gets_anothers_and_each_sees_them_grow() -> None:
    callers, rounds = 16, 50
    got: list[list[Ts]] = [[] for _ in range(callers)]
    with FakePd(1) as cluster, client(cluster.addresses[0]) as pd:
        threads = [
            threading.Thread(target=lambda into=into: into.extend(pd.now() for _ in range(rounds))) for into in got
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
    assert len({ts for each in got for ts in each}) == callers * rounds
    assert all(each == sorted(each) for each in got)


def test_tso_stream_breaks_under_many_callers_then_all_get_theirs_from_the_next_leader() -> None:
    got: list[Ts] = []
    with FakePd(2) as cluster, client(",".join(cluster.addresses)) as pd:
        pd.now()
        cluster.leader = 1
        threads = [threading.Thread(target=lambda: got.append(pd.now())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
        assert len(set(got)) == 8


def test_history_is_kept_by_a_barrier_where_pd_has_them_and_else_by_a_service_safe_point() -> None:
    with FakePd(1) as cluster, client(cluster.addresses[0]) as pd:
        keep_safe_point(pd, "tidebus-u", Ts(500), 60)
        assert (cluster.barriers, cluster.services) == ({"tidebus-u": 499}, {})
        release_safe_point(pd, "tidebus-u")
        assert cluster.barriers == {}
        cluster.has_barriers = False
        keep_safe_point(pd, "tidebus-u", Ts(600), 60)
        assert cluster.services == {b"tidebus-u": 599}
        release_safe_point(pd, "tidebus-u")
        assert cluster.services == {}


@pytest.mark.parametrize("has_barriers", [True, False])
def test_history_is_gone_then_the_error_names_both_ts_and_ticdcs_code(has_barriers: bool) -> None:
    with FakePd(1) as cluster, client(cluster.addresses[0]) as pd:
        cluster.has_barriers = has_barriers
        with pytest.raises(HistoryGoneError, match="CDC:ErrSnapshotLostByGC") as caught:
            keep_safe_point(pd, "tidebus-u", Ts(100), 60)  # 99 is wanted, 100 is the least that is there
        assert caught.value.action is Action.STOP_CHANGEFEED
        assert caught.value.fields == {"needed_ts": 100, "gc_safe_point": 100}
        keep_safe_point(pd, "tidebus-u", Ts(101), 60)


def test_keeper_follows_the_frontier_and_tells_when_history_is_gone() -> None:
    failed = threading.Event()
    errors: list[BusError] = []
    with FakePd(1) as cluster, client(cluster.addresses[0]) as pd:

        def fatal(error: BusError) -> None:
            errors.append(error)
            failed.set()

        keeper = SafePointKeeper(pd, "tidebus-u", ttl_s=60, on_fatal=fatal, update_s=0.01)
        keeper.start()
        keeper.keep(Ts(200))
        keeper.keep(Ts(300))
        wait_until(lambda: cluster.barriers.get("tidebus-u") == 299)
        cluster.txn_safe_point = 400
        assert failed.wait(180)
        keeper.stop()
    assert isinstance(errors[0], HistoryGoneError)
