"""Whether PD has given out a ts already, without asking PD each time."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

from schemas.errors import BusError
from schemas.ids import Ts, compose_ts

ANCHOR_S: Final = 60.0
"""For so long PD's clock is taken to go on as ours does."""
SLACK_MS: Final = 500
"""More than the two clocks differ by then."""
ASK_EVERY_S: Final = 1.0


class TsBound:
    """Not thread-safe. Asks once a minute, and when a ts seems to be of the future: PD's clock may have jumped."""

    def __init__(self, ask: Callable[[], Ts], clock: Callable[[], float] = time.monotonic) -> None:
        """``ask`` returns PD's now, or raises BusError."""
        self._ask, self._clock = ask, clock
        self._anchor_ts, self._asked_at = Ts(0), float("-inf")
        self._anchor_at: float | None = None

    def anchor(self, ts: Ts) -> None:
        """Take that PD's now is this ts."""
        self._anchor_ts, self._anchor_at = ts, self._clock()

    def is_past(self, ts: Ts) -> bool:
        """Say whether a ts is at or below PD's now; while PD does not answer, by what it said last."""
        now = self._clock()
        if self._anchor_at is not None and now <= self._anchor_at + ANCHOR_S and ts <= self._bound(now):
            return True
        if now >= self._asked_at + ASK_EVERY_S:
            self._asked_at = now
            with contextlib.suppress(BusError):
                self._anchor_ts, self._anchor_at = self._ask(), now
        return ts <= self._bound(now)

    def _bound(self, now: float) -> int:
        if self._anchor_at is None:
            return 0
        return self._anchor_ts + compose_ts(round((now - self._anchor_at) * 1000) + SLACK_MS)
