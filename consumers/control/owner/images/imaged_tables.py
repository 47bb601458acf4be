"""What an owner knows of table images beside the frontier: which changefeeds want which tables, who scans, PD's clock.

The decisions are :func:`consumers.control.core.images.images.step`'s. It is asked before each frontier record, so what
it goes by is brought up to date before: DDL as it is taken, changefeeds and reports at each tick.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from consumers.control.changefeeds.asked_images import AskedTable
from consumers.control.core.images.feed_tables import replaced_by
from consumers.control.core.images.images import step
from consumers.control.core.images.inputs import (
    ImageInputs,
    ImageLimits,
    Replaced,
    WantingFeed,
    is_behind,
    lag_s,
)
from consumers.control.owner.images.followed_tables import FollowedTables, holds, told_ts, wishes_now
from consumers.control.owner.images.image_progress import FeedProgress, FeedWait, ImageProgress
from consumers.control.owner.images.image_wishes import ImageWish, KnowsWishes
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, LandingReport, needed_ts
from schemas.rawlog.images import NO_IMAGES, ImageFeed, ImageMode, ImageState, KeyRange, ScanResult, missing_keys
from schemas.tidb.spans import Boundaries

log = logging.getLogger(__name__)

LIMITS: Final = ImageLimits()
SETTINGS_S: Final = 30.0
"""For settings of a changefeed to be seen that were written together with a request: the two are read one by one."""
BARRIER_EVERY_S: Final = 0.1
"""Between two questions to PD for a barrier's ts."""


