"""Failed logins make the next ones wait: who guesses passwords is slow, whoever it pretends to be.

Pure: the caller brings the clock.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

FREE_ATTEMPTS: Final = 5
"""Typing errors of a person, and a password that was changed a moment ago."""
WAIT_FIRST_S, WAIT_MAX_S = 1.0, 60.0
FORGET_S: Final = 600.0
"""After so long without an attempt a client begins anew."""
REMEMBERED_MAX: Final = 10_000
HOST_FACTOR: Final = 10
"""A host may fail so many times as often with different users. Of one user its first failures count, as it has to wait
itself then: a job that goes on with an old password locks nobody else of its machine out."""


@dataclass(slots=True)
class _Failures:
    count: float = 0.0
    wait_until_s: float = 0.0
    last_s: float = 0.0


class Logins:
    """A server's; not thread-safe."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str | None], _Failures] = OrderedDict()
        """By host and user; None: all users of the host."""

    def wait_s(self, host: str, user: str, now_s: float) -> float:
        """Return how long this client has to wait before an attempt is looked at; 0: it need not."""
        keys = ((host, user), (host, None))
        return max(0.0, *(seen.wait_until_s - now_s for key in keys if (seen := self._failures.get(key))), 0.0)

    def failed(self, host: str, user: str, now_s: float) -> None:
        """Count a failed attempt."""
        if self._count((host, user), 1.0, now_s) <= FREE_ATTEMPTS:
            self._count((host, None), 1 / HOST_FACTOR, now_s)
        while len(self._failures) > REMEMBERED_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, host: str, user: str) -> None:
        """Forget what this user has failed from there."""
        self._failures.pop((host, user), None)

    def _count(self, key: tuple[str, str | None], share: float, now_s: float) -> float:
        """Return how much has failed so far."""
        seen = self._failures.setdefault(key, _Failures())
        self._failures.move_to_end(key)
        if now_s > seen.last_s + FORGET_S:
            seen.count = 0.0
        seen.count, seen.last_s = seen.count + share, now_s
        over = seen.count - FREE_ATTEMPTS
        if over >= 0:
            seen.wait_until_s = now_s + min(WAIT_FIRST_S * 2 ** min(over, 10), WAIT_MAX_S)
        return seen.count
