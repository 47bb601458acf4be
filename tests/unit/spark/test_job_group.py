"""Cuts of several changefeeds in few jobs: who goes with whom, and what becomes of the others when one fails."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from sorters.log.failures import SparkJobError, TaskHangsError
from sorters.spark.jobs.job_group import JOBS_MAX, JobGroup, Member
from sorters.spark.jobs.task_jobs import SparkBroadcast
from sorters.spark.jobs.task_watch import TASK_S_MAX, TaskWatch

DEATH_S = 0.2


class PlannedJobs:
    """Stands for Spark: a job waits until it is let go, fails, or is cancelled."""

    def __init__(self) -> None:
        self.jobs: list[PlannedJob] = []
        self._changed = threading.Condition()
        self._said = threading.local()

    def describe(self, **properties: str | None) -> None:
        self._said.properties = properties

    def cancel(self, tag: str) -> None:
        for job in self.jobs:
            if job.tag == tag and not job.end.done():
                job.end.set_exception(RuntimeError("cancelled"))

    def progress(self, tag: str) -> tuple[int, int]:
        job = next(job for job in self.jobs if job.tag == tag)
        return job.ended, job.running

    def answers(
        self, work: Callable[[int], bytes], tasks: int, *, broadcasts: Sequence[SparkBroadcast] = ()
    ) -> list[bytes]:
        cuts: tuple[bytes, ...] = work.args[0]  # type: ignore[attr-defined]
        assert len(cuts) == tasks
        job = PlannedJob(cuts, self._said.properties)
        with self._changed:
            self.jobs.append(job)
            self._changed.notify_all()
        job.end.result(20)
        return [b"done " + cut for cut in cuts]

    def wait(self, count: int) -> "PlannedJob":
        """Return the newest job when so many have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.jobs) >= count, 10), self.jobs
            return self.jobs[count - 1]


class PlannedJob:
    def __init__(self, cuts: tuple[bytes, ...], properties: dict[str, Any]) -> None:
        self.cuts, self.tag, self.description = cuts, properties["tags"], properties["description"]
        self.ended, self.running = 0, 1
        """Tasks, as Spark tells."""
        self.end: Future[None] = Future()
        self.began_at = time.monotonic()

    def go(self) -> None:
        self.end.set_result(None)


