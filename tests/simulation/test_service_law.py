"""Sorter services under every fault: a changefeed has one sorter at any time, what was begun is repeated as it was
begun, nothing is passed over, figures are the present holder's, and once the faults end everything is written.

``SERVICE_SEEDS`` says how many seeds to run; a failing seed replays with ``tidebus simulate --of services --seed N
--trace``.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from compose.cli import run_cli
from compose.simulation.services.run import outcome_of
from compose.simulation.services.world import ServicesWorld
from consumers.control.core.changefeeds.service_plan import ServicePlan

SEEDS = int(os.environ.get("SERVICE_SEEDS", "2000"))
SHARDS = 4
WORTH = 40
"""Of the first seeds is shown, too, that they are worth the name."""
TRIES_MAX = 60
"""Within so many seeds a broken rule must show."""


@pytest.mark.timeout(max(600, SEEDS))
@pytest.mark.parametrize("shard", range(SHARDS))
def test_services_under_random_faults_keep_their_promises(shard: int) -> None:
    for seed in range(WORTH + shard, SEEDS, SHARDS):
        outcome = outcome_of(seed)
        assert not outcome.broken, outcome


def test_service_schedules_are_worth_the_name() -> None:
    counts: Counter[str] = Counter()
    for seed in range(WORTH):
        outcome = outcome_of(seed)
        assert not outcome.broken, outcome
        counts += outcome.world.counts
    wanted = (
        "kill",
        "expire",
        "lost",
        "freeze",
        "zombie",
        "elect",
        "refused",
        "outage",
        "leaving",
        "left",
        "use",
        "answer lost",
    )
    assert not [what for what in wanted if not counts[what]], counts
    assert counts["move"] > 60, counts


def given_twice(plan: ServicePlan) -> ServicePlan:
    """Give the first changefeed of a plan to another service as well."""
    services = sorted(service for service, assignment in plan.write.items() if assignment.feeds)
    others = sorted(plan.write.keys() - services[:1])
    if not services or not others:
        return plan
    stolen, other = plan.write[services[0]].feeds[0], plan.write[others[0]]
    return replace(plan, write={**plan.write, others[0]: replace(other, feeds=(*other.feeds, stolen))})


def give_twice(world: ServicesWorld) -> None:
    world.spoil = given_twice


def ignore_entry(world: ServicesWorld) -> None:
    world.ignores_entry = True


def ignore_refusal(world: ServicesWorld) -> None:
    world.ignores_refusal = True


def take_lost_for_done(world: ServicesWorld) -> None:
    world.takes_lost_for_done = True


def trust_versions(world: ServicesWorld) -> None:
    world.trusts_versions = True


def mix_figures(world: ServicesWorld) -> None:
    world.mixes_figures = True


def forget_figures(world: ServicesWorld) -> None:
    world.forgets_figures = True


@pytest.mark.parametrize(
    ("plant", "promise"),
    [
        (give_twice, "is assigned to"),
        (ignore_entry, "was begun"),
        (ignore_refusal, "was begun"),
        (take_lost_for_done, "was begun"),
        (trust_versions, "are not written up to"),
        (mix_figures, "its holder has ended"),
        (forget_figures, "figures of"),
    ],
)
def test_services_that_break_a_rule_are_found_out(plant: Callable[[ServicesWorld], None], promise: str) -> None:
    for seed in range(TRIES_MAX):
        broken = outcome_of(seed, plant).broken
        if broken and promise in broken:
            return
    raise AssertionError(f"nobody noticed within {TRIES_MAX} seeds")


def test_services_seed_replays_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["simulate", "--of", "services", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert f"trace {outcome_of(3).world.trace_hash()}" in said
