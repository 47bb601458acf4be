"""Reads through a window give what the topic holds, however they overlap, and seek only where they must."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from schemas.rawlog.region_batch import RECORD_OVERHEAD_BYTES
from sorters.cut import record_window
from sorters.cut.record_window import RecordWindow

PARTITIONS, LENGTH = 2, 30


@dataclass(frozen=True)
class Message:
    at: tuple[int, int]

    def partition(self) -> int:
        return self.at[0]

    def offset(self) -> int:
        return self.at[1]

    def value(self) -> bytes:
        return repr(self.at).encode()

    def topic(self) -> str:
        return "raw"

    def headers(self) -> None:
        return None

    def error(self) -> None:
        return None


class Topic:
    """A consumer over partitions of LENGTH records; what it hands out at once, and of which partition, is drawn."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw
        self._next: dict[int, int] = {}
        self.seeks = 0

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._next = {assigned.partition: assigned.offset for assigned in partitions}
        self.seeks += 1

    def poll(self, _timeout: float) -> Message | None:
        ready = [partition for partition, at in sorted(self._next.items()) if at < LENGTH]
        if not ready:
            return None
        partition = ready[self._draw(len(ready))]
        self._next[partition] += 1
        return Message((partition, self._next[partition] - 1))

    def consume(self, count: int, timeout: float) -> list[Message]:
        polled = (self.poll(timeout) for _ in range(self._draw(min(count, 8))))
        return [message for message in polled if message is not None]

    def close(self) -> None:
        pass


RANGES = st.dictionaries(
    st.integers(0, PARTITIONS - 1),
    st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(lambda pair: (min(pair), max(pair))),
)


def over(topic: Topic) -> RecordWindow:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_window, "offsets_consumer", lambda *_, **__: topic)
        return RecordWindow({}, "raw")


def read(window: RecordWindow, ranges: dict[int, tuple[int, int]]) -> dict[int, list[tuple[int, bytes]]]:
    records: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in ranges}
    for partition, offset, value in window.read_all(ranges):
        records[partition].append((offset, value))
    return records


def held(ranges: dict[int, tuple[int, int]]) -> dict[int, list[tuple[int, bytes]]]:
    return {p: [(offset, repr((p, offset)).encode()) for offset in range(*pair)] for p, pair in ranges.items()}


@pytest.mark.parametrize("held_max", [record_window.AHEAD_BYTES_MAX, 3 * RECORD_OVERHEAD_BYTES])
@given(st.lists(RANGES, max_size=6), st.data())
def test_window_any_ranges_one_after_the_other_gives_their_records_in_order(
    held_max: int, reads: list[dict[int, tuple[int, int]]], data: Any
) -> None:
    window = over(Topic(lambda ends: data.draw(st.integers(0, ends - 1)) if ends else 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_window, "AHEAD_BYTES_MAX", held_max)
        for ranges in reads:
            assert read(window, ranges) == held(ranges)


def test_window_reads_of_one_partition_hold_no_more_of_the_others_than_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_window, "AHEAD_BYTES_MAX", 3 * RECORD_OVERHEAD_BYTES)
    topic = Topic(lambda ends: min(ends - 1, 2))  # three at once, of the last partition while that has some
    window = over(topic)
    assert read(window, {0: (0, 1), 1: (0, 1)}) == held({0: (0, 1), 1: (0, 1)})
    assert len(window._held.get(1, ())) <= 3, "while the other one gives nothing"
    for end in range(2, LENGTH):
        assert read(window, {0: (0, end)}) == held({0: (0, end)})
        assert len(window._held.get(1, ())) <= 3, "though only the other one is read"
    assert topic.seeks == 2
    ranges = {0: (5, LENGTH), 1: (1, LENGTH)}
    assert read(window, ranges) == held(ranges)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8), st.data())
def test_window_reads_that_go_on_within_the_one_before_seek_once(steps: list[tuple[int, int]], data: Any) -> None:
    topic = Topic(lambda ends: data.draw(st.integers(0, ends - 1)) if ends else 0)
    window, start, end = over(topic), 0, 1
    for back, on in steps:
        ranges = dict.fromkeys(range(PARTITIONS), (start, end))
        assert read(window, ranges) == held(ranges)
        start, end = max(start, end - back), min(end + on, LENGTH)
    assert topic.seeks <= 1


@given(st.lists(st.tuples(RANGES, st.integers(0, LENGTH)), max_size=6), RANGES, st.data())
def test_window_reads_that_are_given_up_leave_nothing_out(
    given_up: list[tuple[dict[int, tuple[int, int]], int]], ranges: dict[int, tuple[int, int]], data: Any
) -> None:
    window = over(Topic(lambda ends: data.draw(st.integers(0, ends - 1)) if ends else 0))
    for before, count in given_up:
        records = window.read_all(before)
        assert len(list(islice(records, count))) <= count
    assert read(window, ranges) == held(ranges)
