"""What this process has had Spark do, for its metrics: counted over sessions, of which it has one after another."""

import threading

from schemas.nodes.sorter_service import SparkFigures


class SparkCounts:
    """From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures = SparkFigures()

    @property
    def figures(self) -> SparkFigures:
        """What there is so far."""
        return self._figures

    def add(self, *, sessions: int = 0, jobs: int = 0, jobs_failed: int = 0, cuts: int = 0, queries: int = 0) -> None:
        """Count what has begun (sessions, queries), or ended (jobs, those that failed, cuts that are written)."""
        with self._lock:
            had = self._figures
            self._figures = SparkFigures(
                sessions=had.sessions + sessions,
                jobs=had.jobs + jobs,
                jobs_failed=had.jobs_failed + jobs_failed,
                cuts=had.cuts + cuts,
                queries=had.queries + queries,
            )


OF_PROCESS = SparkCounts()
