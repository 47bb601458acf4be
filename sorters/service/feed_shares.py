"""What each changefeed takes of a service: turns at computing, bytes in hand, its pace; and notes of who works now.

Each hosted thread has a share, and each share a slot in the file that outlives the process
(:mod:`schemas.running_feeds`). A slot names its changefeed while the thread works for it, not while it waits for a
turn, Kafka, ZooKeeper or Spark: whoever is named when the process dies may have been what it died of, and since turns
are few, few are.
"""

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

from schemas.running_feeds import FeedName, RunningFeeds
from sorters.core.service.fair_turns import FairTurns
from sorters.core.service.memory_growth import MemoryGrowth
from sorters.core.service.quotas import BytesInHand, Pace

MANY: Final = 16
"""Changefeeds beyond which one computes at a time. Who waits for the interpreter gets it when the other runs a kernel
of numpy or Arrow, and then the other waits: two that compute, and all who hear of acknowledgements meanwhile, spend
more on that than kernels at the same time save (docs/decisions/2026-11-28-rounds-of-many-changefeeds.md)."""
LOOK_S = 0.2
"""How long a thread that is told to stop may go on waiting for its share."""


class FeedShares:
    """Of all changefeeds of a service; from any thread."""

    def __init__(self, running: RunningFeeds, cores: int) -> None:
        """``cores`` is how many changefeeds may compute at once where they are few."""
        self._running, self._cores = running, cores
        self._lock = threading.Lock()
        self._turns = FairTurns[HostedShare](cores)
        self._bytes = BytesInHand[HostedShare]()
        self._growth = MemoryGrowth[FeedName]()
        self._shares: dict[int, HostedShare] = {}
        """By slot."""
        self._cuts = 0
        """Under way."""

    def share(self, name: FeedName, pace: Pace) -> "HostedShare":
        """Return what one run of a changefeed asks; it must be closed."""
        with self._lock:
            slot = next((number for number in range(self._running.slots) if number not in self._shares), None)
            share = HostedShare(self, name, slot, pace)
            if slot is not None:
                self._shares[slot] = share
            self._share_turns()
        return share

    def longest(self) -> tuple[FeedName, float] | None:
        """Return who computes longest without a break, and for how many seconds; None: nobody computes."""
        now_s = time.monotonic()
        with self._lock:
            since = [(share.since_s, share.name) for share in self._shares.values() if share.since_s is not None]
        if not since:
            return None
        since_s, name = min(since)
        return name, now_s - since_s

    def to_blame(self, memory_bytes_max: int) -> FeedName | None:
        """Return by which changefeed the process has grown to its bound; None: by none in particular."""
        with self._lock:
            return self._growth.to_blame(memory_bytes_max)

    # -- for shares ----------------------------------------------------------------------------------------------------

    def note(self, share: "HostedShare", *, works: bool, only_prepares: bool = False) -> None:
        if share.slot is not None:
            if works:
                self._running.note(share.slot, share.name, threading.get_ident(), only_prepares=only_prepares)
            else:
                self._running.clear(share.slot)

    def ask_turn(self, share: "HostedShare") -> bool:
        with self._lock:
            return self._turns.ask(share, time.monotonic())

    def others_wait(self) -> bool:
        with self._lock:
            return self._turns.is_waited_for

    def end_turn(self, share: "HostedShare", cpu_s: float) -> None:
        with self._lock:
            for other in self._turns.end(share, cpu_s, time.monotonic()):
                other.granted.set()

    def ask_bytes(self, share: "HostedShare", size: int) -> bool:
        with self._lock:
            return self._bytes.ask(share, size)

    def end_bytes(self, share: "HostedShare") -> None:
        with self._lock:
            for other in self._bytes.done(share):
                other.may_hold.set()

    def begin_cut(self) -> None:
        with self._lock:
            self._cuts += 1

    def end_cut(self, name: FeedName, grown_bytes: int) -> None:
        """``grown_bytes`` is by how much the process has grown over the cut."""
        with self._lock:
            self._growth.note(name, grown_bytes, self._cuts)
            self._cuts -= 1

    def leave(self, share: "HostedShare") -> None:
        """What it has grown by is kept: a run that fails and begins again leaks on."""
        with self._lock:
            if share.cut_began_bytes is not None:  # nobody ends it any more
                share.cut_began_bytes = None
                self._cuts -= 1
            if share.slot is not None:
                self._running.clear(share.slot)
                self._shares.pop(share.slot, None)
            self._share_turns()
            for other in self._turns.withdraw(share, time.monotonic()):
                other.granted.set()
            for other in self._bytes.done(share):
                other.may_hold.set()
            self._turns.forget(share)

    def _share_turns(self) -> None:
        for other in self._turns.allow(1 if len(self._shares) > MANY else self._cores, time.monotonic()):
            other.granted.set()


