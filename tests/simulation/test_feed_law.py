"""Whatever is written and whatever happens to the cluster, the event feed lands exactly what the store committed, and
no resolved ts is passed by a change that comes later.

Each schedule is a random list of steps for :mod:`tests.simulation.feed_world`; a failing one is shrunk and printed.
``NIGHTLY_SCHEDULES`` says how many to run (`make nightly`: 10,000); `make test` runs a few hundred.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from producers.region_server.cdc import endpoint
from producers.region_server.core.cdc.delegate import Delegate
from producers.region_server.core.cdc.incremental_scan import ScanSnapshot, take_snapshot
from producers.region_server.core.cdc.resolver import Resolver
from schemas.ids import Ts
from tests.simulation.feed_schedules import make_schedule, report, run_schedule

SCHEDULES = int(os.environ.get("NIGHTLY_SCHEDULES", "400"))
SHARDS = 8
"""Tests that the schedules are spread over, so that both cores have work."""


@pytest.mark.timeout(max(600, SCHEDULES))
@pytest.mark.parametrize("shard", range(SHARDS))
def test_feed_under_random_schedules_lands_exactly_the_committed_history(shard: int) -> None:
    for seed in range(shard, SCHEDULES, SHARDS):
        error = run_schedule(make_schedule(seed), seed)
        if error is not None:
            pytest.fail(report(seed, error), pytrace=False)


def _without_locks(_: Resolver, min_ts: Ts) -> Ts:
    return min_ts


def _forgetful(self: Delegate, downstream: Any, locks: Iterable[Any], **more: Any) -> None:
    _subscribe(self, downstream, (), **more)


def _blind(*arguments: Any, **more: Any) -> ScanSnapshot:
    return replace(take_snapshot(*arguments, **more), locks={})


_subscribe = Delegate.subscribe


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [(Resolver, "resolve", _without_locks), (Delegate, "subscribe", _forgetful), (endpoint, "take_snapshot", _blind)],
    ids=["resolver forgets locks", "locks before the registration are not tracked", "scan leaves locks out"],
)
def test_feed_law_when_the_server_is_wrong_then_schedules_find_it_and_shrink(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, wrong: Callable[..., Any]
) -> None:
    """The law has teeth: a resolved ts that lies, or a scan with a hole, is found within a few schedules."""
    monkeypatch.setattr(where, name, wrong)
    outcomes = ((seed, run_schedule(make_schedule(seed), seed)) for seed in range(40))
    seed, error = next((seed, error) for seed, error in outcomes if error is not None)
    said = report(seed, error)
    steps = [line for line in said.splitlines() if line.startswith("    (")]
    assert said.startswith(f"seed {seed}: ")
    assert 0 < len(steps) < len(make_schedule(seed)) / 2
