"""How long an owner and its agent rest between two ticks."""

from typing import Final

BUSY_SHARE_MAX: Final = 0.2
ASSIGNING_SHARE_MAX: Final = 0.6
"""Of the time in ticks: with very many tables one takes long, and the puller needs the interpreter too. While spans are
on their way, the frontier waits for them: then the owner may have more."""
GATHER_S: Final = 0.005
"""The least rest."""
REST_MAX_S: Final = 1.0
"""After one long tick, such as the first, which reads the schema of all tables."""


def rest_s(spent_s: float, tick_s: float, *, is_settled: bool = True) -> float:
    """Return how long to rest after a tick that took ``spent_s``."""
    share = BUSY_SHARE_MAX if is_settled else ASSIGNING_SHARE_MAX
    return max(tick_s, min(spent_s / share - spent_s, REST_MAX_S))
