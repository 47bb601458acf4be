"""Reads the frontier topic on the driver (docs/decisions/2026-11-22-small-cuts-on-the-driver.md)."""

from collections.abc import Iterator, Mapping

from confluent_kafka import TopicPartition

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord, decode_frontier, follow_frontier
from sorters.log.failures import HistoryLostError
from sorters.log.topic_reader import NextRecords, TopicReader, offsets_consumer

LOOK_BACK_RECORDS = 256
"""Records before an epoch from which the record before it is found. One would do but for records of a replaced owner:
those end within its lease, some tens of records."""
_FETCH_WAIT_MS = 500
"""A fetch that has nothing to bring waits so long at the broker; what is published meanwhile it brings at once."""


class FrontierReader:
    """The frontier topic by offset."""

    def __init__(self, config: Mapping[str, str], topic: str) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL."""
        self._reader = TopicReader(config, topic)

    def close(self) -> None:
        self._reader.close()

    def record_before(self, offset: int) -> FrontierRecord:
        """Return where a reader stands that has read everything below ``offset``.

        Raises:
            HistoryLostError: no record before ``offset`` is left.
        """
        first, _ = self._reader.bounds()
        followed: FrontierRecord | None = None
        for record in self.read(max(first, offset - LOOK_BACK_RECORDS), offset):
            followed = follow_frontier(followed, record)
        if followed is None:
            raise HistoryLostError(
                "frontier record before the epoch is gone",
                topic=self._reader.topic,
                offset=offset,
                oldest_ts=self.oldest_ts(),
            )
        return followed

    def end(self) -> int:
        """Return the offset after the last record."""
        return self._reader.bounds()[1]

    def oldest_ts(self) -> Ts | None:
        """Return the resolved_ts of the first record that is left; None: there is none."""
        first, end = self._reader.bounds()
        return next(self.read(first, first + 1)).resolved_ts if end > first else None

    def read(self, start: int, end: int) -> Iterator[FrontierRecord]:
        """Yield the records at offsets ``[start, end)``.

        Raises:
            CorruptDataError: one does not decode.
            HistoryLostError, KafkaUnreachableError: see :meth:`TopicReader.read`.
        """
        for offset, value in self._reader.read(start, end):
            yield _decoded(value, self._reader.topic, offset)

    def find(self, after_ts: Ts) -> int:
        """Return the offset after the last record with ``resolved_ts <= after_ts``: where a changefeed starts to read.

        Binary search: resolved_ts does not go back but for records of replaced owners, which :meth:`record_before`
        sorts out.

        Raises:
            HistoryLostError: the first record that is left is above ``after_ts``, or none is left.
        """
        first, end = self._reader.bounds()
        low, high = first, end
        while low < high:
            middle = (low + high) // 2
            if next(self.read(middle, middle + 1)).resolved_ts <= after_ts:
                low = middle + 1
            else:
                high = middle
        if low == first and end > 0:
            raise HistoryLostError(
                "raw log starts above the checkpoint; a changefeed can go on only by a new snapshot of its tables",
                topic=self._reader.topic,
                checkpoint_ts=after_ts,
                oldest_ts=self.oldest_ts(),
            )
        return low


class FrontierTail:
    """Follows the frontier topic from an offset on; a context manager."""

    def __init__(self, config: Mapping[str, str], topic: str, start: int) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL."""
        self._topic, self._at = topic, {0: start}
        self._consumer = offsets_consumer(config, topic, fetch_wait_ms=_FETCH_WAIT_MS)
        self._records = NextRecords(self._consumer, topic, self._at, lambda: False)

    def __enter__(self) -> "FrontierTail":
        self._consumer.assign([TopicPartition(self._topic, 0, self._at[0])])
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, count: int, timeout_s: float) -> list[FrontierRecord]:
        """Return the next records, up to ``count``, as soon as there are any; none after ``timeout_s``.

        Raises:
            CorruptDataError: one does not decode.
            HistoryLostError: they are gone.
        """
        return [_decoded(value, self._topic, offset) for _, offset, value in self._records.peek(count, timeout_s)]


def _decoded(value: bytes, topic: str, offset: int) -> FrontierRecord:
    try:
        return decode_frontier(value)
    except CorruptDataError as error:
        error.fields.update(topic=topic, offset=offset)
        raise
