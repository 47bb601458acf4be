"""An owner of the simulated images: the product's, with what its shell would know of changefeeds and tables."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from compose.simulation.images.tables import FEEDS, Job
from compose.simulation.topic import SimFrontierTopic
from consumers.control.core.frontier.frontier import FrontierInputs
from consumers.control.core.images import images
from consumers.control.core.images.inputs import ImageInputs, ImageLimits, Replaced, WantingFeed
from consumers.control.owner.owner import Owner
from edges.zookeeper.session import LeaseLostError
from schemas.ids import CaptureId, TableId, compose_ts
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport, needed_ts
from schemas.rawlog.images import ImageMode, ImageState
from schemas.tidb.spans import TableSpan

if TYPE_CHECKING:
    from compose.simulation.images.world import ImageWorld

PULLER = CaptureId("puller")
SPAN, LAGGARD = TableSpan.of_table(TableId(1_000_001)), TableSpan.of_table(TableId(1_000_002))
"""What stands for all tables, and one that lags at times and is held."""
LIMITS = ImageLimits(barrier_ms=1500, retry_ms=100, barriers_max=2, scans_max=2, bytes_max=1, tables_max=3)


class SimOwner:
    """``is_deposed``: another was elected, and it notices at its next look."""

    def __init__(self, world: "ImageWorld", owner_rev: int) -> None:
        self.world, self.owner_rev = world, owner_rev
        self.is_deposed = self.is_dead = self.busy = False
        self.has_looked = False
        """It has seen which changefeeds want images."""
        self.topic = SimFrontierTopic(world.broker, world.random, lambda: world.maybe_stand_still(self))
        self.topic.failures = world.failures
        self.topic.note = world.note
        self.owner = Owner(
            self.topic, self, owner_rev, 1, held_lag_s=world.held_lag_s, images=self._images, clock=world.clock
        )
        self.owner.start(world.next_ts)
        world.tell(self.owner.published)

    def check_lease(self) -> None:
        """See edges.zookeeper.session.Session."""
        if self.is_deposed:
            raise LeaseLostError("deposed")

    def tick(self) -> None:
        """Publish what there is to say."""
        world = self.world
        # A change stands at the offset that its number is. What lags is a span of others'.
        report = LandingReport(
            capture=PULLER,
            landed_ts={SPAN: world.landed_ts, LAGGARD: world.laggard_ts},
            ends=(world.tables.count_upto(world.landed_ts),),
            chunks=(),
            floors=(world.tables.count_upto(world.laggard_ts),),
            repeat_ends=(0,),
        )
        inputs = FrontierInputs(
            {PULLER: report}, DdlReport(landed_ts=world.landed_ts, end=0), [SPAN, LAGGARD], landing=[PULLER]
        )
        record = self.owner.tick(inputs)
        if record is not None:
            world.tell(record)

    def _images(self, before: FrontierRecord, record: FrontierRecord) -> ImageState:
        is_blind = self.world.now < self.world.blind_until
        self.has_looked = self.has_looked or not is_blind
        world, tables, resolved_ts = self.world, self.world.tables, record.resolved_ts
        jobs = [job for job in tables.jobs if before.resolved_ts < job.ts <= resolved_ts]
        jobs_before = [job for job in tables.jobs if needed_ts(before) < job.ts <= before.resolved_ts]
        # What is known of DDL may be more than R says; all that was known before stands in the log.
        known_ts = world.known_ts = max(world.known_ts, world.random.choice((resolved_ts, world.landed_ts)))
        since_ts = needed_ts(before)
        feeds: dict[str, WantingFeed] = {}
        for feed in FEEDS:
            if not self.has_looked and before.images.feed(feed):
                feeds[feed] = self._unread(feed, jobs)
            if feed not in world.readers or feed in feeds:
                continue
            is_initial = world.readers[feed].is_initial
            registered, asked = before.images.feed(feed), world.asked.get(feed, [])
            if registered is not None and asked:
                asked = [table for table in asked if not registered.mode_of(table)]
            own = tables.of_feed(feed, known_ts, since_ts)
            if asked:
                # A part waits for room in the record, and meanwhile its table may go.
                asked = asked if feed not in world.asked_part else [table for table in asked if table in own]
            if feed in world.asked:
                world.asked[feed] = asked
            feeds[feed] = WantingFeed(
                tables=own,
                wants_initial=is_initial,
                is_running=feed not in world.paused and not is_blind,
                paused=frozenset(world.resting.get(feed, ())),
                ranks=world.ranks.get(feed, {}),
                checkpoint_ts=world.readers[feed].checkpoint_ts,
                lag_max_s=world.lag_max_s,
                entered=[table for job in jobs for name, table in job.entered if name == feed] if is_initial else (),
                requested={world.asked_mode.get(feed, ImageMode.BACKFILL): [] if feed in world.asked_part else asked},
                ranged={(world.asked_mode[feed], table): (world.part(feed, table),) for table in asked}
                if feed in world.asked_part
                else {},
            )
        seen = ImageInputs(
            owner_rev=self.owner_rev,
            before=before,
            resolved_ts=resolved_ts,
            low=record.low,
            now_ts=compose_ts(world.now_ms),
            new_ts=world.next_ts(),
            feeds=feeds,
            scanners={capture: scanner.reported for capture, scanner in world.scanners.items()},
            replaced=[Replaced(job.gone, job.come) for job in jobs if job.gone],
            replaced_before=[Replaced(job.gone, job.come) for job in jobs_before if job.gone],
            ddl_ts={job.ts for job in tables.jobs},
            limits=LIMITS,
        )
        return images.step(before.images, seen)

    def _unread(self, feed: str, jobs: Collection[Job]) -> WantingFeed:
        """Return a changefeed of which nothing is known: it may have each table, and get each that comes."""
        come = {table for job in jobs for _, table in job.entered}
        self.world.come_unread.update((feed, table) for table in come)
        return WantingFeed(
            tables=sorted(self.world.tables.tables), wants_initial=True, is_running=False, came_late=sorted(come)
        )
