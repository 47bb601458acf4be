"""The frontier law (docs/architecture.md) over random worlds, and proof that this test is able to see it broken.

``FRONTIER_SCHEDULES`` says how many worlds to run; `make nightly` runs 10,000.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.control.core.frontier.frontier import FrontierInputs, advance, first_record
from consumers.control.core.frontier.held_tables import NEVER_HELD, pulled_from
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport
from schemas.tidb.keys import table_span
from schemas.tidb.spans import TableSpan
from tests.simulation import frontier_world
from tests.simulation.frontier_agents import Agent, BookAgent
from tests.simulation.frontier_world import World, broken_law, place_of, went_back

SCHEDULES = int(os.environ.get("FRONTIER_SCHEDULES", "150"))
"""A planted fault breaks the law in more than 5 of 60."""
STEPS = 400
KINDS = pytest.mark.parametrize("kind", [Agent, BookAgent], ids=["model", "landing-book"])


def run(
    random: Random, kind: type[Agent], *, steps: int = STEPS, floors: bool = True, held_lag: int = NEVER_HELD
) -> World:
    partitions, agents = random.randint(1, 3), random.randint(1, 3)
    world = World(random, partitions=partitions, agents=agents, floors=floors, kind=kind, held_lag=held_lag)
    for _ in range(steps):
        world.step()
    world.stalled.clear()
    world.settle()
    world.replace_owner(reads_all=True)
    world.commit()
    world.settle()
    return world


@pytest.mark.timeout(max(600, SCHEDULES))
@pytest.mark.parametrize("block", range(3))
@KINDS
def test_frontier_law_random_schedules_cut_equals_upstream(kind: type[Agent], block: int) -> None:
    size = SCHEDULES // 3
    for seed in range(block * size, (block + 1) * size):
        world = run(Random(seed), kind)
        assert (broken_law(world), went_back(world), seed) == (None, None, seed)


@pytest.mark.timeout(max(600, SCHEDULES))
@pytest.mark.parametrize("block", range(3))
@KINDS
def test_frontier_law_tables_that_lag_holds_for_each_changefeed(kind: type[Agent], block: int) -> None:
    size = SCHEDULES // 6
    for seed in range(block * size, (block + 1) * size):
        world = run(Random(seed), kind, held_lag=seed % 12 + 1, steps=2 * STEPS)
        assert (broken_law(world), went_back(world), seed) == (None, None, seed)


def test_frontier_law_tables_that_lag_are_held_and_let_go() -> None:
    worlds = [run(Random(seed), Agent, held_lag=4, steps=2 * STEPS) for seed in range(30)]
    assert all(world.published.resolved_ts == world.now and not world.published.held for world in worlds)
    groups = [len(published.held) for world in worlds for published in world.places()]
    tables = [len(held.tables) for world in worlds for published in world.places() for held in published.held]
    assert (sum(count > 0 for count in groups) > 100, max(groups) > 1, max(tables) > 1) == (True, True, True)
    moved = sum(
        before.held != () != after.held and before.resolved_ts < after.resolved_ts
        for world in worlds
        for before, after in pairwise(world.places())
    )
    assert moved > 30, "R hardly ever moves past a held table"


def held_at(record: FrontierRecord, **wrong: Any) -> FrontierRecord:
    return replace(record, held=tuple(replace(held, **wrong) for held in record.held))


@pytest.mark.parametrize(
    "view",
    [lambda record: held_at(record, low=record.low), lambda record: held_at(record, ts=record.resolved_ts)],
    ids=["its-low", "its-ts"],
)
def test_frontier_law_without_a_part_of_what_is_held_breaks(view: Callable[[FrontierRecord], FrontierRecord]) -> None:
    broken = [seed for seed in range(60) if broken_law(run(Random(seed), Agent, held_lag=4), view)]
    assert len(broken) > 5, "the test cannot see a loss"


def test_frontier_law_held_table_that_moves_and_starts_from_the_frontier_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        frontier_world,
        "pulled_from",
        lambda published, table, made_ts: pulled_from(replace(published, held=()), table, made_ts),
    )
    assert any(broken_law(run(Random(seed), Agent, held_lag=4)) for seed in range(60)), "the test cannot see a loss"


@pytest.mark.parametrize("seed", range(20))
@KINDS
def test_frontier_table_stalled_changefeeds_without_it_keep_advancing(kind: type[Agent], seed: int) -> None:
    random = Random(seed)
    world = World(random, kind=kind, held_lag=6)
    stuck = random.choice(list(world.spans))
    world.stalled = {stuck}
    others = [table for table in world.spans if table != stuck]
    began_ts = world.now
    for _ in range(20):
        world.commit()
        world.settle()
        assert world.now - place_of(world, others.__contains__).resolved_ts <= world.holding.lag
        assert place_of(world, stuck.__eq__).resolved_ts <= began_ts
    assert place_of(world, others.__contains__).resolved_ts == world.now
    world.stalled.clear()
    world.settle()
    world.commit()
    world.settle()
    assert (place_of(world, stuck.__eq__).resolved_ts, world.published.held) == (world.now, ())
    assert (broken_law(world), went_back(world)) == (None, None)


def test_frontier_law_random_schedules_are_worth_the_name() -> None:
    worlds = [run(Random(seed), Agent) for seed in range(30)]
    assert all(world.published.resolved_ts == world.now for world in worlds), "settled, yet R did not reach now"
    moved = [len({published.resolved_ts for published in world.places()}) for world in worlds]
    landed = sum(len(sent.rows) for world in worlds for partition in world.log for sent in partition)
    assert sorted(moved)[len(moved) // 2] >= 4, "R hardly ever moves before the end"
    assert landed > 1.05 * sum(len(world.rows) for world in worlds), "hardly anything is landed twice"
    assert sum(len(world.zombies) for world in worlds) > 30
    assert sum(world.revision for world in worlds) > 45
    assert sum(world.splits for world in worlds) > 30
    assert sum(len(parts) > 1 for world in worlds for parts in world.spans.values()) > 30
    held = [[bool(published.held_ddl) for published in world.places()] for world in worlds]
    assert sum(any(of_world) for of_world in held) > 10, "jobs that nobody can read are hardly ever passed"
    assert not any(of_world[-1] for of_world in held), "nor read later"


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
        return advance(first_record(1, Ts(5), 1), FrontierInputs({CaptureId("a"): report}, ddl, assigned)).resolved_ts

    assert [resolved_ts(first), resolved_ts(last), resolved_ts(first, last)] == [5, 5, 20]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.randoms(use_true_random=True),
    st.integers(20, 120),
    st.sampled_from([Agent, BookAgent]),
    st.sampled_from([2, 6, NEVER_HELD]),
)
def test_frontier_law_hypothesis_schedules_cut_equals_upstream(
    random: Random, steps: int, kind: type[Agent], held_lag: int
) -> None:
    world = run(random, kind, steps=steps, held_lag=held_lag)
    assert (broken_law(world), went_back(world)) == (None, None)
