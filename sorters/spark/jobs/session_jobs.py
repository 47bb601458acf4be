"""What all changefeeds of a Spark session share: how jobs are made, the group for small cuts, and the runs' folder."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sorters.spark.jobs.job_group import JobGroup
from sorters.spark.jobs.task_jobs import TaskJobs
from sorters.spark.jobs.task_watch import TaskWatch
from sorters.spark.tasks.run_folder import clear_run_folders

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


Result = TypeVar("Result")


class SessionJobs:
    """Of one session, from any thread."""

    def __init__(self, spark: "SparkSession") -> None:
        self.context = spark.sparkContext
        self.jobs = TaskJobs(spark)
        cores = max(1, int(self.context.defaultParallelism))
        self.tasks = max(2, cores)
        """Of a large cut, in each of its steps."""
        self.runs_parent = (
            Path(self.context.getConf().get("spark.local.dir")) if _on_one_machine(self.context) else None
        )
        """Where the folders of runs are made; None: tasks may be on several machines, so runs go through Spark."""
        if self.runs_parent is not None:
            clear_run_folders(self.runs_parent)
        self.watch = TaskWatch(self.jobs.progress, self.jobs.cancel)
        self.group = JobGroup(self.jobs, cores, is_gone=self.is_gone, watch=self.watch)

    def is_gone(self) -> bool:
        """Tell whether the session can run nothing any more."""
        try:
            return bool(self.context._jsc.sc().isStopped())
        except Exception:  # Py4J's, of many kinds: nobody answers
            return True

    def in_own_thread(self, work: Callable[[], Result], *, pool: str, tag: str, description: str) -> Result:
        """Run ``work``, which runs jobs, in a thread with a name for them, whatever thread this is: Spark's own that
        calls us has the names of a streaming query.

        Raises:
            Exception: what ``work`` raises.
        """
        result: Future[Result] = Future()

        def run() -> None:
            try:
                self.jobs.describe(pool=pool, tags=tag, description=description)
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run, name=f"spark-job {tag}", daemon=True).start()
        return result.result()

    def close(self) -> None:
        """End the threads."""
        self.watch.close()
        self.group.close()


_of_session: SessionJobs | None = None
_making = threading.Lock()


def session_jobs(spark: "SparkSession") -> SessionJobs:
    """Return what the changefeeds of a session share; a process has one session, and what was of another is closed."""
    global _of_session  # as pyspark's own session is
    with _making:
        former = _of_session
        if former is not None and former.context is spark.sparkContext:
            return former
        _of_session = SessionJobs(spark)
    if former is not None:
        former.close()
    return _of_session


def _on_one_machine(context: "SparkContext") -> bool:
    """Tell whether all tasks see this machine's files; executors of ``local-cluster`` do too, but only tests use it."""
    return bool(re.fullmatch(r"local(\[.*\])?", context.master))
