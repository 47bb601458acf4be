"""Writes a raw log by hand (topics, schema snapshot, region batches, frontier), for tests of the sorter alone."""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from edges.kafka.offsets import partition_bounds
from schemas.changes import Op, RowChanges
from schemas.ids import RegionId, TableId, Ts, UpstreamId, compose_ts
from schemas.rawlog.ddl_record import DdlRecord, encode_ddl_record
from schemas.rawlog.frontier import FrontierRecord, HeldDdl, HeldTables, TopicIds, encode_frontier
from schemas.rawlog.image_batch import ImageBatch, ImageRows, ScanName, encode_image_batch
from schemas.rawlog.images import NO_IMAGES, ImageChunk, ImageState, KeyRange
from schemas.rawlog.record_check import RowsCheck, Whose, check_headers
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX, raw_topics
from schemas.sink.fence import FENCE_HEADER, NO_FENCE
from schemas.sink.image_note import IMAGES_HEADER
from schemas.sink.position import POSITION_HEADER
from tests.support.control.pauses import MET_S, growing_pauses

ROWS = Path(__file__).parents[2] / "data" / "rows"
START_TS = compose_ts(1_760_000_000_000)


@dataclass(frozen=True)
class RecordedRow:
    """A row of data/rows."""

    key: bytes
    value: bytes
    value2: bytes


@cache
def recorded(shape: str) -> tuple[dict[str, Any], tuple[RecordedRow, ...]]:
    """Return the TableInfo and the rows of one shape of data/rows."""
    text = zstandard.ZstdDecompressor().stream_reader((ROWS / f"{shape}.jsonl.zst").read_bytes()).read()
    first, *lines = (json.loads(line) for line in text.splitlines())
    rows = (RecordedRow(*(bytes.fromhex(line[name]) for name in ("key", "value", "value2"))) for line in lines)
    return first["table_info"], tuple(rows)


@dataclass(frozen=True)
class Change:
    """One row change of the raw log to be."""

    commit_ts: int
    key: bytes
    value: bytes = b""
    old_value: bytes = b""
    start_ts: int = 0
    op: Op = Op.PUT


