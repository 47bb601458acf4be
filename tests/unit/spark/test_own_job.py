"""A job that is run anew where executors were lost, and what ends it."""

import pytest

from sorters.spark.jobs.own_job import TRIES_MAX, run_own_job

LOST = RuntimeError("ResultStage 1 has failed the maximum allowable number of times: 1. Most recent failure reason: …")


class Job:
    def __init__(self, *errors: Exception) -> None:
        self.errors, self.runs, self.ends = list(errors), 0, 0

    def run(self) -> list[bytes]:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return [b"done"]

    def end_tasks(self) -> None:
        self.ends += 1
        raise RuntimeError("nobody is there")


def run(job: Job, *, given_up: bool = False, gone: bool = False) -> list[bytes]:
    return run_own_job(
        job.run, end_tasks=job.end_tasks, is_given_up=lambda: given_up, is_gone=lambda: gone, death_s=0.0
    )


def test_job_whose_executors_were_lost_is_run_anew() -> None:
    job = Job(LOST, LOST)
    assert run(job) == [b"done"]
    assert (job.runs, job.ends) == (3, 2), "each time what is left of it is killed before"


def test_job_that_loses_executors_each_time_fails_in_the_end() -> None:
    job = Job(*[LOST] * TRIES_MAX)
    with pytest.raises(RuntimeError, match="maximum allowable"):
        run(job)
    assert job.runs == TRIES_MAX


@pytest.mark.parametrize(
    ("error", "given_up", "gone"),
    [(LOST, True, False), (LOST, False, True), (ValueError("a task's own"), False, False)],
    ids=["given up", "no session", "another error"],
)
def test_job_is_not_run_anew_for_nobody_or_for_another_error(error: Exception, given_up: bool, gone: bool) -> None:
    job = Job(error)
    with pytest.raises(type(error)):
        run(job, given_up=given_up, gone=gone)
    assert job.runs == 1
