"""Which changefeeds compute now, where more want to than there are cores: pure.

    ask --a turn is free--> has a turn --end, with the CPU time that it took--> the next one of those who wait
     '--none is free--> waits          ------------------------------------^

The next one is whoever has used least CPU time lately, less the time that it has waited: a changefeed that floods its
topic waits for those that have little to do, and each of them waits for a bounded time, however many there are.
"""

import math
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

LATELY_S: Final = 5.0
"""CPU time counts for less the longer ago it was used: by a factor of e after so many seconds."""
WAITING_OUTWEIGHS: Final = 10.0
"""So many seconds of waiting outweigh one of CPU time: nobody waits for ever for those who use less."""

Name = TypeVar("Name", bound=Hashable)


class FairTurns(Generic[Name]):
    """Seconds are of one clock that never goes back."""

    def __init__(self, turns_max: int) -> None:
        """``turns_max`` is how many may compute at once."""
        self._turns_max = max(1, turns_max)
        self._holders: set[Name] = set()
        self._waiting: dict[Name, float] = {}
        """Since when."""
        self._used: dict[Name, tuple[float, float]] = {}
        """CPU seconds, as they counted at a time."""

    @property
    def holders(self) -> frozenset[Name]:
        """Who has a turn."""
        return frozenset(self._holders)

    @property
    def waiting(self) -> frozenset[Name]:
        """Who waits for one."""
        return frozenset(self._waiting)

    @property
    def is_waited_for(self) -> bool:
        """Whether anybody waits for a turn."""
        return bool(self._waiting)

    def used_s(self, name: Name, now_s: float) -> float:
        """Return the CPU seconds that a changefeed has used lately."""
        used_s, at_s = self._used.get(name, (0.0, now_s))
        return used_s * math.exp((at_s - now_s) / LATELY_S)

    def allow(self, turns_max: int, now_s: float) -> list[Name]:
        """Let so many compute at once from now on, those who do going on; return who gets a turn now."""
        self._turns_max = max(1, turns_max)
        return self._give(now_s)

    def ask(self, name: Name, now_s: float) -> bool:
        """Tell whether a changefeed that has no turn gets one at once; else it waits."""
        if len(self._holders) < self._turns_max and not self._waiting:
            self._holders.add(name)
            return True
        self._waiting.setdefault(name, now_s)
        return False

    def withdraw(self, name: Name, now_s: float) -> list[Name]:
        """Let a changefeed have and want no turn; return who gets one now."""
        self._waiting.pop(name, None)
        self._holders.discard(name)
        return self._give(now_s)

    def end(self, name: Name, cpu_s: float, now_s: float) -> list[Name]:
        """Take a turn back that has cost CPU time; return who gets one now."""
        self._used[name] = (self.used_s(name, now_s) + max(0.0, cpu_s), now_s)
        return self.withdraw(name, now_s)

    def forget(self, name: Name) -> None:
        """Forget what a changefeed has used: it is here no more."""
        self._used.pop(name, None)

    def _give(self, now_s: float) -> list[Name]:
        given = []
        while self._waiting and len(self._holders) < self._turns_max:
            name = min(self._waiting, key=lambda known: self._weight_s(known, now_s))
            del self._waiting[name]
            self._holders.add(name)
            given.append(name)
        return given

    def _weight_s(self, name: Name, now_s: float) -> float:
        return self.used_s(name, now_s) - (now_s - self._waiting[name]) / WAITING_OUTWEIGHS
