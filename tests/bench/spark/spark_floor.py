"""What a Spark job of Python tasks costs before they do anything: our session beside plain pyspark, in one run.

``python -m tests.bench.spark.spark_floor`` prints one JSON line. Each session is a process of its own on ``local[2]``;
they take turns, each in both orders, and the other one idles meanwhile. A task answers with one byte: ours by
:class:`sorters.spark.jobs.task_jobs.TaskJobs`, plain pyspark's by ``parallelize().mapPartitions().collect()``, in a
session whose only settings are those that keep it quiet and on loopback. Times are a whole job's, as its caller sees
it. CPU is that of a session's whole tree of processes (driver, JVM, daemon, workers) over the jobs of one task.
``jobs_per_s`` is of 16 threads that run jobs of one task. ``py4j_calls`` are commands to the JVM for one job of one
task and of eight.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from compose.stack.spark_files import name_spark_files
from sorters.spark.jobs.task_jobs import TaskJobs
from sorters.spark.session import create_session
from tests.support.processes.task_work import nothing

EIGHT, THREADS = 8, 16
WARM_JOBS = 30
"""Of each size, before anything is measured: until the JVM has compiled what it runs."""
ROUNDS, JOBS, JOBS_OF_EIGHT, THREAD_JOBS = 6, 20, 6, 64
"""Of each session, in each round."""
Job = Callable[[int], object]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, or the process of one session; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", choices=("ours", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        _serve(_our_job(Path(options.folder)) if options.serve == "ours" else _plain_job())
        return 0
    with tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder:
        print(json.dumps(_measure(options.rounds, folder)), flush=True)
    return 0


def _measure(rounds: int, folder: str) -> dict[str, object]:
    ours, plain = Session("ours", folder), Session("plain", folder)
    try:
        for number in range(rounds):
            for session in (ours, plain) if number % 2 else (plain, ours):
                session.ask_all()
    finally:
        ours.close()
        plain.close()
    figures: dict[str, object] = {"bench": "spark_floor"}
    for prefix, session in (("", ours), ("plain_", plain)):
        figures |= {f"{prefix}{name}": value for name, value in session.figures().items()}
    return figures


class Session:
    """A process with one session, and what it has measured."""

    def __init__(self, name: str, folder: str) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.bench.spark.spark_floor",
            f"--serve={name}",
            f"--folder={folder}/{name}",
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._one = list[float]()
        self._eight = list[float]()
        self._cpu_ms = list[float]()
        self._rates = list[float]()
        self._busy_cpu_ms = list[float]()
        for tasks in (1, EIGHT):
            self._ask(tasks=tasks, jobs=WARM_JOBS, threads=1)
        self._calls = [self._ask(tasks=tasks, jobs=1, threads=1)["calls"] for tasks in (1, EIGHT)]

    def ask_all(self) -> None:
        """Measure one round."""
        answer = self._ask(tasks=1, jobs=JOBS, threads=1)
        self._one += answer["ms"]
        self._cpu_ms.append(answer["cpu_ms"])
        self._eight += self._ask(tasks=EIGHT, jobs=JOBS_OF_EIGHT, threads=1)["ms"]
        answer = self._ask(tasks=1, jobs=THREAD_JOBS, threads=THREADS)
        self._rates.append(answer["jobs_per_s"])
        self._busy_cpu_ms.append(answer["cpu_ms"])

    def figures(self) -> dict[str, object]:
        """Return what bench and report show."""
        return {
            "p50_ms": round(statistics.median(self._one), 1),
            "cpu_ms": round(statistics.median(self._cpu_ms), 1),
            "job_of_eight_p50_ms": round(statistics.median(self._eight), 1),
            "jobs_per_s": round(statistics.median(self._rates), 1),
            "jobs_per_s_cpu_ms": round(statistics.median(self._busy_cpu_ms), 1),
            "py4j_calls": f"{self._calls[0]}, {self._calls[1]}",
        }

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _ask(self, **what: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _our_job(folder: Path) -> Job:
    name_spark_files()
    jobs = TaskJobs(create_session("local[2]", "spark-floor", folder))
    return lambda tasks: jobs.answers(nothing, tasks)


def _plain_job() -> Job:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    context = spark.sparkContext
    context.setLogLevel("ERROR")
    return lambda tasks: context.parallelize(range(tasks), tasks).mapPartitions(lambda _: [b"1"]).collect()


def _serve(job: Job) -> None:
    """Measure once for each line on standard input."""
    from py4j.clientserver import ClientServerConnection

    calls, send = [0], ClientServerConnection.send_command

    def counted(connection: Any, command: str) -> Any:
        calls[0] += 1
        return send(connection, command)

    ClientServerConnection.send_command = counted
    for line in sys.stdin:
        what = json.loads(line)
        before, cpu_s, began_at = calls[0], _cpu_s(), time.monotonic()
        times_ms = _timed(job, what["tasks"], what["jobs"], what["threads"])
        elapsed_s, spent_s = time.monotonic() - began_at, _cpu_s() - cpu_s
        answer = {
            "ms": times_ms,
            "jobs_per_s": what["jobs"] / elapsed_s,
            "cpu_ms": 1000 * spent_s / what["jobs"],
            "calls": calls[0] - before,
        }
        print(json.dumps(answer), flush=True)


def _timed(job: Job, tasks: int, jobs: int, threads: int) -> list[float]:
    """Return how many milliseconds each of so many jobs took."""
    numbers, times_ms = iter(range(jobs)), list[float]()
    taking = threading.Lock()

    def run() -> None:
        while _next(numbers, taking):
            began_at = time.monotonic()
            job(tasks)
            times_ms.append(1000 * (time.monotonic() - began_at))

    if threads == 1:
        run()
        return times_ms
    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return times_ms


def _next(numbers: Iterator[int], taking: threading.Lock) -> bool:
    with taking:
        return next(numbers, None) is not None


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of all that it has started and that still run."""
    own, spent = psutil.Process(), 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system
    return spent


if __name__ == "__main__":
    sys.exit(main())
