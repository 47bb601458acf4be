"""Attempts of one task on executors that are lost: never two of them beside each other."""

import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from compose.stack.jars import pyspark_jars
from compose.stack.spark_files import name_spark_files
from compose.stack.spark_home import HOME_ENV
from sorters.spark.jobs.own_job import run_own_job
from sorters.spark.jobs.task_jobs import TaskJobs, errors_of_workers
from sorters.spark.session import create_session
from tests.support.processes import task_work

EXECUTORS = 3
TICKS_S = 42.0
LATE_S = 10.0
"""For so long an attempt may go on beside the one that replaces it; Spark takes some seconds to kill it."""
WAIT_S = 180.0
pytestmark = pytest.mark.skipif("NIGHTLY_CLUSTER" not in os.environ, reason="takes minutes: `make nightly`")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    name_spark_files()
    if SparkSession.getActiveSession() is not None:
        pytest.skip("this process has a session of another test")
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
    }
    spark = create_session(f"local-cluster[{EXECUTORS},1,640]", "attempts", tmp_path_factory.mktemp("spark"), conf=conf)
    deadline = time.monotonic() + WAIT_S
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() <= EXECUTORS:  # and the driver
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield spark
    work = Path(os.environ.get(HOME_ENV, pyspark_jars().parent)) / "work" / spark.sparkContext.applicationId
    spark.stop()
    shutil.rmtree(work, ignore_errors=True)


def test_attempt_of_a_writing_task_ends_before_another_begins_when_an_executor_with_runs_is_lost(
    spark: Any, tmp_path: Path
) -> None:
    """Executor A is killed while B writes; who then wants what A has read cannot get it, and B's task is run again."""
    jobs, tag = TaskJobs(spark), "attempts"
    jobs.describe(tags=tag)

    def run() -> list[bytes]:
        with errors_of_workers() as nonce:
            second = partial(task_work.tick_and_lose_an_executor, str(tmp_path), TICKS_S)
            return jobs.two_steps(task_work.to_each, second, EXECUTORS, nonce)

    run_own_job(run, end_tasks=partial(jobs.end_tasks, tag), is_given_up=lambda: False, is_gone=lambda: False)
    attempts = [[float(line) for line in file.read_text().split()] for file in tmp_path.glob("ticks-*")]
    attempts.sort()
    assert len(attempts) == 2, "one was replaced"
    assert attempts[0][-1] < attempts[0][0] + TICKS_S - 1, "in mid-write"
    assert attempts[0][-1] < attempts[1][0] + LATE_S, "and nothing of it when the next has gone on for so long"
