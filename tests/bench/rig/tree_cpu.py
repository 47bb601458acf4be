"""CPU time of a process and of all that it starts, those that end meanwhile included."""

import threading

import psutil

LOOK_S = 0.5
"""Between looks; what a process did after the last look at it is lost when it ends."""


class TreeCpu:
    """Keeps what each process of a tree has used, from when it is made until it is closed.

    Nobody can be asked for the CPU time of a process that has ended: pyspark's daemon lets the kernel take its workers,
    and a sorter service is no child of a bench. So the tree is looked at now and then, and what was seen is kept.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._looking = threading.Lock()
        self._seen_s: dict[tuple[int, float], float] = {}
        """CPU seconds of each process without its children's, by id and when it began."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def cpu_s(self) -> float:
        """Return the CPU seconds that the tree has used so far, as far as they were seen."""
        with self._looking:
            for process in (self._root, *self._root.children(recursive=True)):
                try:
                    times, began_s = process.cpu_times(), process.create_time()
                except psutil.NoSuchProcess:
                    continue
                self._seen_s[process.pid, began_s] = times.user + times.system
            return sum(self._seen_s.values())

    def rss_mb(self) -> float:
        """Return the resident size of all that lives; what processes share is counted in each."""
        sizes = 0
        for process in (self._root, *self._root.children(recursive=True)):
            try:
                sizes += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return sizes / 2**20

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.cpu_s()
