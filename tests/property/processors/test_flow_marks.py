"""Flow proofs of a partition: what a processor makes of what a sorter says of its rows.

Faults are planted by hand in a log that is right.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.processors.core.apply.partition import PartitionQueue, start_position
from consumers.processors.core.flow_book import NOTED_MAX, FlowBook, FlowBrokenError
from consumers.processors.core.storage.partition import NotedEnd, PartitionLines
from schemas.flow.flow_sum import FlowSum
from schemas.ids import Ts
from schemas.sink.flow_mark import FlowMark
from schemas.sink.message_rows import sum_of_ids
from schemas.sink.position import RowOp
from tests.support.rawlog.flow_rows import (
    START_TS,
    WRITER,
    Record,
    Row,
    cut_records,
    cuts_of,
    messages,
    storage_records,
    watermark,
)


class Reader:
    """A processor over a log, which applies at once whatever it may."""

    def __init__(self, position: bytes = start_position(Ts(START_TS)), offset: int = 0) -> None:
        self.queue = PartitionQueue(3, position, offset)
        self.offset = offset

    def read(self, records: Sequence[Record], *, claims: bool = True) -> None:
        for position, key, value in records:
            self.queue.feed(position=position, offset=self.offset, key=key, value=value)
            self.offset += 1
            while claims and self.queue.claim(3, bytes_max=10**6) is not None:
                self.queue.arrived()

    @property
    def windows(self) -> tuple[int, int]:
        return self.queue.flow.proven, self.queue.flow.unproven


# -- what must not alarm


@given(st.integers(0, 2**32))
def test_partition_that_takes_all_rows_proves_every_window_but_the_first(seed: int) -> None:
    rng, reader = random.Random(seed), Reader()
    for number, rows in enumerate(cuts_of(rng)):
        reader.read(cut_records(rows, number, rng))
    assert reader.windows == (3, 1)


@given(st.integers(0, 2**32))
def test_partition_whose_batches_are_repeated_alarms_nobody_and_proves_the_same(seed: int) -> None:
    rng, reader = random.Random(seed), Reader()
    cuts = cuts_of(rng)
    for number, rows in enumerate(cuts):
        for _ in range(rng.randint(0, 2)):
            written = cut_records(rows, number, rng)
            reader.read(written[: rng.randint(0, len(written))], claims=rng.random() < 0.5)
        reader.read(cut_records(rows, number, rng))
        if number and rng.random() < 0.3:
            reader.read(cut_records(cuts[number - 1], number - 1, rng))
            reader.read(cut_records(rows, number, rng))
    assert reader.windows == (3, 1)


@given(st.integers(0, 2**32))
def test_partition_that_is_taken_over_in_the_middle_of_a_window_leaves_that_one_unproven(seed: int) -> None:
    rng, first = random.Random(seed), Reader()
    cuts = cuts_of(rng)
    log = [record for number, rows in enumerate(cuts) for record in cut_records(rows, number, rng)]
    stop = rng.randint(1, len(log) - 1)
    first.read(log[:stop])
    applied = first.queue.applied
    second = Reader(applied, first.queue.offset)
    second.read(log[first.queue.offset :])
    to_come = sum(key is None and position > applied for position, key, _ in log)
    assert second.windows == (to_come - 1, 1) if to_come else (0, 0)


@given(st.integers(0, 2**32))
def test_partition_after_which_a_sorter_begins_with_other_cuts_alarms_nobody(seed: int) -> None:
    rng, reader = random.Random(seed), Reader()
    cuts = cuts_of(rng)
    reader.read(cut_records(cuts[0], 0, rng))
    written = cut_records(cuts[1], 1, rng)
    reader.read(written[: rng.randint(0, len(written) - 1)])
    both = [*cuts[1], *cuts[2]]
    reader.read([*messages(both, rng), watermark(40, 20, both)])
    assert reader.windows == (1, 1)


def test_partition_when_a_sorter_of_another_epoch_leaves_out_rows_that_were_applied_alarms_nobody() -> None:
    rng, reader = random.Random(1), Reader()
    rows = [Row(21, 1, b"1"), Row(22, 2, b"2"), Row(23, 3, b"3"), Row(25, 5, b"5")]
    reader.read([watermark(20, 10, ())])
    reader.read(messages(rows[:3], rng))  # the last of them waits for its end, and is forgotten
    fewer = [rows[0], rows[3]]
    reader.read([*messages(fewer, rng), watermark(30, 20, fewer, "2-0.1.0")])
    assert reader.windows == (0, 2)
    reader.read([watermark(40, 30, (), "2-0.1.0")])
    assert reader.windows == (1, 2)


def test_partition_during_a_rolling_upgrade_both_ways_alarms_nobody() -> None:
    rng, reader = random.Random(2), Reader()
    for number, (rows, writer) in enumerate(zip(cuts_of(rng), (None, WRITER, None, WRITER), strict=True)):
        after_ts = START_TS + number * 10
        reader.read([*messages(rows, rng), watermark(after_ts + 10, after_ts, rows, writer)])
    assert reader.windows == (0, 4)


def test_partition_whose_rows_are_passed_over_by_choice_alarms_nobody() -> None:
    rng, reader = random.Random(3), Reader()
    reader.queue = PartitionQueue(3, start_position(Ts(START_TS)), 0, frozenset({7}))
    rows = [Row(21, 6, b"1"), Row(22, 7, b"2"), Row(23, 8, b"3")]
    reader.read([watermark(20, 10, ()), *messages(rows, rng), watermark(30, 20, rows)])
    assert reader.windows == (0, 2)
    more = [Row(41, 9, b"1")]
    reader.read([watermark(40, 30, ()), *messages(more, rng), watermark(50, 40, more)])
    assert reader.windows == (1, 3)


def test_partition_that_stands_at_nothing_joins_windows_and_holds_one() -> None:
    rng, reader = random.Random(4), Reader()
    rows = [Row(21, 2, b"1")]
    reader.read([watermark(20, 10, ())])
    reader.read(messages(rows, rng), claims=False)
    reader.read([watermark(22, 20, rows), *(watermark(ts, ts - 1, ()) for ts in range(23, 400))], claims=False)
    assert len(reader.queue._waiting) == 2
    reader.read([watermark(400, 399, ())])
    assert reader.windows == (1, 1)


def test_flow_book_knows_the_sum_at_some_watermarks_only() -> None:
    book = FlowBook(0)
    for ts in range(1, 100):
        book.pass_watermark(Ts(ts), FlowMark(Ts(ts - 1), FlowSum(), WRITER))
    assert (book.proven, book.unproven) == (98, 1)
    book.pass_watermark(Ts(100), FlowMark(Ts(99 - NOTED_MAX), FlowSum(), WRITER))
    assert book.unproven == 2
    book.pass_watermark(Ts(101), FlowMark(Ts(100 - NOTED_MAX + 2), FlowSum(), WRITER))
    assert book.proven == 99


def test_flow_book_counts_on_where_the_processor_had_the_partition_before() -> None:
    first, second = FlowBook(0), FlowBook(0)
    for ts in (1, 2, 3):
        first.pass_watermark(Ts(ts), FlowMark(Ts(ts - 1), FlowSum(), WRITER))
    second.go_on(None)
    second.go_on(first)
    second.pass_watermark(Ts(4), FlowMark(Ts(3), FlowSum(), WRITER))
    assert second.figures == {"windows_proven": 2, "windows_unproven": 2}


# -- what must be found


def _lost(rows: list[Row]) -> list[Row]:
    return rows[1:]


def _swapped(rows: list[Row]) -> list[Row]:
    return [replace(rows[0], key=b"4711"), *rows[1:]]


def _foreign(rows: list[Row]) -> list[Row]:
    return [*rows, replace(rows[-1], start_ts=rows[-1].start_ts + 1, key=b"4712")]


def _of_another_table(rows: list[Row]) -> list[Row]:
    return [replace(rows[0], table="other" if rows[0].table == "t" else "t"), *rows[1:]]


def _of_another_op(rows: list[Row]) -> list[Row]:
    return [replace(rows[0], op=RowOp.DELETE), *rows[1:]]


def _twice_at_another_position(rows: list[Row]) -> list[Row]:
    return [*rows, replace(rows[0], start_ts=rows[0].start_ts + 10_000)]


FAULTS = [_lost, _swapped, _foreign, _of_another_table, _of_another_op, _twice_at_another_position]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(20))
def test_partition_with_a_planted_fault_stops_and_names_the_window(fault: object, seed: int) -> None:
    rng, reader = random.Random(seed), Reader()
    number = rng.randint(1, 3)
    for at, rows in enumerate(cuts_of(rng)):
        if at != number:
            reader.read(cut_records(rows, at, rng))
            continue
        wrong = fault(rows)  # type: ignore[operator]
        before = reader.queue.applied_ts
        with pytest.raises(FlowBrokenError) as raised:
            reader.read(cut_records(wrong, at, rng, rows_said=rows))
        fields = raised.value.fields
        assert (fields["partition"], fields["after_ts"], fields["upto_ts"]) == (3, 10 + at * 10, 20 + at * 10)
        assert fields["expected"] == str(sum_of_ids([row.id for row in rows]))
        assert fields["seen"] == str(sum_of_ids([row.id for row in wrong]))
        assert reader.queue.applied_ts == before, "the window's end is not reported as applied"
        return


def test_partition_in_which_a_late_write_of_a_former_release_makes_rows_be_forgotten_stops() -> None:
    """A sorter that lost its lock writes once more while rows of the next cut wait, and does not say who it is: it is
    taken for a new pass."""
    rng, reader = random.Random(5), Reader()
    cut = cuts_of(rng)[0]
    reader.read(cut_records(cut, 0, rng))
    rows = [Row(21, 1, b"1"), Row(22, 2, b"2")]
    reader.read(messages(rows, rng), claims=False)
    with pytest.raises(FlowBrokenError):
        reader.read([*messages(cut, rng), watermark(30, 20, rows)])


def test_partition_in_which_a_late_write_comes_when_all_is_applied_alarms_nobody() -> None:
    rng, reader = random.Random(6), Reader()
    cuts = cuts_of(rng)
    for number in (0, 1):
        reader.read(cut_records(cuts[number], number, rng))
    reader.read(messages(cuts[0], rng))
    reader.read(cut_records(cuts[2], 2, rng))
    assert reader.windows == (2, 1)


# -- files: the same, where rows are taken as they come


def _storage_records(rows: Sequence[Row], number: int, rows_said: Sequence[Row], rng: random.Random) -> list[Record]:
    after_ts = START_TS + number * 10
    return storage_records(rows, rows_said, after_ts, after_ts + 10, rng)


def _take(lines: PartitionLines, records: Sequence[Record], offset: int) -> int:
    for position, key, value in records:
        lines.take(offset, key, value, position)
        offset += 1
    return offset


@given(st.integers(0, 2**32))
def test_lines_whose_batches_are_repeated_alarm_nobody_and_prove_the_rest(seed: int) -> None:
    rng, lines, offset = random.Random(seed), PartitionLines.at(NotedEnd(), 2), 0
    for number, rows in enumerate(cuts_of(rng)):
        for _ in range(rng.randint(0, 2)):
            written = _storage_records(rows, number, rows, rng)
            offset = _take(lines, written[: rng.randint(0, len(written))], offset)
        offset = _take(lines, _storage_records(rows, number, rows, rng), offset)
    assert (lines.flow.proven, lines.flow.unproven) == (3, 1)


@pytest.mark.parametrize("fault", FAULTS)
def test_lines_with_a_planted_fault_stop(fault: object) -> None:
    rng, lines, offset = random.Random(7), PartitionLines.at(NotedEnd(), 2), 0
    cuts = cuts_of(rng)
    for number in (0, 1):
        offset = _take(lines, _storage_records(cuts[number], number, cuts[number], rng), offset)
    with pytest.raises(FlowBrokenError):
        wrong = fault(cuts[2])  # type: ignore[operator]
        _take(lines, _storage_records(wrong, 2, cuts[2], rng), offset)
