"""Whose incremental scan a store may run now: a bound on scans at once, and a fair order among those that wait.

Spans take turns and each span's regions go in the order of their coming: the hundred thousand regions of one table do
not keep a table of one region waiting, and a region that was registered first is scanned before its younger neighbours.
TiKV itself runs few scans at once and refuses beyond 10,000 (docs/formats/cdcpb.md §8). Pure bookkeeping.
"""

from typing import Generic, TypeVar

from producers.pull.core.regions.subscription import Registration, Subscription
from schemas.errors import InvariantBrokenError

Where = TypeVar("Where")
"""What the caller needs to send a registration: its stream."""


class ScanQueue(Generic[Where]):
    """The scans of one store."""

    def __init__(self, at_once_max: int) -> None:
        if at_once_max < 1:
            raise InvariantBrokenError("a store must be allowed one scan at least", at_once_max=at_once_max)
        self._at_once_max = at_once_max
        self._running: set[Registration] = set()
        self._waiting: dict[Subscription, dict[Registration, Where]] = {}

    @property
    def running(self) -> int:
        """How many scans are under way."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return sum(map(len, self._waiting.values()))

    def put(self, registration: Registration, where: Where) -> None:
        """Let a registration wait for its turn."""
        self._waiting.setdefault(registration.subscription, {})[registration] = where

    def take(self) -> tuple[Registration, Where] | None:
        """Return whose turn it is, if there is room; its scan counts as running until :meth:`leave`."""
        if not self._waiting or len(self._running) >= self._at_once_max:
            return None
        subscription, mine = next(iter(self._waiting.items()))
        registration = next(iter(mine))
        where = mine.pop(registration)
        del self._waiting[subscription]
        if mine:
            self._waiting[subscription] = mine  # to the end: the others come first
        self._running.add(registration)
        return registration, where

    def leave(self, registration: Registration) -> None:
        """Forget one, wherever it stands: its scan is complete, failed or not wanted. Twice is the same as once."""
        self._running.discard(registration)
        mine = self._waiting.get(registration.subscription)
        if mine is not None and mine.pop(registration, None) is not None and not mine:
            del self._waiting[registration.subscription]
