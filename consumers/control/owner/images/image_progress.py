"""How far table images are, for people: what went out in this reign, what is left, and when it may be whole.

Rows, bytes and chunks are counted as chunks are listed by published records, so a new owner counts from zero; what is
done stands in the records themselves. How much of a table that is, its regions tell, counted aside.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from schemas.errors import BusError
from schemas.ids import TableId, Ts
from schemas.rawlog.images import NO_IMAGES, ImageState, KeyRange, holds_key
from schemas.tidb.spans import Boundaries

log = logging.getLogger(__name__)

FEEDS_SHOWN: Final = 20
TABLES_SHOWN: Final = 8
"""Of each changefeed, those that are begun: the upstream's node stays small."""
COUNT_EVERY_S: Final = 60.0
"""Between two counts of regions."""

NameOf = Callable[[TableId], tuple[str, str]]
"""Returns ``schema.table`` of a physical id, and the name of its partition; both '' where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """A table of which a part is done, or being scanned. Counts are of this reign."""

    table_id: TableId
    name: str = ""
    """``schema.table``; '': it is not known any more."""
    partition: str = ""
    """The name of the partition that it is; '': of none."""
    mode: str
    rows: int = 0
    bytes: int = 0
    chunks: int = 0
    done_share: float | None = None
    """Of its regions; None: it has one, or they are not counted yet."""
    eta_s: float | None = None
    """Until it is whole, at the pace so far; None: nobody can tell."""
    is_paused: bool = False
    """By itself; it need not be for its changefeed's images to be paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedProgress:
    """A changefeed that has images to come. Counts are of this reign, of tables that are whole too."""

    namespace: str
    id: str
    state: str
    """``running``; ``paused``, the changefeed or its images; ``deferred`` while it is too far behind; or ``waiting``,
    until all captures and sorters know of images."""
    reason: str = ""
    """For people: why none is scanned now."""
    tables_left: int
    tables_paused: int = 0
    """Of those that are left, one by one."""
    tables_done: int = 0
    rows: int = 0
    bytes: int = 0
    chunks: int = 0
    eta_s: float | None = None
    """Of all tables, at the pace of those that are whole; None: nobody can tell yet."""
    tables: tuple[TableProgress, ...] = ()

    def shown(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class FeedWait:
    """What a changefeed with images to come waits for; see :class:`FeedProgress`."""

    state: str
    reason: str = ""
    tables: Collection[TableId] = ()
    """That are left."""
    paused: Collection[TableId] = ()


@dataclass(slots=True)
class _Count:
    began_at_s: float
    rows: int = 0
    bytes: int = 0
    chunks: int = 0
    share_at_start: float | None = None


@dataclass(slots=True)
class _FeedCount(_Count):
    tables: dict[TableId, _Count] = field(default_factory=dict)
    """That are begun."""
    done: int = 0


class ImageProgress:
    """Of one reign; not thread-safe."""

    def __init__(
        self,
        count_regions: Callable[[Collection[TableId], int], Boundaries],
        *,
        clock: Callable[[], float] = time.monotonic,
        counter: Executor | None = None,
    ) -> None:
        """``counter`` runs ``count_regions``; None: a thread of its own, made when it is needed."""
        self._count_regions, self._clock, self._counter = count_regions, clock, counter
        self._images = NO_IMAGES
        self._feeds: dict[str, _FeedCount] = {}
        self._listed: frozenset[tuple[Ts, int]] = frozenset()
        self._boundaries: Boundaries = {}
        self._counting: Future[Boundaries] | None = None
        self._count_at_s = 0.0

    def close(self) -> None:
        """Count no more regions."""
        if self._counter is not None:
            self._counter.shutdown(wait=False, cancel_futures=True)

    def note(self, images: ImageState) -> None:
        """Take what a published record says."""
        if images.version == self._images.version:
            return
        self._images, now_s = images, self._clock()
        waiting = {feed.feed: feed for feed in images.feeds if feed.waits}
        self._feeds = {name: self._feeds.get(name) or _FeedCount(now_s) for name in waiting}
        for image in images.tables:
            for name in waiting.keys() & set(image.feeds):
                self._feeds[name].tables.setdefault(image.table_id, _Count(now_s))
        for chunk in images.chunks:
            if (chunk.ts, chunk.number) in self._listed:
                continue
            for name in waiting.keys() & set(chunk.feeds):
                of_feed = self._feeds[name]
                for count in (of_feed, of_feed.tables.setdefault(chunk.table_id, _Count(now_s))):
                    count.rows += chunk.rows
                    count.bytes += chunk.bytes
                    count.chunks += 1
        self._listed = frozenset((chunk.ts, chunk.number) for chunk in images.chunks)
        for name, of_feed in self._feeds.items():
            whole = [table for table in of_feed.tables if waiting[name].mode_of(table) is None]
            of_feed.done += len(whole)
            for table in whole:
                del of_feed.tables[table]

    def look(self, waiting: Mapping[str, FeedWait], name_of: NameOf) -> Sequence[FeedProgress]:
        """Return how far changefeeds are.

        Args:
            waiting: the changefeeds with images to come.
        """
        self._count_anew()
        return tuple(self._feed(name, waiting[name], name_of) for name in sorted(waiting))

    def _feed(self, name: str, waits: FeedWait, name_of: NameOf) -> FeedProgress:
        namespace, _, rest = name.partition("/")
        left, paused = len(waits.tables), frozenset(waits.paused)
        feed = FeedProgress(
            namespace=namespace,
            id=rest.rpartition("@")[0],
            state=waits.state,
            reason=waits.reason,
            tables_left=left,
            tables_paused=len(paused.intersection(waits.tables)),
        )
        counted = self._feeds.get(name)
        if counted is None:
            return feed
        pace_s = (self._clock() - counted.began_at_s) / counted.done if counted.done else None
        return replace(
            feed,
            tables_done=counted.done,
            rows=counted.rows,
            bytes=counted.bytes,
            chunks=counted.chunks,
            eta_s=None if pace_s is None else round(pace_s * left, 1),
            tables=tuple(
                replace(self._table(name, table, count, name_of(table)), is_paused=table in paused)
                for table, count in sorted(counted.tables.items())
            ),
        )

    def _table(self, feed: str, table: TableId, count: _Count, names: tuple[str, str]) -> TableProgress:
        registered = self._images.feed(feed)
        mode = registered.mode_of(table) if registered is not None else None
        share, eta_s = self._share(feed, table), None
        if share is not None:
            if count.share_at_start is None:
                count.share_at_start, count.began_at_s = share, self._clock()
            gained = share - count.share_at_start
            if gained > 0:
                eta_s = round((self._clock() - count.began_at_s) / gained * (1 - share), 1)
        return TableProgress(
            table_id=table,
            name=names[0],
            partition=names[1],
            mode=mode.value if mode is not None else "",
            rows=count.rows,
            bytes=count.bytes,
            chunks=count.chunks,
            done_share=None if share is None else round(share, 3),
            eta_s=eta_s,
        )

    def _share(self, feed: str, table: TableId) -> float | None:
        if table not in self._boundaries:
            return None
        starts = [KeyRange.of_table(table).start, *self._boundaries[table]]
        done = self._images.done_of(feed, table)
        return sum(holds_key(done, start) for start in starts) / len(starts)

    def _count_anew(self) -> None:
        """Have the regions of begun tables counted, seldom and aside."""
        if self._counting is not None and self._counting.done():
            counting, self._counting = self._counting, None
            try:
                self._boundaries = counting.result()
            except BusError as error:
                log.warning("regions of tables are not counted", extra={"code": error.code, "error": str(error)})
        begun = frozenset(table for feed in self._feeds.values() for table in feed.tables)
        if not begun:
            self._boundaries = {}
        elif self._counting is None and self._clock() >= self._count_at_s:
            self._count_at_s = self._clock() + COUNT_EVERY_S
            self._counter = self._counter or ThreadPoolExecutor(1, thread_name_prefix="image-regions")
            self._counting = self._counter.submit(self._count_regions, begun, 2)


def images_status(feeds: Sequence[FeedProgress]) -> list[dict[str, Any]]:
    """Return what an upstream's node shows of changefeeds with images to come."""
    return [replace(feed, tables=feed.tables[:TABLES_SHOWN]).shown() for feed in feeds[:FEEDS_SHOWN]]
