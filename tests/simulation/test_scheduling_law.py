"""Whatever happens to captures, owners and their network: no two captures write one key, no checkpoint goes back or
passes what is delivered, and once the faults cease every wanted key is written by exactly one capture.

``SCHEDULING_SEEDS`` says how many seeds to run. A failing seed replays exactly.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from consumers.control.core.replication import replication_set
from consumers.control.core.replication.captures import CaptureSet
from consumers.control.core.replication.inbox import Inbox
from consumers.control.core.replication.messages import Message, TableState
from consumers.control.core.replication.set_messages import SpanReport
from consumers.control.core.replication.staleness import Verdict
from consumers.control.core.scheduling import agent
from schemas.errors import BusError
from tests.simulation.scheduling_executor import BrokenPromiseError
from tests.simulation.scheduling_world import World

SEEDS = int(os.environ.get("SCHEDULING_SEEDS", "150"))
SHARDS = 8
WORTH = 100
"""Of the first seeds is shown, too, that they are worth the name."""
TICKS = 300
PATIENCE_TICKS = 1500


def run(seed: int) -> World:
    world = World(seed)
    for _ in range(TICKS):
        world.tick(faults=True)
    world.heal()
    healed_at = world.now
    while (why := world.unsettled()) is not None or world.checkpoint_ts <= healed_at:
        if world.now > healed_at + PATIENCE_TICKS:
            raise BrokenPromiseError(f"not settled: {why}, checkpoint {world.checkpoint_ts} at {world.now}")
        world.tick(faults=False)
    return world


def trouble(seed: int) -> str | None:
    try:
        run(seed)
    except (BrokenPromiseError, BusError) as error:
        return f"seed {seed}: {error}"
    return None


@pytest.mark.timeout(max(600, SEEDS))
@pytest.mark.parametrize("shard", range(SHARDS))
def test_scheduling_under_random_faults_keeps_its_promises(shard: int) -> None:
    for seed in range(WORTH + shard, SEEDS, SHARDS):
        assert (failure := trouble(seed)) is None, failure


def test_scheduling_seed_when_run_again_goes_the_same_way() -> None:
    assert run(7).events == run(7).events


def test_scheduling_schedules_are_worth_the_name() -> None:
    counts: dict[str, int] = {}
    for seed in range(WORTH):
        for what, count in run(seed).counts.items():
            counts[what] = counts.get(what, 0) + count
    for what in (
        "crash",
        "pause",
        "expire",
        "resign",
        "drop",
        "create",
        "move",
        "drain",
        "rebalance",
        "stop",
        "ambush",
    ):
        assert counts.get(what, 0) > 20, (what, counts)
    assert counts["elect"] > 250, counts


def _unordered(self: Inbox, messages: Iterable[Message]) -> Iterator[Message]:
    return iter(messages)


def _obedient(*_: Any) -> Verdict:
    return Verdict.ADOPT


def _hasty(self: CaptureSet, alive: Any) -> Any:
    after, gone = _with_alive(self, alive)
    return CaptureSet(after.captures, frozenset(), after.first_reports), gone


def _impatient(replication: Any, report: Any) -> Any:
    if report.state is TableState.STOPPING:
        report = SpanReport(report.capture, TableState.STOPPED, report.checkpoint)
    return _on_commit(replication, report)


_with_alive, _on_commit = CaptureSet.with_alive, replication_set._on_commit


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        (Inbox, "take", _unordered),
        (agent, "judge_owner", _obedient),
        (CaptureSet, "with_alive", _hasty),
        (replication_set, "_on_commit", _impatient),
    ],
    ids=[
        "old reports count",
        "old owners are obeyed",
        "a new owner does not wait",
        "stopping counts as stopped",
    ],
)
def test_scheduling_law_when_a_rule_is_broken_then_seeds_find_it(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, wrong: Callable[..., Any]
) -> None:
    """The law has teeth: without any one of these rules some seed breaks it."""
    monkeypatch.setattr(where, name, wrong)
    assert any(trouble(seed) is not None for seed in range(200))
