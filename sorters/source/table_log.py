"""The raw log of one table, as the driver's process of a query reads it: frontier, schemas, how far back it goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from edges.kafka.access import KafkaAccess
from edges.kafka.errors import KafkaUnreachableError
from edges.kafka.topic_state import topic_names, topic_states
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, HeldDdl, HeldTables
from schemas.rawlog.images import ImageChunk
from schemas.rawlog.log_state import check_raw_log
from schemas.rawlog.topics import raw_topics, upstreams_among
from sorters.core.cut.cut import ChangefeedFrontier, frontier_for
from sorters.core.source.errors import NoImageError, NotReachedError, SourceOptionError
from sorters.core.source.offsets import SourceOffset
from sorters.core.source.options import SourceOptions
from sorters.core.source.start_image import StartImage, newest_image
from sorters.core.source.table_history import concerns, named_since, physical_ids, table_at
from sorters.log.failures import HistoryLostError
from sorters.log.frontier_reader import FrontierReader
from sorters.log.raw_topic_reader import raw_topic_reader
from sorters.run.schema_feed import SchemaFeed

IMAGE_RECORDS: Final = 16_384
"""Frontier records that are looked through at once for a table's image, the newest first: an hour of them."""


class TableLog:
    """What one query knows of its table, by clients of its own."""

    def __init__(self, options: SourceOptions) -> None:
        """Raise ConfigError where the properties file of Kafka's is refused."""
        access = KafkaAccess.read(options.kafka, Path(options.kafka_config) if options.kafka_config else None)
        self.config = access.with_texts().config()
        """librdkafka's, also for tasks on other machines; it may hold secrets."""
        self.name, self.upstream = options.table, options.upstream
        self.topics = raw_topics(options.upstream)
        self.frontier = FrontierReader(self.config, self.topics.frontier)
        self.schemas = SchemaFeed(self.config, self.topics.ddl)
        self.events = raw_topic_reader(self.config, self.topics.region_events)

    def close(self) -> None:
        """Let go of them."""
        self.frontier.close()
        self.schemas.close()
        self.events.close()

    def ids(self, after_ts: Ts, upto_ts: Ts) -> frozenset[TableId]:
        """Return the physical tables that the table's changes within ``(after_ts, upto_ts]`` are in."""
        return physical_ids(self.schemas.store, self.name, after_ts, upto_ts)

    def frontier_of(self, record: FrontierRecord, after_ts: Ts) -> ChangefeedFrontier:
        """Return what a frontier record says for the table: for all physical tables that it has had since a ts."""
        if not (record.held or record.held_ddl):
            return frontier_for(record, lambda _: False)
        self.schemas.advance(record.ddl_high)
        ids = self.ids(min(after_ts, record.resolved_ts), record.resolved_ts)
        return frontier_for(
            record,
            ids.__contains__,
            lambda held: concerns(self.name, ids, held.schema, held.table, held.table_id),
        )

    def border_now(self) -> SourceOffset:
        """Return the border up to which the table's changes can be read now."""
        end, record = self.newest()
        frontier = self.frontier_of(record, min([record.resolved_ts, *(held.ts for held in record.held)]))
        return SourceOffset(frontier.resolved_ts, end)

    def newest(self) -> tuple[int, FrontierRecord]:
        """Return the end of the frontier topic, and where a reader stands there; the schemas are read up to it.

        Raises:
            NotReachedError: nothing has been published yet.
            RawLogRecreatedError, RawLogLostError: the raw log is not the one that its frontier was published over.
            SourceOptionError: there is no such upstream.
        """
        end = self._frontier_end()
        if not end:
            raise NotReachedError("no capture has published a frontier of this upstream", topic=self.topics.frontier)
        record = self.frontier.record_before(end)
        check_raw_log(record, self.topics, topic_states(self.config, (self.topics.region_events, self.topics.ddl)))
        self.schemas.advance(record.ddl_high)
        return end, record

    def _frontier_end(self) -> int:
        try:
            return self.frontier.end()
        except KafkaUnreachableError:
            topics = topic_names(self.config)
            if self.topics.frontier in topics:
                raise
            raise SourceOptionError(
                "there is no raw log of this upstream on these servers, or its topics are not shown to this user",
                option="raw",
                seen=self.upstream,
                upstreams=", ".join(upstreams_among(topics)) or "none",
            ) from None

    def earliest(self) -> SourceOffset:
        """Return the first border whose later changes are all in the log."""
        end, newest = self.newest()
        oldest = [self.events.bounds(partition)[0] for partition in range(len(newest.high))]
        low, high = self.frontier.first(), end - 1
        while low < high:
            middle = (low + high) // 2
            if _holds(self._record_at(middle), oldest):
                high = middle
            else:
                low = middle + 1
        record = self.frontier.record_before(low + 1)
        snapshot_ts = self.schemas.store.snapshot_ts or Ts(0)
        return SourceOffset(max(record.resolved_ts, snapshot_ts), low + 1)

    def newest_image(self) -> tuple[StartImage, tuple[int, int]]:
        """Return the newest whole image of the table, and the frontier offsets that list it.

        Raises:
            NoImageError: there is none.
            HistoryLostError: there is one, and changes above it are gone.
        """
        end, _ = self.newest()
        tables = self._tables_at(end)
        first, listed, at = self.frontier.first(), set[ImageChunk](), end
        while at > first:
            start = max(first, at - IMAGE_RECORDS)
            listed.update(self._chunks(start, at))
            image, at = newest_image(listed, tables), start
            if image is not None:
                if image.before_ts < self.earliest().resolved_ts:
                    raise self.lost(image.before_ts, "retention has passed what changed since the table's image")
                return image, (start, end)
        raise NoImageError(
            'raw log lists no whole image of the table; a changefeed with initial = "snapshot" takes one; or copy the '
            "table at a ts, and start above it",
            table=str(self.name),
            table_ids=list(tables),
            chunks=sum(chunk.table_id in tables for chunk in listed),
        )

    def image(self, records: tuple[int, int]) -> StartImage:
        """Return the image that a query started at, by what :meth:`newest_image` has said.

        Raises:
            NoImageError: the records list none any more.
            HistoryLostError: they are gone.
        """
        image = newest_image(self._chunks(*records), self._tables_at(records[1]))
        if image is None:
            raise NoImageError("the image that the query started at is gone", table=str(self.name), records=records)
        return image

    def _tables_at(self, frontier_offset: int) -> dict[TableId, Ts]:
        """Return the physical tables that the table had at the frontier record before an offset, whoever asks when, and
        since when each was its.
        """
        record = self.frontier.record_before(frontier_offset)
        self.schemas.advance(record.ddl_high)
        store, ts = self.schemas.store, record.resolved_ts
        return {
            each: named_since(store, self.name, each, ts)
            for each in sorted(table_at(store, self.name, ts).physical_ids)
        }

    def _chunks(self, start: int, end: int) -> Iterator[ImageChunk]:
        """Yield the chunks that some frontier records list, as often as they do."""
        for record in self.frontier.read(start, end):
            yield from record.images.chunks

    def lost(self, asked_ts: Ts, reason: str) -> HistoryLostError:
        """Return the error for a ts that the log does not go back to any more."""
        return HistoryLostError(
            "raw log no longer goes back to the ts that the query starts or goes on from; copy the table at a ts above "
            "oldest_ts, and start a new query above that ts",
            asked_ts=asked_ts,
            oldest_ts=self.earliest().resolved_ts,
            reason=reason,
        )

    def _record_at(self, offset: int) -> FrontierRecord:
        return next(self.frontier.read(offset, offset + 1))


def _holds(record: FrontierRecord, oldest: list[int]) -> bool:
    """Tell whether a log whose partitions begin at ``oldest`` holds all that comes after a record."""
    held: tuple[HeldTables | HeldDdl, ...] = (*record.held, *record.held_ddl)
    lows = [record.low, *(each.low for each in held)]
    return all(low >= first for vector in lows for low, first in zip(vector, oldest, strict=False))
