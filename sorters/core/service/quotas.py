"""What one changefeed may take of a service that many share: pure. Over its quota its next cut waits, and no other's.

Pace          CPU seconds and rows per second of one changefeed, by what its finished cuts took
BytesInHand   raw bytes of the cuts that are held at once, over all changefeeds
"""

from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

BURST_S: Final = 1.0
"""For so long a changefeed that has rested may go on as fast as it can."""
BYTES_IN_HAND_MAX: Final = 256 * 1024 * 1024
"""Of raw records: 16 cuts of the largest size that a driver runs."""
SMALL_BYTES: Final = 256 * 1024
"""A cut up to here waits for nobody's bytes: who keeps up with its upstream is not held up by those who do not."""

Name = TypeVar("Name", bound=Hashable)


class Pace:
    """A changefeed's rates. Seconds are of one clock that never goes back."""

    def __init__(self, cores_max: float = 0.0, rows_per_second_max: int = 0) -> None:
        """0: no bound, of either."""
        self._rates = (cores_max, float(rows_per_second_max))
        self._debts = (0.0, 0.0)
        self._at_s = 0.0

    def note(self, cpu_s: float, rows: int, now_s: float) -> None:
        """Take in what a cut took."""
        cpu, row = self._owed(now_s)
        self._debts, self._at_s = (cpu + cpu_s, row + rows), now_s

    def rest_s(self, now_s: float) -> float:
        """Return how long the next cut must wait."""
        owed = zip(self._owed(now_s), self._rates, strict=True)
        return max(0.0, *(debt / rate - BURST_S for debt, rate in owed if rate > 0), 0.0)

    def _owed(self, now_s: float) -> tuple[float, float]:
        gone_s = max(0.0, now_s - self._at_s)
        cpu, row = (max(0.0, debt - rate * gone_s) for debt, rate in zip(self._debts, self._rates, strict=True))
        return cpu, row


class BytesInHand(Generic[Name]):
    """Cuts that are held, each changefeed's one; those that wait are let in by the order in which they came."""

    def __init__(self, bytes_max: int = BYTES_IN_HAND_MAX, small_bytes: int = SMALL_BYTES) -> None:
        self._bytes_max, self._small_bytes = bytes_max, small_bytes
        self._held: dict[Name, int] = {}
        self._waiting: deque[tuple[Name, int]] = deque()

    @property
    def held_bytes(self) -> int:
        """Of all cuts that count: small ones do not."""
        return sum(self._held.values())

    def ask(self, name: Name, size: int) -> bool:
        """Tell whether a changefeed that holds nothing may read a cut of ``size`` bytes now; else it waits."""
        if size <= self._small_bytes:
            return True
        self._waiting.append((name, size))
        return name in self._let_in()

    def done(self, name: Name) -> list[Name]:
        """Let a changefeed hold and want nothing; return who may read now."""
        self._held.pop(name, None)
        self._waiting = deque(item for item in self._waiting if item[0] != name)
        return self._let_in()

    def _let_in(self) -> list[Name]:
        given = []
        while self._waiting and (not self._held or self.held_bytes + self._waiting[0][1] <= self._bytes_max):
            name, size = self._waiting.popleft()
            self._held[name] = size
            given.append(name)
        return given
