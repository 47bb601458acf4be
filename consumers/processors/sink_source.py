"""The sink topic as a processor reads it: given partitions from given offsets, and the group's offsets for people.

A record without a position is no sorter's: somebody has written into the wrong topic. It is passed over
(docs/decisions/2026-11-29-stray-records.md).
"""

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from edges.kafka.access import KafkaAccess
from edges.kafka.clients import kafka_admin, kafka_consumer
from edges.kafka.markers import READS_ALL
from schemas.errors import Action, BusError
from schemas.sink.fence import FENCE_HEADER, NO_FENCE
from schemas.sink.position import POSITION_HEADER
from schemas.sink.topic import PARTITIONS

log = logging.getLogger(__name__)

ANSWER_S = 15.0
"""For one answer of a broker; it covers a broker's restart."""
POLL_MAX = 64
"""Some 30,000 rows, whose taking in takes as many microseconds; workers wait for it."""
FETCH_QUEUE_KIB = 64 * 1024
"""What librdkafka reads ahead, over all partitions."""

_NOT_YET = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE})
"""What a topic that is about to be created answers with."""
_UNREADABLE = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION}
)
"""What librdkafka would try for ever without a word; the client's stream ends with these too."""


class SinkHistoryLostError(BusError):
    """Records that have not been applied are gone from the changefeed's topic: it must start anew from a copy."""

    code, action = "apply.history_lost", Action.STOP_CHANGEFEED


class SinkTopicUnavailableError(BusError):
    """Kafka does not answer, or does not let us read the topic; ``fields`` give its reason."""

    code, action = "apply.topic_unavailable", Action.RETRY


class SinkTopicMissingError(BusError):
    """The changefeed's sorter has not created its topic yet: nothing is wrong, there is nothing to apply."""

    code, action = "apply.topic_missing", Action.RETRY


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """One record of the topic."""

    partition: int
    offset: int
    position: bytes
    key: bytes | None
    value: bytes
    fence: bytes = NO_FENCE
    """Who wrote it (:mod:`schemas.sink.fence`)."""


