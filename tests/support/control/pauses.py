"""How long a test that waits for a real process pauses between two looks at it."""

from collections.abc import Iterator

FIRST_S, LONGEST_S = 0.02, 0.25
MET_S = 0.1
"""The longest where something of seconds is to be met in its midst."""
_GROWTH = 1.5


def growing_pauses(longest_s: float = LONGEST_S) -> Iterator[float]:
    """Yield pauses in seconds, without end: short ones first, so that what is there soon is met soon, and longer and
    longer ones up to ``longest_s``. A request to ZooKeeper takes a millisecond of CPU time, a look makes several, and
    whoever is waited for needs the same two cores.
    """
    pause_s = FIRST_S
    while True:
        yield min(pause_s, longest_s)
        pause_s = min(_GROWTH * pause_s, longest_s)
