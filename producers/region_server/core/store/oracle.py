"""The timestamp oracle: where PD's TSO comes from, in free running and under a replay.

Free running: strictly increasing, at or above the given clock and the floor (the last ts of a replay).

Under a replay the recorded transactions bring their own timestamps, so a ts that PD gives out must stay **below every
commit_ts that is still to come without a lock that stands**: resolved ts are made from it, and they must not lie. The
replay sets that ceiling before each record. The same ts can then be given out twice, which is harmless: nobody but
the replay writes meanwhile.
"""

from collections.abc import Callable

from schemas.errors import ConfigError
from schemas.ids import PHYSICAL_SHIFT_BITS, Ts, compose_ts

LOGICAL_MAX = (1 << PHYSICAL_SHIFT_BITS) - 1


class TimestampOracle:
    """``now_ms`` is the clock, in milliseconds since the Unix epoch; it may jump, timestamps never go back."""

    def __init__(self, now_ms: Callable[[], int], last: int = 0) -> None:
        self._now_ms = now_ms
        self._ceiling: Ts | None = None
        self.last = Ts(last)

    def tso(self, count: int = 1) -> Ts:
        """Give out ``count`` timestamps and return the last of them. Under a ceiling it may repeat.

        All of them share a physical half, so that the last minus ``count`` - 1 is the first, as clients reckon.

        Raises:
            ConfigError: more than a physical millisecond holds.
        """
        if count > LOGICAL_MAX:
            raise ConfigError("more timestamps at once than a millisecond holds", count=count, allowed=LOGICAL_MAX)
        clock = compose_ts(self._now_ms())
        if self._ceiling is not None:
            self.last = max(self.last, min(clock, self._ceiling))
            return self.last
        last = max(self.last + count, clock + count - 1)
        if last & LOGICAL_MAX < count - 1:
            # The logical half ran over: PD waits for the next tick then, which comes to the same.
            last = (last & ~LOGICAL_MAX) + count - 1
        self.last = Ts(last)
        return self.last

    def hold(self, ceiling: Ts, now_ms: Callable[[], int]) -> None:
        """Stay at or below ``ceiling`` and follow the recorded clock ``now_ms``. The ceiling only ever rises."""
        self._ceiling = ceiling
        self._now_ms = now_ms

    def release(self, floor: Ts, now_ms: Callable[[], int]) -> None:
        """Run freely again, above ``floor`` and by the clock ``now_ms``."""
        self._ceiling = None
        self._now_ms = now_ms
        self.last = max(self.last, floor)
