"""When the changefeeds of an upstream begin an epoch: cuts grow with the number of changefeeds, and with the load.

What an epoch runs is fixed when it is begun: all that the frontier topic had at the last beat. And each cut has a price
whatever is in it. So where there are many changefeeds beats are further apart, most of all where these keep the process
busy; and one that waits for its permit, of which there are few, looks only when it has that, and takes what has come
meanwhile with it. Who is alone never waits, unless nothing has landed since the last beat: then it has only a
checkpoint to move.
"""

import threading
import time
from collections.abc import Callable

EPOCHS_MAX = 12
"""Most of an epoch's time is spent waiting for ZooKeeper and Kafka; so many keep an interpreter busy all the same. More
take it from each other, fewer leave it idle."""

REST_S, REST_MAX_S = 0.006, 0.6
"""Between two beats, for each changefeed that is there, and at most."""
EPOCHS_CORES = 0.4
"""What the process may take between two beats, while that keeps them no further apart than ``REST_MAX_S``, where there
are more changefeeds than permits: cuts of few rows would fill the machine, and their rounds take longer for it."""
QUIET_S, QUIET_RESTS = 0.5, 2
"""Between two beats if nothing has landed, at least; and by how much they are further apart than others where there are
many changefeeds: a cut without rows costs half of one with some, and moves checkpoints alone."""
CROWD = 64
"""Changefeeds beyond which each protocol has beats of its own: a round of as many takes as long as beats are apart, and
shorter ones cost less where changefeeds of all protocols gather and mount rows together."""
HOLD_MAX_S = 2.0
"""After which a permit counts for another: who waits for a broker that is gone must not hold up the others."""


def rest_s(followers: int, epochs_cpu_s: float = 0.0) -> float:
    """Return how far beats are apart at least, where so many follow the frontier, and the process has taken so much CPU
    since the last one.
    """
    at_least_s = REST_S * max(0, followers - 1)
    if followers > EPOCHS_MAX:
        at_least_s = max(at_least_s, epochs_cpu_s / EPOCHS_CORES)
    return min(at_least_s, REST_MAX_S)


def quiet_s(rest_s: float) -> float:
    """Return how far beats are apart where nothing has landed; ``rest_s`` where something has."""
    return max(QUIET_S, QUIET_RESTS * rest_s)


class EpochPace:
    """Permits, given in the order in which they were asked for, but to those that run the same cut one after the other:
    what is kept of a cut is gone by the time that many others have been run. From any thread.

    ``who`` is any object that stands for one changefeed: who does not get a permit in time keeps its place.
    """

    def __init__(self, epochs_max: int = EPOCHS_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self._free, self._epochs_max, self._clock = epochs_max, epochs_max, clock
        self._held: dict[object, float] = {}
        """Since when, by the monotonic clock; a permit that has outlived its time is not here."""
        self._followers = 0
        self._waiting: dict[object, _Asked] = {}
        """In the order in which they asked."""
        self._mark: int | None = None
        """Up to where goes who had the last permit."""
        self._lock = threading.Lock()

    def is_shared(self) -> bool:
        """Whether several follow the frontier."""
        return self._followers > 1

    def is_full(self) -> bool:
        """Whether more do than there are permits."""
        return self._followers > self._epochs_max

    def is_crowded(self) -> bool:
        """Whether more than :data:`CROWD` do."""
        return self._followers > CROWD

    def rest_s(self, epochs_cpu_s: float = 0.0) -> float:
        """See :func:`rest_s`."""
        return rest_s(self._followers, epochs_cpu_s)

    def enter(self) -> None:
        """One more follows the frontier."""
        with self._lock:
            self._followers += 1

    def leave(self, who: object) -> None:
        """One less does: its permit and its place are others'."""
        with self._lock:
            self._followers -= 1
            self._waiting.pop(who, None)
            self._end(who)

    def take(self, who: object, timeout_s: float, mark: int | None = None) -> bool:
        """Wait for a permit; tell whether there was one within ``timeout_s``. If not the next call waits on.

        Args:
            mark: where its epoch ends, if it is at a mark (:mod:`sorters.core.service.cut_marks`).
        """
        with self._lock:
            self._take_back()
            mine = self._waiting.get(who)
            if mine is None and who not in self._held:
                mine = self._waiting[who] = _Asked(mark)
                if self._free:
                    self._free -= 1
                    self._hand_on()
            elif mine is not None:
                mine.mark = mark
        if mine is not None:
            mine.given.wait(timeout_s)
        with self._lock:
            if who not in self._held:
                self._take_back()
            if who not in self._held:
                return False
            self._held[who] = self._clock()
            return True

    def give_back(self, who: object) -> None:
        """Let the next one have the permit, if ``who`` still holds it."""
        with self._lock:
            self._end(who)

    def _end(self, who: object) -> None:
        if self._held.pop(who, None) is not None:
            self._hand_on()

    def _take_back(self) -> None:
        """Hand on the permits that have been held for too long."""
        before = self._clock() - HOLD_MAX_S
        for who in [who for who, since in self._held.items() if since < before]:
            self._end(who)

    def _hand_on(self) -> None:
        """Give a permit to whose turn it is, who may be looking elsewhere just now: it counts from here on."""
        if not self._waiting:
            self._free += 1
            return
        who = self._next()
        asked = self._waiting.pop(who)
        self._mark = asked.mark
        self._held[who] = self._clock()
        asked.given.set()

    def _next(self) -> object:
        if self._mark is not None:
            for who, asked in self._waiting.items():
                if asked.mark == self._mark:
                    return who
        return next(iter(self._waiting))


class _Asked:
    """A permit that somebody waits for."""

    def __init__(self, mark: int | None) -> None:
        self.mark = mark
        self.given = threading.Event()
        """Set with the permit."""
