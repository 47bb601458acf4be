"""The frontier law (DESIGN §4) over random worlds, and proof that this test is able to see it broken."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.core.frontier import advance, first_record
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import DdlReport, LandingReport
from schemas.spans import TableSpan
from schemas.tidb.keys import table_span
from tests.simulation.frontier_agents import Agent, BookAgent
from tests.simulation.frontier_world import World, broken_law, went_back

SCHEDULES = 300
STEPS = 400
KINDS = pytest.mark.parametrize("kind", [Agent, BookAgent], ids=["model", "landing-book"])


def run(random: Random, kind: type[Agent], *, steps: int = STEPS, floors: bool = True) -> World:
    world = World(random, partitions=random.randint(1, 3), agents=random.randint(1, 3), floors=floors, kind=kind)
    for _ in range(steps):
        world.step()
    world.settle()
    world.replace_owner(reads_all=True)
    world.commit()
    world.settle()
    return world


@pytest.mark.parametrize("block", range(3))
@KINDS
def test_frontier_law_random_schedules_cut_equals_upstream(kind: type[Agent], block: int) -> None:
    size = SCHEDULES // 3
    for seed in range(block * size, (block + 1) * size):
        world = run(Random(seed), kind)
        assert (broken_law(world), went_back(world), seed) == (None, None, seed)


def test_frontier_law_random_schedules_are_worth_the_name() -> None:
    worlds = [run(Random(seed), Agent) for seed in range(30)]
    assert all(world.place.resolved_ts == world.now for world in worlds), "settled, yet R did not reach now"
    moved = [len({place.resolved_ts for place in world.places()}) for world in worlds]
    landed = sum(len(sent.rows) for world in worlds for partition in world.log for sent in partition)
    assert sorted(moved)[len(moved) // 2] >= 4, "R hardly ever moves before the end"
    assert landed > 1.05 * sum(len(world.rows) for world in worlds), "hardly anything is landed twice"
    assert sum(len(world.zombies) for world in worlds) > 30
    assert sum(world.revision for world in worlds) > 45
    assert sum(world.splits for world in worlds) > 30
    assert sum(len(parts) > 1 for world in worlds for parts in world.spans.values()) > 30
    held = [[bool(place.held_ddl) for place in world.places()] for world in worlds]
    assert sum(any(one) for one in held) > 10, "jobs that nobody can read are hardly ever passed"
    assert not any(one[-1] for one in held), "nor read later"


def test_frontier_law_without_floors_breaks() -> None:
    broken = [seed for seed in range(60) if broken_law(run(Random(seed), Agent, floors=False))]
    assert len(broken) > 5, "the test cannot see a loss"


def test_frontier_of_a_table_with_a_hole_stands_until_it_is_filled() -> None:
    table = TableId(1)
    start, end = table_span(table)
    first, last = TableSpan(table, start, start + b"m"), TableSpan(table, start + b"m", end)
    report = LandingReport(
        capture=CaptureId("a"),
        landed_ts={first: Ts(20), last: Ts(30)},
        ends=(0,),
        chunks=(),
        floors=(0,),
        repeat_ends=(0,),
    )

    def resolved_ts(*spans: TableSpan) -> Ts:
        assigned = dict.fromkeys(spans, CaptureId("a"))
        ddl = DdlReport(landed_ts=Ts(40), end=0)
        return advance(first_record(1, Ts(5), 1), {CaptureId("a"): report}, ddl, assigned).resolved_ts

    assert [resolved_ts(first), resolved_ts(last), resolved_ts(first, last)] == [5, 5, 20]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.integers(20, 120), st.sampled_from([Agent, BookAgent]))
def test_frontier_law_hypothesis_schedules_cut_equals_upstream(random: Random, steps: int, kind: type[Agent]) -> None:
    world = run(random, kind, steps=steps)
    assert (broken_law(world), went_back(world)) == (None, None)
