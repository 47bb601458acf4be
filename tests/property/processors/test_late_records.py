"""The law of fences (consumers/processors/core/fence.py): what comes late is passed over, and nothing is lost for it.

Sorters come and go over a partition: they are killed, or stopped and send the rest behind what others have written;
attempts of one sorter follow one another likewise, and Kafka writes copies. Processors come and go as well.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.processors.core.apply.partition import PartitionQueue, start_position
from consumers.processors.core.fence import LATE_ATTEMPTS_MAX, FenceWentBackError, PartitionFence
from consumers.processors.core.storage.partition import NotedEnd, PartitionLines
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.sink.fence import NO_FENCE, Fence, decode_fence, fence_of_task
from schemas.sink.parts import cut_message
from schemas.sink.position import Position, PositionClass, RowOp
from tests.support.rawlog.flow_rows import START_TS, Record, Row, messages, storage_records, watermark

END_TS = 60
Fenced = tuple[Record, bytes]
Done = tuple[int, int, bytes]
"""A row at the destination: commit_ts, start_ts, key."""


@dataclass
class Sorters:
    """One after the other, over one partition; ``log`` is what they leave."""

    rng: random.Random
    rows: list[Row] = field(default_factory=list)
    log: list[Fenced] = field(default_factory=list)
    in_storage: bool = False
    lock: int = 1
    attempt: int = 0

    def __post_init__(self) -> None:
        rng = self.rng
        for ts in sorted(rng.sample(range(START_TS + 1, END_TS), rng.randint(5, 20))):
            for number in range(rng.randint(1, 4)):
                table = rng.choice(("t", "other"))
                self.rows.append(Row(ts, ts - 1, b"%d" % number, rng.choice((RowOp.UPDATE, RowOp.INSERT)), table))
        self.rows.sort(key=lambda row: row.position)
        self._write()

    def _write(self) -> None:
        rng, checkpoint = self.rng, START_TS
        stopped: list[list[Fenced]] = []
        while checkpoint < END_TS:
            upto = END_TS if rng.random() < 0.2 else min(END_TS, checkpoint + rng.randint(1, 20))
            self.attempt += 1
            batch = self._batch(checkpoint, upto)
            written = rng.choice((len(batch), len(batch), rng.randint(0, len(batch))))
            for number, record in enumerate(batch[:written]):
                self.log.append(record)
                if rng.random() < 0.1:
                    self.log += batch[max(0, number - rng.randint(0, 3)) : number + 1]  # copies that Kafka has made
                self._let_on(stopped)
            if written == len(batch):
                checkpoint = upto
                continue
            if rng.random() < 0.7:
                stopped.append(batch[written:])
            if rng.random() < 0.7:
                self.lock, self.attempt = self.lock + rng.randint(1, 9), 0
        while any(stopped):
            self._let_on(stopped)

    def _parted(self, record: Record) -> list[Record]:
        position, key, value = record
        if key is None or self.rng.random() < 0.8:
            return [record]
        parts = cut_message(key, value, len(key) + self.rng.choice((40, 60, 1000)))
        return [(position, part_key, bytes(piece)) for part_key, piece in parts]

    def _batch(self, after_ts: int, upto_ts: int) -> list[Fenced]:
        rows = [row for row in self.rows if after_ts < row.commit_ts <= upto_ts]
        fence = Fence(self.lock, self.attempt).encode()
        if self.in_storage:
            made = storage_records(rows, rows, after_ts, upto_ts, self.rng)
        else:
            made = [*messages(rows, self.rng), watermark(upto_ts, after_ts, rows)]
        return [(part, fence) for record in made for part in self._parted(record)]

    def _let_on(self, stopped: list[list[Fenced]]) -> None:
        for left in stopped:
            while left and self.rng.random() < 0.3:
                self.log.append(left.pop(0))


def _read_on(log: list[Fenced], offset: int) -> Iterator[tuple[int, Fenced]]:
    """Read as a processor's source does: the record before comes too."""
    return iter(list(enumerate(log))[max(0, offset - 1) :])


def _rows_applied(sorters: Sorters) -> tuple[list[Done], int]:
    rng, done = sorters.rng, list[Done]()
    position, offset, broken_off, late = start_position(Ts(START_TS)), 0, 0, 0
    while True:
        queue = PartitionQueue(0, position, offset)
        restart_at = rng.randint(0, 40) if broken_off < 30 else len(sorters.log) + 1
        broken_off += 1
        for steps, (at, ((where, key, value), fence)) in enumerate(_read_on(sorters.log, offset)):
            queue.feed(position=where, offset=at, key=key, value=value, fence=fence)
            if steps > restart_at:
                break
            if rng.random() < 0.6 and (claim := queue.claim(rng.randint(1, 5), bytes_max=10**6)) is not None:
                done += [(row.commit_ts, row.start_ts, bytes(row.key)) for _, row in claim.rows]
                queue.arrived()
            position, offset = queue.applied, queue.offset
        else:
            while (claim := queue.claim(9, bytes_max=10**6)) is not None:
                done += [(row.commit_ts, row.start_ts, bytes(row.key)) for _, row in claim.rows]
                queue.arrived()
            assert queue.applied_ts == END_TS
            return done, late + queue.late_records
        late += queue.late_records


