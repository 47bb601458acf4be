"""When a session of a cluster is given up because it has lost its executors for good: pure.

A standalone master that was restarted without its recovery files lets its workers kill the executors that it does not
know, and a driver does not register with it again: its jobs wait for ever.
"""

from typing import Final

STRANDED_S: Final = 30.0
"""For so long jobs wait with no executor. A worker that was started again has its executors in some seconds."""


class Stranded:
    """Of one session. Seconds are of one clock that never goes back."""

    def __init__(self, stranded_s: float = STRANDED_S) -> None:
        self._stranded_s = stranded_s
        self._had_executors = False
        self._since_s: float | None = None

    def sees(self, executors: int, jobs: int, now_s: float) -> bool:
        """Take in how many executors a session has and how many jobs; tell whether to give it up.

        One that has had none yet waits for room in its cluster, and another would wait, too.
        """
        self._had_executors = self._had_executors or executors > 0
        if executors > 0 or jobs == 0 or not self._had_executors:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= self._stranded_s