class Source(Protocol):
    """Where records come from; reads only what it was told to. All but :meth:`check` is for one thread."""

    def check(self, offsets: Mapping[int, int]) -> None:
        """Make sure that partitions can be read from these offsets on; from any thread.

        Raises:
            SinkHistoryLostError: they are not there any more.
            SinkTopicUnavailableError: Kafka does not answer.
        """
        ...

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions, too, from these offsets on; one that is read already begins there anew.

        The record before comes too, where it is still there: whoever wrote it wrote last.
        """
        ...

    def end(self, partition: int) -> None:
        """Read a partition no more; it may be one that is not read."""
        ...

    def poll(self, timeout_s: float) -> list[SinkRecord]:
        """Return the next records, those of a partition in its order.

        Raises:
            SinkHistoryLostError, SinkTopicUnavailableError
        """
        ...

    def pause(self, partition: int) -> None: ...
    def resume(self, partition: int) -> None: ...
    def note(self, offsets: Mapping[int, int]) -> None:
        """Let others see how far the group is: next offset by partition."""
        ...

    def close(self) -> None: ...


class KafkaSource:
    """A consumer without a group's rebalancing: the partitions are the caller's to give."""

    def __init__(self, kafka: KafkaAccess, topic: str, group: str) -> None:
        self._topic = topic
        self._reads: set[int] = set()
        self._first: dict[int, int] = {}
        """The first offset of a partition that was there when it was checked."""
        # A consumer's calls wait for one another: one that is polled all the time would let a question wait for long.
        self._admin = kafka_admin(kafka.config())
        self._consumer = kafka_consumer(
            {
                **kafka.config(),
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # a gap must not be jumped
                **READS_ALL,
                "queued.max.messages.kbytes": FETCH_QUEUE_KIB,
                "fetch.message.max.bytes": 4 * 1024 * 1024,
                "message.max.bytes": 32 * 1024 * 1024,
                "receive.message.max.bytes": 128 * 1024 * 1024,
            }
        )

    def partitions(self) -> int:
        """Return how many partitions the topic has, of those that its sorter writes: in others, which somebody has
        added, nothing comes. A topic with fewer than the sorter wants fails by the sorter's word.

        Raises:
            SinkTopicMissingError: its sorter has not created it yet.
            SinkTopicUnavailableError: Kafka does not answer, or does not let us see the topic.
        """
        try:
            topic = self._consumer.list_topics(self._topic, timeout=ANSWER_S).topics.get(self._topic)
        except KafkaException as error:
            raise SinkTopicUnavailableError("kafka does not answer", topic=self._topic, reason=error.args[0]) from error
        if topic is not None and topic.error is not None and topic.error.code() not in _NOT_YET:
            raise SinkTopicUnavailableError("topic cannot be read", topic=self._topic, reason=topic.error.str())
        if topic is None or topic.error is not None or not topic.partitions:
            raise SinkTopicMissingError("topic is not there; its sorter creates it", topic=self._topic)
        return min(len(topic.partitions), PARTITIONS)

    def start(self, offsets: Mapping[int, int]) -> None:
        """Check that these partitions can be read from these offsets on, and do.

        Raises:
            SinkHistoryLostError: they are not there any more.
            SinkTopicUnavailableError: Kafka does not answer.
        """
        self.check(offsets)
        self.begin(offsets)

    def check(self, offsets: Mapping[int, int]) -> None:
        """See :class:`Source`."""
        try:
            low, high = (self._ends(offsets, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        except KafkaException as error:
            raise SinkTopicUnavailableError("kafka does not answer", topic=self._topic, reason=error.args[0]) from error
        self._first.update(low)
        for partition, offset in offsets.items():
            if not low[partition] <= offset <= high[partition]:
                raise SinkHistoryLostError(
                    "records that were not applied are gone from the topic",
                    topic=self._topic,
                    partition=partition,
                    offset=offset,
                    low=low[partition],
                    high=high[partition],
                )

    def begin(self, offsets: Mapping[int, int]) -> None:
        """See :class:`Source`."""
        for partition in offsets:
            self.end(partition)
        starts = {
            partition: offset - 1 if self._first.get(partition, offset) < offset else offset
            for partition, offset in offsets.items()
        }
        partitions = [TopicPartition(self._topic, *item) for item in starts.items()]
        self._consumer.incremental_assign(partitions)
        self._consumer.resume(partitions)  # it may have been paused when it was read before
        self._reads.update(offsets)

    def end(self, partition: int) -> None:
        """See :class:`Source`."""
        if partition in self._reads:
            self._reads.discard(partition)
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def poll(self, timeout_s: float) -> list[SinkRecord]:
        """Return the next records."""
        records = []
        for message in self._consumer.consume(POLL_MAX, timeout_s):
            error = message.error()
            if error is not None:
                self._raise(error)
                continue
            headers = dict[str, bytes](message.headers() or ())
            position = headers.get(POSITION_HEADER)
            if position is None:
                where = {"topic": self._topic, "partition": message.partition(), "offset": message.offset()}
                log.error("a record of a changefeed's topic is no sorter's, and is passed over", extra=where)
                continue
            fence = headers.get(FENCE_HEADER) or NO_FENCE
            at, value = (message.partition(), message.offset()), message.value() or b""
            records.append(SinkRecord(*at, position, message.key(), value, fence))
        return records

    def pause(self, partition: int) -> None:
        """Stop reading a partition for a while."""
        self._consumer.pause([TopicPartition(self._topic, partition)])

    def resume(self, partition: int) -> None:
        """Go on reading it."""
        self._consumer.resume([TopicPartition(self._topic, partition)])

    def note(self, offsets: Mapping[int, int]) -> None:
        """Commit the group's offsets; nobody goes by them, so nothing hangs on their arrival."""
        partitions = [TopicPartition(self._topic, *item) for item in offsets.items() if item[1] != OFFSET_INVALID]
        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=partitions, asynchronous=True)

    def close(self) -> None:
        """Give the connections back."""
        self._consumer.close()

    def _ends(self, partitions: Iterable[int], spec: OffsetSpec) -> dict[int, int]:
        """Return the first, or the next, offset of each partition."""
        asked = {TopicPartition(self._topic, partition): spec for partition in partitions}
        answers = self._admin.list_offsets(asked, request_timeout=ANSWER_S) if asked else {}
        return {partition.partition: answer.result().offset for partition, answer in answers.items()}

    def _raise(self, error: KafkaError) -> None:
        """Turn what cannot be waited out into an error; librdkafka tries the rest again by itself."""
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise SinkHistoryLostError("records are gone from the topic", topic=self._topic, reason=error.str())
        if error.fatal() or error.code() in _UNREADABLE:
            raise SinkTopicUnavailableError("topic cannot be read", topic=self._topic, reason=error.str())


def read_record(kafka: KafkaAccess, topic: str, group: str, partition: int, offset: int) -> SinkRecord:
    """Return one record of a topic.

    Raises:
        SinkHistoryLostError: it is gone.
        SinkTopicUnavailableError: Kafka does not answer, or no sorter has written it.
    """
    source = KafkaSource(kafka, topic, group)
    try:
        source.start({partition: offset})
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            for record in source.poll(0.1):
                if record.offset == offset:
                    return record
    finally:
        source.close()
    where = {"topic": topic, "partition": partition, "offset": offset}
    raise SinkTopicUnavailableError("record cannot be read", **where, waited_s=ANSWER_S)
