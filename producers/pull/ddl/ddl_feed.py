"""The DDL feed: the schema snapshot and every finished DDL job of an upstream, into the ddl topic and to the owner.

    ddl topic (what an earlier run landed) --+
    meta keys at start_ts, once per upstream-+--> ddl topic --acknowledged--> take(): records in order, each once
    rows of mysql.tidb_ddl_job --resolved ts-+

A job is written when the resolved ts of its span has passed it, so the topic is in finished_ts order. One that has its
effect before it is done (``producers/pull/core/ddl/early_jobs.py``) is written as of then, with its table's TableInfo
as the meta keys have it at that ts. A row that does not decode is written as it is, where its commit_ts belongs. After
a restart there is no second snapshot: the topic says where to go on. One DDL feed per upstream, on the owner.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from edges.kafka.access import KafkaAccess
from edges.kafka.errors import HistoryLostError, KafkaUnreachableError
from edges.kafka.offsets import TopicReader
from edges.kafka.producer import Delivered, landed_at
from producers.ending import Ending
from producers.errors import DeliveryFailedError, RawTopicError, SnapshotFailedError
from producers.pull.core.ddl.book import DdlBook
from producers.pull.core.ddl.early_jobs import may_count
from producers.pull.core.ddl.meta_snapshot import KeyValue, snapshot_records
from producers.pull.core.match.change_columns import Change
from producers.pull.ddl.early_tables import EarlyTables
from producers.pull.ddl.schema_snapshot import DEADLINE_S, SnapshotReader
from producers.pull.feed.event_feed import EventFeed
from producers.pull.feed.types import SpanStatus
from producers.pull.landing.landing import OnDelivery, RecordProducer
from producers.pull.landing.raw_log import QUIETER, ensure_raw_topics, kafka_log
from producers.pull.landing.raw_producer import close_producer, raw_log_producer, serve_gapless
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.locks.watch import LockWatch
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.pull.pd.safe_point import keep_safe_point
from producers.pull.puller import PullerSettings
from producers.tls import Channels
from schemas.changes import Op
from schemas.ddl.job import DDL_JOB_TABLE_ID, DdlDecodeError, decode_ddl_job_row, undecodable_record
from schemas.errors import BusError
from schemas.ids import RegionId, Ts, UpstreamId
from schemas.rawlog.ddl_record import DdlRecord, encode_ddl_record, read_ddl_record
from schemas.rawlog.frontier import DdlReport, FrontierRecord
from schemas.rawlog.topics import raw_topics
from schemas.tidb.info_json import JsonObject
from schemas.tidb.spans import TableSpan

log = logging.getLogger(__name__)

FETCH_WAIT_MS: Final = 20
"""How long the broker waits at the topic's end before it says so; Kafka's default is half a second."""
READ_TIMEOUT_S: Final = 30.0
"""Without a record or an end, while the ddl topic is read at the start."""
SNAPSHOT_TTL_S: Final = 3600
"""How long TiKV keeps history for a snapshot that is being read; TiCDC's TTL for a changefeed in creation."""
EARLY_TABLE_S: Final = 5.0
"""How long one table is read without progress; then it is said, and tried again."""
FLUSH_S: Final = 60.0
STOP_FLUSH_S: Final = 1.0


