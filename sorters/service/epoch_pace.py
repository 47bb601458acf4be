"""When the changefeeds of an upstream begin an epoch: cuts grow with the number of changefeeds, and with the load.

What an epoch runs is fixed when it is begun: all that the frontier topic had at the last beat. And each cut has a price
whatever is in it. So where there are many changefeeds beats are further apart; and one that waits for its permit, of
which there are few, looks only when it has that, and takes what has come meanwhile with it. Who is alone never waits,
unless nothing has landed since the last beat: then it has only a checkpoint to move.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

EPOCHS_MAX = 16
"""Most of an epoch's time is spent waiting for ZooKeeper and Kafka; so many keep an interpreter busy all the same, and
a round of a hundred takes less than a second."""

REST_S, REST_MAX_S = 0.006, 0.6
"""Between two beats, for each changefeed that is there, and at most."""
QUIET_S, QUIET_RESTS = 0.5, 2
"""Between two beats if nothing has landed, at least; and by how much they are further apart than others where there are
many changefeeds: a cut without rows costs half of one with some, and moves checkpoints alone."""
HOLD_MAX_S = 2.0
"""After which a permit counts for another: who waits for a broker that is gone must not hold up the others."""


def rest_s(followers: int) -> float:
    """Return how far beats are apart at least, where so many follow the frontier."""
    return min(REST_S * max(0, followers - 1), REST_MAX_S)


def quiet_s(rest_s: float) -> float:
    """Return how far beats are apart where nothing has landed; ``rest_s`` where something has."""
    return max(QUIET_S, QUIET_RESTS * rest_s)


class EpochPace:
    """Permits, given in the order in which they were asked for. From any thread."""

    def __init__(self, epochs_max: int = EPOCHS_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._free, self._clock = epochs_max, clock
        self._held: dict[int, float] = {}
        """Since when each thread has a permit, by the monotonic clock; one that has outlived its time is not here."""
        self._followers = 0
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    @property
    def rest_s(self) -> float:
        """See :func:`rest_s`."""
        return rest_s(self._followers)

    def enter(self) -> None:
        """One more follows the frontier."""
        with self._lock:
            self._followers += 1

    def leave(self) -> None:
        """One less does."""
        with self._lock:
            self._followers -= 1

    def take(self, timeout_s: float) -> bool:
        """Wait for a permit; tell whether there was one within ``timeout_s``."""
        with self._lock:
            self._take_back()
            if self._free and not self._waiting:
                self._free -= 1
                self._held[threading.get_ident()] = self._clock()
                return True
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait(timeout_s)
        with self._lock:
            if not mine.is_set():
                self._take_back()
            if mine.is_set():
                self._held[threading.get_ident()] = self._clock()
                return True
            self._waiting.remove(mine)
            return False

    def give_back(self) -> None:
        """Let the next one have this thread's permit, if it is still its own."""
        with self._lock:
            if self._held.pop(threading.get_ident(), None) is not None:
                self._hand_on()

    def _take_back(self) -> None:
        """Hand on the permits that have been held for too long."""
        before = self._clock() - HOLD_MAX_S
        for thread in [thread for thread, since in self._held.items() if since < before]:
            del self._held[thread]
            self._hand_on()

    def _hand_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._free += 1