class ImagedTables:
    """One reign's; not thread-safe. Costs nothing while no changefeed has or wants images."""

    def __init__(
        self,
        owner_rev: int,
        known: KnowsWishes,
        new_ts: Callable[[], Ts],
        *,
        count_regions: Callable[[Collection[TableId], int], Boundaries] = lambda tables, at_least: {},
        limits: ImageLimits = LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without knowledge.

        Args:
            owner_rev: of the reign.
            known: asked at each tick.
            new_ts: draws a ts from PD, or raises BusError.
            count_regions: of tables that are begun, for how much of them is done; called in a thread of its own.
            limits: of what goes on at once.
            clock: seconds, for asking PD not too often.
        """
        self._owner_rev, self._known, self._new_ts = owner_rev, known, new_ts
        self._limits, self._clock = limits, clock
        self._progress = ImageProgress(count_regions, clock=clock)
        self._store, self._published = SchemaStore.empty(), NO_IMAGES
        self._tables = FollowedTables()
        self._replaced: list[tuple[Ts, Replaced]] = []
        self._ddl_ts: list[Ts] = []
        self._answered: dict[str, frozenset[AskedTable]] = {}
        """Asked for still, but waited for by a published record already, or no table."""
        self._strange: dict[tuple[str, AskedTable], float] = {}
        """Asked for, of a table that its changefeed does not contain as far as is known here: since when."""
        self._wishes: Mapping[str, ImageWish] | None = None
        """What is gone by; None: nobody has looked."""
        self._scanners: dict[CaptureId, tuple[ScanResult, ...]] = {}
        self._captures_know = False
        self._asked_at = float("-inf")
        self._last_ts = Ts(0)

    def take(self, change: SchemaChange) -> None:
        """Take a DDL job that the schema has taken."""
        self._ddl_ts.append(change.job.finished_ts)
        moved = replaced_by(change)
        if moved is not None:
            self._replaced.append((change.job.finished_ts, moved))
        self._tables.take(change)

    def look(self, store: SchemaStore, published: FrontierRecord, reports: Mapping[CaptureId, LandingReport]) -> None:
        """Bring changefeeds and captures up to date.

        Args:
            store: with every DDL job that was taken.
            published: the newest record; no schema from its R on was forgotten.
            reports: of live captures.
        """
        self._store = store
        self._progress.note(published.images)
        self._scanners = {who: report.scans for who, report in reports.items() if report.scans is not None}
        self._captures_know = len(self._scanners) == len(reports)
        self._follow(published)

    def _follow(self, published: FrontierRecord) -> None:
        """Go by what is known of changefeeds now."""
        self._published = published.images
        self._wishes = wishes = wishes_now(self._known.wishes(), self._wishes, published.images)
        needed = {name: wish for name, wish in wishes.items() if self._needs(name, wish)}
        self._tables.follow(self._store, published, needed)
        # Kept for as long as it is asked for: an image may be whole before ZooKeeper has taken the request back.
        self._answered = {
            name: asked & wishes[name].asked.tables for name, asked in self._answered.items() if name in wishes
        }
        self._strange = {
            (name, asked): since_s
            for (name, asked), since_s in self._strange.items()
            if name in wishes and asked in wishes[name].asked.tables
        }

    def next_images(self, before: FrontierRecord, record: FrontierRecord) -> ImageState:
        """Return what the next record says (:data:`consumers.control.owner.owner.NextImages`)."""
        resolved_ts, state = record.resolved_ts, before.images
        registered = {feed.feed for feed in state.feeds}
        if self._wishes is not None and state is not self._published:
            self._follow(before)  # the record is another than at the last look, and may have more changefeeds
        wishes = self._wishes
        if wishes is None:
            return state
        names = {name for name, wish in wishes.items() if name in registered or self._needs(name, wish)}
        if not names and not state.feeds:
            self._forget_below(told_ts(before))
            return state
        since_ts = told_ts(before)
        is_passed = passed_by(before, record)
        is_busy = state.barriers or any(feed.waits for feed in state.feeds) or names - registered
        new_ts = self._draw() if is_busy else None
        seen = ImageInputs(
            owner_rev=self._owner_rev,
            before=before,
            resolved_ts=resolved_ts,
            low=record.low,
            now_ts=max(self._last_ts, resolved_ts),
            new_ts=new_ts,
            feeds={name: self._wanting(name, wishes[name], before, is_passed) for name in names},
            scanners=self._scanners,
            replaced=[moved for ts, moved in self._replaced if is_passed(ts)],
            replaced_before=[
                moved for ts, moved in self._replaced if since_ts < ts <= before.resolved_ts and not is_passed(ts)
            ],
            ddl_ts=self._ddl_ts,
            all_know=self._captures_know and self._known.services_know(),
            limits=self._limits,
        )
        self._forget_below(min([since_ts, *(barrier.ts for barrier in state.barriers)]))
        return step(state, seen)

    def progress(self) -> Sequence[FeedProgress]:
        """Return how far the images are of changefeeds that have some to come."""
        waiting: dict[str, FeedWait] = {}
        for name, wish in (self._wishes or {}).items():
            if name not in self._tables.names:
                continue
            tables, feed = self._tables.of(name), self._published.feed(name)
            if feed is not None:
                waits = {table for table in tables.current if feed.mode_of(table) is not None}
            else:
                waits = set(tables.current - tables.unwanted) if wish.wants_initial else set()
            waits |= {asked.table_id for asked in wish.asked.tables - self._answered.get(name, frozenset())}
            if waits:
                state, reason = self._state(name, wish)
                waiting[name] = FeedWait(state, reason, tables=waits, paused=wish.asked.paused)
        return self._progress.look(waiting, self._name_of)

    def _state(self, name: str, wish: ImageWish) -> tuple[str, str]:
        """Return whether chunks of a changefeed begin now, and why none does."""
        if not wish.is_readable:
            return "paused", "its settings cannot be read now"
        if not wish.is_running:
            return "paused", "the changefeed does not run"
        if wish.asked.is_paused:
            return "paused", "its images are paused"
        if not (self._captures_know and self._known.services_know()):
            return "waiting", "a capture or sorter of an older version is there"
        checkpoint_ts = self._known.checkpoint(name)
        if is_behind(wish.lag_max_s, checkpoint_ts, self._last_ts):
            behind_s = lag_s(checkpoint_ts, self._last_ts)
            return "deferred", f"the changefeed is {behind_s:.0f} s behind, its lag-seconds-max is {wish.lag_max_s}"
        return "running", ""

    def close(self) -> None:
        """Count no more regions."""
        self._progress.close()

    def _name_of(self, table: TableId) -> tuple[str, str]:
        stored = self._store.newest_of(table)
        if stored is None:
            return "", ""
        partitions = self._store.decoded(stored).partitions if stored.partition_ids else ()
        name = next((partition.name for partition in partitions if partition.id == table), "")
        return f"{stored.schema}.{stored.table}", name

    def _needs(self, name: str, wish: ImageWish) -> bool:
        """Tell whether a changefeed has or may get images."""
        if self._published.feed(name) is not None or wish.asked.tables:
            return True
        return wish.wants_initial and wish.is_readable

    def _wanting(
        self, name: str, wish: ImageWish, before: FrontierRecord, is_passed: Callable[[Ts], bool]
    ) -> WantingFeed:
        tables, since_ts = self._tables.of(name), told_ts(before)
        own = self._tables.own(name, since_ts)
        moved = {asked.table_id: self._moved_to(asked.table_id, since_ts) for asked in wish.asked.tables}
        there = {table for table, come in moved.items() if any(holds(own, each) for each in (table, *come))}
        known = self._answered.get(name, frozenset())
        foreign = {
            asked for asked in wish.asked.tables if asked.table_id not in there and self._is_foreign(name, asked)
        }
        for asked in foreign - known:
            self._say_foreign(name, asked)
        answered = known.union(
            foreign,
            (
                asked
                for asked in wish.asked.tables
                if _waits_so(before.images, name, asked)
                or any(_waits_so(before.images, name, AskedTable(asked.mode, each)) for each in moved[asked.table_id])
            ),
        )
        if answered:
            self._answered[name] = answered
            self._known.answered(name, answered)
        requested = {
            mode: sorted(
                table
                for table in wanted
                if AskedTable(mode, table) not in answered
                and table in there
                and not (mode is ImageMode.RESYNC and self._waits_for_partitions(before.images.feed(name), table))
            )
            for mode, wanted in wish.asked.requested.items()
        }
        ranged = {asked: keys for asked, keys in wish.asked.ranged.items() if AskedTable(*asked, keys) not in answered}
        entered = tables.entered_by(is_passed)
        return WantingFeed(
            tables=own,
            wants_initial=wish.wants_initial,
            unwanted=tables.unwanted,
            is_running=wish.is_running and not wish.asked.is_paused,
            paused=wish.asked.paused,
            ranks=tables.ranks,
            scans_max=wish.scans_max,
            checkpoint_ts=self._known.checkpoint(name),
            lag_max_s=wish.lag_max_s,
            entered=entered if tables.is_known and wish.wants_initial else (),
            came_late=self._tables.come_in(name) if tables.is_known else entered,
            requested=requested,
            ranged=ranged,
        )

    def _moved_to(self, table: TableId, since_ts: Ts) -> set[TableId]:
        """Return the other ids that rows of a table have got above ``since_ts``: who asks for it may not know yet."""
        ids = {table}
        for ts, moved in self._replaced:
            if ts > since_ts and not moved.is_empty and ids & moved.gone:
                ids |= moved.come
        return ids - {table}

    def _is_foreign(self, name: str, asked: AskedTable) -> bool:
        """Tell whether a table that is asked for is none of the changefeed's, and will not be in a moment: settings
        that bring it in were written at once with the request, and would be here by now.
        """
        since_s = self._strange.setdefault((name, asked), self._clock())
        return self._clock() >= since_s + SETTINGS_S

    def _say_foreign(self, name: str, asked: AskedTable) -> None:
        table, partition = self._name_of(asked.table_id)
        extra = {"changefeed": name, "table": table, "partition": partition, "table_id": asked.table_id}
        extra |= {"mode": asked.mode, "reason": "it is no table of the changefeed, or is gone"}
        log.warning("image that was asked for is not to come", extra=extra)

    def _waits_for_partitions(self, feed: ImageFeed | None, table: TableId) -> bool:
        """Tell whether a partition's resync must wait for another image of one beside it: all begin together."""
        stored = self._store.newest_of(table)
        if feed is None or stored is None:
            return False
        return any(feed.mode_of(each) not in (None, ImageMode.RESYNC) for each in stored.partition_ids)

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
            self._tables.forget_below(ts)


def _waits_so(images: ImageState, name: str, asked: AskedTable) -> bool:
    """Tell whether what was asked for is under way; if not, and another image of the table is, it begins behind that.

    A resync is not where another image is, a part of a table where more than the part is left to come. All of a table
    is not where its end is done already: so it is from the first of an image of a part.
    """
    registered = images.feed(name)
    waits = None if registered is None else registered.mode_of(asked.table_id)
    if waits is None or (asked.mode is ImageMode.RESYNC and waits is not ImageMode.RESYNC):
        return False
    whole, done = KeyRange.of_table(asked.table_id), images.done_of(name, asked.table_id)
    if not asked.keys:
        return not done or done[-1].end < whole.end
    left = missing_keys(whole, done)
    return all(any(part.start <= item.start and item.end <= part.end for part in asked.keys) for item in left)


def passed_by(before: FrontierRecord, record: FrontierRecord) -> Callable[[Ts], bool]:
    """Return what tells whether a DDL job passes with a record: it is in R's way, or held by the record before and no
    more. Changefeeds that a held job concerns stand at its ts until then, so it comes to them as any other.
    """
    freed = {held.ts for held in before.held_ddl} - {held.ts for held in record.held_ddl}
    return lambda ts: before.resolved_ts < ts <= record.resolved_ts or ts in freed


def history_ts(record: FrontierRecord) -> Ts:
    """Return from where on TiKV's history is needed: by a restart, and by the scans of open barriers."""
    return min((needed_ts(record), *(barrier.ts for barrier in record.images.barriers)))
