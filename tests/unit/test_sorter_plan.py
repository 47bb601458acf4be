"""Which sorters are started and stopped."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.control.core.changefeeds.sorter_plan import STARTING_S, FeedName, SorterChild, SorterPlan, plan_sorters

A, B, C, D = (("default", name) for name in "abcd")
NAMES = st.sampled_from([A, B, C, D])


def child(epoch: int = 0, started_at_s: float = 0.0, *, stopping: bool = False) -> SorterChild:
    return SorterChild(epoch=epoch, started_at_s=started_at_s, stopping=stopping)


def test_plan_starts_no_more_at_once_than_allowed_and_the_next_when_one_has_started() -> None:
    wanted = {A: 0, B: 0, C: 0, D: 0}
    assert plan_sorters(wanted, {}, 0.0, 2) == SorterPlan((), (A, B))
    running = {A: child(), B: child()}
    assert plan_sorters(wanted, running, STARTING_S - 0.1, 2) == SorterPlan((), ())
    assert plan_sorters(wanted, running, STARTING_S, 2) == SorterPlan((), (C, D))


def test_plan_stops_what_nobody_wants_and_what_runs_under_an_older_epoch_once() -> None:
    running = {A: child(epoch=3), B: child(), C: child(epoch=1, stopping=True)}
    assert plan_sorters({A: 4, C: 2}, running, 100.0, 2) == SorterPlan((A, B), ())


def test_plan_starts_the_next_epoch_only_when_the_last_has_ended() -> None:
    assert plan_sorters({A: 2}, {A: child(epoch=1, stopping=True)}, 0.0, 2).start == ()
    assert plan_sorters({A: 2}, {}, 0.0, 2).start == (A,)


def test_plan_that_stops_a_starting_one_lets_another_start() -> None:
    assert plan_sorters({B: 0}, {A: child()}, 1.0, 1) == SorterPlan((A,), (B,))


@given(
    st.dictionaries(NAMES, st.integers(0, 2)),
    st.dictionaries(NAMES, st.builds(child, st.integers(0, 2), st.floats(0, 10), stopping=st.booleans())),
    st.integers(1, 3),
)
def test_plan_carried_out_again_and_again_ends_with_what_is_wanted(
    wanted: dict[FeedName, int], children: dict[FeedName, SorterChild], starts_max: int
) -> None:
    now_s = 10.0
    for _ in range(12):
        plan = plan_sorters(wanted, children, now_s, starts_max)
        assert not set(plan.start) & children.keys(), "never two for one changefeed"
        assert len(plan.start) <= starts_max
        gone = set(plan.stop) | {name for name, one in children.items() if one.stopping}
        children = {name: one for name, one in children.items() if name not in gone}
        children |= {name: child(wanted[name], now_s) for name in plan.start}
        now_s += STARTING_S
    assert {name: one.epoch for name, one in children.items()} == wanted
