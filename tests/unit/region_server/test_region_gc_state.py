"""GC barriers as PD keeps them: gc_safe_point <= txn_safe_point <= every live barrier."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.region_server.core.store.gc_state import BEHIND, NEVER_EXPIRES_S, BarrierRefusedError, GcBarrier, GcState
from schemas.ids import Ts


def test_barrier_holds_the_safe_points_until_it_expires_or_goes() -> None:
    gc = GcState()
    gc.set_barrier("cdc", Ts(50), 10, now_s=0.0)
    gc.set_barrier("everywhere", Ts(60), NEVER_EXPIRES_S, now_s=0.0, globally=True)
    assert gc.collect(Ts(100), 5.0) == 50
    assert gc.barriers(5.0) == [GcBarrier("cdc", Ts(50), 5)]
    assert gc.collect(Ts(100), 10.0) == 60
    assert gc.delete_barrier("everywhere", 10.0, globally=True) == GcBarrier("everywhere", Ts(60), NEVER_EXPIRES_S)
    assert gc.collect(Ts(100), 10.0) == 100
    assert gc.delete_barrier("cdc", 10.0) is None


@pytest.mark.parametrize(
    ("barrier_id", "ts", "ttl_s"), [("", 99, 1), ("gc_worker", 99, 1), ("cdc", 99, 0), ("cdc", 49, 1)]
)
def test_barrier_that_pd_does_not_set_is_refused(barrier_id: str, ts: int, ttl_s: int) -> None:
    gc = GcState()
    gc.collect(Ts(50), 0.0)
    with pytest.raises(BarrierRefusedError) as refused:
        gc.set_barrier(barrier_id, Ts(ts), ttl_s, 0.0)
    assert (BEHIND in refused.value.message) == (ts < 50)
    assert gc.barriers(0.0) == []


def test_old_call_is_a_barrier_whose_answer_shows_lost_history() -> None:
    gc = GcState()
    assert gc.update_service("cdc", Ts(50), 10, 0.0) == (0, NEVER_EXPIRES_S)
    gc.collect(Ts(100), 0.0)
    assert gc.update_service("late", Ts(49), 10, 0.0)[0] == 50  # above what it asked: gone
    assert [barrier.barrier_id for barrier in gc.barriers(0.0)] == ["cdc"]
    assert gc.update_service("cdc", Ts((1 << 64) - 1), 0, 0.0)[0] == 50
    assert gc.update_service("gc_worker", Ts(70), NEVER_EXPIRES_S, 0.0)[0] == 70


@given(
    st.lists(st.tuples(st.sampled_from("abgx"), st.integers(0, 30), st.integers(1, 9), st.integers(0, 5)), max_size=30)
)
def test_safe_points_never_go_back_nor_pass_a_live_barrier(steps: list[tuple[str, int, int, int]]) -> None:
    gc, now_s, before = GcState(), 0.0, Ts(0)
    for name, ts, ttl_s, passed in steps:
        now_s += passed
        if name == "x":
            gc.collect(Ts(ts), now_s)
        elif ts >= gc.txn_safe_point:
            gc.set_barrier(name, Ts(ts), ttl_s, now_s, globally=name == "g")
        live = gc.barriers(now_s) + gc.barriers(now_s, globally=True)
        assert before <= gc.gc_safe_point <= gc.txn_safe_point
        assert all(gc.txn_safe_point <= barrier.ts for barrier in live)
        before = gc.gc_safe_point
