"""Rows that land in a raw log at a steady pace, from a thread of their own, while a test kills what it likes."""

import threading
import time
from types import TracebackType

from schemas.ids import Ts
from tests.support.rawlog.raw_log import START_TS, RawLog, sbtest1_changes

TABLE = 114
STEP = 10
"""Between the commit_ts of two rows."""


class SteadyLoad:
    """A context manager; :meth:`stop` ends it before the block does."""

    def __init__(self, log: RawLog, rows: int = 50, pause_s: float = 0.1, first_row: int = 0) -> None:
        """``rows`` land each ``pause_s``, and a frontier record above them, from ``first_row`` on."""
        self._log, self._rows, self._pause_s = log, rows, pause_s
        self.landed = first_row
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="steady-load", daemon=True)

    def __enter__(self) -> "SteadyLoad":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def ts(self) -> Ts:
        """The ts up to which rows have landed, and a frontier record says so."""
        return Ts(START_TS + STEP * self.landed)

    @property
    def commits(self) -> list[int]:
        """The commit_ts of all rows that have landed."""
        return [START_TS + 1 + STEP * row for row in range(self.landed)]

    def stop(self) -> Ts:
        """End the load; return the ts of its last frontier record."""
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.ts

    def _run(self) -> None:
        try:
            due_s = time.monotonic()
            while not self._stop.is_set():
                land_rows(self._log, self.landed, self._rows)
                self.landed += self._rows
                due_s += self._pause_s
                self._stop.wait(max(0.0, due_s - time.monotonic()))
        except BaseException as error:
            self._failure = error


def land_rows(log: RawLog, first_row: int, rows: int, rows_a_record: int = 50) -> None:
    """Land rows, and a frontier record above them."""
    for row in range(first_row, first_row + rows, rows_a_record):
        count = min(rows_a_record, first_row + rows - row)
        changes = sbtest1_changes(count, START_TS + 1 + STEP * row, row)
        log.rows(TABLE, changes, row // rows_a_record % log.partitions)
    log.advance(START_TS + STEP * (first_row + rows))
