"""Watches whether a session's JVM answers at all; one that has not for a minute is killed, like one that died.

    spark-asks:  a call into the JVM, every LOOK_S
    spark-pulse: is the call back? --> asked again;  not for LOOKS_MAX looks --> said, and killed

A JVM that stands (stopped, thrashing, waiting for a disk that is gone) leaves each call into it without an end: cuts,
and the service's own loop, which cancels them and hears of no changefeed meanwhile. Its sockets stay open, so that
nobody ever hears of it. When it is dead all calls fail, and whoever made them asks for another session.
"""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

LOOK_S = 1.0
LOOKS_MAX = 60
"""In a row: a JVM stands still for seconds while it collects garbage, and for some times that on an overloaded machine.
Looks are counted, not seconds: where this process was suspended, too, one of them was long."""


class JvmPulse:
    """Of one session; :meth:`close` ends its threads, but for a call that does not come back."""

    def __init__(
        self,
        is_gone: Callable[[], bool],
        kill: Callable[[], None],
        *,
        look_s: float = LOOK_S,
        looks_max: int = LOOKS_MAX,
    ) -> None:
        """``is_gone`` calls into the JVM, and tells whether that has ended; ``kill`` ends it without asking."""
        self._is_gone, self._kill = is_gone, kill
        self._look_s, self._looks_max = look_s, looks_max
        self._closed = threading.Event()
        self._answered = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._ask, name="spark-asks", daemon=True).start()
        threading.Thread(target=self._run, name="spark-pulse", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _ask(self) -> None:
        while not self._closed.is_set():
            if self._is_gone():
                self.close()
            self._answered.set()
            self._closed.wait(self._look_s)

    def _run(self) -> None:
        looks = 0
        while not self._closed.wait(self._look_s):
            looks = 0 if self._answered.is_set() else looks + 1
            self._answered.clear()
            if looks >= self._looks_max:
                self.close()
                log.error("spark's JVM does not answer; it is killed", extra={"unanswered_s": looks * self._look_s})
                self._kill()
