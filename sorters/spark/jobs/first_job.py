"""A session's first job, which does nothing: it pays for what the first large cut would wait for.

That is the Python daemon, which imports all that tasks need before it forks a worker, and the classes and code paths
that the JVM meets for the first time (docs/decisions/2026-11-23-where-time-goes.md).
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from sorters.log.failures import bus_error
from sorters.spark.jobs.session_jobs import session_jobs
from sorters.spark.jobs.task_jobs import errors_of_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

NAME = "first job"


def run_first_job(spark: "SparkSession") -> None:
    """Run it, and return when it has ended, well or not: whoever has a real job meets what is wrong again.

    With executors of their own nothing is run: it could be only waited for until there is one.
    """
    shared = session_jobs(spark)
    if shared.runs_parent is None:
        return
    try:
        with errors_of_workers() as nonce:
            work = partial(shared.jobs.two_steps, _read, _write, shared.tasks, nonce)
            shared.in_own_thread(work, pool=NAME, tag=NAME.replace(" ", "-"), description="makes workers ready")
    except Exception as error:  # Spark's and Py4J's, of many kinds
        known = bus_error(error)
        log.warning("spark's first job failed", extra={"code": known.code, "reason": str(known)})


def _read(number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
    """Send nothing to the second step's task of the same number."""
    for _ in frames:
        pass
    yield number.to_bytes(8, "big")
    yield b""


def _write(_number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
    for _ in frames:
        pass
    yield b""