@given(st.integers(0, 2**64))
def test_partition_with_late_records_applies_each_row_once_in_order(seed: int) -> None:
    sorters = Sorters(random.Random(seed))
    done, _ = _rows_applied(sorters)
    assert done == [(row.commit_ts, row.start_ts, row.key) for row in sorters.rows]


def test_logs_of_sorters_hold_late_records_worth_the_name() -> None:
    assert sum(_rows_applied(Sorters(random.Random(seed)))[1] for seed in range(50)) > 300


@given(st.integers(0, 2**64))
def test_lines_with_late_records_hold_each_row_once_in_order(seed: int) -> None:
    sorters = Sorters(random.Random(seed), in_storage=True)
    rng, end, kept = sorters.rng, NotedEnd(), list[bytes]()
    while end.watermark_ts < END_TS:
        lines = PartitionLines.at(end)
        for steps, (at, ((where, key, value), fence)) in enumerate(_read_on(sorters.log, end.offset)):
            lines.take(at, key, value, where, fence)
            if rng.random() < 0.3:
                kept += [bytes(chunk) for _, waiting in lines.waiting() for chunk in waiting.chunks]
                lines.flushed()
                end = lines.end
            if steps and rng.random() < 0.05:
                break
    assert sum(chunk.count(b"\n") for chunk in kept) == len(sorters.rows)


# -- cases


def _fed(queue: PartitionQueue, at: int, record: Record, lock: int) -> bool:
    position, key, value = record
    fence = Fence(lock, 1).encode()
    return queue.feed(position=position, offset=at, key=key, value=value, fence=fence)


def _claimed(queue: PartitionQueue) -> list[int]:
    taken = list[int]()
    while (claim := queue.claim(99, bytes_max=10**6)) is not None:
        taken += [row.commit_ts for _, row in claim.rows]
        queue.arrived()
    return taken


def _each(*ts: int) -> list[Record]:
    rng = random.Random(0)
    return [record for at in ts for record in messages([Row(at, at - 1, b"1")], rng)]


def test_partition_keeps_waiting_rows_when_records_of_an_older_cut_come_late() -> None:
    """What the flow proof found: rows of the heir's next cut wait, and were forgotten."""
    queue = PartitionQueue(0, start_position(Ts(START_TS)), 0)
    heir = [*_each(11, 12), watermark(20, 10, ()), *_each(21, 22)]
    for at, record in enumerate(heir):
        _fed(queue, at, record, 2)
    for at, record in enumerate([*_each(11, 12), watermark(20, 10, ())], len(heir)):
        assert not _fed(queue, at, record, 1)
    _fed(queue, 9, watermark(30, 20, ()), 2)
    assert _claimed_without_proof(queue) == [11, 12, 21, 22]
    assert queue.late_records == 3


def _claimed_without_proof(queue: PartitionQueue) -> list[int]:
    queue.flow.pass_watermark = lambda ts, mark: None  # type: ignore[method-assign]
    return _claimed(queue)


def test_partition_that_is_taken_over_behind_a_watermark_knows_who_wrote_it() -> None:
    """Lock 1 wrote 21 and 22, was stopped, and sends 23 and its watermark behind the first watermark of lock 2."""
    log = [(record, 1) for record in _each(11, 12, 21, 22)]
    log += [(record, 2) for record in [*_each(11, 12), watermark(20, 10, (), None)]]
    first = PartitionQueue(0, start_position(Ts(START_TS)), 0)
    for at, (record, lock) in enumerate(log):
        _fed(first, at, record, lock)
    assert _claimed(first) == [11, 12]
    assert first.offset == len(log)
    late = [(record, 1) for record in [*_each(23), watermark(25, 10, (), None)]]
    log += [*late, *((record, 2) for record in [*_each(21, 22, 23), watermark(25, 20, (), None)])]
    second = PartitionQueue(0, first.applied, first.offset)
    for at, (record, lock) in enumerate(log):
        if at >= first.offset - 1:
            _fed(second, at, record, lock)
    assert _claimed(second) == [21, 22, 23]


