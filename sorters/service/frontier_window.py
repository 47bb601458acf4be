"""The newest records of a frontier topic, read and decoded once for all changefeeds that follow it.

Epochs of all, or where they are a crowd of all of one protocol, end at the same offsets, their beats
(:mod:`sorters.core.service.beats`): so their cuts are of the same rows, which need be gathered, mounted and encoded
once (:mod:`sorters.service.shared_cuts`). A beat waits until all who want the one before it have it: where a round of
all changefeeds takes longer than beats are apart, each would run a cut of its own else, and share nothing just when
there is too much to do. Where many are further behind than that, their epochs end at marks
(:mod:`sorters.core.service.cut_marks`).
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Self

from edges.kafka.tail import FrontierTail
from schemas.errors import BusError
from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord
from sorters.core.service.beats import Beats
from sorters.core.service.cut_marks import CutMarks
from sorters.log.failures import HistoryLostError, bus_error
from sorters.log.frontier_reader import LOOK_BACK_RECORDS, find_after, stands_after
from sorters.run.sources import FrontierSource
from sorters.service.epoch_pace import EpochPace, quiet_s

log = logging.getLogger(__name__)

RECORDS_MAX = 20_000
"""Records that are kept: at ten a second half an hour's, some 20 MB. Who is further behind reads by offset."""
_READ_MAX = 1_000
_LOOK_S, _LOOK_MIN_S = 0.5, 0.001
_CPU_EVERY_S = 0.02
"""How old it may be what the process has taken of the CPU: the kernel adds up hundreds of threads each time."""
_RETRY_S = 1.0


class FrontierWindow:
    """One consumer in a thread of its own. :meth:`close` must be called."""

    def __init__(
        self,
        config: Mapping[str, object],
        topic: str,
        start: int,
        rest_s: Callable[[float], float] = lambda _: 0.0,
        record_bytes: Callable[[], float] = lambda: 0.0,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """``config`` is librdkafka's; ``start`` is the offset to begin at.

        Args:
            rest_s: how far beats are apart, where the process has taken so many CPU seconds since the last one.
            record_bytes: the mean size of raw records; 0: epochs go to the last beat, whoever is behind.
            is_full: whether there are more changefeeds than may run at once.
        """
        self._config, self._topic, self._rest_s, self._record_bytes = config, topic, rest_s, record_bytes
        self._marks, self._is_full = CutMarks(), is_full
        self._places: dict[object, int] = {}
        """From where on each follower reads."""
        self._first, self._next = start, start
        self._landed = start
        """The offset after the newest record that says that something has landed since the one before it."""
        self._last: FrontierRecord | None = None
        self._records: deque[FrontierRecord] = deque()
        self._error: BusError | None = None
        self._lock = threading.Lock()
        self._beats: dict[str, tuple[Beats, threading.Condition]] = {}
        """By protocol; conditions, which share the lock, are notified of beats: with a hundred changefeeds, waking all
        for each record takes longer than the records."""
        self._cpu_s, self._cpu_at_s = 0.0, -math.inf
        self._closing = threading.Condition(self._lock)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="frontier-window", daemon=True)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        """Whether the topic has lost what comes next, as one that was made anew has."""
        return isinstance(self._error, HistoryLostError)

    @property
    def first(self) -> int:
        """The offset of the oldest record that is kept."""
        return self._first

    def await_beat(self, start: int, timeout_s: float, who: object, protocol: str = "") -> bool:
        """Wait until epochs of a protocol may go beyond offset ``start``, or until the topic cannot be read. ``who`` is
        told so is waited for, until it reads or leaves.

        Returns:
            False: it is not so after ``timeout_s``.
        """
        with self._lock:
            self._places[who] = start
            beats, changed = self._beats_of(protocol)
            is_due = changed.wait_for(
                lambda: start < beats.end(self._next) or self._error is not None or self._closed, timeout=timeout_s
            )
            if is_due:
                beats.tell(who)
            return is_due

    def read(self, start: int, count: int, who: object, protocol: str = "") -> list[FrontierRecord] | None:
        """Return up to ``count`` records from offset ``start`` on, up to the protocol's beat, or, where many are
        behind, up to the next mark; None: ``start`` is not kept any more.

        Raises:
            BusError: the topic cannot be read; it is tried again.
        """
        with self._lock:
            beats, changed = self._beats_of(protocol)
            beat = beats.read(who, self._next, time.monotonic(), self._process_cpu_s())
            self._move_on(beats, changed)
            if start < self._first:
                return None
            if start < beat:
                mark = self._mark(start)
                end = min(start + count, beat if mark is None else mark) - self._first
                return [self._records[at] for at in range(start - self._first, end)]
            if self._error is not None:
                raise self._error
            return []

    def find(self, after_ts: Ts) -> int | None:
        """See :class:`~sorters.run.sources.FrontierSource`; None: that is not known here."""
        with self._lock:
            first = self._first
            offset = find_after(
                after_ts,
                first,
                self._next,
                lambda at: self._records[at - first],
                lambda start, end: islice(self._records, start - first, end - first),
            )
            # Where too little stands before it, a record that went further may be among those.
            return offset if first + LOOK_BACK_RECORDS <= offset < self._next else None

    def record_before(self, offset: int) -> FrontierRecord | None:
        """See :class:`~sorters.run.sources.FrontierSource`; None: too little before ``offset`` is kept."""
        with self._lock:
            start, end = offset - LOOK_BACK_RECORDS - self._first, offset - self._first
            if start < 0 or end > len(self._records):
                return None
            records = list(islice(self._records, start, end))
        return stands_after(records)

    def leave(self, who: object, protocol: str = "") -> None:
        """Wait for somebody no more."""
        with self._lock:
            self._places.pop(who, None)
            beats, changed = self._beats_of(protocol)
            beats.leave(who)
            self._move_on(beats, changed)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._closing.notify_all()
            self._wake_all()
        self._thread.join()

    def mark(self, start: int) -> int | None:
        """Return up to where an epoch goes that begins at ``start``; None: as far as beats let it."""
        with self._lock:
            return self._mark(start)

    def _mark(self, start: int) -> int | None:
        return self._marks.end(start, self._places.values(), is_full=self._is_full())

    def _beats_of(self, protocol: str) -> tuple[Beats, threading.Condition]:
        kept = self._beats.get(protocol)
        if kept is None:
            kept = self._beats[protocol] = Beats(self._first), threading.Condition(self._lock)
            self._move_on(*kept)
        return kept

    def _wake_all(self) -> None:
        for _, changed in self._beats.values():
            changed.notify_all()

    def _run(self) -> None:
        while not self._closed:
            try:
                with FrontierTail(self._config, self._topic, self._next) as tail:
                    while not self._closed:
                        self._take(tail.read(_READ_MAX, self._look_s()))
            except Exception as error:
                failure = bus_error(error)
                log.warning("frontier is not readable", extra={"code": failure.code, "reason": str(failure)})
                with self._lock:
                    self._error = failure
                    self._wake_all()
                    self._closing.wait_for(lambda: self._closed, timeout=_RETRY_S)

    def _look_s(self) -> float:
        """Return how long the next record may be waited for: no longer than until what is here is due. Where that waits
        for somebody, who comes last moves the beat on.
        """
        with self._lock:
            due_at_s = min(
                (
                    self._due_at_s(beats)
                    for beats, _ in self._beats.values()
                    if beats.is_stale(self._next) and not beats.is_wanted()
                ),
                default=math.inf,
            )
        return min(max(due_at_s - time.monotonic(), _LOOK_MIN_S), _LOOK_S)

    def _due_at_s(self, beats: Beats) -> float:
        """Return when the next beat is due: later, where nothing has landed since the last."""
        rest_s = self._rest_s(self._process_cpu_s() - beats.set_cpu_s)
        return beats.set_at_s + (rest_s if beats.end(self._next) < self._landed else quiet_s(rest_s))

    def _process_cpu_s(self) -> float:
        now_s = time.monotonic()
        if now_s - self._cpu_at_s > _CPU_EVERY_S:
            self._cpu_s, self._cpu_at_s = time.process_time(), now_s
        return self._cpu_s

    def _take(self, records: list[FrontierRecord]) -> None:
        record_bytes = self._record_bytes()
        with self._lock:
            if records:
                self._error = None
            for record in records:
                self._next += 1
                if self._last is None or not _is_quiet(self._last, record):
                    self._landed = self._next
                self._last = record
                self._marks.take(record.high, self._next, record_bytes)
            self._records.extend(records)
            while len(self._records) > RECORDS_MAX:
                self._records.popleft()
                self._first += 1
            self._marks.forget(self._first)
            for beats, changed in self._beats.values():
                self._move_on(beats, changed)

    def _move_on(self, beats: Beats, changed: threading.Condition) -> None:
        if beats.open(self._next, time.monotonic(), self._due_at_s(beats)):
            changed.notify_all()


