"""Runs Python tasks as Spark jobs by as few calls into the JVM as there can be.

pyspark's own ways (``mapInArrow``, ``RDD.mapPartitions``) take 29 to 130 calls a job, most for objects that never
change, and plan a query or open a socket for the answer; each call is a round trip of two threads
(docs/decisions/2026-11-22-price-of-a-spark-task.md). Here the objects that do not change are kept, functions are
pickled by name, all tasks of a job share one command, and the answers come back as one array of bytes.
"""

import pickle
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sorters.log.failures import worker_error
from sorters.spark.worker.work import Answer, TaskWork, Work, command, split_answers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BASES_MAX = 64
"""Numbers of tasks, and sets of broadcasts, whose objects in the JVM are kept."""


@dataclass(frozen=True, slots=True)
class WorkerBroadcast:
    """What stands for a :class:`SparkBroadcast` in a worker, which has it only for tasks of jobs that name it."""

    number: int

    @property
    def value(self) -> Any:
        """What was broadcast; it is read and unpickled when it is asked for."""
        from pyspark.core.broadcast import _from_id

        return _from_id(self.number).value


class SparkBroadcast:
    """A broadcast that goes into a task's command by its number, without asking the JVM for it each time."""

    def __init__(self, broadcast: Any) -> None:
        """``broadcast`` is pyspark's."""
        self._broadcast = broadcast
        self.java: Any = broadcast._jbroadcast
        self.number = int(self.java.id())

    def __reduce__(self) -> tuple[type[WorkerBroadcast], tuple[int]]:
        return WorkerBroadcast, (self.number,)

    @property
    def value(self) -> Any:
        """What was broadcast, on the driver."""
        return self._broadcast.value

    def destroy(self) -> None:
        """Take it back from the JVM and all executors; a JVM that has ended has none."""
        with suppress(Exception):  # Py4J's, of many kinds
            self._broadcast.destroy()


