"""Lines of a storage sink that wait for partition 0, and those that do not."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from consumers.control.core.replication.messages import Barrier
from consumers.processors.core.apply.executor import Work, WorkOrder
from consumers.processors.core.storage.partition import NotedEnd, PartitionLines
from consumers.processors.core.storage.paths import PathForm
from consumers.processors.sink_source import SinkRecord
from consumers.processors.storage import run as storage_run
from consumers.processors.storage.room import Room
from consumers.processors.storage.run import StorageRun, StorageSettings
from schemas.ids import Ts
from schemas.sink.storage_rows import FolderForm, encode_folder
from tests.property.processors.test_storage_run import ListSource, MemoryStore
from tests.support.topics.storage_topic import START_TS, Topic, message, position, schema_file, visible, watermark

ROOM = 100_000
ROWS_EACH = 1_000
LINE = b"x" * 999 + b"\n"
DDL_TS = 5_000
SETTINGS = StorageSettings(
    changefeed="default.f.1",
    paths=PathForm(extension="csv", date_separator="none", file_index_digit=6),
    start_ts=START_TS,
    worker_count=2,
)


class PausableSource(ListSource):
    """All partitions side by side, a row each, but those that are paused."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(topic, random.Random(1), flows=False)
        self.paused = set[int]()

    def poll(self, timeout_s: float) -> list[SinkRecord]:
        if not self.flows:
            return []
        records = []
        for number, at in sorted(self._at.items()):
            if number not in self.paused and at < len(self._topic[number]):
                records.append(self._topic[number][at])
                self._at[number] += 1
        return records

    def pause(self, partition: int) -> None:
        assert partition not in self.paused
        self.paused.add(partition)

    def resume(self, partition: int) -> None:
        self.paused.remove(partition)


def row(number: int, offset: int, ts: int, table: str, version: int) -> SinkRecord:
    key = b"%06d" % ts
    form = encode_folder(FolderForm("s", table, Ts(version)))
    return SinkRecord(number, offset, position(ts, key), form, message([(ts, key, LINE)]))


def behind_a_ddl() -> Topic:
    """Partition 0 has rows before a DDL, the other one behind it."""
    first = [row(0, at, 20 + at, "hot", 10) for at in range(ROWS_EACH)]
    for key, value, where in (schema_file(DDL_TS, "new", is_ddl=True), watermark(DDL_TS)):
        first.append(SinkRecord(0, len(first), where, key, value))
    second = [row(1, at, DDL_TS + 1 + at, "new", DDL_TS) for at in range(ROWS_EACH)]
    for records, number in ((first, 0), (second, 1)):
        key, value, where = watermark(DDL_TS + ROWS_EACH + 1)
        records.append(SinkRecord(number, len(records), where, key, value))
    return {0: first, 1: second}


def opened(source: ListSource, store: MemoryStore, partitions: tuple[int, ...]) -> StorageRun:
    """Return a run that has taken partitions over; no time goes on, so nothing is due for a flush."""
    now = datetime(2026, 1, 2, tzinfo=UTC)
    run = StorageRun(source, store, SETTINGS, clock=lambda: 0.0, now=lambda: now)
    take_over(run, source, partitions)
    return run


def take_over(run: StorageRun, source: ListSource, partitions: tuple[int, ...]) -> None:
    source.flows = False
    for work in (Work.LOCATE, Work.OPEN):
        left = [WorkOrder(work, partition, 1, revision=1) for partition in partitions]
        run.obey(left)
        while left:
            done = run.turn(Barrier(Ts(0)), is_restless=True)
            left = [order for order in left if order not in done]
    source.flows = True


@pytest.fixture
def _small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_run, "WAITING_BYTES_MAX", ROOM)


