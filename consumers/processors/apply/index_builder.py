"""Builds indexes beside the rows, one after the other, in a thread of its own.

What is to be built stands in the destination (``tidebus.index_ddl``) before anything goes on behind it, and until it is
built; so a leader that follows another builds what that one has not, and asks first whether it is there.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from consumers.processors.core.apply.index_ddl import IndexDdl, must_wait
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.sink.sql_rows import SqlDdl

log = logging.getLogger(__name__)
AGAIN_S = 1.0
"""Between two tries, while the destination does not answer; it goes on building where it has begun."""
WARN_AGAIN_S = 60.0
"""Between two warnings of one index: the checkpoint stands meanwhile, and nothing else says why."""


class IndexBuilder:
    """See the module. ``build`` runs one and notes it as done; the first error that waiting does not mend stays."""

    def __init__(self, build: Callable[[IndexDdl], None]) -> None:
        self._build = build
        self._building: list[IndexDdl] = []
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned: tuple[Ts, float] | None = None
        """Of which index was warned last, by its commit_ts, and when."""

    @property
    def is_closed(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._closed.is_set()

    @property
    def held_ts(self) -> Ts | None:
        """All below it is in the destination, indexes too; None: nothing is left to build."""
        with self._changed:
            return min((Ts(index.ddl.commit_ts - 1) for index in self._building), default=None)

    def add(self, indexes: Iterable[IndexDdl]) -> None:
        """Build these after what is being built."""
        with self._changed:
            self._building += indexes
            if self._building and self._thread is None:
                # A daemon: a server may build for hours, and nothing is lost when we do not wait for it.
                self._thread = threading.Thread(target=self._run, name="index", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_for(self, ddl: SqlDdl, stopped: Callable[[], bool]) -> bool:
        """Wait until ``ddl`` may run; False: we are to stop before.

        Raises:
            BusError: an index cannot be built.
        """
        with self._changed:
            while must_wait(ddl, self._building):
                self._check()
                if stopped() or self.is_closed:
                    return False
                self._changed.wait(AGAIN_S)
            return True

    def check(self) -> None:
        """Make sure that it goes on.

        Raises:
            BusError: an index cannot be built.
        """
        with self._changed:
            self._check()

    def close(self) -> None:
        """Build nothing more; what a server has begun it may finish."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (index := self._next()) is not None:
            try:
                self._build(index)
            except BusError as error:
                if error.action is Action.RETRY:
                    self._warn(index.ddl, error)
                    if not self._closed.wait(AGAIN_S):
                        continue
                self._end(error)
                return
            except BaseException as error:  # told to whoever waits: nobody sees what a thread raises
                self._end(error)
                return
            log.info("index built", extra={"commit_ts": index.ddl.commit_ts, "table": index.ddl.name})
            with self._changed:
                self._building.remove(index)
                self._changed.notify_all()

    def _warn(self, ddl: SqlDdl, error: BusError) -> None:
        now_s = time.monotonic()
        if self._warned is not None and self._warned[0] == ddl.commit_ts and now_s - self._warned[1] < WARN_AGAIN_S:
            return
        self._warned = (ddl.commit_ts, now_s)
        log.warning(
            "an index cannot be built for now and holds the checkpoint; it is tried again",
            extra={"code": error.code, "reason": str(error), "table": ddl.name, "commit_ts": ddl.commit_ts},
        )

    def _next(self) -> IndexDdl | None:
        with self._changed:
            while not self._building and not self.is_closed:
                self._changed.wait()
            return None if self.is_closed else self._building[0]

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
