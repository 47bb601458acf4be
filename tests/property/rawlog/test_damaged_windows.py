"""Where Kafka's client meets damaged batches, who reads through them is told where, and who does not reads on.

The consumer is played as librdkafka was seen: an error for the batch, once, then errors with offsets that nobody has,
and nothing more of that partition until it is assigned anew.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pytest
from confluent_kafka import KafkaError, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from edges.kafka import offsets
from edges.kafka.offsets import TopicReader
from schemas.errors import CorruptDataError
from sorters.cut import record_window
from sorters.cut.record_window import RecordWindow
from sorters.service import raw_window
from sorters.service.raw_window import RawWindow

PARTITIONS, LENGTH, NOBODYS = 3, 24, 1 << 57
Ranges = Mapping[int, tuple[int, int]]
Draw = Callable[[int], int]


class Message:
    """A record, or an error."""

    def __init__(self, partition: int, offset: int, error: int | None = None) -> None:
        self._at, self._error = (partition, offset), error

    def partition(self) -> int:
        return self._at[0]

    def offset(self) -> int:
        return self._at[1]

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def value(self) -> bytes:
        return content(*self._at)

    def topic(self) -> str:
        return "raw"

    def headers(self) -> None:
        return None


class Consumer:
    """Over partitions of LENGTH records, one batch of some damaged; what it hands out, and of which, is drawn."""

    def __init__(self, damaged: Ranges, draw: Draw) -> None:
        self._damaged, self._draw = damaged, draw
        self._next: dict[int, int] = {}
        self._said: dict[int, deque[Message]] = {}
        """What is left to say of partitions that have met their damage."""

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._next = {assigned.partition: assigned.offset for assigned in partitions}
        late = {partition: left for partition, left in self._said.items() if left and partition in self._next}
        self._said = {}
        self._late = [left[-1] for left in late.values() if self._draw(2)]

    def unassign(self) -> None:
        self._next, self._said, self._late = {}, {}, []

    def poll(self, _timeout_s: float) -> Message | None:
        if self._late:
            return self._late.pop()
        ready = [at for at, offset in self._next.items() if self._said.get(at, offset < LENGTH)]
        return self._of(sorted(ready)[self._draw(len(ready))]) if ready else None

    def _of(self, partition: int) -> Message:
        if partition in self._said:
            return self._said[partition].popleft()
        offset = self._next[partition]
        first, end = self._damaged.get(partition, (LENGTH, LENGTH))
        if first <= offset < end:
            behind = [(NOBODYS, KafkaError._NOT_IMPLEMENTED), (NOBODYS + 1, KafkaError._AUTO_OFFSET_RESET)]
            self._said[partition] = deque(Message(partition, *each) for each in behind)
            return Message(partition, first, KafkaError._BAD_MSG)
        self._next[partition] += 1
        return Message(partition, offset)

    def consume(self, count: int, timeout: float) -> list[Message]:
        polled = (self.poll(timeout) for _ in range(self._draw(min(count, 8))))
        return [message for message in polled if message is not None]

    def close(self) -> None:
        """Nothing is held."""


def content(partition: int, offset: int) -> bytes:
    return b"%d-%d" % (partition, offset)


class Reader(Protocol):
    def read_all(self, ranges: Ranges) -> Iterator[tuple[int, int, bytes]]: ...


@contextmanager
def readers(kind: str, damaged: Ranges, draw: Draw) -> Iterator[Sequence[Reader]]:
    """Yield one reader, or two over one window."""

    def consumer(*_: object, **__: object) -> Consumer:
        return Consumer(damaged, draw)

    def looks(*_: object) -> None:
        raise AssertionError("the consumer has said it")

    with pytest.MonkeyPatch.context() as patch:
        for module in (offsets, record_window, raw_window):
            patch.setattr(module, "offsets_consumer", consumer)
        for module in (offsets, raw_window):
            patch.setattr(module, "damaged_batch", looks)
        if kind == "topic":
            yield [TopicReader({}, "raw", are_checked=True)]
        elif kind == "record window":
            yield [RecordWindow({}, "raw")]
        else:
            window = RawWindow({}, "raw")
            yield [window.reader(lambda: False) for _ in range(2)]


PLACES = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(lambda pair: (min(pair), max(pair)))
RANGES = st.dictionaries(st.integers(0, PARTITIONS - 1), PLACES, min_size=1)


@pytest.mark.parametrize("kind", ["topic", "record window", "raw window"])
@given(RANGES, st.lists(RANGES, min_size=1, max_size=6), st.data())
def test_who_needs_a_damaged_batch_is_told_where_and_all_others_get_their_records(
    kind: str, damaged: Ranges, reads: list[Ranges], data: Any
) -> None:
    def draw(ends: int) -> int:
        return data.draw(st.integers(0, ends - 1)) if ends else 0

    with readers(kind, damaged, draw) as each:
        for ranges in reads:
            reader, needed = each[draw(len(each))], set[tuple[int, int]]()
            for partition, (start, end) in ranges.items():
                first, upto = damaged.get(partition, (LENGTH, LENGTH))
                at = max(start, first)
                if at < min(end, upto):
                    needed.add((partition, at))
            if needed:
                with pytest.raises(CorruptDataError, match="a batch of records is damaged") as caught:
                    list(reader.read_all(ranges))
                assert (caught.value.fields["partition"], caught.value.fields["offset"]) in needed
            else:
                taken = sorted(reader.read_all(ranges))
                assert taken == [
                    (partition, at, content(partition, at))
                    for partition, (start, end) in sorted(ranges.items())
                    for at in range(start, end)
                ]
