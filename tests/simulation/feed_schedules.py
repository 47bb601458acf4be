"""Random schedules for :mod:`tests.simulation.feed_world`: made from a seed, run, and shrunk when the law breaks."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from producers.pull.feed import recovery as feed_recovery
from tests.simulation.feed_coordinators import WRITES
from tests.simulation.feed_world import CLIENT, CLUSTER, FLOW, WIRE, FeedWorld, LawBrokenError, Step

STEPS_MIN, STEPS_MAX = 40, 160


def make_schedule(seed: int) -> list[Step]:
    """Return a schedule. Its mix differs from seed to seed: quiet clusters and wild ones, fast wires and slow ones."""
    dice = random.Random(seed)
    weights = [dice.choice((1, 2)), dice.choice((0.1, 0.3, 0.8)), dice.choice((0.3, 1)), 0.2, dice.choice((0.5, 1, 2))]
    groups = dice.choices((WRITES, CLUSTER, WIRE, CLIENT, FLOW), weights, k=dice.randint(STEPS_MIN, STEPS_MAX))
    return [(dice.choice(kinds), dice.randrange(1 << 10), dice.randrange(64)) for kinds in groups]


def run_schedule(steps: Sequence[Step], seed: int) -> Exception | None:
    """Run a schedule in a new world; return what broke, or None. Every fourth seed's stores have no multiplexing."""
    loop, mended = asyncio.new_event_loop(), _Mended()
    world = FeedWorld(loop, seed, multiplexing=seed % 4 != 3)
    try:
        for step in steps:
            world.do(step)
            if world.fatal:
                return world.fatal[0]
        world.settle()
        world.check()
        mended.check()
    except Exception as error:  # whatever it is, the schedule that led there is what counts
        return error
    finally:
        mended.close()
        world.cluster.close()
        loop.close()
    return None


class _Mended(logging.Handler):
    """Hears when the feed registers a range anew because the store's rows made no sense.

    That mends what a wrong store says, and would hide it here: our store must never give cause.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: list[logging.LogRecord] = []
        self._log = logging.getLogger(feed_recovery.__name__)
        self._log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.append(record)

    def check(self) -> None:
        if self._seen:
            raise LawBrokenError(f"{self._seen[0].getMessage()}: {self._seen[0].__dict__.get('reason', '')}")

    def close(self) -> None:
        self._log.removeHandler(self)
        super().close()


def shrink(steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """Return a schedule that fails still, and does not without any one of its steps."""
    kept, size = list(steps), max(1, len(steps) // 2)
    while size:
        at, removed = 0, False
        while at < len(kept):
            shorter = kept[:at] + kept[at + size :]
            if fails(shorter):
                kept, removed = shorter, True
            else:
                at += size
        if not removed or size > 1:
            size //= 2
    return kept


def report(seed: int, error: Exception) -> str:
    """Shrink a failing seed and say what is left of it, so that it can be pasted into a test."""
    kind = type(error)

    def fails(steps: Sequence[Step]) -> bool:
        return isinstance(run_schedule(steps, seed), kind)

    steps = shrink(make_schedule(seed), fails)
    lines = "\n".join(f"    {step!r}," for step in steps)
    left = run_schedule(steps, seed)
    return f"seed {seed}: {kind.__name__}: {error}\n{len(steps)} steps are enough: {left}\n[\n{lines}\n]"
