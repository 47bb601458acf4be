"""Reads one topic of Kafka by hand-assigned partitions: from an offset on, to the present end or for ever."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from edges.kafka.access import KafkaAccess
from edges.kafka.clients import kafka_consumer
from edges.kafka.offsets import partition_bounds
from schemas.errors import Action, BusError
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX

METADATA_TIMEOUT_S = 15.0


class KafkaReadError(BusError):
    """The topic cannot be read: no such topic, or the broker does not answer."""

    code, action = "kafka.unreadable", Action.RETRY


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it stands in Kafka."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class TopicFollower:
    """A reader of all partitions of a topic, or of one; a context manager, not thread-safe."""

    def __init__(self, kafka: KafkaAccess, topic: str, *, partition: int | None = None, from_offset: int = 0) -> None:
        """Assign the partitions.

        Raises:
            KafkaReadError: no such topic or partition, or no answer.
        """
        self._consumer: Any = kafka_consumer(
            {
                **kafka.config(),
                "group.id": "tidebus-reader",  # never joined: partitions are assigned by hand
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": RAW_MESSAGE_BYTES_MAX,
                "log_level": 0,
            }
        )
        try:
            metadata = self._consumer.list_topics(topic, METADATA_TIMEOUT_S).topics[topic]
            partitions = sorted(metadata.partitions)
            if metadata.error is not None or not partitions or (partition is not None and partition not in partitions):
                raise KafkaReadError(
                    "no such topic or partition", topic=topic, partition=partition, kafka=kafka.servers
                )
            self.partitions = partitions if partition is None else [partition]
            self._topic = topic
            self._starts = self._starts_of(from_offset)
            self._consumer.assign([TopicPartition(topic, *start) for start in self._starts.items()])
        except KafkaException as error:
            self._consumer.close()
            raise KafkaReadError("kafka does not answer", kafka=kafka.servers, reason=error.args[0].str()) from error
        except KafkaReadError:
            self._consumer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def poll(self, timeout_s: float, count: int = 1000) -> list[Record]:
        """Return what has come within ``timeout_s``, at most ``count`` records. Errors that heal are left out."""
        out: list[Record] = []
        for message in self._consumer.consume(count, timeout_s):
            if (problem := message.error()) is not None:
                if problem.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise KafkaReadError("topic is gone", topic=self._topic)
                continue
            headers = tuple((name, value) for name, value in message.headers() or ())
            out.append(
                Record(
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    headers,
                )
            )
        return out

    def follow(self) -> Iterator[Record]:
        """Yield records as they come, for ever."""
        while True:
            yield from self.poll(0.5)

    def read_to_end(self, stall_s: float = 30.0) -> Iterator[Record]:
        """Yield every record that stands before the partitions' ends of now.

        Raises:
            KafkaReadError: nothing came for ``stall_s`` though the end is not reached.
        """
        left = {number: high for number, (low, high) in self.bounds().items() if high > max(low, self._starts[number])}
        heard_at = time.monotonic()
        while left:
            records = self.poll(0.2)
            if records:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > stall_s:
                raise KafkaReadError(f"nothing came for {stall_s:.0f} s", topic=self._topic, missing=left)
            for record in records:
                if record.partition in left:
                    if record.offset >= left[record.partition] - 1:
                        del left[record.partition]
                    yield record
            for position in self._consumer.position([TopicPartition(self._topic, number) for number in left]):
                # Control records and compacted ones are never handed out, but the position passes them.
                if position.offset >= left[position.partition]:
                    del left[position.partition]

    def _starts_of(self, from_offset: int) -> dict[int, int]:
        """Return where to begin in each partition: no further than its end, behind which librdkafka would turn back to
        its beginning.
        """
        if not from_offset:
            return dict.fromkeys(self.partitions, OFFSET_BEGINNING)
        return {number: min(from_offset, high) for number, (_, high) in self.bounds().items()}

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition and the one after its last record, as they are now.

        Raises:
            KafkaReadError: no answer.
        """
        try:
            return {
                number: partition_bounds(
                    self._consumer,
                    self._topic,
                    number,
                    answer_s=METADATA_TIMEOUT_S,
                    patience_s=METADATA_TIMEOUT_S,
                )
                for number in self.partitions
            }
        except KafkaException as error:
            reason = error.args[0].str()
            raise KafkaReadError("kafka does not answer", topic=self._topic, reason=reason) from error