class Machine:
    """A group over planned jobs, and changefeeds that wait in threads."""

    def __init__(self, tasks: int = 2) -> None:
        self.jobs, self.is_gone = PlannedJobs(), False
        self.now_s = 0.0
        self.watch = TaskWatch(self.jobs.progress, self.jobs.cancel, clock=lambda: self.now_s, look_s=3_600)
        self.group = JobGroup(self.jobs, tasks, is_gone=lambda: self.is_gone, watch=self.watch, death_s=DEATH_S)
        self._pool = ThreadPoolExecutor(40)
        self.stops: dict[str, threading.Event] = {}

    def run(self, name: str) -> "Future[bytes]":
        stop = self.stops.setdefault(name, threading.Event())
        return self._pool.submit(self.group.run, Member(name, name.encode(), (), stop))

    def give_up(self, name: str) -> None:
        self.stops[name].set()
        self.group.give_up(self.stops[name])

    def fill(self) -> list["PlannedJob"]:
        """Let as many jobs run as may run at once, each with one cut."""
        running = []
        for number in range(JOBS_MAX):
            self.run(f"first-{number}")
            running.append(self.jobs.wait(number + 1))
        return running

    def wait_waiting(self, count: int) -> None:
        deadline = time.monotonic() + 10
        while len(self.group._waiting) < count:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def look_for(self, seconds: float) -> None:
        """Let the watch look each ten seconds of its clock, for so long."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 10
            self.watch.look()

    def close(self) -> None:
        self.group.close()
        self.watch.close()
        for job in self.jobs.jobs:
            if not job.end.done():
                job.go()
        self._pool.shutdown()


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.close()


def test_cuts_that_are_ready_while_jobs_run_go_together_into_the_next_ones(machine: Machine) -> None:
    running = machine.fill()
    assert [job.cuts for job in running] == [(b"first-0",), (b"first-1",), (b"first-2",)]
    later = [machine.run(f"later-{number}") for number in range(10)]
    machine.wait_waiting(10)
    running[1].go()
    group = machine.jobs.wait(JOBS_MAX + 1)
    assert len(set(group.cuts)) == 8, "four for each task at once"
    assert "and 2 more" in group.description
    group.go()
    rest = machine.jobs.wait(JOBS_MAX + 2)
    assert len(rest.cuts) == 2
    rest.go()
    assert [future.result(10) for future in later] == [f"done later-{number}".encode() for number in range(10)]
    assert not running[0].end.done(), "nobody has waited for it"


def test_a_cut_that_is_given_up_fails_late_and_the_others_of_its_job_run_again(machine: Machine) -> None:
    running = machine.fill()
    kept, gone = machine.run("kept"), machine.run("gone")
    machine.wait_waiting(2)
    running[0].go()
    group = machine.jobs.wait(JOBS_MAX + 1)
    assert sorted(group.cuts) == [b"gone", b"kept"]
    given_up_at = time.monotonic()
    machine.give_up("gone")
    again = machine.jobs.wait(JOBS_MAX + 2)
    assert again.cuts == (b"kept",)
    assert again.began_at >= given_up_at + DEATH_S, "while a task of the first job may live, nothing is written again"
    again.go()
    assert kept.result(10) == b"done kept"
    with pytest.raises(SparkJobError, match="given up"):
        gone.result(10)
    assert time.monotonic() >= given_up_at + DEATH_S
    assert not running[1].end.done(), "jobs of others are not cancelled"


def test_a_cut_that_waits_and_is_given_up_never_runs(machine: Machine) -> None:
    running = machine.fill()
    waiting = machine.run("waiting")
    machine.wait_waiting(1)
    machine.give_up("waiting")
    with pytest.raises(SparkJobError, match="given up"):
        waiting.result(10)
    running[0].go()
    machine.run("next")
    assert machine.jobs.wait(JOBS_MAX + 1).cuts == (b"next",)


def test_a_job_that_fails_is_run_again_cut_by_cut_and_who_fails_alone_has_failed(machine: Machine) -> None:
    running = machine.fill()
    good, bad = machine.run("good"), machine.run("bad")
    machine.wait_waiting(2)
    running[0].go()
    machine.jobs.wait(JOBS_MAX + 1).end.set_exception(RuntimeError("a worker has died"))
    for number in (2, 3):
        job = machine.jobs.wait(JOBS_MAX + number)
        assert len(job.cuts) == 1
        if job.cuts == (b"good",):
            job.go()
        else:
            job.end.set_exception(RuntimeError("a worker has died again"))
    assert good.result(10) == b"done good"
    with pytest.raises(SparkJobError, match="died again"):
        bad.result(10)


def test_no_cut_is_run_again_in_a_session_that_is_gone(machine: Machine) -> None:
    cut = machine.run("cut")
    job = machine.jobs.wait(1)
    machine.is_gone = True
    job.end.set_exception(RuntimeError("nobody answers"))
    with pytest.raises(SparkJobError, match="nobody answers"):
        cut.result(10)
    assert len(machine.jobs.jobs) == 1


def test_a_cut_that_hangs_is_given_up_by_name_and_its_neighbours_in_the_job_are_written(machine: Machine) -> None:
    running = machine.fill()
    good, hanging = machine.run("good"), machine.run("hanging")
    machine.wait_waiting(2)
    running[0].go()
    group = machine.jobs.wait(JOBS_MAX + 1)
    for job in running[1:]:
        job.running = 0  # they wait for room
    machine.look_for(TASK_S_MAX / 2)
    group.ended = 1  # the neighbour's has ended
    machine.look_for(TASK_S_MAX - 10)
    assert not group.end.done()
    machine.look_for(30)
    assert group.end.done()
    for number in (2, 3):
        job = machine.jobs.wait(JOBS_MAX + number)
        if job.cuts == (b"good",):
            job.go()
        else:
            assert job.cuts == (b"hanging",)
            machine.look_for(TASK_S_MAX + 30)
    assert good.result(10) == b"done good"
    with pytest.raises(TaskHangsError) as raised:
        hanging.result(10)
    assert raised.value.fields == {"cut": "hanging", "seconds_max": 120}
    assert not running[1].end.done() and not running[2].end.done(), "what waits for room does not hang"


def test_a_job_of_which_spark_tells_nothing_is_left_alone(machine: Machine) -> None:
    cut = machine.run("cut")
    job = machine.jobs.wait(1)
    job.tag = "unknown"
    machine.look_for(2 * TASK_S_MAX)
    job.go()
    assert cut.result(10) == b"done cut"
