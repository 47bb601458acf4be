"""Reads the frontier topic on the driver (docs/decisions/2026-11-22-small-cuts-on-the-driver.md)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce

from edges.kafka.offsets import TopicReader
from edges.kafka.tail import decoded_frontier
from schemas.ids import Ts
from schemas.rawlog.frontier import NOBODYS, FrontierRecord, follow_frontier
from sorters.log.failures import HistoryLostError

LOOK_BACK_RECORDS = 256
"""Records before an epoch from which the record before it is found. One would do but for records of a replaced owner:
those end within its lease, some tens of records."""


def stands_after(records: Iterable[FrontierRecord]) -> FrontierRecord | None:
    """Return where a reader stands that has read some records; None: there are none."""
    start: FrontierRecord | None = None
    return reduce(follow_frontier, records, start)


def find_after(
    after_ts: Ts,
    first: int,
    end: int,
    record_at: Callable[[int], FrontierRecord],
    read: Callable[[int, int], Iterable[FrontierRecord]],
) -> int:
    """Return an offset in ``[first, end]`` below which nothing brings a reader above ``after_ts``, mostly the last one;
    ``first``: there is none.

    ``record_at`` gives the record at an offset, ``read`` those at ``[start, end)``.

    Binary search, as resolved_ts mostly does not go back. It does where an owner did not hear that a record had landed
    and says once more where it stood, and where the record of a replaced owner comes late. There the search may end
    behind the higher one, with ``90`` of ``85, 90, 85, 95`` for 85: so it is followed back to below it.
    """
    offset = _search(after_ts, first, end, record_at)
    while offset > first:
        start = max(first, offset - LOOK_BACK_RECORDS)
        allowed = start + _standing_at_most(after_ts, read(start, offset))
        if allowed == offset:
            break
        offset = allowed  # what stands before these is looked at as well, as record_before will
    return offset


def _search(after_ts: Ts, first: int, end: int, record_at: Callable[[int], FrontierRecord]) -> int:
    low, high = first, end
    while low < high:
        middle = at = (low + high) // 2
        while at < high and (record := record_at(at)) is NOBODYS:
            at += 1
        if at < high and record.resolved_ts <= after_ts:
            low = at + 1
        else:
            high = middle
    return low


def _standing_at_most(after_ts: Ts, records: Iterable[FrontierRecord]) -> int:
    """Return how many of the records, from the first one on, leave a reader of them at or below ``after_ts``."""
    count, stands = 0, None
    for count, record in enumerate(records, 1):
        stands = follow_frontier(stands, record)
        if stands.resolved_ts > after_ts:
            return count - 1
    return count


class FrontierReader:
    """The frontier topic by offset."""

    def __init__(self, config: Mapping[str, object], topic: str) -> None:
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
        followed = stands_after(self.read(max(first, offset - LOOK_BACK_RECORDS), offset))
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

    def first(self) -> int:
        """Return the offset of the first record that is left."""
        return self._reader.bounds()[0]

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
            yield decoded_frontier(value, self._reader.topic, offset)

    def find(self, after_ts: Ts) -> int:
        """Return the offset from which a changefeed reads that goes on from ``after_ts``: a reader of all below it
        stands at or below that.

        Raises:
            HistoryLostError: the first record that is left is above ``after_ts``, or none is left.
        """
        first, end = self._reader.bounds()
        offset = find_after(after_ts, first, end, lambda at: next(self.read(at, at + 1)), self.read)
        if offset == first and end > 0:
            raise HistoryLostError(
                "raw log starts above the checkpoint; a changefeed can go on only by a new snapshot of its tables",
                topic=self._reader.topic,
                checkpoint_ts=after_ts,
                oldest_ts=self.oldest_ts(),
            )
        return offset
