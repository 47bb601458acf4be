"""What frontier records say for one changefeed that may wait for table images."""

from collections.abc import Callable
from dataclasses import replace

from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord, widened
from sorters.core.cut.cut import ChangefeedFrontier, with_images
from sorters.run.sources import FrontierSource


class ImagedFrontier:
    """Takes frontier records to what they say for a changefeed, images included, and no further than those allow."""

    def __init__(
        self,
        source: FrontierSource,
        of_tables: Callable[[FrontierRecord], ChangefeedFrontier],
        *,
        image_name: str,
        waits_at: Ts | None,
        origin_ts: Ts,
    ) -> None:
        """``of_tables`` says what a record's held tables leave. ``image_name`` is what records call the changefeed; '':
        it goes by none. ``waits_at`` is where it stands until they know it; None: it need not be known. ``origin_ts``
        is where the run begins.
        """
        self._source, self._of_tables = source, of_tables
        self._image_name, self._waits_at, self._origin_ts = image_name, waits_at, origin_ts
        self._waiting_low: tuple[int, ...] | None = None

    def of(self, record: FrontierRecord) -> ChangefeedFrontier:
        """Return what a frontier record says for this changefeed."""
        frontier = self._of_tables(record)
        if not self._image_name:
            return frontier
        frontier = with_images(frontier, record.images, self._image_name, waits_at=self._waits_at)
        if frontier.images is not None or self._waits_at is None:
            return frontier
        # By the record's own low, rows between the ts where the changefeed waits and the record's may stand below it.
        return replace(frontier, low=widened(self._low_where_it_waits(self._waits_at), len(frontier.low)))

    def _low_where_it_waits(self, waits_at: Ts) -> tuple[int, ...]:
        if self._waiting_low is None:
            where = self._source.find(max(waits_at, self._origin_ts))
            self._waiting_low = self._of_tables(self._source.record_before(where)).low
        return self._waiting_low
