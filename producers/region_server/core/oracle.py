"""The timestamp oracle: where PD's TSO comes from, in free running and under a replay.

Free running: strictly increasing, at or above the given clock and the floor (the last ts of a replay).

Under a replay the recorded transactions bring their own timestamps, so a ts that PD gives out must stay **below every
commit_ts that is still to come without a lock in place**: resolved ts are made from it, and they must not lie. The
replay sets that ceiling before each record. The same ts can then be given out twice, which is harmless: nobody but
the replay writes meanwhile.
"""

from collections.abc import Callable

from schemas.ids import Ts, compose_ts


class TimestampOracle:
    """``now_ms`` is the clock, in milliseconds since the Unix epoch; it may jump, timestamps never go back."""

    def __init__(self, now_ms: Callable[[], int], last: int = 0) -> None:
        self._now_ms = now_ms
        self._ceiling: Ts | None = None
        self.last = Ts(last)

    def tso(self, count: int = 1) -> Ts:
        """Give out ``count`` timestamps and return the last of them. Under a ceiling it may repeat."""
        clock = compose_ts(self._now_ms())
        if self._ceiling is not None:
            self.last = max(self.last, min(clock, self._ceiling))
        else:
            # The logical half may run over into the physical one: PD does the same, by waiting for the next tick.
            self.last = Ts(max(self.last + count, clock))
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
