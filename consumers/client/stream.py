"""A Kafka consumer over a changefeed's topics that hands out batches between watermarks.

What it has applied stands in Kafka itself: :meth:`ChangeStream.commit` writes for each partition the offset to go on
from, and as the commit's metadata the ts up to which everything was applied. So a reader that takes over, after a crash
or a rebalance, tells a repeat from a new record by what was *applied*, not by what somebody saw.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from consumers.client.avro import AvroDecoder, registry_schemas
from consumers.client.canal_json import CanalJsonDecoder
from consumers.client.changes import Change, ChangeBatch
from consumers.client.core.partition import PartitionKey, RecordsLostError, StreamRecord
from consumers.client.core.stream import ReadPosition, Released, StreamReader
from consumers.client.errors import NoPositionError, StreamUnavailableError
from edges.kafka.clients import kafka_consumer
from edges.kafka.errors import KafkaSettingsError
from schemas.errors import BusError, ConfigError
from schemas.ids import Ts
from schemas.json_text import read_json
from schemas.sink.image_note import IMAGES_HEADER, ImageNote
from schemas.sink.position import POSITION_HEADER, Position, decode_position

PENDING_BYTES_MAX = 256 << 20
POLL_S = 0.1
POLL_RECORDS = 10_000
REQUEST_S = 15.0


class Decoder(Protocol):
    """Turns a row or a DDL message into a change, and what watermarks say of images into its names of tables."""

    def __call__(self, record: StreamRecord, position: Position) -> Change: ...
    def images(self, note: ImageNote) -> ImageNote: ...


class ChangeStream:
    """Iterate it for batches, :meth:`commit` each when it is applied; not thread-safe. Use as a context manager.

    Members of one ``group`` share the partitions; order and whole transactions hold over the partitions of one member.
    With canal-json DDL stands in partition 0 of its topic only, so only that partition's reader sees it.

    When the group finds a topic, or a member comes or goes, a partition that this member keeps is read on where it
    stood, committed or not; one that it is given begins at what was committed, and is held until it has reached the
    watermark that was handed out last.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[str],
        *,
        group: str,
        protocol: str = "canal-json",
        schema_registry: str = "",
        pending_bytes_max: int = PENDING_BYTES_MAX,
        kafka: Mapping[str, Any] | None = None,
    ) -> None:
        """Subscribe; reading begins with the first batch.

        Args:
            bootstrap_servers: of Kafka.
            topics: names, or patterns that begin with ``^``.
            group: the consumer group, which holds what was applied.
            protocol: the changefeed's: ``canal-json`` with ``enable-tidb-extension``, or ``avro`` with
                ``enable-tidb-extension`` and ``avro-enable-watermark``: without watermarks no batch is ever whole.
            schema_registry: URL, for Avro.
            pending_bytes_max: of records that wait for a watermark; beyond it only the slowest partitions are read, and
                partitions that came later are handed out below the last watermark.
            kafka: more settings of librdkafka, of TLS say.

        Raises:
            ConfigError: another protocol, or Avro without a registry.
            StreamUnavailableError: librdkafka refuses the settings.
        """
        self._decode = _decoder(protocol, schema_registry)
        self._reader = StreamReader(pending_bytes_max)
        self._paused: frozenset[PartitionKey] = frozenset()
        self._is_stuck = False
        """What is due could not be made a batch; each poll tries again."""
        self._unplaced: list[PartitionKey] = []
        """Dealt to this member, which does not know yet where to read on."""
        self._unreadable: dict[PartitionKey, BusError] = {}
        """Why no record of a partition is taken any more: the next one that was due is gone, or cannot be read."""
        settings = {
            # Patterns find new tables' topics at this pace.
            "topic.metadata.refresh.interval.ms": 10_000,
            **(kafka or {}),
            "enable.auto.commit": False,
            # Where the group has come to is gone: what stood there until the first that is left, nobody has seen.
            "auto.offset.reset": "error",
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
        }
        try:
            self._consumer: Any = kafka_consumer(settings)
            self._consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked)
        except (KafkaSettingsError, KafkaException, TypeError, ValueError) as error:
            raise StreamUnavailableError("Kafka consumer settings are refused", reason=error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def partitions(self) -> frozenset[PartitionKey]:
        """What this member reads now; nothing before the first :meth:`poll` after the group has settled."""
        return frozenset(self._reader.partitions)

    def close(self) -> None:
        """Leave the group. What was not committed comes again to whoever reads next."""
        self._consumer.close()

    def __iter__(self) -> Iterator[ChangeBatch]:
        """Yield batches for ever, empty ones too: a watermark that moves is news.

        Raises:
            MessageError, NoPositionError, CorruptDataError: a record that cannot be read.
            RecordsLostError: records that this group has not read are gone from a topic.
            StreamUnavailableError: Kafka or the schema registry does not answer; the next poll passes over nothing.
        """
        while True:
            batch = self.poll(3600.0)
            if batch is not None:
                yield batch

    def poll(self, timeout_s: float) -> ChangeBatch | None:
        """Return the next batch, or None if no watermark has moved within ``timeout_s``.

        Raises:
            MessageError, NoPositionError, CorruptDataError: a record that cannot be read.
            RecordsLostError: records that this group has not read are gone from a topic.
            StreamUnavailableError: Kafka or the schema registry does not answer; the next poll passes over nothing.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                messages = self._consumer.consume(POLL_RECORDS, min(POLL_S, max(0.0, deadline - time.monotonic())))
            except KafkaException as error:
                raise StreamUnavailableError("Kafka does not serve the topics", reason=error) from error
            self._take_all(messages)
            if self._unplaced:
                self._place(self._consumer)
            try:
                batch = self._next_batch()
            finally:
                self._pause()
            if batch is not None:
                return batch
            if self._unreadable:
                raise next(iter(self._unreadable.values())).with_traceback(None)
            if time.monotonic() >= deadline:
                return None

    def commit(self, batch: ChangeBatch) -> None:
        """Say that ``batch`` and all before it are applied. Partitions that are another member's now are left out.

        Raises:
            StreamUnavailableError: Kafka has not taken it; the same changes may come again.
        """
        offsets = [
            TopicPartition(key.topic, key.partition, position.offset, metadata=_metadata(position.applied_ts))
            for key, position in batch.positions.items()
            if key in self._reader.partitions
        ]
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            raise StreamUnavailableError("Kafka has not taken a commit", reason=error) from error

    def _next_batch(self) -> ChangeBatch | None:
        """Make a batch of what is due; it goes out of the reader once it is made, so that none is lost on the way."""
        due = self._reader.due()
        self._is_stuck = due is not None
        if due is None:
            return None
        batch = self._batch(due)
        self._reader.release(due)
        self._is_stuck = False
        return batch

    def _batch(self, released: Released) -> ChangeBatch:
        changes = tuple(self._decode(record, decode_position(record.position)) for record in released.records)
        images = self._decode.images(released.images)
        return ChangeBatch(
            watermark_ts=released.watermark_ts,
            changes=changes,
            positions=released.positions,
            images_left=images.left,
            whole=images.whole,
            waiting=images.waiting,
        )

    def _take_all(self, messages: Sequence[Any]) -> None:
        """Take what has come, then raise the first error of it: what stands behind that comes only once."""
        first: BusError | None = None
        for message in messages:
            try:
                self._take(message)
            except BusError as error:
                first = first or error
        if first is not None:
            raise first

    def _take(self, message: Any) -> None:
        problem = message.error()
        if problem is not None and problem.code() != KafkaError._AUTO_OFFSET_RESET:
            if problem.fatal() or problem.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION):
                raise StreamUnavailableError("Kafka does not serve the topics", reason=problem.str())
            return  # librdkafka goes on by itself
        key = PartitionKey(message.topic(), message.partition())
        if key in self._unreadable or key not in self._reader.partitions:
            return
        try:
            self._reader.take(_record(key, message))
        except BusError as error:
            self._unreadable[key] = error
            raise

    def _pause(self) -> None:
        # Stuck, all are asked for events alone: the group hears of this member, and memory does not grow.
        ahead = frozenset(self._reader.partitions) if self._is_stuck else self._reader.ahead() | self._unreadable.keys()
        if stop := [TopicPartition(*_of(key)) for key in ahead - self._paused]:
            self._consumer.pause(stop)
        if go_on := [TopicPartition(*_of(key)) for key in self._paused - ahead if key in self._reader.partitions]:
            self._consumer.resume(go_on)
        self._paused = ahead

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        self._unplaced = [PartitionKey(partition.topic, partition.partition) for partition in partitions]
        try:
            self._place(consumer)
        except StreamUnavailableError:
            # Without it confluent-kafka assigns them by itself, to be read from anywhere.
            consumer.assign([])

    def _place(self, consumer: Any) -> None:
        """Go on where this member stood, else where the group has come to, by offsets and what stands beside them.

        Raises:
            StreamUnavailableError: Kafka does not say where that is; they wait in ``_unplaced``.
        """
        try:
            committed = consumer.committed([TopicPartition(*_of(key)) for key in self._unplaced], timeout=REQUEST_S)
            for partition in committed:
                if partition.error is not None:
                    raise KafkaException(partition.error)
            positions = {
                PartitionKey(partition.topic, partition.partition): _read_position(partition) for partition in committed
            }
            offsets = self._reader.assign(positions)
            consumer.assign(
                [
                    TopicPartition(*_of(key), offset if offset >= 0 else OFFSET_BEGINNING)
                    for key, offset in offsets.items()
                ]
            )
        except KafkaException as error:
            raise StreamUnavailableError("Kafka does not say what the group has committed", reason=error) from error
        self._unplaced = []

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        gone = [PartitionKey(partition.topic, partition.partition) for partition in partitions]
        self._reader.revoke(gone)
        self._unplaced = []
        for key in gone:
            self._unreadable.pop(key, None)
        if paused := self._paused & set(gone):
            # librdkafka keeps a partition paused that comes back.
            consumer.resume([TopicPartition(*_of(key)) for key in paused])
        self._paused -= set(gone)
        consumer.unassign()


def _decoder(protocol: str, schema_registry: str) -> Decoder:
    match protocol:
        case "canal-json":
            return CanalJsonDecoder()
        case "avro" if schema_registry:
            return AvroDecoder(registry_schemas(schema_registry))
        case "avro":
            raise ConfigError("Avro needs the address of its schema registry", key="schema_registry")
    raise ConfigError("this reader knows canal-json and avro", key="protocol", got=protocol)


def _record(key: PartitionKey, message: Any) -> StreamRecord:
    """Return a record, or raise what stands in its place."""
    if (problem := message.error()) is not None:
        raise RecordsLostError(
            "the topic does not hold the offset that this group has come to; was it made anew, or is its "
            "retention too short?",
            topic=key.topic,
            partition=key.partition,
            reason=problem.str(),
        )
    headers = dict(message.headers() or ())
    position = headers.get(POSITION_HEADER)
    if position is None:
        raise NoPositionError(
            "a record has no position header; is this a changefeed's topic?",
            header=POSITION_HEADER,
            topic=key.topic,
            partition=key.partition,
            offset=message.offset(),
        )
    images = headers.get(IMAGES_HEADER) or b""
    return StreamRecord(key, message.offset(), message.key(), message.value(), position, images)


def _of(key: PartitionKey) -> tuple[str, int]:
    return key.topic, key.partition


def _metadata(applied_ts: Ts) -> str:
    return json.dumps({"applied_ts": applied_ts})


def _read_position(committed: Any) -> ReadPosition:
    """Read a committed offset; one that another program committed has no ts: nothing below it counts as applied."""
    try:
        applied_ts = Ts(int(read_json(committed.metadata or "{}").get("applied_ts", 0)))
    except (ValueError, AttributeError, TypeError, OverflowError):
        applied_ts = Ts(0)
    return ReadPosition(committed.offset if committed.offset >= 0 else -1, applied_ts)
