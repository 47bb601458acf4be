"""What an owner knows of table images beside the frontier: which changefeeds want which tables, who scans, PD's clock.

The decisions are :func:`consumers.control.core.images.images.step`'s. It is asked before each frontier record, so what
it goes by is brought up to date before: DDL as it is taken, changefeeds and reports at each tick.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from consumers.control.core.images.feed_tables import Contains, FeedTables, replaced_by
from consumers.control.core.images.images import step
from consumers.control.core.images.inputs import ImageInputs, ImageLimits, Replaced, WantingFeed
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, LandingReport, needed_ts
from schemas.rawlog.images import ImageMode, ImageState, ScanResult

log = logging.getLogger(__name__)

_NO_REQUESTS: Final[Mapping[ImageMode, Collection[TableId]]] = MappingProxyType({})
LIMITS: Final = ImageLimits()
BARRIER_EVERY_S: Final = 0.1
"""Between two questions to PD for a barrier's ts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageWish:
    """A changefeed that may have images. ``key`` is another one where its filter or rules change."""

    key: object
    contains: Contains
    wants: Contains
    wants_initial: bool
    is_running: bool = True
    requested: Mapping[ImageMode, Collection[TableId]] = field(default_factory=lambda: _NO_REQUESTS)


Wishes = Callable[[], Mapping[str, ImageWish] | None]
"""Returns every changefeed of the upstream by its name in frontier records
(:func:`schemas.rawlog.images.image_feed`); None: they are not known at the moment."""


class ImagedTables:
    """One reign's; not thread-safe. Costs nothing while no changefeed has or wants images."""

    def __init__(
        self,
        owner_rev: int,
        wishes: Wishes,
        new_ts: Callable[[], Ts],
        *,
        services_know: Callable[[], bool],
        limits: ImageLimits = LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without knowledge.

        Args:
            owner_rev: of the reign.
            wishes: asked at each tick.
            new_ts: draws a ts from PD, or raises BusError.
            services_know: says whether every sorter service knows of images.
            limits: of what goes on at once.
            clock: seconds, for asking PD not too often.
        """
        self._owner_rev, self._wishes, self._new_ts, self._services_know = owner_rev, wishes, new_ts, services_know
        self._limits, self._clock = limits, clock
        self._tables: dict[str, tuple[object, FeedTables]] = {}
        self._replaced: list[tuple[Ts, Replaced]] = []
        self._ddl_ts: list[Ts] = []
        self._known: Mapping[str, ImageWish] | None = None
        self._scanners: dict[CaptureId, tuple[ScanResult, ...]] = {}
        self._captures_know = False
        self._asked_at = float("-inf")
        self._last_ts = self._newest_ddl_ts = Ts(0)

    def take(self, change: SchemaChange) -> None:
        """Take a DDL job that the schema has taken."""
        self._newest_ddl_ts = change.job.finished_ts
        self._ddl_ts.append(change.job.finished_ts)
        moved = replaced_by(change)
        if moved is not None:
            self._replaced.append((change.job.finished_ts, moved))
        self._tables = {name: (key, tables.with_ddl(change)) for name, (key, tables) in self._tables.items()}

    def look(self, store: SchemaStore, published_ts: Ts, reports: Mapping[CaptureId, LandingReport]) -> None:
        """Bring changefeeds and captures up to date.

        Args:
            store: with every DDL job that was taken.
            published_ts: R of the record that is published; no schema from there on was forgotten.
            reports: of live captures.
        """
        self._known = wishes = self._wishes()
        self._scanners = {who: report.scans for who, report in reports.items() if report.scans is not None}
        self._captures_know = len(self._scanners) == len(reports)
        if wishes is None:
            return
        for name in self._tables.keys() - wishes.keys():
            del self._tables[name]
        for name, wish in wishes.items():
            if self._tables.get(name, (None,))[0] != wish.key:
                tables = FeedTables.at(store.stored_at(published_ts), wish.contains, wish.wants)
                # What went or came since then is still to come by the frontier.
                for change in store.changes_between(published_ts, max(published_ts, self._newest_ddl_ts)):
                    tables = tables.with_ddl(change)
                self._tables[name] = wish.key, tables

    def next_images(self, before: FrontierRecord, resolved_ts: Ts) -> ImageState:
        """Return what the next record says (:data:`consumers.control.owner.owner.NextImages`)."""
        wishes = self._known
        state = before.images
        if wishes is None:
            return state
        names = {name for name, wish in wishes.items() if wish.wants_initial or wish.requested}
        registered = {feed.feed for feed in state.feeds}
        names |= registered & wishes.keys()
        if not names and not state.feeds:
            self._forget_below(needed_ts(before))
            return state
        since_ts = needed_ts(before)
        is_busy = state.barriers or any(feed.waits for feed in state.feeds) or names - registered
        new_ts = self._draw() if is_busy else None
        seen = ImageInputs(
            owner_rev=self._owner_rev,
            before=before,
            resolved_ts=resolved_ts,
            now_ts=max(self._last_ts, resolved_ts),
            new_ts=new_ts,
            feeds={name: self._wanting(name, wishes[name], before, resolved_ts) for name in names},
            scanners=self._scanners,
            replaced=[moved for ts, moved in self._replaced if before.resolved_ts < ts <= resolved_ts],
            ddl_ts=self._ddl_ts,
            all_know=self._captures_know and self._services_know(),
            limits=self._limits,
        )
        self._forget_below(min([since_ts, *(barrier.ts for barrier in state.barriers)]))
        return step(state, seen)

    def _wanting(self, name: str, wish: ImageWish, before: FrontierRecord, resolved_ts: Ts) -> WantingFeed:
        tables = self._tables[name][1]
        registered = before.images.feed(name)
        requested = {
            mode: [table for table in wanted if registered is None or registered.mode_of(table) is None]
            for mode, wanted in wish.requested.items()
        }
        return WantingFeed(
            tables=tables.tables(needed_ts(before)),
            wants_initial=wish.wants_initial,
            unwanted=tables.unwanted,
            is_running=wish.is_running,
            entered=tables.entered_between(before.resolved_ts, resolved_ts) if wish.wants_initial else (),
            requested=requested,
        )

    def _draw(self) -> Ts | None:
        now = self._clock()
        if now < self._asked_at + BARRIER_EVERY_S:
            return None
        self._asked_at = now
        try:
            ts = self._new_ts()
        except BusError as error:
            log.warning("no ts for table images", extra={"code": error.code, "error": str(error)})
            return None
        self._last_ts = max(self._last_ts, ts)
        return ts

    def _forget_below(self, ts: Ts) -> None:
        """Forget DDL that no step will ask for."""
        if self._ddl_ts and self._ddl_ts[0] < ts:
            self._ddl_ts = [known for known in self._ddl_ts if known >= ts]
            self._replaced = [item for item in self._replaced if item[0] >= ts]
            self._tables = {name: (key, tables.forget_below(ts)) for name, (key, tables) in self._tables.items()}