class HostedShare:
    """One run's :class:`~sorters.cut.feed_share.FeedShare`. One thread at a time works with it."""

    def __init__(self, shares: FeedShares, name: FeedName, slot: int | None, pace: Pace) -> None:
        """``slot`` is None where all are taken: the changefeed is not noted then."""
        self.name, self.slot = name, slot
        self.since_s: float | None = None
        """Since when it computes; None: it does not."""
        self.cut_began_bytes: int | None = None
        """The process's memory when the cut under way began."""
        self.granted, self.may_hold = threading.Event(), threading.Event()
        self._shares, self._pace = shares, pace
        self._stopped: Callable[[], bool] = lambda: False
        self._began_cpu_s = self._cut_cpu_s = 0.0

    def begin_cut(self, stopped: Callable[[], bool]) -> None:
        """See :class:`~sorters.cut.feed_share.FeedShare`."""
        while not stopped():
            rest_s = self._pace.rest_s(time.monotonic())
            if rest_s <= 0:
                break
            time.sleep(min(rest_s, LOOK_S))
        if self.cut_began_bytes is None:
            self._shares.begin_cut()
        self._cut_cpu_s, self.cut_began_bytes = 0.0, resident_bytes()

    def end_cut(self, rows: int) -> None:
        """See :class:`~sorters.cut.feed_share.FeedShare`."""
        self._pace.note(self._cut_cpu_s, rows, time.monotonic())
        if self.cut_began_bytes is not None:
            self._shares.end_cut(self.name, resident_bytes() - self.cut_began_bytes)
            self.cut_began_bytes = None

    @contextlib.contextmanager
    def holding(self, raw_bytes: int, stopped: Callable[[], bool]) -> Iterator[None]:
        """See :class:`~sorters.cut.feed_share.FeedShare`."""
        self.may_hold.clear()
        if not self._shares.ask_bytes(self, raw_bytes):
            _wait(self.may_hold, stopped)
        try:
            yield
        finally:
            self._shares.end_bytes(self)

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """See :class:`~sorters.cut.feed_share.FeedShare`."""
        self._shares.note(self, works=True, only_prepares=True)
        try:
            yield
        finally:
            self._shares.note(self, works=False)

    @contextlib.contextmanager
    def computing(self, stopped: Callable[[], bool]) -> Iterator[None]:
        """See :class:`~sorters.cut.feed_share.FeedShare`."""
        self._stopped = stopped
        self._begin_turn()
        try:
            yield
        finally:
            self._end_turn()

    def let_others(self) -> None:
        """See :class:`~sorters.cut.feed_share.FeedShare`."""
        if self.since_s is not None and self._shares.others_wait():
            with self.waiting():
                pass

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """See :class:`~sorters.cut.feed_share.FeedShare`."""
        if self.since_s is None:
            yield
            return
        self._end_turn()
        try:
            yield
        finally:
            self._begin_turn()

    def close(self) -> None:
        """The run has ended."""
        self._shares.leave(self)

    def _begin_turn(self) -> None:
        self.granted.clear()
        if not self._shares.ask_turn(self):
            _wait(self.granted, self._stopped)
        self._began_cpu_s, self.since_s = time.thread_time(), time.monotonic()
        self._shares.note(self, works=True)

    def _end_turn(self) -> None:
        cpu_s, self.since_s = time.thread_time() - self._began_cpu_s, None
        self._cut_cpu_s += cpu_s
        self._shares.note(self, works=False)
        self._shares.end_turn(self, cpu_s)  # also where it was stopped and has none: it must not get one later


def _wait(event: threading.Event, stopped: Callable[[], bool]) -> None:
    while not event.wait(LOOK_S) and not stopped():
        pass


def resident_bytes() -> int:
    """Return how much memory this process has; 0: the system does not tell."""
    try:
        return int(os.pread(_memory_file(os.getpid()), 64, 0).split()[1]) * resource.getpagesize()
    except OSError:
        return 0


@cache
def _memory_file(_pid: int) -> int:
    # Open for good: each cut asks twice, and opening lets other threads have the interpreter each time.
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
