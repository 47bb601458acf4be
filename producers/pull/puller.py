"""The puller: spans of tables of one upstream into the raw log. One per capture; the owner says which, from which ts.

``assign`` starts a span from a *published* resolved ts (docs/architecture.md), so nothing is kept across restarts.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from confluent_kafka import KafkaError

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from producers.ending import Ending
from producers.pull.core.landing.book import LandingBook
from producers.pull.core.match.matcher_quota import MatcherQuota
from producers.pull.feed.event_feed import EventFeed
from producers.pull.feed.spill_files import SpillFiles, SpillSettings
from producers.pull.feed.types import FeedCounters, FeedSettings, SpanStatus
from producers.pull.images.image_log import ImageLog
from producers.pull.images.scanner import ImageCounters, ImageScanner
from producers.pull.images.settings import ImageScanSettings
from producers.pull.landing.batch_schema import NO_MEMORY, BatchSchema, SchemaMemory
from producers.pull.landing.landing import Landing, LandingCounters, LandingSettings
from producers.pull.landing.raw_log import (
    RECORD_OVERHEAD_BYTES,
    RawLogSettings,
    ensure_raw_topics,
    record_bytes_max,
)
from producers.pull.landing.raw_producer import close_producer, raw_log_producer
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockCounters, LockResolver
from producers.pull.locks.watch import LockWatch
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.pull.pd.safe_point import SafePointKeeper, keep_safe_point
from producers.pull.pd.table_regions import table_regions
from producers.tls import Channels, TlsSettings
from schemas.errors import BusError
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import CLUSTER_DEFAULT
from schemas.rawlog.frontier import FrontierRecord, LandingReport, needed_ts
from schemas.rawlog.topics import raw_topics
from schemas.tidb.spans import TableSpan

log = logging.getLogger(__name__)

STOP_FLUSH_S: Final = 5.0
"""A stop gives records in flight so long; what is not acknowledged then is landed again after the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullerSettings:
    """All settings of a puller."""

    topic_prefix: str = "tidebus"
    compression: str = "lz4"
    """Of the raw log. See docs/decisions/2026-11-22-columnar-raw-log.md."""
    raw_log: RawLogSettings = field(default_factory=RawLogSettings)
    landing: LandingSettings = field(default_factory=LandingSettings)
    feed: FeedSettings = field(default_factory=FeedSettings)
    matcher_memory_bytes_max: int = 128 << 20
    """Open transactions of all regions together; what is more goes to disk. With 64 MiB each of messages not yet parsed
    and of records in flight, and some 100 MiB of program, a capture stays below 512 MiB."""
    spill: SpillSettings = field(default_factory=SpillSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    """Secures the channels to PD and to every store."""
    images: ImageScanSettings = field(default_factory=ImageScanSettings)
    """Of scans of table images."""
    resolve_locks: bool = True
    """End locks that their transactions left behind where they hold a resolved ts back."""
    cluster: str = CLUSTER_DEFAULT
    """Of this TideBus: two of them that follow one TiDB must not take each other's hold on its history."""
    gc_ttl_s: int = 86_400
    """TiCDC's gc-ttl: how long TiKV keeps history for a bus that has gone silent."""
    keep_safe_point: bool = True
    """False where another capture keeps the upstream's service safe point."""

    def gc_service_id(self, upstream: UpstreamId) -> str:
        """Return under which name PD keeps history for us: one for each upstream of a TideBus, as TiCDC's."""
        return f"tidebus-{self.cluster}-{upstream}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullerStats:
    """Numbers since the start, for the live display; take the difference of two for rates."""

    at_s: float
    """When it was asked, by the monotonic clock."""
    feed: FeedCounters
    landing: LandingCounters
    tables: int
    spans: int
    """More than tables where some are pulled in parts."""
    regions: int
    regions_initialized: int
    scans_running: int
    """Incremental scans asked of the stores and not yet complete."""
    scans_waiting: int
    """Regions that wait for their turn to be scanned."""
    streams: int
    """Open, to all stores."""
    troubles: Mapping[str, int]
    """How often each kind of error, broken stream or bad data was met (producers.pull.core.regions.region_errors
    lists them).
    """
    held_bytes: int
    """Open transactions in the matchers' memory, with what Python adds to them."""
    spilled_bytes: int = 0
    """Open transactions on disk."""
    in_flight: int
    """Records that wait for the broker."""
    images: ImageCounters = field(default_factory=ImageCounters)
    locks: LockCounters = field(default_factory=LockCounters)
    stalls: tuple[SpanStatus, ...]
    """Spans that something holds back, with the reason."""
    broker_reason: str
    """Why landing waits for Kafka; '' if it does not."""


class Puller:
    """See the module's text. All methods may be called from any thread."""

    def __init__(  # noqa: PLR0913 # the parts of a process, wired once
        self,
        *,
        capture: CaptureId,
        upstream: UpstreamId,
        pd_address: str,
        kafka: KafkaAccess,
        schema_registry: RegistryAccess,
        frontier: FrontierRecord | None = None,
        on_fatal: Callable[[BusError], None] = lambda error: None,
        settings: PullerSettings = PullerSettings(),
        may_land: Callable[[], bool] = lambda: True,
        schema_memory: SchemaMemory = NO_MEMORY,
        schema_topic: str = "",
    ) -> None:
        """Create topics, register the schema and prepare; :meth:`start` begins to pull.

        Args:
            capture: whose reports these are.
            upstream: names the raw topics.
            pd_address: of the upstream, one or more members.
            kafka: of the raw log.
            schema_registry: with Confluent's API.
            frontier: the newest published record, if there is one.
            on_fatal: told once when the puller has ended by itself; :attr:`failure` holds the same error. It
                runs in one of our threads, so it must not call :meth:`stop` itself.
            settings: everything else.
            may_land: asked before each record is sent, by any thread; once it says no, nothing is landed any more and
                the puller ends.
            schema_memory: what the registry has told before.
            schema_topic: whose subject in the registry the records' schema is; '': that of the topic they go to.

        Raises:
            RawTopicError: topics cannot be made.
            RegistryRefusedError: the registry has told no id before, and refuses.
            TlsFileError: the TLS files cannot be used.
        """
        self._ending = Ending("puller", on_fatal)
        self.failure = self._ending.failure
        self._settings = settings
        self._kafka_trouble = ""
        self._stopped = False
        self.topics = raw_topics(upstream, settings.topic_prefix)
        self.partitions = ensure_raw_topics(kafka, self.topics, settings.raw_log)
        self.landed = threading.Event()
        """Set when :meth:`report` would say more than before; whoever waits for that sets it back."""
        self._batch_schema = BatchSchema(schema_registry, schema_topic or self.topics.region_events, schema_memory)
        self._pd = PdClient(pd_address, channels=Channels(settings.tls))
        record_bytes = record_bytes_max(kafka, self.topics.region_events)
        self._producer = raw_log_producer(
            kafka, settings.compression, self._kafka_error, record_bytes + RECORD_OVERHEAD_BYTES
        )
        self._landing = self._landing_of(LandingBook(capture, self.partitions, frontier), record_bytes, may_land)
        self._spill = SpillFiles(settings.spill)
        self._quota = MatcherQuota(settings.matcher_memory_bytes_max, self._spill)
        cache = RegionCache(self._pd)
        self._feed = EventFeed(cache, self._landing, self._ending.fail, settings.feed, quota=self._quota)
        kv = KvClient(cache)
        self._resolver = LockResolver(kv)
        self._lock_watch = LockWatch(self._feed, self._pd, self._resolver)
        self._images = ImageScanner(
            capture, kv, self._resolver, self._image_log(kafka, schema_registry),
            settings=settings.images, may_land=may_land, on_result=self.landed.set,
        )  # fmt: skip
        self._gc_service_id = settings.gc_service_id(upstream)
        self._keeper = SafePointKeeper(
            self._pd, self._gc_service_id, ttl_s=settings.gc_ttl_s, on_fatal=self._ending.fail
        )
        self._resume_ts = needed_ts(frontier) if frontier is not None else None

    def _landing_of(self, book: LandingBook, record_bytes: int, may_land: Callable[[], bool]) -> Landing:
        """Return what lands rows; ``record_bytes`` is the largest record that the raw log takes."""
        landing = self._settings.landing
        return Landing(
            book,
            self._producer,
            topic=self.topics.region_events,
            partitions=self.partitions,
            schema_id=self._batch_schema.schema_id,
            settings=replace(landing, record_bytes_max=min(landing.record_bytes_max, record_bytes)),
            may_land=may_land,
            on_landed=self.landed.set,
        )

    def _image_log(self, kafka: KafkaAccess, schema_registry: RegistryAccess) -> ImageLog:
        return ImageLog(
            kafka, schema_registry, self.topics, self._settings.raw_log,
            partitions=self.partitions, compression=self._settings.compression, on_error=self._kafka_error,
        )  # fmt: skip

    def start(self) -> None:
        """Start the threads.

        Raises:
            HistoryGoneError: while nobody pulled, TiKV's garbage collection has passed the published frontier.
            PdUnreachableError: PD does not answer.
            TlsRefusedError: no member of PD can be trusted, or trusts us.
        """
        if self._resume_ts is not None and self._settings.keep_safe_point:
            # TiKV registers a region at any ts, also where the changes after it are collected already.
            keep_safe_point(self._pd, self._gc_service_id, self._resume_ts, self._settings.gc_ttl_s)
        self._batch_schema.start(self._landing.with_schema_id)
        self._feed.start()
        if self._settings.resolve_locks:
            self._lock_watch.start()
        if self._settings.keep_safe_point:
            self._keeper.start()

    @property
    def schema_id(self) -> int:
        """What the registry calls the schema of the records that are landed now; 0: it has not told yet."""
        return self._batch_schema.schema_id

    def stop(self, *, flush_s: float = STOP_FLUSH_S) -> None:
        """Stop pulling, give records in flight ``flush_s``, end all threads. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._batch_schema.stop()
        self._keeper.stop()
        self._lock_watch.stop()
        self._images.close()
        self._feed.stop()
        with self._feed.lock:
            left = self._landing.flush(flush_s)
        self._spill.close()
        close_producer(self._producer)
        self._pd.close()
        if left:
            log.warning("stopped with records that Kafka has not acknowledged", extra={"records": left})

    def assign(self, spans: Mapping[TableSpan, Ts]) -> None:
        """Pull spans, each from its ts (exclusive). One that is pulled already starts anew from there; what overlaps it
        is pulled no more.
        """
        for span, ts in spans.items():
            with self._feed.lock:
                self.remove(self._feed.overlapping(span))
                self._landing.book.assign(span, ts)
                self._feed.subscribe(span, ts)

    def remove(self, spans: Iterable[TableSpan]) -> None:
        """Pull spans no more."""
        with self._feed.lock:
            for span in spans:
                self._feed.unsubscribe(span)
                self._landing.forget(span)
                self._landing.book.remove((span,))

    def table_regions(self, tables: Collection[TableId], at_least: int) -> dict[TableId, list[bytes]]:
        """Return where the regions of large tables begin; see :func:`producers.pull.pd.table_regions.table_regions`."""
        return table_regions(self._pd, tables, at_least)

    def report(self) -> LandingReport:
        """Return what has landed, at one moment, and what came of scans of table images."""
        with self._feed.lock:
            report = self._landing.book.report()
        return replace(report, scans=self._images.results())

    def published(self, record: FrontierRecord) -> None:
        """Take the owner's newest frontier record."""
        with self._feed.lock:
            self._landing.book.published(record)
        self._images.follow(record.images)
        self._keeper.keep(needed_ts(record))

    def stats(self) -> PullerStats:
        """Return counters and what holds spans back."""
        spans = self._feed.status()
        with self._feed.lock:
            spans = [self._as_landed(span) for span in spans]
            scans_running, scans_waiting = self._feed.scans()
            return PullerStats(
                at_s=time.monotonic(),
                feed=FeedCounters(**_as_dict(self._feed.counters)),
                landing=LandingCounters(**_as_dict(self._landing.counters)),
                tables=len({span.span.table_id for span in spans}),
                spans=len(spans),
                regions=sum(span.regions for span in spans),
                regions_initialized=sum(span.initialized for span in spans),
                scans_running=scans_running,
                scans_waiting=scans_waiting,
                streams=self._feed.streams(),
                troubles=dict(self._feed.troubles),
                held_bytes=self._feed.held_bytes(),
                spilled_bytes=self._quota.spilled_bytes,
                in_flight=self._landing.book.in_flight(),
                images=replace(self._images.counters),
                locks=replace(self._resolver.counters),
                stalls=tuple(span for span in spans if span.reason),
                broker_reason=self._landing.slow_reason()
                and f"{self._landing.slow_reason()} {self._kafka_trouble}".strip(),
            )

    def _as_landed(self, status: SpanStatus) -> SpanStatus:
        """Return how a span stands, also where the feed moves and the landing does not."""
        refused = self._landing.refused().get(status.span)
        if refused is None:
            return status
        landed_ts = self._landing.book.landed_ts()[status.span]
        return replace(status, resolved_ts=landed_ts, reason=str(refused), kind=refused.kind)

    def _kafka_error(self, error: KafkaError) -> None:
        self._kafka_trouble = str(error.str())
        self._ending.kafka_error(error)


def _as_dict(counters: FeedCounters | LandingCounters) -> dict[str, int]:
    return {name: getattr(counters, name) for name in counters.__slots__}
