"""A service's watch over itself: a heartbeat for its capture, and an end in time where one changefeed harms all.

once a second: beat --> the capture kills a service whose heart stands still (C code that holds the interpreter)
               a changefeed computes for COMPUTING_S_MAX without a break --> the process ends, with it noted
               the service's own loop does not go on for LOOP_S_MAX --> the process ends, with nobody noted
               the memory is above its bound --> the service stops in order, with whom it grew by noted
"""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from edges.thread_stacks import threads_standing
from schemas.running_feeds import FeedName, RunningFeeds
from sorters.service.feed_shares import FeedShares, resident_bytes

log = logging.getLogger(__name__)

BEAT_S = 1.0
COMPUTING_S_MAX = 120.0
"""A cut that a driver runs computes for a few seconds, and for some times that on a machine that is overloaded."""
LOOP_S_MAX = 60.0
"""A tick of the loop that takes in assignments takes milliseconds, seconds where ZooKeeper is away. It waits for no
Kafka."""
MEMORY_SHARE_MAX = 0.7
"""Of the machine's memory, or the container's, if nothing else was said."""
_CGROUP_BOUND = Path("/sys/fs/cgroup/memory.max")


def machine_memory_bytes() -> int:
    """Return how much memory this process may come to at all."""
    bytes_max = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        bound = _CGROUP_BOUND.read_text().strip()
    except OSError:
        return bytes_max
    return min(bytes_max, int(bound)) if bound.isdecimal() else bytes_max


class Vitals:
    """A thread that looks once a second, until the process ends."""

    def __init__(
        self, running: RunningFeeds, shares: FeedShares, memory_bytes_max: int, on_memory: Callable[[], None]
    ) -> None:
        """``on_memory`` is called once, when there is too much of it; it must return at once."""
        self._running, self._shares, self._on_memory = running, shares, on_memory
        self._memory_bytes_max = memory_bytes_max or int(MEMORY_SHARE_MAX * machine_memory_bytes())
        self.is_over = False
        """Whether the service ends for its memory's sake."""
        self.culprit: FeedName | None = None
        """By which changefeed that has grown; None: by none in particular."""
        self._ticks = self._seen_ticks = 0
        """Of the service's loop; 0: it is not in it."""
        self._still_s = 0.0
        """For how long it has been in one, by beats: what a process that was suspended has missed does not count."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vitals", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._running.beat()
        self._thread.start()

    def note_tick(self) -> None:
        """The service's loop goes on."""
        self._ticks += 1

    def note_last_tick(self) -> None:
        """The service has left its loop, and may take its time."""
        self._ticks = 0

    def stop(self) -> None:
        """Look no more, and leave the culprit noted if there is one."""
        self._stopping.set()
        self._thread.join()
        if self.is_over:
            self._running.note_alone(self.culprit)

    def _run(self) -> None:
        while not self._stopping.wait(BEAT_S):
            self._running.beat()
            self._look_at_turns()
            self._look_at_ticks()
            if not self.is_over:
                self._look_at_memory()

    def _look_at_turns(self) -> None:
        longest = self._shares.longest()
        if longest is None or longest[1] <= COMPUTING_S_MAX:
            return
        name, seconds = longest
        extra = {"changefeed": name[1], "namespace": name[0], "computing_s": round(seconds)}
        log.error("a cut makes no progress; the service ends", extra=extra)
        self._end_at_once(name)

    def _look_at_ticks(self) -> None:
        ticks = self._ticks
        self._still_s = self._still_s + BEAT_S if ticks and ticks == self._seen_ticks else 0.0
        self._seen_ticks = ticks
        if self._still_s < LOOP_S_MAX:
            return
        main = threading.main_thread().ident
        stands_at = next((thread.folded() for thread in threads_standing() if thread.ident == main), "")
        extra = {"still_s": round(self._still_s), "stack": stands_at}
        log.error("the service takes in no assignments and ends", extra=extra)
        self._end_at_once(None)

    def _end_at_once(self, culprit: FeedName | None) -> None:
        logging.shutdown()
        self._running.note_alone(culprit)
        os._exit(1)

    def _look_at_memory(self) -> None:
        used = resident_bytes()
        if used <= self._memory_bytes_max:
            return
        self.culprit, self.is_over = self._shares.to_blame(self._memory_bytes_max), True
        extra = {"bytes": used, "bytes_max": self._memory_bytes_max, "grown_by": "/".join(self.culprit or ())}
        log.error("the service has too much memory and ends", extra=extra)
        self._on_memory()