@dataclass
class RawLog:
    """A raw log that the test fills. ``partitions`` raw partitions; a frontier record covers all that was written."""

    kafka: str
    upstream: str
    partitions: int = 2
    ends: list[int] = field(default_factory=list)
    ddl_end: int = 0
    frontier: list[FrontierRecord] = field(default_factory=list)
    images_end: int | None = None
    """Of the images topic's one partition; None: there is no such topic yet."""

    def __post_init__(self) -> None:
        self.topics = raw_topics(UpstreamId(self.upstream))
        self.ends = [0] * self.partitions
        settings = {"message.max.bytes": RAW_MESSAGE_BYTES_MAX, "enable.idempotence": True}
        self._producer = Producer({"bootstrap.servers": self.kafka, **settings})
        create_topic(self.kafka, self.topics.region_events, self.partitions, {"max.message.bytes": "16777216"})
        create_topic(self.kafka, self.topics.ddl, 1, {"retention.ms": "-1"})
        create_topic(self.kafka, self.topics.frontier, 1)

    def snapshot(self, infos: Sequence[dict[str, Any]], schema: str = "sb", ts: Ts = START_TS) -> None:
        """Write the schema snapshot, and the frontier record that opens the log."""
        records = [DdlRecord(kind="schema", ts=ts, payload={"id": 1, "db_name": {"O": schema, "L": schema.lower()}})]
        records += [DdlRecord(kind="table", ts=ts, schema_id=1, payload=info) for info in infos]
        records += [DdlRecord(kind="snapshot_end", ts=ts, payload={})]
        for record in records:
            self.ddl(record)
        self.advance(ts)

    def ddl(self, record: DdlRecord) -> None:
        """Write one record of the ddl topic."""
        self._produce(self.topics.ddl, encode_ddl_record(record), 0)
        self.ddl_end += 1

    def rows(self, table_id: int, changes: Sequence[Change], partition: int = 0, *, may_repeat: bool = False) -> None:
        """Write one region batch."""
        batch = RegionBatch(region_id=RegionId(1), may_repeat=may_repeat, rows=row_changes(table_id, changes))
        record = encode_region_batch(batch, 1)
        self.raw(record, partition, check_headers(RowsCheck.of(batch.rows), record, Whose.of(batch.rows)))

    def raw(self, record: bytes, partition: int = 0, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        """Write any bytes as a raw record; without ``headers`` as an older capture does."""
        self._produce(self.topics.region_events, record, partition, headers)
        self.ends[partition] += 1

    def image(
        self,
        scan: ScanName,
        keys: KeyRange,
        rows: Mapping[bytes, bytes],
        *,
        feeds: tuple[str, ...] = (),
        batch_rows: int = 1_000,
    ) -> ImageChunk:
        """Land a scan of a range of a table, with records of another attempt between its own; return what a frontier
        record lists of it. ``rows`` ascend.
        """
        if self.images_end is None:
            create_topic(self.kafka, self.topics.images, 1, {"max.message.bytes": "16777216"})
            self.images_end = 0
        start, table_id = self.images_end, TableId(int.from_bytes(keys.start[1:9], "big") - (1 << 63))
        for batch in _image_batches(scan, table_id, keys, list(rows.items()), batch_rows):
            for attempt in (scan.attempt, scan.attempt + 1):
                for record in encode_image_batch(replace(batch, scan=scan._replace(attempt=attempt)), 1, 1 << 20):
                    self._produce(self.topics.images, record, 0)
                    self.images_end += 1
        return ImageChunk(
            ts=scan.barrier_ts,
            number=scan.number,
            attempt=scan.attempt,
            table_id=table_id,
            feeds=feeds,
            keys=keys,
            partition=0,
            offsets=(start, self.images_end),
            rows=len(rows),
            bytes=sum(len(key) + len(value) for key, value in rows.items()),
        )

    def _produce(self, topic: str, value: bytes, partition: int, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        while True:
            with contextlib.suppress(BufferError):  # its queue is bounded, and is full until the broker has taken some
                self._producer.produce(topic, value, partition=partition, headers=list(headers))
                self._producer.poll(0)
                return
            self._producer.poll(0.1)

    def advance(
        self,
        ts: int,
        *,
        repeats: bool = False,
        low: Iterable[int] | None = None,
        held_ddl: tuple[HeldDdl, ...] = (),
        held: tuple[HeldTables, ...] = (),
        images: ImageState = NO_IMAGES,
        topic_ids: TopicIds | None = None,
    ) -> None:
        """Publish that everything up to ``ts`` has been written, and nothing above it unless ``low`` says where."""
        self._producer.flush()
        high = tuple(self.ends)
        record = FrontierRecord(
            owner_rev=1,
            resolved_ts=Ts(ts),
            high=high,
            low=tuple(low) if low is not None else high,
            ddl_high=self.ddl_end,
            repeat_high=high if repeats else (0,) * self.partitions,
            held=held,
            held_ddl=held_ddl,
            images=images,
            topic_ids=topic_ids or TopicIds(),
        )
        self.frontier.append(record)
        self._producer.produce(self.topics.frontier, encode_frontier(record), partition=0)
        self._producer.flush()


def _image_batches(
    scan: ScanName, table_id: TableId, keys: KeyRange, rows: list[tuple[bytes, bytes]], batch_rows: int
) -> Iterator[ImageBatch]:
    at = keys.start
    for sequence, first in enumerate(range(0, max(len(rows), 1), batch_rows)):
        part = rows[first : first + batch_rows]
        last = first + batch_rows >= len(rows)
        end = keys.end if last else part[-1][0] + b"\0"
        key, value = (pa.array([row[side] for row in part], pa.binary()) for side in (0, 1))
        yield ImageBatch(
            scan=scan, table_id=table_id, sequence=sequence, last=last, start=at, end=end,
            rows=ImageRows(key=key, value=value),
        )  # fmt: skip
        at = end


def sbtest1_changes(count: int, first_ts: int, first_row: int = 0) -> list[Change]:
    """Return inserts of the recorded sbtest1 rows: ten ts apart, with handles from ``first_row`` on."""
    info, rows = recorded("sbtest1")
    numbers = range(first_row, first_row + count)
    return [
        Change(first_ts + 10 * at, row_key(info["id"], number), rows[number % len(rows)].value)
        for at, number in enumerate(numbers)
    ]


def row_changes(table_id: int, changes: Sequence[Change]) -> RowChanges:
    """Return changes as columns."""
    return RowChanges(
        table_id=TableId(table_id),
        commit_ts=np.array([change.commit_ts for change in changes], np.int64),
        start_ts=np.array([change.start_ts or change.commit_ts - 1 for change in changes], np.int64),
        op=np.array([change.op for change in changes], np.int8),
        key=pa.array([change.key for change in changes], pa.binary()),
        value=pa.array([change.value for change in changes], pa.binary()),
        old_value=pa.array([change.old_value for change in changes], pa.binary()),
        txn_source=np.zeros(len(changes), np.int64),
    )


def row_key(table_id: int, handle: int) -> bytes:
    """Return the TiKV key of a row with an integer handle."""
    return b"t%b_r%b" % (_ordered(table_id), _ordered(handle))


def _ordered(number: int) -> bytes:
    return (number + (1 << 63)).to_bytes(8, "big")


def create_topic(kafka: str, topic: str, partitions: int, config: dict[str, str] | None = None) -> None:
    """Create a topic that must not be there yet."""
    new = NewTopic(topic, partitions, 1, config=config or {})
    admin = AdminClient({"bootstrap.servers": kafka})  # must outlive the request
    admin.create_topics([new])[topic].result(120)


@dataclass(frozen=True)
class SinkRecord:
    """A record as it stands in a sink topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    position: bytes
    fence: bytes = NO_FENCE
    images: bytes = b""


def read_topic(kafka: str, topic: str) -> list[SinkRecord]:
    """Return all records of a topic now, partition after partition, each in the order of its offsets."""
    consumer: Any = Consumer({"bootstrap.servers": kafka, "group.id": "tests", "enable.auto.commit": False})
    records: list[SinkRecord] = []
    try:
        for partition in sorted(consumer.list_topics(topic, timeout=20).topics[topic].partitions):
            at, end = partition_bounds(consumer, topic, partition, answer_s=15.0)
            consumer.assign([TopicPartition(topic, partition, at)])
            while at < end:
                for message in consumer.consume(min(10_000, end - at), timeout=1.0):
                    assert message.error() is None, message.error()
                    headers = dict(message.headers() or [])
                    records.append(
                        SinkRecord(
                            partition,
                            message.offset(),
                            message.key(),
                            message.value(),
                            headers[POSITION_HEADER],
                            headers.get(FENCE_HEADER, NO_FENCE),
                            headers.get(IMAGES_HEADER, b""),
                        )
                    )
                    at = message.offset() + 1
    finally:
        consumer.close()
    return records


def wait_for_records(kafka: str, topic: str, count: int, timeout_s: float = 240.0) -> None:
    """Wait until a topic that may not be there yet holds so many records; they are met as they come."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "tests"})
    deadline, pauses = time.monotonic() + timeout_s, growing_pauses(MET_S)
    try:
        while time.monotonic() < deadline:
            known = consumer.list_topics(timeout=10).topics.get(topic)
            partitions = list(known.partitions) if known is not None else []
            ends = [partition_bounds(consumer, topic, partition, answer_s=15.0)[1] for partition in partitions]
            if sum(ends) >= count:
                return
            time.sleep(next(pauses))
    finally:
        consumer.close()
    raise AssertionError(f"{topic} did not get {count} records")
