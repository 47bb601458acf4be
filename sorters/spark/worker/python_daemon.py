"""Spark's Python daemon, made ready for short tasks; Spark starts it as ``spark.python.daemon.module`` says.

The protocol, the secret and the forking are pyspark's own (``pyspark.daemon``, 4.0.0). Before the first worker is
forked we import what our tasks use and freeze it, so that workers start warm and share its pages. Between tasks
pyspark would read the directory of each zip file on the path anew, and collect garbage: the first we leave, the second
we do rarely (docs/decisions/2026-11-22-price-of-a-spark-task.md). A worker that is too large after a task ends with it.

What workers log goes to Spark's executors' logs, and is redacted as the driver says in the environment
(:mod:`schemas.redaction`).
"""

import contextlib
import gc
import importlib
import logging
import os
import sys
import zipimport
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.serializers import SpecialLengths

from schemas.bare_arrow import leave_out_pandas
from schemas.redaction import (
    REDACT_VARIABLE,
    Redaction,
    parse_redaction,
    redacted,
    redacted_stack,
    redaction,
    set_redaction,
)

MODULE = "sorters.spark.worker.python_daemon"
WORKER_MODULES = (
    "numpy",
    "pyarrow",
    "confluent_kafka",
    "pyspark.worker",
    "sorters.spark.tasks.two_steps",
    "sorters.spark.tasks.cut_task",
    "sorters.spark.worker.work",
)
"""What tasks import, each with all that it needs; none of these starts a thread when it is imported."""
_OURS = frozenset({"schemas", "edges", "sorters"})
TASKS_A_COLLECTION = 200
"""Tasks after which a worker collects garbage in any case."""
GROWTH_BYTES_MAX = 32 * 1024 * 1024
"""Growth of a worker's resident memory since its last collection after which it collects at once."""
WORKER_BYTES_MAX = 1024 * 1024 * 1024
"""Resident memory after a task, and a collection, above which a worker ends: some task of it leaks. What a task holds
of a cut is a few hundred MiB, and a new worker is a fork."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return this process's resident memory; 0 where the system does not say (then only tasks are counted)."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


class WorkerLines(logging.Formatter):
    """What a worker logs: level, logger, message and traceback, without what is hidden."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines. Messages of ours are constant; others may quote what they were given."""
        ours = record.name.partition(".")[0] in _OURS and not record.args
        said = record.getMessage() if ours else redacted(record.getMessage())
        stack = [redacted_stack(record.exc_info[1])] if record.exc_info and record.exc_info[1] is not None else []
        return "\n".join([f"{record.levelname} {record.name} {said}", *stack])


def log_as_told() -> None:
    """Redact what this process and its workers say, as who started it says; a word that is none hides all."""
    set_redaction(parse_redaction(os.environ.get(REDACT_VARIABLE, "off")) or Redaction.ON)
    if redaction() is not Redaction.OFF:
        handler = logging.StreamHandler()
        handler.setFormatter(WorkerLines())
        logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


class RareCollector:
    """Stands for module ``gc`` in pyspark's daemon, which calls ``collect`` after each task of a worker."""

    def __init__(self, collect: Callable[[], int] = gc.collect, resident: Callable[[], int] = resident_bytes) -> None:
        """Both are replaced by tests alone."""
        self._collect, self._resident = collect, resident
        self._tasks = 0
        self._least_bytes: int | None = None
        """The least resident memory since the last collection; None: no task has ended yet."""

    def collect(self) -> int:
        """Collect garbage if it is time to; return the number of objects that went."""
        bytes_now = self._resident()
        if self._least_bytes is None:
            self._least_bytes = bytes_now
        self._tasks += 1
        self._least_bytes = min(self._least_bytes, bytes_now)
        if self._tasks < TASKS_A_COLLECTION and bytes_now - self._least_bytes < GROWTH_BYTES_MAX:
            return 0
        gone = self._collect()
        self._tasks, self._least_bytes = 0, self._resident()
        return gone


class LastWord:
    """Stands for ``write_int`` in pyspark's worker, whose last word of a task tells Spark whether to use it again."""

    def __init__(
        self,
        write: Callable[[int, Any], None],
        collect: Callable[[], int] = gc.collect,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        """``write`` is pyspark's own; the others are replaced by tests alone."""
        self._write, self._collect, self._resident = write, collect, resident

    def __call__(self, value: int, stream: Any) -> None:
        """Write a number; a worker that is too large says that it is of no more use, as pyspark does after an error.

        Raises:
            SystemExit: it is too large; pyspark ends it when Spark has closed the connection.
        """
        if value == SpecialLengths.END_OF_STREAM and self._is_too_large():
            self._write(SpecialLengths.END_OF_DATA_SECTION, stream)
            sys.exit(1)
        self._write(value, stream)

    def _is_too_large(self) -> bool:
        if self._resident() <= WORKER_BYTES_MAX:
            return False
        self._collect()
        return self._resident() > WORKER_BYTES_MAX


def keep_zip_directories() -> None:
    """Let importers of zip files keep their directories when caches are dropped, as pyspark does for each task.

    A zip file on a worker's path never changes: pyspark's own, and the one that we ship, are written before they are
    put there. A further one gets an importer of its own.
    """
    zipimport.zipimporter.invalidate_caches = _keep  # type: ignore[method-assign, assignment]


def _keep(importer: zipimport.zipimporter) -> None:
    """Do nothing."""


def main() -> None:
    """Serve Spark until it closes our standard input; its first answer there is our port, so nobody else may print."""
    keep_zip_directories()
    log_as_told()
    with contextlib.redirect_stdout(sys.stderr):
        daemon = importlib.import_module("pyspark.daemon")  # reads the worker's module in our arguments
        leave_out_pandas()
        for module in WORKER_MODULES:
            importlib.import_module(module)
    worker = sys.modules["pyspark.worker"]
    worker.write_int = LastWord(worker.write_int)  # type: ignore[attr-defined]
    daemon.gc = RareCollector()  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