def test_partition_takes_the_fewer_rows_of_a_newer_sorter_and_not_those_that_come_late() -> None:
    """A filter was changed: what the older sorter wrote and nobody has applied is not to come."""
    queue = PartitionQueue(0, start_position(Ts(START_TS)), 0)
    for at, record in enumerate(_each(21, 22, 23)):
        _fed(queue, at, record, 1)
    for at, record in enumerate(_each(21, 25), 3):
        assert _fed(queue, at, record, 2)
    for at, record in enumerate([*_each(24), watermark(30, 20, (), None)], 5):
        assert not _fed(queue, at, record, 1)
    _fed(queue, 7, watermark(30, 20, (), None), 2)
    assert _claimed(queue) == [21, 25]


def test_partition_takes_more_rows_of_a_newer_sorter_though_a_late_watermark_covers_them() -> None:
    """A filter was widened: the older sorter's watermark says nothing of rows that it did not write."""
    queue = PartitionQueue(0, start_position(Ts(START_TS)), 0)
    _fed(queue, 0, _each(21)[0], 2)
    _fed(queue, 1, watermark(30, 20, (), None), 1)
    assert queue.applied_ts == START_TS
    for at, record in enumerate([*_each(22, 23), watermark(30, 20, (), None)], 2):
        _fed(queue, at, record, 2)
    assert _claimed(queue) == [21, 22, 23]


def test_partition_takes_each_record_of_a_former_release_for_a_pass_as_before() -> None:
    rng, queue = random.Random(0), PartitionQueue(0, start_position(Ts(START_TS)), 0)
    _fed(queue, 0, _each(21)[0], 7)
    former = [*messages([Row(21, 20, b"1"), Row(22, 21, b"1")], rng), watermark(30, 20, (), None)]
    for at, (position, key, value) in enumerate(former, 1):
        assert queue.feed(position=position, offset=at, key=key, value=value)
    assert _claimed(queue) == [21, 22]
    assert _fed(queue, 9, _each(31)[0], 3), "a lower lock counts anew behind a record without a fence"


# -- the fence alone


def _at(ts: int) -> bytes:
    return Position(Ts(ts), PositionClass.WATERMARK).encode()


def test_fence_orders_locks_attempts_and_tasks_and_goes_over_bytes() -> None:
    ordered = [Fence(1, 9, 9), Fence(2, 1), Fence(2, 1, 1), Fence(2, 1, 300), Fence(2, 2), Fence(1 << 63, 0)]
    assert sorted(ordered) == ordered
    assert sorted(fence.encode() for fence in ordered) == [fence.encode() for fence in ordered]
    assert [decode_fence(fence.encode()) for fence in ordered] == ordered
    assert decode_fence(fence_of_task(Fence(2, 1).encode(), 300)) == Fence(2, 1, 300)
    assert fence_of_task(NO_FENCE, 300) == NO_FENCE


def test_fence_that_is_none_is_refused() -> None:
    for wrong in (b"1", bytes(23), bytes(25)):
        fence = PartitionFence(3)
        with pytest.raises(CorruptDataError):
            fence.passes(wrong, _at(1))
        with pytest.raises(CorruptDataError):
            fence.learn(wrong)


def test_fence_passes_a_slow_attempt_until_a_newer_one_has_written() -> None:
    fence = PartitionFence(0)
    heads = ((1, 5), (1, 6), (3, 4), (1, 7), (2, 8))
    passed = [fence.passes(Fence(lock, 1).encode(), _at(ts)) for lock, ts in heads]
    assert passed == [True, True, True, False, False]
    assert fence.late == 2


def test_fence_passes_parts_of_a_message_until_it_is_whole_and_no_copy() -> None:
    fence, mine = PartitionFence(0), Fence(3, 1).encode()
    assert fence.passes(mine, _at(4), is_part=True)
    assert fence.passes(mine, _at(4), is_part=True)
    fence.close()
    assert not fence.passes(mine, _at(4), is_part=True)
    assert fence.passes(mine, _at(5))
    assert not fence.passes(mine, _at(5))
    assert not fence.passes(mine, _at(3))
    assert fence.passes(Fence(3, 2).encode(), _at(3)), "another attempt begins anew"


def test_fence_when_an_older_lock_goes_on_beginning_cuts_then_stops_the_changefeed() -> None:
    fence = PartitionFence(5, "topic")
    fence.passes(Fence(100, 1).encode(), _at(5))
    for attempt in range(LATE_ATTEMPTS_MAX):
        for task in range(3):
            assert not fence.passes(Fence(7, attempt, task).encode(), _at(6 + attempt))
    with pytest.raises(FenceWentBackError) as caught:
        fence.passes(Fence(7, LATE_ATTEMPTS_MAX).encode(), _at(90))
    assert caught.value.fields == {"topic": "topic", "partition": 5, "lock": 7, "newest_lock": 100}


def test_fence_late_attempts_of_the_same_lock_alarm_nobody() -> None:
    fence = PartitionFence(5)
    fence.passes(Fence(7, 100).encode(), _at(5))
    assert not any(fence.passes(Fence(7, attempt).encode(), _at(6)) for attempt in range(50))