class TaskJobs:
    """Of one session; any thread may run jobs, several at once."""

    def __init__(self, spark: "SparkSession") -> None:
        self.context = spark.sparkContext
        self._jvm = jvm = self.context._jvm
        api = jvm.org.apache.spark.api.python
        self._function, self._rdd, self._pairs = api.SimplePythonFunction, api.PythonRDD, api.PairwiseRDD
        self._partitioner = api.PythonPartitioner
        primitives = jvm.com.google.common.primitives
        self._join = primitives.Bytes.concat
        self._by_bytes = primitives.UnsignedBytes.lexicographicalComparator()
        self._env = self._java_map(self.context.environment)
        self._includes = self._java_list(self.context._python_includes)
        self._said = threading.local()
        """What this thread has said to Spark of its jobs; pyspark gives each thread of ours one in the JVM."""
        self._base = lru_cache(BASES_MAX)(self._new_base)
        self._partitioner_for = lru_cache(BASES_MAX)(self._new_partitioner)
        self._broadcasts = lru_cache(BASES_MAX)(self._java_broadcasts)

    def broadcast(self, value: object) -> SparkBroadcast:
        """Send a value to all workers that need it."""
        return SparkBroadcast(self.context.broadcast(value))

    def describe(self, **properties: str | None) -> None:
        """Set properties of this thread's next jobs: ``pool``, ``tags`` (with commas), ``description``; None: none.

        Only what has changed is said to Spark. Not for a thread that Spark calls (``foreachBatch``): which thread of
        the JVM stands behind it may change.
        """
        for name, value in properties.items():
            said = self._said.__dict__
            if said.get(name) != value:
                self.context._jsc.setLocalProperty(_PROPERTIES[name], value)
                said[name] = value

    def cancel(self, tag: str) -> None:
        """Cancel the jobs that run under a tag; from any thread. One that is about to begin goes on."""
        self.context._jsc.sc().cancelJobsWithTag(tag)

    def end_tasks(self, tag: str) -> None:
        """Kill what still runs of the youngest job under a tag, which has failed: Spark does not promise to end tasks
        that stood beside one whose input was lost.
        """
        spark = self.context._jsc.sc()
        for stage in self._youngest_stages(spark.statusTracker(), tag):
            spark.taskScheduler().killAllTaskAttempts(stage, False, "their job has failed")

    def progress(self, tag: str) -> tuple[int, int]:
        """Return how many tasks of the youngest job under a tag have ended, and how many run."""
        tracker = self.context._jsc.sc().statusTracker()
        infos = [tracker.getStageInfo(stage) for stage in self._youngest_stages(tracker, tag)]
        stages = [info.get() for info in infos if info.isDefined()]
        return sum(stage.numCompletedTasks() for stage in stages), sum(stage.numActiveTasks() for stage in stages)

    def _youngest_stages(self, tracker: Any, tag: str) -> list[int]:
        jobs = list(tracker.getJobIdsForTag(tag))
        info = tracker.getJobInfo(max(jobs)) if jobs else None
        return [] if info is None or not info.isDefined() else list(info.get().stageIds())

    def answers(
        self, work: Callable[[int], bytes], tasks: int, *, broadcasts: Sequence[SparkBroadcast] = ()
    ) -> list[bytes]:
        """Run ``work(number)`` in each of ``tasks`` tasks, in one job; return their answers by number.

        Args:
            work: pickled by name; a partial of a function that workers can import.
            broadcasts: those that ``work`` holds.

        Raises:
            BusError: a task raised it.
            Exception: Spark's, Py4J's; see :func:`sorters.log.failures.bus_error`.
        """
        with errors_of_workers() as nonce:
            job = self.python_rdd(self._base(tasks), TaskWork(Answer(work), nonce), broadcasts)
            return split_answers(bytes(self._join(job.collect())))

    def two_steps(
        self, first: Work, second: Work, tasks: int, nonce: str, *, broadcasts: Sequence[SparkBroadcast] = ()
    ) -> list[bytes]:
        """Run a job of two steps with ``tasks`` tasks each; return the greatest ``tasks`` frames of the second one.

        Args:
            first: yields frames by twos: the number of the task in the second step that is to get the next one, as
                eight bytes big-endian, and that one.
            second: gets those, in no order. What it answers is greater, as bytes, than what else it yields, which
                Spark takes and drops.
            nonce: of :func:`errors_of_workers`.
            broadcasts: those that ``first`` holds.

        Raises:
            Exception: Spark's, Py4J's.
        """
        read = self.python_rdd(self._base(tasks), TaskWork(first, nonce), broadcasts)
        moved = self._pairs(read).asJavaPairRDD().partitionBy(self._partitioner_for(tasks))
        written = self.python_rdd(self._rdd.valueOfPair(moved).rdd(), TaskWork(second, nonce))
        return [bytes(frame) for frame in written.toJavaRDD().top(tasks, self._by_bytes)]

    def python_rdd(self, before: Any, work: TaskWork, broadcasts: Sequence[SparkBroadcast] = ()) -> Any:
        """Return Spark's RDD of what ``work`` yields over the RDD ``before``."""
        context = self.context
        pickled = bytearray(pickle.dumps(command(work), protocol=pickle.HIGHEST_PROTOCOL))
        function = self._function(
            pickled,
            self._env,
            self._includes,
            context.pythonExec,
            context.pythonVer,
            self._broadcasts(tuple(broadcasts)),
            context._javaAccumulator,
        )
        return self._rdd(before, function, False, False)

    def _new_base(self, tasks: int) -> Any:
        """Return an RDD of as many partitions with nothing in them that matters."""
        return self.context._jsc.parallelize(self._java_list([b""] * tasks), tasks).rdd()

    def _new_partitioner(self, tasks: int) -> Any:
        return self._partitioner(tasks, 0)

    def _java_broadcasts(self, broadcasts: tuple[SparkBroadcast, ...]) -> Any:
        return self._java_list([broadcast.java for broadcast in broadcasts])

    def _java_list(self, values: Sequence[object]) -> Any:
        from py4j.java_collections import ListConverter

        return ListConverter().convert(list(values), self.context._gateway._gateway_client)

    def _java_map(self, values: dict[str, str]) -> Any:
        from py4j.java_collections import MapConverter

        return MapConverter().convert(values, self.context._gateway._gateway_client)


_PROPERTIES = {
    "pool": "spark.scheduler.pool",
    "tags": "spark.job.tags",
    "description": "spark.job.description",
}


@contextmanager
def errors_of_workers() -> Iterator[str]:
    """Give a nonce to a job's tasks, and raise what they raised; see :mod:`sorters.log.failures`."""
    nonce = secrets.token_hex(16)
    try:
        yield nonce
    except Exception as error:
        carried = worker_error(error, nonce)
        if carried is None:
            raise
        raise carried from error