class DdlFeed:
    """See the module's text. Methods may be called from any thread."""

    def __init__(
        self,
        *,
        upstream: UpstreamId,
        pd_address: str,
        kafka: KafkaAccess,
        start_ts: Ts | None = None,
        frontier: FrontierRecord | None = None,
        on_fatal: Callable[[BusError], None] = lambda error: None,
        settings: PullerSettings | None = None,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            upstream: names the topics.
            pd_address: of the upstream.
            kafka: of the raw log.
            start_ts: where an upstream without a snapshot begins (None: now); ignored once there is one.
            frontier: the newest published record, if any: everything up to it has landed.
            on_fatal: told once when the feed has ended by itself; :attr:`failure` holds the same error. It
                runs in one of our threads, so it must not call :meth:`stop` itself.
            settings: topics, Kafka and feed settings, as the puller's.
        """
        self._ending = Ending("ddl feed", on_fatal)
        self.failure = self._ending.failure
        self._upstream = upstream
        self._kafka = kafka
        self._start_ts = start_ts
        self._frontier = frontier
        self._settings = settings = settings or PullerSettings()
        self.topics = raw_topics(upstream, settings.topic_prefix)
        self._pd = PdClient(pd_address, channels=Channels(settings.tls))
        self._cache = RegionCache(self._pd)
        self._resolver = LockResolver(KvClient(self._cache))
        self._lock_watch: LockWatch | None = None
        self._sink: _DdlSink | None = None
        self._feed: EventFeed | None = None
        self._early = EarlyTables(self._scan_at, self._read_early)
        self._producer: Any = None

    def start(self) -> Ts:
        """Read the topic, land the snapshot if there is none, and begin to follow jobs; blocks until then.

        Returns:
            The snapshot's ts: an empty raw log starts there.

        Raises:
            HistoryGoneError: start_ts lies behind TiKV's garbage collection.
            SnapshotFailedError: the meta keys cannot be read, or hold no job table.
            PdUnreachableError: PD does not answer.
            RawTopicError: the ddl topic cannot be made or read.
            DeliveryFailedError: the snapshot is not acknowledged.
        """
        # First, so that it has its head start before a snapshot is landed.
        self._producer = producer = raw_log_producer(
            self._kafka, self._settings.compression, self._ending.kafka_error, is_gapless=True
        )
        ensure_raw_topics(self._kafka, self.topics, self._settings.raw_log)
        landed = list(self._read_topic())
        book = DdlBook(landed)
        records = [record for _, record in landed]
        if book.snapshot_ts is None:
            records += self._land_snapshot(book, producer, self._snapshot_ts(records))
        assert book.snapshot_ts is not None
        self._sink = _DdlSink(book, producer, self.topics.ddl, records, self._early.ask)
        # What a bidirectional partner's DDL is worth, the changefeed decides by its role, not TiKV by its write source.
        feed = replace(self._settings.feed, filter_loop=False)
        self._feed = EventFeed(self._cache, self._sink, self._ending.fail, feed)
        published_ts = self._frontier.resolved_ts if self._frontier else Ts(0)
        span = TableSpan.of_table(DDL_JOB_TABLE_ID)
        self._feed.start()
        if self._settings.resolve_locks:
            self._lock_watch = LockWatch(self._feed, self._pd, self._resolver)
            self._lock_watch.start()
        self._feed.subscribe(span, book.resume_ts(published_ts))
        log.info(
            "ddl feed started",
            extra={"upstream": self._upstream, "snapshot_ts": book.snapshot_ts, "records": len(records)},
        )
        return book.snapshot_ts

    def stop(self) -> None:
        """End all threads. Idempotent."""
        if self._lock_watch is not None:
            self._lock_watch.stop()
        self._resolver.close()
        if self._feed is not None:
            self._feed.stop()
        self._early.stop()
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, STOP_FLUSH_S)
        self._pd.close()

    def take(self) -> list[DdlRecord]:
        """Return the records that have landed since the last call (at first: the whole topic), in order.

        To be sure of having seen every job up to a report's landed_ts, ask for the report first and take then.
        """
        sink, feed = self._running()
        with feed.lock:
            return sink.take()

    def report(self) -> DdlReport:
        """Return how far it has landed."""
        sink, feed = self._running()
        with feed.lock:
            return sink.book.report()

    def status(self) -> SpanStatus:
        """Return how the job table's span stands, and what holds it back."""
        status = self._running()[1].status()[0]
        return replace(status, reason=status.reason or self._early.trouble)

    def _running(self) -> "tuple[_DdlSink, EventFeed]":
        assert self._sink is not None, "the ddl feed has not been started"
        assert self._feed is not None
        return self._sink, self._feed

    def _snapshot_ts(self, unfinished: list[DdlRecord]) -> Ts:
        """Choose the snapshot's ts: that of one that a crash cut off, or the caller's, or now."""
        if unfinished:
            return unfinished[0].ts
        if self._frontier is not None:
            # Frontiers without a ddl topic: it was deleted. The schema at R is what rows above R need.
            return self._frontier.resolved_ts
        return self._pd.now() if self._start_ts is None else self._start_ts

    def _scan_at(self, ts: Ts, start: bytes, end: bytes) -> list[KeyValue]:
        """Return keys and values as they stood at ``ts``; called by the thread that reads early tables.

        Raises:
            SnapshotFailedError: the meta keys cannot be read now.
            PdUnreachableError: PD does not answer.
        """
        reader = self._reader(ts, EARLY_TABLE_S)
        try:
            return list(reader.scan(start, end))
        finally:
            reader.close()

    def _read_early(self, record: DdlRecord, info: JsonObject | None) -> None:
        sink, feed = self._running()
        with feed.lock:
            sink.book.read(record, info)

    def _reader(self, ts: Ts, deadline_s: float = DEADLINE_S) -> SnapshotReader:
        resolver = self._resolver if self._settings.resolve_locks else None
        return SnapshotReader(self._cache, ts, resolver, deadline_s=deadline_s)

    def _land_snapshot(self, book: DdlBook, producer: RecordProducer, ts: Ts) -> list[DdlRecord]:
        keep_safe_point(self._pd, f"{self._settings.gc_service_id(self._upstream)}-creating", ts, SNAPSHOT_TTL_S)
        reader = self._reader(ts)
        try:
            records = list(snapshot_records(reader.scan, ts))
        finally:
            reader.close()
        if job_table_info(records) is None:
            raise SnapshotFailedError("snapshot has no table mysql.tidb_ddl_job", ts=ts, records=len(records))
        delivered = _Delivered()
        for record in records:
            _produce(producer, self.topics.ddl, record, delivered)
        deadline = time.monotonic() + FLUSH_S
        while delivered.count < len(records) and not delivered.trouble and time.monotonic() < deadline:
            serve_gapless(producer, 0.1, self.topics.ddl)
        if delivered.trouble or delivered.count < len(records):
            raise DeliveryFailedError(
                "the schema snapshot is not acknowledged",
                topic=self.topics.ddl,
                acknowledged=delivered.count,
                of=len(records),
                reason=delivered.trouble,
            )
        book.snapshot_landed(ts, delivered.end)
        return records

    def _read_topic(self) -> Iterator[tuple[int, DdlRecord]]:
        """Yield the ddl topic from its start to its present end.

        Raises:
            RawTopicError: Kafka does not answer, or the topic has lost its beginning.
            CorruptDataError: a record does not decode; its topic and offset are said.
        """
        config = {**QUIETER, **self._kafka.config()}
        topic = self.topics.ddl
        reader = TopicReader(config, topic, fetch_wait_ms=FETCH_WAIT_MS, timeout_s=READ_TIMEOUT_S, log=kafka_log)
        try:
            low, high = reader.bounds()
            if low > 0:
                raise RawTopicError("the ddl topic has lost its beginning; its retention must be endless", topic=topic)
            for offset, value in reader.read(0, high):
                record = read_ddl_record(value, topic=topic, offset=offset)
                if record is not None:
                    yield offset, record
                    continue
                extra = {"topic": topic, "offset": offset}
                log.error("a record of the ddl topic is no capture's, and is passed over", extra=extra)
        except (KafkaUnreachableError, HistoryLostError) as error:
            raise RawTopicError("the ddl topic cannot be read", topic=topic, reason=error) from error
        finally:
            reader.close()


class _DdlSink:
    """Takes the job table's rows (:class:`~producers.pull.feed.types.FeedSink`); called under the feed's lock."""

    def __init__(
        self,
        book: DdlBook,
        producer: RecordProducer,
        topic: str,
        landed: list[DdlRecord],
        ask: Callable[[list[DdlRecord]], None],
    ) -> None:
        """``ask`` has the tables of early jobs read, and tells the book of them under the feed's lock."""
        info = job_table_info(landed)
        if info is None:
            raise SnapshotFailedError("the ddl topic has no table mysql.tidb_ddl_job", topic=topic)
        self.book = book
        self._producer = producer
        self._topic = topic
        self._ask = ask
        self._table = info
        self._ready = list(landed)
        self._sent: deque[DdlRecord] = deque()
        self._failure: BusError | None = None

    def take(self) -> list[DdlRecord]:
        ready, self._ready = self._ready, []
        return ready

    def rows(self, span: TableSpan, region_id: RegionId, changes: Collection[Change], *, may_repeat: bool) -> None:
        for commit_ts, start_ts, op, key, value, _, _ in sorted(changes):
            if op == Op.PUT:
                record = self._record(key, value, Ts(start_ts), Ts(commit_ts))
                if record is not None:
                    self.book.add(record)
        self._ask(self.book.unread())

    def _record(self, key: bytes, value: bytes, start_ts: Ts, commit_ts: Ts) -> DdlRecord | None:
        try:
            return decode_ddl_job_row(
                value, self._table, start_ts=start_ts, commit_ts=commit_ts, key=key, counts=may_count
            )
        except DdlDecodeError as error:
            log.error("ddl job row does not decode", extra={"topic": self._topic, "error": str(error)})
            return undecodable_record(key, value, self._table, start_ts=start_ts, commit_ts=commit_ts, error=error)

    def resolved(self, span: TableSpan, ts: Ts) -> None:
        self._send(self.book.resolved(ts))

    def _send(self, records: list[DdlRecord]) -> None:
        for record in records:
            self._sent.append(record)
            _produce(self._producer, self._topic, record, self._delivered)

    def turn(self, now_s: float) -> float:
        self._send(self.book.to_send())
        serve_gapless(self._producer, 0, self._topic)
        if self._failure is not None:
            raise self._failure
        return 0.005 if self._sent else 0.1

    def saturated(self) -> bool:
        return False

    def _delivered(self, error: KafkaError | None, message: Delivered) -> None:
        offset, reason = landed_at(error, message)
        if offset is None:
            # Records behind it may be acknowledged all the same; nothing counts from here on.
            self._failure = self._failure or DeliveryFailedError(
                "Kafka did not take a ddl record", topic=self._topic, reason=reason
            )
        elif self._failure is None:
            record = self._sent.popleft()
            # A TiDB upgrade may alter its own job table.
            self._table = job_table_info([record]) or self._table
            self._ready.append(record)
            self.book.acked(offset)


class _Delivered:
    """Counts delivery reports."""

    def __init__(self) -> None:
        self.count = 0
        self.end = 0
        self.trouble = ""
        """Why one was not delivered."""

    def __call__(self, error: KafkaError | None, message: Delivered) -> None:
        offset, reason = landed_at(error, message)
        if offset is None:
            self.trouble = reason
        else:
            self.count += 1
            self.end = max(self.end, offset + 1)


def _produce(producer: RecordProducer, topic: str, record: DdlRecord, on_delivery: OnDelivery) -> None:
    value = encode_ddl_record(record)
    deadline = time.monotonic() + FLUSH_S
    while True:
        try:
            producer.produce(topic, value=value, partition=0, on_delivery=on_delivery)
        except BufferError as error:
            # The queue holds 100,000 records: more tables than that, and a broker that takes none.
            if time.monotonic() > deadline:
                raise DeliveryFailedError("Kafka takes no ddl records", topic=topic, kind=record.kind) from error
            serve_gapless(producer, 0.05, topic)
            continue
        except KafkaException as error:
            raise DeliveryFailedError(
                "Kafka refuses a ddl record", topic=topic, kind=record.kind, bytes=len(value), reason=error.args[0]
            ) from error
        return


def job_table_info(records: list[DdlRecord]) -> dict[str, object] | None:
    """Return the newest TableInfo of mysql.tidb_ddl_job among snapshot records and jobs."""
    for record in reversed(records):
        info = record.payload if record.kind == "table" else (record.payload.get("binlog") or {}).get("TableInfo")
        if isinstance(info, dict) and info.get("id") == DDL_JOB_TABLE_ID and info.get("cols"):
            return info
    return None