def _is_quiet(last: FrontierRecord, record: FrontierRecord) -> bool:
    """Tell whether nothing but time has passed between two records: nothing has landed, and nothing that had landed
    before stood above the first one's ts.
    """
    return last.low == last.high and replace(record, resolved_ts=last.resolved_ts, low=last.low) == last


class WindowFollower:
    """One changefeed's way through the window; where that does not reach back, through the topic itself.

    Who has read something holds a permit of the ``pace`` until it reads on.
    """

    def __init__(
        self, window: FrontierWindow, frontier: FrontierSource, start: int, pace: EpochPace, protocol: str = ""
    ) -> None:
        self._window, self._frontier, self._at, self._pace = window, frontier, start, pace
        self._own_protocol, self._protocol = protocol, ""
        """Its own, and whose beats it follows; '': everybody's."""
        self._holds = False

    def __enter__(self) -> Self:
        self._pace.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._holds = False
        self._pace.leave(self)
        self._window.leave(self, self._protocol)

    def read(self, count: int, timeout_s: float) -> list[FrontierRecord]:
        """See :class:`~sorters.run.sources.Follower`; none, too, where there is no permit in time."""
        self._give_back()
        self._choose_beats()
        if not self._window.await_beat(self._at, timeout_s, self, self._protocol):
            return []
        self._holds = self._pace.take(self, timeout_s, self._window.mark(self._at))
        if not self._holds:
            return []
        records = self._window.read(self._at, count, self, self._protocol)
        if records is None:
            records = list(self._frontier.read(self._at, min(self._at + count, self._window.first)))
        self._at += len(records)
        return records

    def _choose_beats(self) -> None:
        protocol = self._own_protocol if self._pace.is_crowded() else ""
        if protocol != self._protocol:
            self._window.leave(self, self._protocol)  # who still waits for it there would wait in vain
            self._protocol = protocol

    def _give_back(self) -> None:
        if self._holds:
            self._holds = False
            self._pace.give_back(self)
