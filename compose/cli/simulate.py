"""``tidebus simulate``: a whole cluster under random faults, in one process, by seeds that replay exactly."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from compose.echo import echo

if TYPE_CHECKING:
    from compose.simulation.outcome import Outcome

SHOWN_MAX = 5
"""Failing seeds that one run prints in full."""


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=200, show_default=True, help="How many to run.")
@click.option("--from", "first", type=click.IntRange(min=0), default=0, show_default=True, help="The first one.")
@click.option("--minutes", type=click.FloatRange(min=0), default=None, help="End after so long, whatever --seeds says.")
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Run this one alone.")
@click.option(
    "--of",
    "what",
    type=click.Choice(["cluster", "processors", "services", "images"]),
    default="cluster",
    show_default=True,
    help="cluster: from captures to the frontier; processors: from a changefeed's topic to its database; services: who "
    "sorts which changefeed, and what is repeated; images: what was there before, and what follows it.",
)
@click.option("--trace", is_flag=True, help="With --seed: print all that happens.")
def simulate(seeds: int, first: int, minutes: float | None, seed: int | None, what: str, trace: bool) -> int:
    """Simulate clusters: captures, owners, tables and an upstream under every fault, checked at each step; or a
    changefeed's processors, their leader and the database that they write to; or sorter services and the owner that
    assigns changefeeds to them; or table images, from their barriers to what changefeeds write of them.

    Everything is drawn by the seed, so a failing one fails again. Exit status 1 if any promise was broken.
    """
    from compose.simulation.images import run as images
    from compose.simulation.processors import run as processors
    from compose.simulation.run import outcome_of as outcome_of_cluster
    from compose.simulation.services import run as services

    runs: dict[str, Callable[[int], Outcome[Any]]] = {
        "cluster": outcome_of_cluster,
        "processors": processors.outcome_of,
        "services": services.outcome_of,
        "images": images.outcome_of,
    }
    outcome_of = runs[what]
    of = "" if what == "cluster" else f" --of {what}"
    if trace and seed is None:
        raise click.UsageError("--trace needs --seed")
    if seed is not None:
        outcome = outcome_of(seed)
        if trace or outcome.broken:
            for line in outcome.lines():
                echo(line)
        echo(str(outcome))
        return 1 if outcome.broken else 0
    began_at, broken, done = time.monotonic(), 0, 0
    for number in range(first, first + seeds):
        if minutes is not None and time.monotonic() - began_at > 60 * minutes:
            break
        outcome = outcome_of(number)
        done += 1
        if outcome.broken:
            broken += 1
            if broken <= SHOWN_MAX:
                echo(f"{outcome}\n  tidebus simulate{of} --seed {number} --trace")
    took_s = time.monotonic() - began_at
    echo(f"{done} seeds from {first}, {broken} broken, {took_s:.1f} s")
    return 1 if broken else 0
