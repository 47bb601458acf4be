"""When the status nodes of running changefeeds are written though their service's entries say more: pure.

Versions before sorter services read ``status`` alone. With it some seconds old, an owner of such a version shows how
far a changefeed is, and a sorter of one that takes over from a killed service repeats seconds and not hours.
"""

from typing import Final

FEED_S: Final = 10.0
"""Between two writes of one changefeed's status, at least."""
SERVICE_S: Final = 1.0
"""Between two of any, so that their number does not grow with the number of changefeeds."""


class StatusPace:
    """Of one service. Seconds are of one clock that never goes back."""

    def __init__(self, feed_s: float = FEED_S, service_s: float = SERVICE_S) -> None:
        self._feed_s, self._service_s = feed_s, service_s
        self._next_s = 0.0

    def takes(self, written_s: float, now_s: float) -> bool:
        """Tell whether a changefeed's status, last written at ``written_s``, is to be written now; then it is taken
        for written. Of two threads that ask at once both may be told so, which costs one write.
        """
        if now_s < self._next_s or now_s - written_s < self._feed_s:
            return False
        self._next_s = now_s + self._service_s
        return True
