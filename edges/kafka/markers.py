"""Records that Kafka itself puts into a topic, at the end of somebody's transaction: offsets of which nothing is ever
handed out. No program of ours has transactions, but a stranger's may write into the wrong topic.
"""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TopicPartition

from edges.kafka.clients import kafka_consumer

READS_ALL: Final = {"isolation.level": "read_uncommitted"}
"""Of consumers that want each record as it stands: a stranger's open transaction would hide all that is behind it."""
_LOOK_S: Final = 5.0
_POLL_S: Final = 0.05
_ALONE: Final = {
    "fetch.message.max.bytes": 1,
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 1_000,
    "fetch.wait.max.ms": 10,
    "enable.partition.eof": True,
}
"""A fetch of a byte brings the one batch that begins there; where that waits to be taken, there is no further fetch."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What stands for such a record: a message without a value."""

    at: tuple[str, int, int]
    """Topic, partition and offset."""

    def topic(self) -> str:
        return self.at[0]

    def partition(self) -> int:
        return self.at[1]

    def offset(self) -> int:
        return self.at[2]

    def value(self) -> None:
        return None

    headers = value


def is_marker(config: Mapping[str, object], topic: str, partition: int, offset: int) -> bool:
    """Tell whether such a record stands at an offset. A consumer's position passes it, and no more, without a message:
    so it is told from an offset whose record is gone, which a position passes with what comes behind it only.

    ``config`` is librdkafka's: servers, TLS, SASL. False, too, where no answer comes.
    """
    own = {"group.id": f"tidebus-read-{topic}", "enable.auto.commit": False, "auto.offset.reset": "error"}
    with closing(kafka_consumer({**config, **own, **READS_ALL, **_ALONE})) as consumer:
        consumer.assign([TopicPartition(topic, partition, offset)])
        deadline = time.monotonic() + _LOOK_S
        while time.monotonic() < deadline:
            message = consumer.poll(0)
            if message is not None and message.error() is None:
                return False
            (position,) = consumer.position([TopicPartition(topic, partition)])
            if position.offset > offset:
                return bool(position.offset == offset + 1)
            if message is not None:
                return False  # the end, or a broker in trouble
            time.sleep(_POLL_S)
    return False
