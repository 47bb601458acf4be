"""Has the regions of tables counted, seldom and aside, and says which tables are to be pulled in which spans."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from consumers.control.core.frontier.span_split import SplitSettings, resplit_table, split_table
from schemas.errors import BusError
from schemas.ids import TableId
from schemas.tidb.spans import Boundaries, TableSpan

log = logging.getLogger(__name__)


class SplitWatch:
    """Not thread-safe; counting runs in a thread of its own. Without ``enable-table-across-nodes`` it does nothing."""

    def __init__(
        self,
        settings: SplitSettings,
        count: Callable[[Collection[TableId], int], Boundaries],
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        counter: Executor | None = None,
    ) -> None:
        """Count nothing yet.

        Args:
            settings: when to split.
            count: takes tables and a least number of regions; raises BusError.
            every_s: from the end of a count to the next.
            clock: in seconds, never goes back.
            counter: runs the counts; None: a thread of its own.
        """
        self._settings, self._count, self._every_s = settings, count, every_s
        self.captures = 1
        """That share the work; the owner says how many."""
        self._clock = clock
        self._boundaries: Boundaries | None = None
        self._counting: Future[Boundaries] | None = None
        self._next_at = clock()
        self._thread = counter or ThreadPoolExecutor(1, thread_name_prefix="table-regions")

    def ready(self, tables: Collection[TableId]) -> bool:
        """Say whether tables may be assigned: a large one begun whole would only have to begin anew."""
        if self._settings.enable_table_across_nodes and self._boundaries is None:
            self._step(tables)
            return self._boundaries is not None
        return True

    def spans_of(self, table_id: TableId) -> tuple[TableSpan, ...]:
        """Return by which spans a table that nobody pulls is to be pulled."""
        boundaries = (self._boundaries or {}).get(table_id, ())
        return split_table(table_id, boundaries, self.captures, self._settings)

    def look(self, spans: Mapping[TableId, tuple[TableSpan, ...]]) -> dict[TableId, tuple[TableSpan, ...]]:
        """Return the tables of ``spans`` that are to be pulled by other spans, once for each count."""
        if not self._settings.enable_table_across_nodes or not self._step(spans.keys()):
            return {}
        boundaries = self._boundaries or {}
        new = {
            table: resplit_table(parts, boundaries.get(table, ()), self.captures, self._settings)
            for table, parts in spans.items()
            if table in boundaries or len(parts) > 1
        }
        return {table: parts for table, parts in new.items() if parts is not None}

    @property
    def counting(self) -> bool:
        """Whether a count is under way, or done and not yet taken."""
        return self._counting is not None

    def close(self) -> None:
        """Start no more counts; one that is under way ends with its PD client."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _step(self, tables: Collection[TableId]) -> bool:
        """Start a count that is due, take one that is done; return whether there is a new result."""
        if self._counting is None:
            if self._clock() >= self._next_at:
                at_least = max(2, self._settings.region_threshold // 2)
                self._counting = self._thread.submit(self._count, frozenset(tables), at_least)
            return False
        if not self._counting.done():
            return False
        done, self._counting = self._counting, None
        self._next_at = self._clock() + self._every_s
        try:
            self._boundaries = done.result()
        except BusError as error:
            log.warning("regions of tables are not counted; large ones stay as they are", extra={"error": str(error)})
            self._boundaries = self._boundaries or {}
            return False
        return True
