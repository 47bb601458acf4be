"""The newest records of a frontier topic, read and decoded once for all changefeeds that follow it.

Epochs of all of them end at the same offsets, the window's beats: so their cuts are of the same rows, which need be
gathered, mounted and encoded once (:mod:`sorters.service.shared_cuts`). A beat waits until all who want the one before
it have it: where a round of all changefeeds takes longer than beats are apart, each would run a cut of its own else,
and share nothing just when there is too much to do. Where many are further behind than that, their epochs end at marks
(:mod:`sorters.core.service.cut_marks`).
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Self

from edges.kafka.tail import FrontierTail
from schemas.errors import BusError
from schemas.rawlog.frontier import FrontierRecord
from sorters.core.service.cut_marks import CutMarks
from sorters.log.failures import HistoryLostError, bus_error
from sorters.run.sources import FrontierSource
from sorters.service.epoch_pace import EpochPace, quiet_s

log = logging.getLogger(__name__)

RECORDS_MAX = 20_000
"""Records that are kept: at ten a second half an hour's, some 20 MB. Who is further behind reads by offset."""
_READ_MAX = 1_000
_LOOK_S, _LOOK_MIN_S = 0.5, 0.001
_RETRY_S = 1.0
BEAT_WAIT_MAX_S = 10.0
"""For so long a beat waits for those who want the one before it: who has little to do waits no longer for others."""


class FrontierWindow:
    """One consumer in a thread of its own. :meth:`close` must be called."""

    def __init__(
        self,
        config: Mapping[str, object],
        topic: str,
        start: int,
        rest_s: Callable[[float], float] = lambda _: 0.0,
        record_bytes: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``config`` is librdkafka's; ``start`` is the offset to begin at.

        Args:
            rest_s: how far beats are apart, where the process has taken so many CPU seconds since the last one.
            record_bytes: the mean size of raw records; 0: epochs go to the last beat, whoever is behind.
        """
        self._config, self._topic, self._rest_s, self._record_bytes = config, topic, rest_s, record_bytes
        self._marks = CutMarks()
        self._places: dict[object, int] = {}
        """From where on each follower reads."""
        self._first, self._next = start, start
        self._landed = start
        """The offset after the newest record that says that something has landed since the one before it."""
        self._beat, self._beat_at_s, self._beat_cpu_s = start, -math.inf, 0.0
        """Up to where epochs may go."""
        self._wanting: set[object] = set()
        """Who has been told of the last beat and has not read it: they wait for a permit."""
        self._last: FrontierRecord | None = None
        self._records: deque[FrontierRecord] = deque()
        self._error: BusError | None = None
        self._changed = threading.Condition()
        """Notified of beats: with a hundred changefeeds, waking all for each record takes longer than the records."""
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

    def await_beat(self, start: int, timeout_s: float, who: object) -> bool:
        """Wait until epochs may go beyond offset ``start``, or until the topic cannot be read. ``who`` is told so is
        waited for, until it reads or leaves.

        Returns:
            False: it is not so after ``timeout_s``.
        """
        with self._changed:
            self._places[who] = start
            is_due = self._changed.wait_for(
                lambda: start < self._beat or self._error is not None or self._closed, timeout=timeout_s
            )
            if is_due:
                self._wanting.add(who)
            return is_due

    def read(self, start: int, count: int, who: object) -> list[FrontierRecord] | None:
        """Return up to ``count`` records from offset ``start`` on, up to the last beat, or, where many are behind, up
        to the next mark; None: ``start`` is not kept any more.

        Raises:
            BusError: the topic cannot be read; it is tried again.
        """
        with self._changed:
            beat = self._beat
            self._served(who)
            if start < self._first:
                return None
            if start < beat:
                mark = self._marks.end(start, self._places.values())
                end = min(start + count, beat if mark is None else mark) - self._first
                return [self._records[at] for at in range(start - self._first, end)]
            if self._error is not None:
                raise self._error
            return []

    def leave(self, who: object) -> None:
        """Wait for somebody no more."""
        with self._changed:
            self._places.pop(who, None)
            self._served(who)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            try:
                with FrontierTail(self._config, self._topic, self._next) as tail:
                    while not self._closed:
                        self._take(tail.read(_READ_MAX, self._look_s()))
            except Exception as error:
                failure = bus_error(error)
                log.warning("frontier is not readable", extra={"code": failure.code, "reason": str(failure)})
                with self._changed:
                    self._error = failure
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._closed, timeout=_RETRY_S)

    def _look_s(self) -> float:
        """Return how long the next record may be waited for: no longer than until what is here is due. Where that waits
        for somebody, who comes last moves the beat on.
        """
        due_s = self._due_at_s() - time.monotonic() if self._beat < self._next and not self._wanting else _LOOK_S
        return min(max(due_s, _LOOK_MIN_S), _LOOK_S)

    def _due_at_s(self) -> float:
        """Return when the next beat is due: later, where nothing has landed since the last."""
        rest_s = self._rest_s(time.process_time() - self._beat_cpu_s)
        return self._beat_at_s + (rest_s if self._beat < self._landed else quiet_s(rest_s))

    def _take(self, records: list[FrontierRecord]) -> None:
        record_bytes = self._record_bytes()
        with self._changed:
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
            self._move_on()

    def _served(self, who: object) -> None:
        if who in self._wanting:
            self._wanting.discard(who)
            self._move_on()

    def _move_on(self) -> None:
        """Make what is here a beat, if that is due, and if nobody wants the last one any more."""
        now_s = time.monotonic()
        if self._wanting and now_s < self._beat_at_s + BEAT_WAIT_MAX_S:
            return
        if self._beat < self._next and now_s >= self._due_at_s():
            self._beat, self._beat_at_s, self._beat_cpu_s = self._next, now_s, time.process_time()
            self._changed.notify_all()


def _is_quiet(last: FrontierRecord, record: FrontierRecord) -> bool:
    """Tell whether nothing but time has passed between two records: nothing has landed, and nothing that had landed
    before stood above the first one's ts.
    """
    return last.low == last.high and replace(record, resolved_ts=last.resolved_ts, low=last.low) == last


class WindowFollower:
    """One changefeed's way through the window; where that does not reach back, through the topic itself.

    Who has read something holds a permit of the ``pace`` until it reads on.
    """

    def __init__(self, window: FrontierWindow, frontier: FrontierSource, start: int, pace: EpochPace) -> None:
        self._window, self._frontier, self._at, self._pace = window, frontier, start, pace
        self._holds = False

    def __enter__(self) -> Self:
        self._pace.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._holds = False
        self._pace.leave(self)
        self._window.leave(self)

    def read(self, count: int, timeout_s: float) -> list[FrontierRecord]:
        """See :class:`~sorters.run.sources.Follower`; none, too, where there is no permit in time."""
        self._give_back()
        if not self._window.await_beat(self._at, timeout_s, self):
            return []
        self._holds = self._pace.take(self, timeout_s)
        if not self._holds:
            return []
        records = self._window.read(self._at, count, self)
        if records is None:
            records = list(self._frontier.read(self._at, min(self._at + count, self._window.first)))
        self._at += len(records)
        return records

    def _give_back(self) -> None:
        if self._holds:
            self._holds = False
            self._pace.give_back(self)
