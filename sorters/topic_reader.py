"""Reads records of a topic by offset, without a group: on the driver, and in the tasks that read the raw log."""

import time
from collections.abc import Callable, Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sorters.failures import HistoryLostError, KafkaUnreachableError

READ_TIMEOUT_S = 30.0
"""How long the broker may take to hand out records that are known to exist, before the read fails and is retried."""
GONE_ERRORS = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""What a consumer with ``auto.offset.reset=error`` says of offsets that retention has passed."""
_CONSUME_MAX = 64
_CONSUME_S = 0.005
"""``consume`` waits for as many messages as it may return, or so long: whatever has come by then is taken."""
_AHEAD_KIB = 16 * 1024
"""What a consumer fetches before it is asked for, which is also what it fetches in vain beyond the end of a read."""


class TopicReader:
    """One consumer, assigned and never subscribed; reads that follow one another go on without a seek."""

    def __init__(
        self, config: Mapping[str, str], topic: str, *, follow: bool = True, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL.

        Args:
            follow: fetch what comes after a read, for the next one will ask for it.
            stopped: gives up a read that is under way.
        """
        self.topic = topic
        self._follow, self._stopped = follow, stopped
        self._stand: dict[int, int] = {}
        """Partition → offset of the next message that the consumer will hand out, where that is known."""
        self._consumer = Consumer(
            {
                **config,
                "group.id": f"tidebus-read-{topic}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 10,
                "queued.max.messages.kbytes": _AHEAD_KIB,
                "fetch.queue.backoff.ms": 5,  # by default a full queue stops fetching for a whole second
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def bounds(self, partition: int = 0) -> tuple[int, int]:
        """Return the first offset that a partition still holds, and the one after its last.

        Raises:
            KafkaUnreachableError: the broker does not answer, or the topic is not there (yet).
        """
        try:
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(self.topic, partition), timeout=READ_TIMEOUT_S
            )
        except KafkaException as error:
            raise KafkaUnreachableError("topic is not readable", topic=self.topic, reason=error) from error
        return int(low), int(high)

    def read(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield ``(offset, value)`` for offsets ``[start, end)`` of a topic's one partition; see :meth:`read_all`."""
        for _, offset, value in self.read_all({0: (start, end)}):
            yield offset, value

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        """Yield ``(partition, offset, value)`` for the offsets ``[start, end)`` of each partition, which must have been
        written; those of one partition in their order.

        Raises:
            KafkaUnreachableError: the broker does not hand them out in time.
            HistoryLostError: they are gone.
        """
        wanted = {partition: pair for partition, pair in ranges.items() if pair[1] > pair[0]}
        # A read that is not gone through to its end has taken more from the consumer than it has handed on.
        stand, self._stand = self._stand, {}
        if any(stand.get(partition) != start for partition, (start, _) in wanted.items()):
            stand = {partition: start for partition, (start, _) in wanted.items()}
            self._consumer.assign([TopicPartition(self.topic, *place) for place in stand.items()])
        missing = sum(end - start for start, end in wanted.values())
        deadline, reason = time.monotonic() + READ_TIMEOUT_S, None
        while missing:
            for message in self._consumer.consume(min(missing, _CONSUME_MAX), timeout=_CONSUME_S):
                if message.error() is not None:
                    reason = message.error()
                    if reason.code() in GONE_ERRORS:
                        raise HistoryLostError("records are gone", topic=self.topic, at=stand, reason=reason)
                elif self._is_next(stand, message.partition(), message.offset(), wanted):
                    missing -= 1
                    deadline = time.monotonic() + READ_TIMEOUT_S
                    yield message.partition(), message.offset(), message.value() or b""
            if missing and (self._stopped() or time.monotonic() > deadline):
                raise KafkaUnreachableError("records did not come", topic=self.topic, at=stand, reason=reason)
        if self._follow:
            self._stand = stand
        elif wanted:
            self._consumer.unassign()

    def _is_next(
        self, stand: dict[int, int], partition: int, offset: int, wanted: Mapping[int, tuple[int, int]]
    ) -> bool:
        """Tell whether a message is one to hand on, and note how far its partition has been read."""
        at = stand.get(partition)
        if at is None or offset < at:
            return False
        if partition not in wanted or offset >= wanted[partition][1]:
            del stand[partition]  # read ahead and dropped: who wants it later must seek
            return False
        if offset > at:  # a topic of ours has no gaps; were the records deleted, reading them again says so
            raise KafkaUnreachableError("records were passed over", topic=self.topic, partition=partition, at=at)
        stand[partition] = offset + 1
        return True
