"""Runs the cuts of several changefeeds in few Spark jobs, a task each.

    run(cut) --.
    run(cut) --+--> those who wait now: one job --> each gets its own answer
    run(cut) ----> meanwhile: the next job, beside the first

A job begins as soon as one of a few threads is free, with all who wait then: alone where little is to do, in groups
under load. Nobody waits for a job that is under way.

A changefeed is given up by its job's tag, which cancels the tasks of the others in that job, too: Spark can kill a
single task, but starts it again. The others are run again, each in a job of its own; so are all when a job fails, since
any of them may be why, and a worker may have died of itself: only who fails alone has failed. Before that, what was
cancelled or has failed is let die: Spark looks for tasks to kill every two seconds, and a task that lives may still
write. Who was given up gets that answer no sooner.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from schemas.errors import BusError
from sorters.log.failures import SparkJobError, TaskHangsError, bus_error
from sorters.spark.jobs.spark_counts import OF_PROCESS
from sorters.spark.jobs.task_jobs import SparkBroadcast
from sorters.spark.jobs.task_watch import TaskWatch, Watched
from sorters.spark.tasks.cut_task import cut_step

log = logging.getLogger(__name__)

JOBS_MAX = 3
"""Jobs at once: while the tasks of some run, the next is planned."""
TASKS_A_CORE_MAX = 4
"""Cuts of a job, for each task that runs at once: all of them get their answers when the last has ended."""
DEATH_S = 3.5
"""After the end of a job that was cancelled or has failed, for its tasks to be dead: Spark's monitor of a Python worker
looks each 2 s, and kills after ``spark.python.task.killTimeout``, which is 0.5 s here."""
POOL = "cuts"
_NAMED_MAX = 6


class Jobs(Protocol):
    """What runs jobs: :class:`~sorters.spark.jobs.task_jobs.TaskJobs`."""

    def describe(self, **properties: str | None) -> None: ...

    def cancel(self, tag: str) -> None: ...

    def answers(
        self, work: Callable[[int], bytes], tasks: int, *, broadcasts: Sequence[SparkBroadcast] = ()
    ) -> list[bytes]: ...


@dataclass(eq=False)
class Member:
    """A cut that waits for its answer."""

    name: str
    """For Spark's UI: the changefeed, the cut and its tables."""
    task: bytes
    """A pickled :class:`~sorters.spark.tasks.cut_task.CutTask`."""
    broadcasts: tuple[SparkBroadcast, ...]
    given_up: threading.Event
    """Set once, when its changefeed is to stop."""
    tag: str = ""
    """Of the job that runs it now; empty: it waits, or is done."""
    is_alone: bool = False
    """It is run in a job of its own, since a job with it has failed."""
    not_before: float = 0.0
    """By ``time.monotonic``: nothing of it is run again, or answered, while an earlier task may live."""
    done: threading.Event = field(default_factory=threading.Event)
    answer: bytes = b""
    error: BusError | None = None


