"""Turns at computing, whatever changefeeds ask for: never too many, never one idle, nobody starves, a flood shares."""

import heapq

from hypothesis import given
from hypothesis import strategies as st

from sorters.core.service.fair_turns import LATELY_S, WAITING_OUTWEIGHS, FairTurns

NAMES = [f"feed-{number}" for number in range(8)]


@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "end", "withdraw", "forget", "allow"]),
            st.sampled_from(NAMES),
            st.floats(0, 3),
            st.floats(0, 5),
        ),
        max_size=80,
    ),
)
def test_turns_are_never_too_many_and_none_is_idle_while_somebody_waits(
    turns_max: int, steps: list[tuple[str, str, float, float]]
) -> None:
    turns, now_s, has, waits = FairTurns[str](turns_max), 0.0, set[str](), set[str]()
    went_on = 0
    for what, name, cpu_s, pause_s in steps:
        now_s += pause_s
        if what == "ask" and name not in has | waits:
            (has if turns.ask(name, now_s) else waits).add(name)
        elif what == "end" and name in has:
            has.remove(name)
            given_to = turns.end(name, cpu_s, now_s)
            assert waits.issuperset(given_to)
            waits.difference_update(given_to)
            has.update(given_to)
        elif what == "withdraw" and name in has | waits:
            has.discard(name)
            waits.discard(name)
            given_to = turns.withdraw(name, now_s)
            waits.difference_update(given_to)
            has.update(given_to)
        elif what == "forget":
            turns.forget(name)
        elif what == "allow":
            turns_max = 1 + round(cpu_s)
            given_to = turns.allow(turns_max, now_s)
            assert waits.issuperset(given_to)
            waits.difference_update(given_to)
            has.update(given_to)
            went_on = len(has)
        went_on = min(went_on, len(has))
        assert (set(turns.holders), set(turns.waiting)) == (has, waits)
        assert len(has) <= max(turns_max, went_on)
        assert not waits or len(has) >= turns_max


def run(
    turns_max: int, costs: list[list[float]], rests: list[float], until_s: float, known_s: float = 0.0
) -> tuple[list[float], list[float]]:
    """Let changefeeds compute, each by its costs in turn and resting between; return CPU time and longest wait of each.

    Waits count once ``known_s`` have passed: until then nobody has used anything.
    """
    turns, used, longest = FairTurns[int](turns_max), [0.0] * len(costs), [0.0] * len(costs)
    counts, asked = [0] * len(costs), [0.0] * len(costs)
    events = [(0.0, number, "ask") for number in range(len(costs))]
    heapq.heapify(events)

    def begin(number: int, now_s: float) -> None:
        if now_s > known_s:
            longest[number] = max(longest[number], now_s - asked[number])
        cost = costs[number][counts[number] % len(costs[number])]
        heapq.heappush(events, (now_s + cost, number, "end"))

    while events and events[0][0] < until_s:
        now_s, number, what = heapq.heappop(events)
        if what == "ask":
            asked[number] = now_s
            if turns.ask(number, now_s):
                begin(number, now_s)
            continue
        cost = costs[number][counts[number] % len(costs[number])]
        counts[number] += 1
        used[number] += cost
        for other in turns.end(number, cost, now_s):
            begin(other, now_s)
        heapq.heappush(events, (now_s + rests[number], number, "ask"))
    for number in turns.waiting:
        longest[number] = max(longest[number], until_s - asked[number])
    return used, longest


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=4), st.floats(0, 0.5)), min_size=2, max_size=8
    ),
)
def test_nobody_starves(turns_max: int, feeds: list[tuple[list[float], float]]) -> None:
    _, longest = run(turns_max, [costs for costs, _ in feeds], [rest_s for _, rest_s in feeds], 60.0)
    # What counts of CPU time lately is at most LATELY_S and a cut; waiting outweighs that, and those who were before it
    # then have a cut each.
    assert max(longest) <= WAITING_OUTWEIGHS * (LATELY_S + 1.0) + len(feeds) * 1.0


def test_a_flood_gets_its_share_only_and_a_neighbour_waits_for_a_cut_or_two() -> None:
    """Three that write cuts of a second without a break, and one of 10 ms each 100 ms, on one core."""
    used, longest = run(1, [[0.01]] + [[1.0]] * 3, [0.1] + [0.0] * 3, 120.0, known_s=10.0)
    assert longest[0] <= 1.0
    assert max(used[1:]) - min(used[1:]) <= 2.0
    assert sum(used) >= 118.0, "the core is never idle"


def test_those_that_always_have_work_get_the_same_cpu_time_however_large_their_cuts_are() -> None:
    used, _ = run(1, [[0.5], [0.05], [0.05]], [0.0] * 3, 120.0)
    assert min(used) >= 0.8 * max(used)
