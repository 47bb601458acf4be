"""The window over a raw topic: read once for all, by a consumer of its own only what is not kept any more."""

import threading
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from edges.kafka.errors import KafkaUnreachableError
from schemas.errors import CorruptDataError
from schemas.rawlog.region_batch import RECORD_OVERHEAD_BYTES, SharedRecord
from sorters.service import raw_window
from sorters.service.raw_window import RawWindow, WindowReader

RECORD_BYTES = 10 + RECORD_OVERHEAD_BYTES
Ranges = dict[int, tuple[int, int]]


class Topic:
    """Two partitions; what each consumer of it has done."""

    def __init__(self) -> None:
        self.ends = {0: 100, 1: 100}
        self.shared = Consumer(self)
        self.alone: list[Ranges] = []


class Consumer:
    """Hands out a topic's records, some at a time."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.at: dict[int, int] = {}
        self.assigned: list[dict[int, int]] = []

    def assign(self, partitions: list[Any]) -> None:
        self.at = {each.partition: each.offset for each in partitions}
        self.assigned.append(dict(self.at))

    def poll(self, _timeout_s: float) -> Any:
        return next(self._next(), None)

    def consume(self, count: int, timeout: float) -> list[Any]:
        return list(islice(self._next(), min(count, 6)))

    def _next(self) -> Iterator[Any]:
        for partition in sorted(self.at):
            while self.at[partition] < self._topic.ends[partition]:
                offset = self.at[partition]
                self.at[partition] += 1
                yield SimpleNamespace(
                    error=lambda: None,
                    topic=lambda: "raw",
                    headers=lambda: None,
                    partition=lambda partition=partition: partition,
                    offset=lambda offset=offset: offset,
                    value=lambda partition=partition, offset=offset: content(partition, offset),
                )

    def close(self) -> None:
        """Nothing is held."""


def content(partition: int, offset: int) -> bytes:
    return b"%04d-%05d" % (partition, offset)


def whole(ranges: Ranges) -> list[tuple[int, int, bytes]]:
    return [(partition, at, content(partition, at)) for partition, (start, end) in ranges.items()
            for at in range(start, end)]  # fmt: skip


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()

    class Alone:
        def read_all(self, ranges: Ranges) -> Iterator[tuple[int, int, bytes]]:
            topic.alone.append(dict(ranges))
            yield from whole(ranges)

        def close(self) -> None:
            """Nothing is held."""

    monkeypatch.setattr(raw_window, "offsets_consumer", lambda *_, **__: topic.shared)
    monkeypatch.setattr(raw_window, "RecordWindow", lambda *_, **__: Alone())
    return topic


def reader(window: RawWindow) -> WindowReader:
    return window.reader(lambda: False)


def read(by: WindowReader, ranges: Ranges) -> list[tuple[int, int, bytes]]:
    return sorted(by.read_all(ranges))


def test_what_one_has_read_is_kept_for_the_others(topic: Topic) -> None:
    window, ranges = RawWindow({}, "raw"), {0: (10, 40), 1: (20, 30)}
    assert read(reader(window), ranges) == whole(ranges)
    positions = dict(topic.shared.at)
    later = {0: (20, 40), 1: (20, 25)}
    shared = read(reader(window), later)
    assert shared == whole(later)
    assert all(isinstance(value, SharedRecord) for _, _, value in shared)
    assert (topic.shared.at, topic.alone) == (positions, [])


@pytest.mark.parametrize("is_damaged", [True, False])
def test_partition_that_brings_nothing_ends_its_readers_though_others_go_on(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    looked: list[tuple[object, ...]] = []
    damage = CorruptDataError("a batch of records is damaged")

    def look(*where: object) -> CorruptDataError | None:
        looked.append(where)
        return damage if is_damaged else None

    monkeypatch.setattr(raw_window, "damaged_batch", look)
    monkeypatch.setattr(raw_window, "READ_TIMEOUT_S", 0.02)
    topic.ends = {0: 1 << 40, 1: 5}
    window = RawWindow({}, "raw")
    assert read(reader(window), {0: (0, 10)}) == whole({0: (0, 10)})
    with pytest.raises(CorruptDataError if is_damaged else KafkaUnreachableError):
        read(reader(window), {1: (5, 9)})
    assert looked == [({}, "raw", {1: 5})]
    further = window._kept[0].next
    assert read(reader(window), {0: (further - 5, further)}) == whole({0: (further - 5, further)})
    assert topic.alone == []


def test_who_begins_a_little_ahead_takes_nothing_from_those_behind(topic: Topic) -> None:
    window = RawWindow({}, "raw")
    behind, ahead = reader(window), reader(window)
    assert read(behind, {0: (10, 20)}) == whole({0: (10, 20)})
    assert read(ahead, {0: (60, 70)}) == whole({0: (60, 70)})
    assert read(behind, {0: (20, 60)}) == whole({0: (20, 60)})
    assert topic.alone == []
    assert topic.shared.assigned == [{0: 10}]


def test_who_begins_far_ahead_lets_the_window_jump(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_window, "JUMP_RECORDS", 20)
    window = RawWindow({}, "raw")
    behind = reader(window)
    assert read(behind, {0: (10, 20)}) == whole({0: (10, 20)})
    assert read(reader(window), {0: (80, 90)}) == whole({0: (80, 90)})
    assert topic.shared.assigned == [{0: 10}, {0: 80}]
    assert read(behind, {0: (15, 85)}) == whole({0: (15, 85)})
    assert topic.alone == [{0: (15, 80)}], "what is kept is read here all the same"
    assert read(behind, {0: (85, 95)}) == whole({0: (85, 95)})
    assert len(topic.alone) == 1


def test_who_is_behind_in_one_partition_reads_that_alone_and_the_others_here(topic: Topic) -> None:
    window = RawWindow({}, "raw", bytes_max=20 * RECORD_BYTES)
    assert read(reader(window), {1: (0, 5)}) == whole({1: (0, 5)})
    assert read(reader(window), {0: (0, 60)}) == whole({0: (0, 60)})
    first, next_of_other = window.first(0, 0), window.first(1, 0)
    assert 0 < first <= 60
    ranges = {0: (0, 60), 1: (next_of_other, next_of_other + 2)}
    assert read(reader(window), ranges) == whole(ranges)
    assert topic.alone == [{0: (0, first)}]


def test_records_that_come_at_once_beyond_what_is_kept_are_read_alone(topic: Topic) -> None:
    window = RawWindow({}, "raw", bytes_max=3 * RECORD_BYTES)
    assert read(reader(window), {0: (0, 30)}) == whole({0: (0, 30)})
    assert topic.alone


def test_many_readers_at_once_each_get_all(topic: Topic) -> None:
    window, ranges = RawWindow({}, "raw"), {0: (0, 100), 1: (0, 100)}
    taken: list[list[tuple[int, int, bytes]]] = []
    threads = [threading.Thread(target=lambda: taken.append(read(reader(window), ranges))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert taken == [whole(ranges)] * 8
    assert topic.alone == []