class JobGroup:
    """For one session; from any thread. :meth:`close` ends its threads."""

    def __init__(
        self, jobs: Jobs, tasks: int, *, is_gone: Callable[[], bool], watch: TaskWatch, death_s: float = DEATH_S
    ) -> None:
        """``tasks`` is how many run at once; ``is_gone`` tells whether the session runs nothing any more."""
        self._jobs, self._is_gone, self._watch, self._death_s = jobs, is_gone, watch, death_s
        self._members_max = tasks * TASKS_A_CORE_MAX
        self._changed = threading.Condition()
        self._waiting: list[Member] = []
        self._running: list[Member] = []
        self._closed = False
        self._number = 0
        self._threads = [
            threading.Thread(target=self._serve, name=f"spark-jobs-{number}", daemon=True) for number in range(JOBS_MAX)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, member: Member) -> bytes:
        """Return what the task of a cut has answered.

        Raises:
            SparkJobError: Spark did not run it, or it was given up; it writes nothing more.
        """
        with self._changed:
            if self._closed:
                raise SparkJobError("spark job failed", reason="the session has ended")
            self._waiting.append(member)
            self._changed.notify()
        member.done.wait()
        time.sleep(max(0.0, member.not_before - time.monotonic()))
        if member.error is not None:
            raise member.error
        return member.answer

    def give_up(self, given_up: threading.Event) -> None:
        """Let the cuts fail whose event is set; those of other changefeeds are run all the same. One call may come too
        early for a job that is about to begin: call until the run has ended.
        """
        with self._changed:
            gone = [member for member in self._waiting if member.given_up is given_up]
            self._waiting = [member for member in self._waiting if member.given_up is not given_up]
            tags = {member.tag for member in self._running if member.given_up is given_up}
        for member in gone:
            member.error = _given_up()
            member.done.set()
        for tag in tags:
            try:
                self._jobs.cancel(tag)
            except Exception as error:  # Py4J's, of many kinds: where nobody is left, nothing runs
                log.warning("spark job is not cancelled", extra={"tag": tag, "reason": repr(error)})

    def close(self) -> None:
        """End; who waits is refused. A job that is under way ends with its session."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for member in waiting:
            member.error = SparkJobError("spark job failed", reason="the session has ended")
            member.done.set()

    # -- its threads ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._changed:
                members = self._next()
                if members is None:
                    return
                self._number += 1
                tag = f"tidebus-cuts-{self._number}"
                for member in members:
                    member.tag = tag
                self._running.extend(members)
            self._run(members, tag)

    def _next(self) -> list[Member] | None:
        """Wait for who is to run next; None: nobody is."""
        while not self._closed:
            now = time.monotonic()
            due = [member for member in self._waiting if member.not_before <= now and not member.given_up.is_set()]
            if due:
                members = [due[0]] if due[0].is_alone else [member for member in due if not member.is_alone]
                members = members[: self._members_max]
                self._waiting = [member for member in self._waiting if member not in members]
                return members
            later = min((member.not_before - now for member in self._waiting if member.not_before > now), default=None)
            self._changed.wait(later)
        return None

    def _run(self, members: list[Member], tag: str) -> None:
        names = [member.name for member in members[:_NAMED_MAX]]
        more = f", and {len(members) - _NAMED_MAX} more" if len(members) > _NAMED_MAX else ""
        try:
            self._jobs.describe(pool=POOL, tags=tag, description="; ".join(names) + more)
            work = partial(cut_step, tuple(member.task for member in members))
            with self._watch.over_cut(tag) as watched:
                answers = self._answers(work, members, watched)
        except BaseException as error:
            self._failed(members, bus_error(error))
            return
        with self._changed:
            self._running = [member for member in self._running if member not in members]
        OF_PROCESS.add(jobs=1, cuts=len(members))
        for member, answer in zip(members, answers, strict=True):
            member.answer = answer
            member.done.set()

    def _answers(self, work: Callable[[int], bytes], members: list[Member], watched: Watched) -> list[bytes]:
        broadcasts = dict.fromkeys(broadcast for member in members for broadcast in member.broadcasts)
        try:
            return self._jobs.answers(work, len(members), broadcasts=tuple(broadcasts))
        except Exception as error:
            if not watched.is_over:
                raise
            raise hangs(watched, members[0].name) from error

    def _failed(self, members: list[Member], error: BusError) -> None:
        """Refuse, or run again, each of a job's cuts, when its tasks have died."""
        OF_PROCESS.add(jobs_failed=1)
        is_gone = self._is_gone()  # its workers go with it, at once
        again = [
            member for member in members if not (is_gone or member.is_alone or self._closed or member.given_up.is_set())
        ]
        due = time.monotonic() + (0.0 if is_gone else self._death_s)
        log.warning(
            "spark job has failed",
            extra={"code": error.code, "reason": str(error), "cuts": len(members), "again": len(again)},
        )
        with self._changed:
            self._running = [member for member in self._running if member not in members]
            for member in members:
                member.not_before = due
            for member in again:
                member.tag, member.is_alone = "", True
            self._waiting.extend(again)
            self._changed.notify_all()
        for member in members:
            if member not in again:
                member.error = _given_up() if member.given_up.is_set() else error
                member.done.set()


def hangs(watched: Watched, cut: str) -> TaskHangsError:
    """Return the error of a job that was cancelled because its tasks did not end; ``cut`` names its first cut."""
    seconds = round(watched.still_s_max)
    return TaskHangsError("spark task did not end, and was killed", cut=cut, seconds_max=seconds)


def _given_up() -> SparkJobError:
    return SparkJobError("spark job failed", reason="the cut was given up")
