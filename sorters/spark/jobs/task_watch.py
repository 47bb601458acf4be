"""A watch over Spark's tasks: a job in which none has ended for too long while some run is cancelled, and named.

    a job begins --> over(tag) --> once a second: how many of its tasks have ended, how many run?
                                   some run, and none has ended for its bound --> cancelled; Spark kills its workers

What waits for room, or for an executor, is not counted: nothing of it runs. Who is cancelled finds ``is_over`` set, and
says which error that is.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

log = logging.getLogger(__name__)

LOOK_S = 1.0
TASK_S_MAX = 120.0
"""Of a task with a whole cut, at most some 16 MiB: seconds of work, and for some times that on a machine that is
overloaded. The driver's own bound is the same (:data:`sorters.service.vitals.COMPUTING_S_MAX`)."""
LARGE_TASK_S_MAX = 1_200.0
"""Of a task of a large cut: some millions of rows, at 30,000 a second and core."""
FIRST_LOOK = 0.1
"""The share of its bound after which a job is looked at first: asking Spark costs calls, and most jobs are short."""


@dataclass(eq=False, slots=True)
class Watched:
    """A job that is under way."""

    tag: str
    still_s_max: float
    """For how long none of its tasks may end while some run."""
    since_s: float
    """When it was seen to get on, or not to run."""
    look_at_s: float
    ended: int = -1
    """Tasks, when it was last looked at."""
    is_over: bool = False
    """It was cancelled for that."""


class TaskWatch:
    """Over the jobs of one session; from any thread. :meth:`close` ends its thread."""

    def __init__(
        self,
        progress: Callable[[str], tuple[int, int]],
        cancel: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        look_s: float = LOOK_S,
    ) -> None:
        """``progress`` tells how many tasks of the job under a tag have ended, and how many run; ``cancel`` cancels it.
        Either may raise where nobody answers.
        """
        self._progress, self._cancel, self._clock, self._look_s = progress, cancel, clock, look_s
        self._jobs = dict[Watched, None]()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="spark-tasks-watch", daemon=True).start()

    def over_cut(self, tag: str) -> AbstractContextManager[Watched]:
        """Watch a job of tasks that each run a whole cut, while inside."""
        return self._over(tag, TASK_S_MAX)

    def over_large(self, tag: str) -> AbstractContextManager[Watched]:
        """Watch a job of a large cut, while inside."""
        return self._over(tag, LARGE_TASK_S_MAX)

    @contextmanager
    def _over(self, tag: str, still_s_max: float) -> Iterator[Watched]:
        now_s = self._clock()
        job = Watched(tag, still_s_max, now_s, now_s + FIRST_LOOK * still_s_max)
        self._jobs[job] = None
        try:
            yield job
        finally:
            del self._jobs[job]

    def look(self) -> None:
        """Look at all jobs once."""
        now_s = self._clock()
        for job in list(self._jobs):
            if now_s < job.look_at_s:
                continue
            try:
                self._look_at(job, now_s)
            except Exception as error:  # Py4J's, of many kinds: a session that has ended ends its jobs
                log.debug("spark does not say how far a job is", extra={"tag": job.tag, "reason": repr(error)})

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _look_at(self, job: Watched, now_s: float) -> None:
        ended, running = self._progress(job.tag)
        if ended != job.ended or not running:
            job.ended, job.since_s = ended, now_s
        if now_s - job.since_s < job.still_s_max and not job.is_over:
            return
        if not job.is_over:
            extra = {"tag": job.tag, "running": running, "still_s": round(now_s - job.since_s)}
            log.error("tasks of a spark job do not end; they are killed", extra=extra)
        job.is_over = True
        self._cancel(job.tag)

    def _run(self) -> None:
        while not self._closed.wait(self._look_s):
            self.look()
