"""The sorter's half of ``tidebus recover``: what Kafka still holds for a changefeed whose upstream is gone, and that
written to the topic that its processors read.

The raw log is the redo log. What has landed beyond the last frontier is in it too, but nobody knows any more whether
that is all: it is counted for the operator, and not written.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.secrets import load_with_secrets
from edges.zookeeper.connection import zookeeper_client
from schemas.config.settings import ChangefeedConfig
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import Action, BusError
from schemas.ids import TableId, Ts
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths
from schemas.rawlog.batch_head import BatchHead
from schemas.rawlog.images import image_feed
from schemas.rawlog.region_batch import decode_region_batch, read_batch_head
from schemas.rawlog.row_parts import PartJoiner
from schemas.rawlog.topics import RawTopics, raw_topics
from schemas.sink.topic import sorter_config
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.last_frontier import LastFrontier, last_frontier, table_name
from sorters.core.feed.scope import covered_since
from sorters.cut.leave import asked_at_once
from sorters.log.failures import bus_error
from sorters.log.frontier_reader import FrontierReader
from sorters.log.raw_topic_reader import raw_topic_reader
from sorters.run.cut_job import RunBy
from sorters.run.epochs import CutProgress
from sorters.run.feed_run import FeedRun
from sorters.run.job import SorterOptions
from sorters.run.nodes.feed_lock import SESSION_S, FeedLock
from sorters.run.nodes.status import StatusBoard
from sorters.run.run_inputs import RunInputs
from sorters.run.schema_feed import SchemaFeed
from sorters.spark.session import Session, SparkOnDemand

log = logging.getLogger(__name__)

LOCK_WAIT_S = 4 * SESSION_S
"""For the lock of a sorter that was killed: its session's time-out, and as much again for a machine that is busy."""
BEYOND_RECORDS_MAX = 20_000
"""Raw records that are looked through for what landed beyond the frontier: some 5 GiB at most, mostly far less."""


class SorterAliveError(BusError):
    """Another sorter holds the changefeed's lock and does not go."""

    code, action = "recover.sorter_alive", Action.STOP_CHANGEFEED


