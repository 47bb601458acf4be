"""What is said of a trouble that is met again some times a second, without a flood: when it is new, and each minute."""

from typing import Final

SAID_EACH_S: Final = 60.0


class SlowWords:
    """Of one trouble, which may change its reason."""

    def __init__(self) -> None:
        self._said, self._said_at_s = "", 0.0

    def are_due(self, text: str, now_s: float) -> bool:
        """Tell whether to say ``text`` now; then it counts as said."""
        if text == self._said and now_s - self._said_at_s < SAID_EACH_S:
            return False
        self._said, self._said_at_s = text, now_s
        return True

    def end(self) -> bool:
        """The trouble is over; tell whether anything was said of it."""
        said, self._said = self._said, ""
        return bool(said)
