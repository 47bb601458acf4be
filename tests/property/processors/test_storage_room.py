"""The law of the room (consumers/processors/storage/room.py): lines in memory have a bound, and nobody stays paused.

Several processors share partitions of which the first one is behind, while DDL goes through it; partitions move, and
processors die without a word.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from consumers.control.core.replication.messages import Barrier
from consumers.processors.core.apply import prefetch
from consumers.processors.core.apply.executor import Work, WorkOrder
from consumers.processors.core.apply.leader import SCHEMAS_PARTITION
from consumers.processors.core.storage.paths import PathForm
from consumers.processors.sink_source import SinkRecord
from consumers.processors.storage import run as storage_run
from consumers.processors.storage.run import StorageRun, StorageSettings
from schemas.ids import Ts
from schemas.sink.storage_rows import FolderForm, encode_folder
from tests.property.processors.test_storage_run import MemoryStore
from tests.support.topics.storage_topic import (
    START_TS,
    Lines,
    Topic,
    check_schema_files,
    message,
    position,
    schema_file,
    visible,
    watermark,
)

PARTITIONS = 4
ROOM, PREFETCH, POLL_MAX = 1_000, 50, 2
MESSAGE_MAX = 16 + 24 + 80
"""What a row of a key and a line may make."""
TAKEN_MAX = PARTITIONS * (PREFETCH + POLL_MAX * MESSAGE_MAX)
"""What partitions may bring when they are taken over."""
FLUSH_S = 5.0
PATIENCE_S = 120.0
STALLED_MAX = 300
SETTINGS = StorageSettings(
    changefeed="default.f.1",
    paths=PathForm(extension="csv", date_separator="day", file_index_digit=6),
    start_ts=START_TS,
    flush_interval_s=FLUSH_S,
    worker_count=2,
)


def topic_with_ddl(rng: random.Random) -> tuple[Topic, Lines, int]:
    """Write cuts of one table a partition, whose DDL stand in the first one; return also the lines and the last ts."""
    topic: Topic = {number: [] for number in range(PARTITIONS)}
    meant: Lines = {}
    versions, keys, ts = dict.fromkeys(topic, 10), itertools.count(), 10

    def put(number: int, key: bytes | None, value: bytes, at: bytes) -> None:
        topic[number].append(SinkRecord(number, len(topic[number]), at, key, value))

    for number in topic:
        put(SCHEMAS_PARTITION, *schema_file(10, f"t{number}", is_ddl=False))
    for _ in range(rng.randint(4, 12)):
        for _ in range(rng.randint(1, 3)):
            ts += 1
            for number in topic:
                form = encode_folder(FolderForm("s", f"t{number}", Ts(versions[number])))
                for _ in range(rng.randint(0, 30)):
                    key = b"%06d" % next(keys)
                    line = b"%d|%s\n" % (ts, b"x" * rng.randint(0, 60))
                    put(number, form, message([(ts, key, line)]), position(ts, key))
                    meant.setdefault(("s", f"t{number}"), []).append(line)
            ts += 1
            for number in rng.sample(range(PARTITIONS), rng.randint(0, 3)):
                put(SCHEMAS_PARTITION, *schema_file(ts, f"t{number}", is_ddl=True))
                versions[number] = ts
        ts += 1
        for number in topic:
            put(number, *watermark(ts))
    return topic, meant, ts


class Source:
    """Reads the first partition seldom; refuses what a consumer of Kafka would refuse."""

    def __init__(self, topic: Topic, rng: random.Random, counts: Counter[str]) -> None:
        self._topic, self._rng, self._counts = topic, rng, counts
        self.at = dict[int, int]()
        self.paused = set[int]()

    def check(self, offsets: Mapping[int, int]) -> None: ...
    def begin(self, offsets: Mapping[int, int]) -> None:
        self.at.update(offsets)
        self.paused -= offsets.keys()

    def end(self, partition: int) -> None:
        self.at.pop(partition, None)

    def pause(self, partition: int) -> None:
        assert partition in self.at
        assert partition not in self.paused
        self.paused.add(partition)
        self._counts["pauses"] += 1

    def resume(self, partition: int) -> None:
        assert partition in self.at
        self.paused.remove(partition)

    def poll(self, timeout_s: float) -> list[SinkRecord]:
        waiting = [number for number, at in self.at.items() if at < len(self._topic[number])]
        ready = [number for number in waiting if number not in self.paused]
        if len(ready) > 1 and SCHEMAS_PARTITION in ready and self._rng.random() < 0.9:
            ready.remove(SCHEMAS_PARTITION)
        if not ready:
            return []
        number = self._rng.choice(ready)
        first = self.at[number]
        self.at[number] = min(len(self._topic[number]), first + self._rng.randint(1, POLL_MAX))
        self._counts["read"] += self.at[number] - first
        return self._topic[number][first : self.at[number]]

    def note(self, offsets: Mapping[int, int]) -> None: ...
    def close(self) -> None: ...


class Fleet:
    """Processors and who has which partition, as a leader would order it."""

    def __init__(self, topic: Topic, rng: random.Random) -> None:
        self.topic, self.rng, self.store, self.now_s = topic, rng, MemoryStore(), 0.0
        self.counts = Counter[str]()
        self.runs: list[tuple[StorageRun, Source]] = [self._new(), self._new()]
        self.homes = dict[int, StorageRun]()
        self.schemas_ts = Ts(0)
        self.tickets = itertools.count()
        self.until_s = time.monotonic() + PATIENCE_S

    def _new(self) -> tuple[StorageRun, Source]:
        source, now = Source(self.topic, self.rng, self.counts), datetime(2026, 1, 2, tzinfo=UTC)
        return StorageRun(source, self.store, SETTINGS, clock=lambda: self.now_s, now=lambda: now), source

    def close(self) -> None:
        for run, _ in self.runs:
            run.close()

    def turn(self, run: StorageRun) -> list[WorkOrder]:
        """Let one take a step; the leader has not always heard of the first partition."""
        assert time.monotonic() < self.until_s, "an order is never done"
        self.now_s += self.rng.choice((0.0, 0.0, 0.01))
        heard = self.schemas_ts if self.rng.random() < 0.8 else Ts(0)
        done = run.turn(Barrier(Ts(0), schemas_ts=heard), is_restless=True)
        if self.homes.get(SCHEMAS_PARTITION) is run:
            self.schemas_ts = max(self.schemas_ts, run.progress(SCHEMAS_PARTITION).read_ts)
        waiting = sum(lines.bytes_total for lines in run.partitions.values())
        self.counts["most"] = max(self.counts["most"], waiting)
        assert waiting <= 2 * ROOM + TAKEN_MAX + POLL_MAX * MESSAGE_MAX
        check_schema_files(self.store.files)
        return done

    def order(self, run: StorageRun, work: Work, partition: int) -> None:
        """Give an order, and wait until it is done, while all go on."""
        order = WorkOrder(work, partition, next(self.tickets), revision=1)
        run.obey([order])
        while work is not Work.FORGET and order not in self.turn(run):
            for other, _ in self.runs:
                if other is not run:
                    self.turn(other)

    def give(self, partition: int, run: StorageRun) -> None:
        for work in (Work.LOCATE, Work.OPEN):
            self.order(run, work, partition)
        self.homes[partition] = run

    def move(self, partition: int) -> None:
        before = self.homes.pop(partition)
        self.order(before, Work.END, partition)
        self.order(before, Work.FORGET, partition)
        self.give(partition, self.rng.choice(self.runs)[0])

    def kill(self) -> None:
        """One ends without a word, and another begins."""
        victim = self.rng.randrange(len(self.runs))
        dead, _ = self.runs[victim]
        dead.close()
        self.runs[victim] = self._new()
        orphans = [partition for partition, home in self.homes.items() if home is dead]
        for partition in orphans:
            del self.homes[partition]
        for partition in orphans:
            self.give(partition, self.rng.choice(self.runs)[0])

    @property
    def is_at_end(self) -> bool:
        ends = {number: at for _, source in self.runs for number, at in source.at.items()}
        return all(ends[number] == len(records) for number, records in self.topic.items())


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_run, "WAITING_BYTES_MAX", ROOM)
    monkeypatch.setattr(prefetch, "PREFETCH_BYTES_MAX", PREFETCH)
    monkeypatch.setattr(storage_run, "BUSY_POLL_S", 0.0)


def read_by_fleet(seed: int) -> Counter[str]:
    """Read a topic to its end; return what was counted."""
    rng = random.Random(seed)
    topic, meant, last_ts = topic_with_ddl(rng)
    fleet = Fleet(topic, rng)
    try:
        for partition in sorted(topic, key=lambda _: rng.random()):
            fleet.give(partition, rng.choice(fleet.runs)[0])
        changes_left, stalled = rng.randint(0, 10), 0  # each change would let those go on that stay paused
        while not fleet.is_at_end:
            before = fleet.counts["read"]
            for run, _ in fleet.runs:
                fleet.turn(run)
            stalled = stalled + 1 if fleet.counts["read"] == before else 0
            assert stalled < STALLED_MAX, "somebody stays paused"
            if changes_left and rng.random() < 0.03:
                changes_left -= 1
                if rng.random() < 0.3:
                    fleet.kill()
                else:
                    fleet.move(rng.choice(range(PARTITIONS)))
        fleet.now_s += FLUSH_S
        for _ in range(10):
            for run, _ in fleet.runs:
                fleet.turn(run)
            fleet.now_s += FLUSH_S
        assert visible(fleet.store.files) == meant
        assert {fleet.homes[partition].progress(partition).applied_ts for partition in topic} == {last_ts}
        assert not any(source.paused & source.at.keys() for _, source in fleet.runs)
        return fleet.counts
    finally:
        fleet.close()


@pytest.mark.parametrize("seed", range(30))
def test_processors_behind_their_first_partition_keep_the_bound_and_come_to_the_end(seed: int, room: None) -> None:
    read_by_fleet(seed)


def test_processors_of_these_laws_are_paused_and_full(room: None) -> None:
    counts = [read_by_fleet(seed) for seed in range(10)]
    assert sum(count["pauses"] for count in counts) > 20
    assert max(count["most"] for count in counts) > ROOM // 2
