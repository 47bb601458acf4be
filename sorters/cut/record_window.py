"""Follows a topic's newest records for reads that overlap: what one has read is kept for the next.

A small cut reads from the frontier's low on, which stands some records below where the cut before has ended. Reading
them again from the broker would mean a seek in each cut; and while a fetch waits at the broker for records to come,
a seek waits with it. Here the consumer only ever goes on, and a cut's records are mostly here before it is asked for.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from edges.kafka.offsets import NextRecords, offsets_consumer
from schemas.errors import BusError
from schemas.rawlog.record_check import RawRecord
from schemas.rawlog.region_batch import RECORD_OVERHEAD_BYTES
from sorters.core.cut.cut import Cut
from sorters.cut.raw_cut import RawCut, read_cut

AHEAD_BYTES_MAX = 96 * 1024 * 1024
"""Memory of records that are held for reads to come, beside what a read still waits for. While one partition gives
nothing, as where its leader moves or its low stands still, all others of the log would be read into memory."""
_CONSUME_MAX = 1_000
_FETCH_WAIT_MS = 100
"""How long an idle fetch waits at the broker: ten requests a second, and what a seek may wait for."""

Record = tuple[int, bytes]
"""Offset and value."""


class RecordWindow:
    """One consumer, assigned and never subscribed, and those records of the last read that stand above its starts."""

    def __init__(
        self, config: Mapping[str, object], topic: str, *, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL; ``stopped`` gives up a read that is under way."""
        self.topic = topic
        self._held: dict[int, deque[Record]] = {}
        self._bytes: dict[int, int] = {}
        """Of the records in ``_held``."""
        self._next: dict[int, int] = {}
        """Partition → offset of the next message that the consumer will hand out; ``_held`` ends just below it."""
        self._consumer = offsets_consumer(config, topic, fetch_wait_ms=_FETCH_WAIT_MS, are_checked=True)
        self._records = NextRecords(
            self._consumer,
            topic,
            self._next,
            stopped,
            record_of=RawRecord.of,
            config=config,
            are_checked=True,
        )

    @classmethod
    def maker(cls, config: Mapping[str, object], topic: str) -> "Callable[[Callable[[], bool]], RecordWindow]":
        """Return what makes one, of the function that stops it."""
        return lambda stopped: cls(config, topic, stopped=stopped)

    def close(self) -> None:
        self._consumer.close()

    def read_cut(self, cut: Cut, raw_bytes_max: int) -> RawCut | None:
        """See :class:`~sorters.cut.raw_cut.RawReader`."""
        return read_cut(self, cut, raw_bytes_max)

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        """Yield ``(partition, offset, value)`` for the offsets ``[start, end)`` of each partition, which must have been
        written; those of one partition in their order. What stands below the starts is forgotten.

        Raises:
            KafkaUnreachableError: the broker does not hand them out in time.
            HistoryLostError: they are gone.
            CorruptDataError: a batch of them is damaged.
        """
        wanted = {partition: pair for partition, pair in ranges.items() if pair[1] > pair[0]}
        self._go_to({partition: start for partition, (start, _) in wanted.items()})
        for partition, (_, end) in wanted.items():
            for offset, value in list(self._held[partition]):
                if offset < end:
                    yield partition, offset, value
        missing = {partition for partition, (_, end) in wanted.items() if self._next[partition] < end}
        self._records.expect()
        try:
            yield from self._bring(wanted, missing)
        except BusError:  # the next one may want other partitions, or go past what is damaged
            self._held.clear()
            self._bytes.clear()
            self._next.clear()
            raise

    def _bring(self, wanted: Mapping[int, tuple[int, int]], missing: set[int]) -> Iterator[tuple[int, int, bytes]]:
        while missing:
            taken = self._records.take(_CONSUME_MAX, missing)
            for partition, offset, value in taken:  # all, before a reader may stop: they do not come again
                self._held[partition].append((offset, value))
                self._bytes[partition] += len(value) + RECORD_OVERHEAD_BYTES
            self._stay_within(missing)
            for partition, offset, value in taken:
                if partition not in wanted:
                    continue
                _, end = wanted[partition]
                if offset < end:
                    yield partition, offset, value
                if offset + 1 >= end:
                    missing.discard(partition)

    def _stay_within(self, missing: set[int]) -> None:
        """Forget what is held of other partitions, if that is too much, and bring no more of them in this read."""
        others = self._held.keys() - missing
        if sum(self._bytes[partition] for partition in others) <= AHEAD_BYTES_MAX:
            return
        for partition in others:
            del self._held[partition], self._bytes[partition], self._next[partition]
        self._records.assign()

    def _go_to(self, starts: Mapping[int, int]) -> None:
        """Forget what stands below the starts; seek where what follows is not at hand."""
        moved = False
        for partition, start in starts.items():
            held = self._held.setdefault(partition, deque())
            self._bytes.setdefault(partition, 0)
            while held and held[0][0] < start:
                self._bytes[partition] -= len(held.popleft()[1]) + RECORD_OVERHEAD_BYTES
            first = held[0][0] if held else self._next.get(partition)
            if first != start:
                held.clear()
                self._bytes[partition] = 0
                self._next[partition] = start
                moved = True
        if moved:
            self._records.assign()
