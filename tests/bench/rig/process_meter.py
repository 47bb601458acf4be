"""Memory and CPU of a sorter while a bench runs: the driver (Python and its JVM), and Spark's Python workers."""

import contextlib
import threading
from collections.abc import Collection, Iterator

import psutil

SAMPLE_S = 0.1
ENDS_S = 5.0
"""Between looks for workers that end: one costs some ms, and an idle worker lives for a minute."""
_DRIVER, _WORKERS = 0, 1


class ProcessMeter:
    """Samples resident sizes of a process's tree, and takes its CPU times, until it is left.

    ``peak_mb`` is the greatest sum at one moment; memory that processes share is counted in each. ``peak_private_mb``
    is the same without what is mapped of files.

    pyspark's daemon lets the kernel take its workers when they end, so no process is told of their CPU time
    (``SIGCHLD`` is ignored). The meter keeps what it has seen of each. A worker ends when it was idle for a minute, so
    looks that are closer together see all that it has done.
    """

    peak_mb = peak_private_mb = driver_mb = workers_mb = driver_cpu_s = workers_cpu_s = 0.0

    def __init__(self, pid: int | None = None, *, others: Collection[int] = ()) -> None:
        """Meter this process, or the one of ``pid``, less ``others`` among its children and what they have started."""
        self._root, self._others = psutil.Process(pid), others
        self._looking = threading.Lock()
        self._seen_s: dict[tuple[int, float], float] = {}
        """CPU seconds of workers whom nobody waits for, as each was seen last: by process and when it began."""

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
        with self._looking:
            (_, driver), (_, workers) = self._look()
        return driver, workers

    @contextlib.contextmanager
    def seeing_ends(self) -> Iterator[None]:
        """Look now and then meanwhile, so that :meth:`cpu_now` has workers that end; sizes are not sampled."""
        stop = threading.Event()

        def look() -> None:
            while not stop.wait(ENDS_S):
                self.cpu_now()

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            with self._looking:
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
        """Return (resident bytes, CPU seconds) of the driver with its JVM, and of what the JVM has started."""
        sizes, cpu_s = [0.0, 0.0], [0.0, 0.0]
        self._shared = 0.0
        jvms, workers = set[int](), set[int]()
        for process in (self._root, *self._children()):
            try:
                with process.oneshot():
                    parent, times, started_s = process.ppid(), process.cpu_times(), process.create_time()
                    is_jvm = parent not in jvms | workers and "SparkSubmit" in " ".join(process.cmdline())
                    memory = process.memory_info()
            except psutil.Error:
                continue
            is_worker = parent in jvms | workers
            if process.pid != self._root.pid and not is_worker and not is_jvm:
                continue
            (jvms if is_jvm else workers if is_worker else set()).add(process.pid)
            kind = _WORKERS if is_worker else _DRIVER
            sizes[kind] += memory.rss
            self._shared += memory.shared
            own_s, ended_s = times.user + times.system, times.children_user + times.children_system
            if is_worker and parent not in jvms:
                self._seen_s[process.pid, started_s] = own_s
            else:
                cpu_s[kind] += own_s
            if is_jvm or is_worker:  # children that have ended and were waited for
                cpu_s[_WORKERS] += ended_s
        cpu_s[_WORKERS] += sum(self._seen_s.values())
        return (sizes[_DRIVER], cpu_s[_DRIVER]), (sizes[_WORKERS], cpu_s[_WORKERS])
