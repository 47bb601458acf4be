"""Up to where changefeeds run the frontier, so that they run the same cuts: pure.

::

    SET --due, and all who were told of it have read--> OPEN --one of them reads: up to what is there by then--> SET

Where there are very many, each protocol has beats of its own: what costs most of a cut, its messages, others do not
share in any case. There is more to do then than permits let be done at once, changefeeds of all protocols wait in one
line, and a row waits until its protocol's turn comes, and then for its changefeed's within that. With one beat for all
it would wait until everybody has had a turn, and then for its changefeed's among everybody's. That is why a beat is set
as late as may be.
"""

import math
from typing import Final

BEAT_WAIT_MAX_S: Final = 10.0
"""For so long a beat waits for those who want the one before it: who has little to do waits no longer for others."""


class Beats:
    """Of one protocol, or of all. Offsets are the frontier topic's, seconds of one clock that never goes back."""

    def __init__(self, start: int) -> None:
        """``start`` is the first one."""
        self._beat, self._set_at_s, self._set_cpu_s = start, -math.inf, 0.0
        self._is_open = False
        self._wanting: set[object] = set()
        """Who has been told that there is something to read, and has not read: they wait for a permit."""

    @property
    def set_at_s(self) -> float:
        """When the last one was set."""
        return self._set_at_s

    @property
    def set_cpu_s(self) -> float:
        """What the process had taken by then."""
        return self._set_cpu_s

    def end(self, newest: int) -> int:
        """Return up to where epochs may go; ``newest`` is where the topic ends."""
        return newest if self._is_open else self._beat

    def is_stale(self, newest: int) -> bool:
        """Tell whether a later one is to be opened, once that is due."""
        return not self._is_open and self._beat < newest

    def is_wanted(self) -> bool:
        """Tell whether somebody has yet to read up to the last one."""
        return bool(self._wanting)

    def tell(self, who: object) -> None:
        """Wait for ``who``, who may read now, until it does or leaves."""
        self._wanting.add(who)

    def read(self, who: object, newest: int, now_s: float, cpu_s: float) -> int:
        """Return up to where ``who`` may read; the first one who does sets the beat for the others."""
        self._wanting.discard(who)
        if self._is_open:
            self._is_open = False
            self._beat, self._set_at_s, self._set_cpu_s = newest, now_s, cpu_s
        return self._beat

    def leave(self, who: object) -> None:
        """Wait for somebody no more."""
        self._wanting.discard(who)

    def open(self, newest: int, now_s: float, due_at_s: float) -> bool:
        """Let a later one be set if that is due, and nobody wants the last one any more; tell whether it came so."""
        if not self.is_stale(newest) or now_s < due_at_s:
            return False
        if self._wanting and now_s < self._set_at_s + BEAT_WAIT_MAX_S:
            return False
        self._is_open = True
        return True