@pytest.mark.usefixtures("_small_room")
def test_partition_behind_a_ddl_waits_unread_and_the_hot_one_gets_no_tiny_files() -> None:
    store, source = MemoryStore(), PausableSource(behind_a_ddl())
    run = opened(source, store, (0, 1))
    most, was_paused = 0, False
    while not source.is_at_end:
        run.turn(Barrier(Ts(0)), is_restless=False)
        most = max(most, sum(lines.bytes_total for lines in run.partitions.values()))
        was_paused |= source.paused == {1}
        assert 0 not in source.paused
    assert was_paused
    assert most < ROOM + 2 * (len(LINE) + 100)
    assert not source.paused
    sizes = [len(content) for path, content in sorted(store.files.items()) if path.endswith(".csv")]
    whole = [size for size in sizes if size > ROOM // 2 - 2 * len(LINE)]
    assert len(whole) >= len(sizes) - 1, "what is left of a table is written with the next one's"
    run.flush()
    run.close()
    assert {table: len(lines) for table, lines in visible(store.files).items()} == {
        ("s", "hot"): ROWS_EACH,
        ("s", "new"): ROWS_EACH,
    }


@pytest.mark.usefixtures("_small_room")
def test_paused_partition_that_goes_and_comes_again_is_read() -> None:
    topic = behind_a_ddl()
    store, source = MemoryStore(), PausableSource({1: topic[1]})
    run = opened(source, store, (1,))
    while not source.paused:
        assert not source.is_at_end
        run.turn(Barrier(Ts(0), schemas_ts=Ts(DDL_TS - 1)), is_restless=False)
    for work in (Work.END, Work.FORGET):
        run.obey([WorkOrder(work, 1, 2)])
        run.turn(Barrier(Ts(0)), is_restless=False)
    assert not any(path.endswith(".csv") for path in store.files), "partition 0 has not come to the table's version"
    source.paused.clear()  # as a consumer that begins to read a partition
    take_over(run, source, (1,))
    while not source.paused:
        assert not source.is_at_end
        run.turn(Barrier(Ts(0), schemas_ts=Ts(DDL_TS - 1)), is_restless=False)
    while not source.is_at_end:
        run.turn(Barrier(Ts(0), schemas_ts=Ts(DDL_TS)), is_restless=False)
    run.flush()
    run.close()
    assert len(visible(store.files)["s", "new"]) == ROWS_EACH


class Pauses:
    """Only that part of a source."""

    def __init__(self) -> None:
        self.paused = set[int]()

    def pause(self, partition: int) -> None:
        self.paused.add(partition)

    def resume(self, partition: int) -> None:
        self.paused.remove(partition)

    def check(self, offsets: Mapping[int, int]) -> None: ...
    def begin(self, offsets: Mapping[int, int]) -> None: ...
    def end(self, partition: int) -> None: ...
    def poll(self, timeout_s: float) -> list[SinkRecord]:
        return []

    def note(self, offsets: Mapping[int, int]) -> None: ...
    def close(self) -> None: ...


class Waiting:
    """A room of 100 bytes, and what waits in it: bytes by partition, and which of them are held."""

    def __init__(self) -> None:
        self.source = Pauses()
        self.room = Room(self.source, 100)

    def is_full(self, sizes: Mapping[int, int], held: str = "") -> bool:
        partitions = {number: PartitionLines.at(NotedEnd()) for number in sizes}
        for number, size in sizes.items():
            partitions[number].bytes_total = size
        return self.room.is_full(partitions, lambda number: str(number) not in held)


def test_room_is_full_once_lines_that_may_be_written_make_up_what_held_ones_leave() -> None:
    waiting = Waiting()
    assert not waiting.is_full({0: 50, 1: 50})
    assert waiting.is_full({0: 50, 1: 51})
    assert not waiting.is_full({0: 70, 1: 30}, held="1")
    assert waiting.is_full({0: 71, 1: 30}, held="1")
    assert not waiting.is_full({0: 50, 1: 90}, held="1")
    assert waiting.is_full({0: 51, 1: 90}, held="1")
    assert not waiting.is_full({0: 0, 1: 1_000}, held="1")


def test_held_partitions_are_paused_until_they_may_be_written_and_the_others_when_there_is_no_room() -> None:
    waiting = Waiting()
    waiting.is_full({0: 60, 1: 50, 2: 0}, held="1")
    assert waiting.source.paused == set()
    waiting.is_full({0: 0, 1: 51, 2: 0}, held="1")
    assert waiting.source.paused == {1}
    waiting.is_full({0: 0, 1: 51, 2: 49, 3: 9}, held="12")
    assert waiting.source.paused == {1, 2}
    waiting.is_full({0: 0, 1: 51, 2: 50, 3: 9}, held="12")
    assert waiting.source.paused == {1, 2, 3}, "there is no room for what partition 3 may come to hold"
    waiting.is_full({0: 0, 1: 0, 2: 50, 3: 9}, held="2")
    assert waiting.source.paused == {2}, "it may not be written yet"
    waiting.is_full({0: 0, 1: 0, 2: 50, 3: 9})
    assert waiting.source.paused == set()


def test_partition_that_has_gone_is_not_gone_on_with() -> None:
    waiting = Waiting()
    waiting.is_full({1: 99}, held="1")
    waiting.source.paused.clear()  # it is not read any more
    waiting.room.forget(1)
    waiting.is_full({2: 99}, held="2")
    assert waiting.source.paused == {2}
