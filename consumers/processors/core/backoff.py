"""Whether trouble that may pass is waited for: so long after the last progress, and longer each time."""

from dataclasses import dataclass

from schemas.errors import Action, BusError


@dataclass(slots=True)
class Backoff:
    """Waits for one task; mutable and deterministic."""

    total_s: float
    first_s: float = 0.2
    most_s: float = 5.0
    _since_s: float | None = None
    _next_s: float = 0.0

    def progress(self) -> None:
        """Something has moved: the trouble, if there was any, is over."""
        self._since_s = None

    def wait_s(self, error: BusError, now_s: float) -> float | None:
        """Return how long to wait before the next try; None: there is none, the error is for an operator."""
        if error.action is not Action.RETRY:
            return None
        if self._since_s is None:
            self._since_s, self._next_s = now_s, self.first_s
        if now_s - self._since_s >= self.total_s:
            return None
        waits, self._next_s = self._next_s, min(2 * self._next_s, self.most_s)
        return waits
