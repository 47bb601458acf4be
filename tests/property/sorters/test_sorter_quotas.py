"""What one changefeed may take of its service: rates over time, and bytes in hand over all."""

from hypothesis import given
from hypothesis import strategies as st

from sorters.core.service.memory_growth import MemoryGrowth
from sorters.core.service.quotas import BURST_S, BytesInHand, Pace


@given(
    st.sampled_from([0.0, 0.1, 0.5, 2.0]),
    st.sampled_from([0, 10, 5_000]),
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 20_000), st.floats(0, 5)), max_size=40),
)
def test_pace_holds_a_changefeed_to_its_rates_and_no_longer_than_they_ask(
    cores: float, rows_per_s: int, cuts: list[tuple[float, int, float]]
) -> None:
    pace, now_s, began_at_s = Pace(cores, rows_per_s), 100.0, 100.0
    cpu_total_s, rows_total = 0.0, 0
    for cpu_s, rows, pause_s in cuts:
        rest_s = pace.rest_s(now_s)
        if not cores and not rows_per_s:
            assert rest_s == 0
        now_s += rest_s
        assert pace.rest_s(now_s) <= 1e-6, "who has rested as asked may go on"
        gone_s = now_s - began_at_s + BURST_S + 1e-6
        assert not cores or cpu_total_s <= cores * gone_s + 1e-6
        assert not rows_per_s or rows_total <= rows_per_s * gone_s + 1e-3
        cpu_total_s, rows_total = cpu_total_s + cpu_s, rows_total + rows
        now_s += pause_s
        pace.note(cpu_s, rows, now_s)


def test_pace_of_one_that_was_idle_is_not_saved_up() -> None:
    pace = Pace(rows_per_second_max=1_000)
    pace.note(0.0, 3_000, 1_000.0)
    assert pace.rest_s(1_000.0) == 3.0 - BURST_S
    assert pace.rest_s(2_000.0) == 0.0
    pace.note(0.0, 3_000, 2_000.0)
    assert pace.rest_s(2_000.0) == 3.0 - BURST_S


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 150)), max_size=100),
)
def test_bytes_in_hand_are_bounded_and_nobody_waits_for_ever(steps: list[tuple[bool, int, int]]) -> None:
    hands, inside, waiting = BytesInHand[int](100, 5), dict[int, int](), dict[int, int]()
    for asks, name, size in steps:
        if asks and name not in inside | waiting:
            (inside if hands.ask(name, size) else waiting)[name] = size
        elif not asks:
            inside.pop(name, None)
            waiting.pop(name, None)
            for other in hands.done(name):
                inside[other] = waiting.pop(other)
        large = [held for held in inside.values() if held > 5]
        assert len(large) <= 1 or sum(large) <= 100
        assert all(held > 5 for held in waiting.values()), "a small cut waits for nobody"
        assert not waiting or large, "somebody waits only where others hold"
    for name in list(inside):
        inside.pop(name)
        for other in hands.done(name):
            inside[other] = waiting.pop(other)
    while inside:
        name, _ = inside.popitem()
        for other in hands.done(name):
            inside[other] = waiting.pop(other)
    assert not waiting


def test_memory_that_stays_is_blamed_on_whom_it_grew_by() -> None:
    growth = MemoryGrowth[str]()
    for _ in range(100):
        growth.note("cuts", 50)
        growth.note("cuts", -50)
        growth.note("leaks", 10)
        growth.note("shrinks", -30)
    assert growth.to_blame(1_000) == "leaks"
    assert growth.to_blame(20_000) is None, "so little is nobody's"
    growth.forget("leaks")
    assert growth.to_blame(1_000) is None


def test_memory_that_grows_under_several_cuts_is_shared_between_them() -> None:
    growth = MemoryGrowth[str]()
    growth.note("a", 1_000, cuts=10)
    growth.note("b", 300)
    assert growth.to_blame(1_000) == "b"