class NoFrontierLeftError(BusError):
    """The frontier topic holds no record: nobody knows up to where the raw log is whole."""

    code, action = "recover.no_frontier", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """What of a changefeed has landed in the raw log above its consistent ts, and is not applied."""

    changes: int
    """Distinct row changes."""
    tables: tuple[str, ...]
    max_commit_ts: Ts
    """Of the youngest; 0: there is none."""
    all_seen: bool
    """False: there is more than was looked through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldByKafka:
    """All that Kafka holds for one changefeed."""

    frontier: LastFrontier
    beyond: Beyond


def what_kafka_holds(
    kafka: KafkaAccess,
    info: ChangefeedInfo,
    config: ChangefeedConfig,
    *,
    created_zxid: int,
    raw_prefix: str = "tidebus",
) -> HeldByKafka:
    """Read the last frontier record and what landed beyond it. Needs no Spark.

    ``created_zxid`` is the changefeed's, by which frontier records know it.

    Raises:
        NoFrontierLeftError: there is no record.
        KafkaUnreachableError, HistoryLostError, CorruptDataError
    """
    topics = raw_topics(info.upstream, raw_prefix)
    raw_config = kafka.config()
    feed = compile_feed(sorter_config(config, info, kafka.servers), info.namespace, changefeed_id=info.changefeed_id)
    with (
        contextlib.closing(FrontierReader(raw_config, topics.frontier)) as frontier,
        contextlib.closing(SchemaFeed(raw_config, topics.ddl)) as schemas,
    ):
        end = frontier.end()
        if end == 0:
            raise NoFrontierLeftError("no frontier of this upstream was ever published", topic=topics.frontier)
        record = frontier.record_before(end)
        schemas.advance(record.ddl_high)
        last = last_frontier(
            record,
            schemas.store,
            feed,
            image_name=image_feed(info.namespace, info.changefeed_id, created_zxid),
            waits_at=info.start_ts if config.wants_initial else None,
        )
        return HeldByKafka(frontier=last, beyond=_beyond(raw_config, topics, last, schemas.store, feed))


def check_history(kafka: KafkaAccess, info: ChangefeedInfo, from_ts: Ts, raw_prefix: str = "tidebus") -> None:
    """Refuse to sort from ``from_ts`` on what Kafka no longer holds. One that still runs its prologue stands below what
    the raw log begins with.

    Raises:
        HistoryLostError: the raw log begins above.
        KafkaUnreachableError, CorruptDataError
    """
    topics = raw_topics(info.upstream, raw_prefix)
    with contextlib.closing(FrontierReader(kafka.config(), topics.frontier)) as frontier:
        frontier.find(from_ts)


def _beyond(
    raw_config: Mapping[str, object], topics: RawTopics, last: LastFrontier, store: SchemaStore, feed: CompiledFeed
) -> Beyond:
    """Count what landed above the consistent ts. Tables that came by a DDL beyond the frontier are known by id only."""
    seen: set[tuple[int, bytes]] = set()
    tables: set[TableId] = set()
    newest, all_seen = 0, True

    @cache
    def ours(table: TableId) -> bool:
        return covered_since(store, table, Ts(2**63 - 1), feed) is not None

    with contextlib.closing(raw_topic_reader(raw_config, topics.region_events)) as reader:
        ranges, left = {}, BEYOND_RECORDS_MAX
        for partition, low in enumerate(last.low):
            first, end = reader.bounds(partition)
            start = max(first, low)
            ranges[partition] = (start, min(end, start + left))
            all_seen = all_seen and end - start <= left
            left -= max(0, ranges[partition][1] - start)

        def wanted(head: BatchHead) -> bool:
            return head.max_commit_ts > last.consistent_ts and ours(head.table_id)

        joiner = PartJoiner(wanted)
        for partition, _, record in reader.read_all(ranges):
            whole = joiner.take(partition, record)
            if whole is None or not wanted(read_batch_head(whole)):
                continue
            rows = decode_region_batch(whole).rows
            for commit_ts, key in zip(rows.commit_ts.tolist(), rows.key.to_pylist(), strict=True):
                if commit_ts > last.consistent_ts:
                    seen.add((commit_ts, key))
                    tables.add(rows.table_id)
                    newest = max(newest, commit_ts)
    names = {table_name(store, table, Ts(2**63 - 1)) for table in tables}
    return Beyond(changes=len(seen), tables=tuple(sorted(names)), max_commit_ts=Ts(newest), all_seen=all_seen)


class SorterRecovery:
    """Brings the changefeed's topic up to a ts, as the changefeed's one sorter. One Spark for all tries."""

    def __init__(self, options: SorterOptions, session: Session) -> None:
        """``session`` starts Spark; it is called when more rows have to be sorted than the driver does, and once."""
        self._options, self._spark = options, SparkOnDemand(session)

    def run(self, target_ts: Ts, on_progress: Callable[[Ts], None]) -> Ts:
        """Write all up to ``target_ts`` and return the checkpoint; where the checkpoint is above it already, nothing.

        A run that is killed at any point is begun again from the checkpoint: what stands in the topic twice then is
        the same records in the same order, which processors pass over.

        Raises:
            SorterAliveError: see there.
            BusError: whatever stops a changefeed; and the lock may be lost.
        """
        options = self._options
        with zookeeper_client(options.zookeeper, SESSION_S) as zookeeper:
            paths = ZkPaths(options.cluster)
            lock = FeedLock(zookeeper, paths.changefeed_sorter(options.namespace, options.changefeed_id))
            _acquire(lock)
            try:
                board = StatusBoard(zookeeper.client, paths, options.namespace, options.changefeed_id)
                return self._sort(board, lock, target_ts, on_progress)
            finally:
                lock.release()

    def _sort(self, board: StatusBoard, lock: FeedLock, target_ts: Ts, on_progress: Callable[[Ts], None]) -> Ts:
        options, current = self._options, board.info()
        if current is None:
            raise SorterAliveError("changefeed was removed meanwhile", changefeed=options.changefeed_id)
        info, edition = current
        checkpoint_ts = board.open(info, edition)
        if checkpoint_ts >= target_ts:
            return checkpoint_ts
        config = sorter_config(load_with_secrets(info), info, options.kafka.servers)

        def note(progress: CutProgress) -> None:
            if not lock.is_lost():
                board.report(checkpoint_ts=progress.checkpoint_ts, resolved_ts=progress.resolved_ts)
            on_progress(progress.checkpoint_ts)

        run: FeedRun | None = None
        try:
            run = FeedRun(
                self._spark.get,
                RunInputs(
                    kafka=options.kafka,
                    raw_topics=raw_topics(info.upstream, options.raw_prefix),
                    schema_registry=RegistryAccess(),  # rows for processors need none
                    info=replace(info, target_ts=target_ts),
                    config=config,
                    run_by=RunBy(is_warm=lambda: self._spark.is_started),
                    image_name=image_feed(info.namespace, info.changefeed_id, edition.created_zxid),
                    next_fence=lock.fences(),
                ),
                data_dir=options.data_dir / "sorters" / options.namespace / options.changefeed_id,
                checkpoint_ts=checkpoint_ts,
                ask=lambda: asked_at_once(lock.check),
                on_progress=note,
            )
            run.run_to_target()
        except Exception as error:
            raise bus_error(error) from error
        finally:
            if run is not None:
                run.close()
        return board.checkpoint_ts

    def close(self) -> None:
        """End Spark, if it was started."""
        self._spark.stop()


def _acquire(lock: FeedLock) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    if not lock.acquire(lambda: time.monotonic() < deadline):
        raise SorterAliveError(
            "the changefeed's sorter runs elsewhere; stop it (or the captures that run it) and try again",
            holder=lock.holder(),
            waited_s=LOCK_WAIT_S,
        )
