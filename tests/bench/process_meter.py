"""Memory and CPU of a sorter while a bench runs: the driver (Python and its JVM), and Spark's Python workers."""

import contextlib
import threading
from collections.abc import Collection, Iterator

import psutil

from sorters.spark.python_daemon import MODULE

SAMPLE_S = 0.1
_DRIVER, _WORKERS = 0, 1


class ProcessMeter:
    """Samples resident sizes of a process's tree, and takes its CPU times, until it is left.

    ``peak_mb`` is the greatest sum at one moment; memory that processes share is counted in each. ``peak_private_mb``
    is the same without what is mapped of files.
    """

    peak_mb = peak_private_mb = driver_mb = workers_mb = driver_cpu_s = workers_cpu_s = 0.0

    def __init__(self, pid: int | None = None, *, others: Collection[int] = ()) -> None:
        """Meter this process, or the one of ``pid``, less ``others`` among its children and what they have started."""
        self._root, self._others = psutil.Process(pid), others

    @property
    def cpu_s(self) -> float:
        """All of it."""
        return self.driver_cpu_s + self.workers_cpu_s

    def __enter__(self) -> "ProcessMeter":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._cpu_s = self.cpu_now()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        now = self.cpu_now()
        self.driver_cpu_s, self.workers_cpu_s = (
            now[_DRIVER] - self._cpu_s[_DRIVER],
            now[_WORKERS] - self._cpu_s[_WORKERS],
        )

    def cpu_now(self) -> tuple[float, float]:
        """Return the CPU seconds so far: of the driver, and of the workers, those that have ended included."""
        (_, driver), (_, workers) = self._look()
        return driver, workers

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            (driver, _), (workers, _) = self._look()
            self.peak_private_mb = max(self.peak_private_mb, (driver + workers - self._shared) / 2**20)
            self.driver_mb = max(self.driver_mb, driver / 2**20)
            self.workers_mb = max(self.workers_mb, workers / 2**20)
            self.peak_mb = max(self.peak_mb, (driver + workers) / 2**20)

    def _children(self) -> Iterator[psutil.Process]:
        left_out = set(self._others)
        for child in self._root.children(recursive=True):  # a parent before its children, in one look at the machine
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.pid in left_out or child.ppid() in left_out:
                    left_out.add(child.pid)
                else:
                    yield child

    def _look(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return (resident bytes, CPU seconds) of the driver with its JVM, and of the Python workers."""
        sizes, cpu_s = [0.0, 0.0], [0.0, 0.0]
        self._shared = 0.0
        for process in (self._root, *self._children()):
            try:
                command, memory, times = " ".join(process.cmdline()), process.memory_info(), process.cpu_times()
            except psutil.Error:
                continue
            is_jvm = "SparkSubmit" in command  # whose settings name the daemon's module, too
            is_worker = not is_jvm and ("pyspark.daemon" in command or MODULE in command)
            if process.pid != self._root.pid and not is_worker and not is_jvm:
                continue
            kind = _WORKERS if is_worker else _DRIVER
            sizes[kind] += memory.rss
            self._shared += memory.shared
            cpu_s[kind] += times.user + times.system
            if is_worker:  # of workers that have ended, whom their daemon has waited for
                cpu_s[kind] += times.children_user + times.children_system
        return (sizes[_DRIVER], cpu_s[_DRIVER]), (sizes[_WORKERS], cpu_s[_WORKERS])
