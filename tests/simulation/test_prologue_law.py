"""A start before the raw log began, under every fault: each change above the start ts goes out once, a repeated cut has
the same changes, no log is read that is not whole, and nothing is left behind.

``PROLOGUE_SEEDS`` says how many seeds to run.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas.ids import Ts, UpstreamId
from schemas.nodes.prologue import Prologue
from tests.simulation.prologue_world import UPSTREAM, Attempt, BrokenError, PrologueWorld, Rules

SEEDS = int(os.environ.get("PROLOGUE_SEEDS", "300"))
TRIES_MAX = 200
"""Within so many seeds a broken rule must show."""


def test_a_prologue_keeps_its_promises_under_random_faults() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = PrologueWorld(seed)
        try:
            world.run()
        except BrokenError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counts += Counter(world.counts)
    wanted = ("kill", "zombie", "refused", "swept", "repeat")
    assert not [what for what in wanted if counts[what] < SEEDS // 4], counts
    assert counts["begun"] > counts["complete"] == SEEDS, counts


def shared_log(prologue: Prologue) -> UpstreamId:
    """Let all attempts land into the topics of the first."""
    return replace(prologue, attempt=1).log


def never_waits(prologue: Prologue | None, checkpoint_ts: Ts) -> UpstreamId | None:
    """Read the upstream's log from the start."""
    return UPSTREAM


def reads_at_once(prologue: Prologue | None, checkpoint_ts: Ts) -> UpstreamId | None:
    """Read the prologue before it is complete."""
    return UPSTREAM if prologue is None or checkpoint_ts >= prologue.end_ts else prologue.log


def nearly_all(attempt: Attempt) -> bool:
    """Publish while a change has still to land."""
    return len(attempt.waiting) < 3


@pytest.mark.parametrize(
    "plant",
    [
        lambda rules: replace(rules, log_of=shared_log),
        lambda rules: replace(rules, choose=never_waits),
        lambda rules: replace(rules, choose=reads_at_once),
        lambda rules: replace(rules, may_publish=nearly_all),
        lambda rules: replace(rules, checks_version=False),
        lambda rules: replace(rules, lists_topics_first=False),
    ],
    ids=[
        "shared topics",
        "no prologue",
        "too early",
        "not all landed",
        "no compare-and-set",
        "sweep reads nodes first",
    ],
)
def test_a_rule_that_is_taken_out_shows(plant: Callable[[Rules], Rules]) -> None:
    for seed in range(TRIES_MAX):
        try:
            PrologueWorld(seed, plant(Rules())).run()
        except BrokenError:
            return
    raise AssertionError(f"nothing shows within {TRIES_MAX} seeds")
