"""``tidebus simulate``: a whole cluster under random faults, in one process, by seeds that replay exactly."""

import time

import click

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
    type=click.Choice(["cluster", "processors"]),
    default="cluster",
    show_default=True,
    help="cluster: from captures to the frontier; processors: from a changefeed's topic to its database.",
)
@click.option("--trace", is_flag=True, help="With --seed: print all that happens.")
def simulate(seeds: int, first: int, minutes: float | None, seed: int | None, what: str, trace: bool) -> int:
    """Simulate clusters: captures, owners, tables and an upstream under every fault, checked at each step; or a
    changefeed's processors, their leader and the database that they write to.

    Everything is drawn by the seed, so a failing one fails again. Exit status 1 if any promise was broken.
    """
    from compose.simulation.processors import run as processors
    from compose.simulation.run import outcome_of as outcome_of_cluster

    outcome_of = outcome_of_cluster if what == "cluster" else processors.outcome_of
    of = "" if what == "cluster" else f" --of {what}"
    if trace and seed is None:
        raise click.UsageError("--trace needs --seed")
    if seed is not None:
        outcome = outcome_of(seed)
        if trace or outcome.broken:
            for line in outcome.lines():
                click.echo(line)
        click.echo(str(outcome))
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
                click.echo(f"{outcome}\n  tidebus simulate{of} --seed {number} --trace")
    took_s = time.monotonic() - began_at
    click.echo(f"{done} seeds from {first}, {broken} broken, {took_s:.1f} s")
    return 1 if broken else 0
