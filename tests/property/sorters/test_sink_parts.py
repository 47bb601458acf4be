"""Row messages larger than the topic between sorter and processors takes: in parts, and whole again."""

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config.sink.kafka import MESSAGE_OVERHEAD_BYTES
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.sink.parts import JoinedMessage, MessageJoiner, cut_message, is_part
from schemas.sink.position import Position, PositionClass, RowOp
from sorters.core.records.message_parts import in_parts
from sorters.core.records.order import OUTPUT_SCHEMA

Record = tuple[bytes, bytes, bytes]
"""Position, key, value."""


def parts_of(position: bytes, key: bytes, value: bytes, bytes_max: int) -> list[Record]:
    return [(position, part_key, bytes(piece)) for part_key, piece in cut_message(key, value, bytes_max)]


def joined(joiner: MessageJoiner, log: list[Record], start: int = 0) -> list[JoinedMessage]:
    taken = (joiner.take(position, start + at, key, value) for at, (position, key, value) in enumerate(log[start:]))
    return [message for message in taken if message is not None]


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=3_000), st.integers(70, 600))
def test_message_in_parts_is_whole_again_and_no_part_is_larger_than_allowed(
    key: bytes, value: bytes, bytes_max: int
) -> None:
    parts = parts_of(b"p", key, value, bytes_max)
    assert max(len(part) + len(piece) for _, part, piece in parts) <= bytes_max
    assert all(is_part(part) for _, part, _ in parts)
    assert joined(MessageJoiner(), parts) == [JoinedMessage(0, key, value)]


@given(st.integers(0, 2**64))
def test_parts_of_sorters_that_died_or_write_late_come_to_the_message_from_where_the_joiner_says(seed: int) -> None:
    """The log has parts of tries that were given up, with another size of part each; the last try is whole. A record
    that was on its way when its sorter lost the lock may land among those of the next one.
    """
    rng = random.Random(seed)
    value = rng.randbytes(rng.randint(1, 400))
    tries = [parts_of(b"p", b"k", value, rng.randint(30, 200)) for _ in range(rng.randint(1, 4))]
    log = [
        record for number, attempt in enumerate(tries[:-1]) for record in attempt[: rng.randint(0, len(attempt) - 1)]
    ]
    late = [record for attempt in tries[:-1] for record in attempt if rng.random() < 0.1]
    whole = tries[-1]
    for record in late:
        at = rng.randint(0, len(whole))
        whole = [*whole[:at], record, *whole[at:]]
    log += whole
    joiner, seen = MessageJoiner(), list[JoinedMessage]()
    for offset, record in enumerate(log):
        message = joiner.take(record[0], offset, record[1], record[2])
        if message is not None:
            seen.append(message)
            break
        again = joiner.from_offset(offset + 1)
        assert joined(MessageJoiner(), log, again)[0].value == value, "another reader finds it from there"
    assert [(message.key, message.value) for message in seen] == [(b"k", value)]


def test_parts_of_another_release_that_writes_the_row_otherwise_are_not_mixed() -> None:
    old, new = (parts_of(b"p", b"k", value, 40) for value in (b"a" * 50, b"b" * 50))
    assert joined(MessageJoiner(), [*old[:3], *new]) == [JoinedMessage(3, b"k", b"b" * 50)]


def test_parts_that_do_not_make_what_was_cut_are_refused() -> None:
    first, last = parts_of(b"p", b"k", b"a" * 20, 40)
    with pytest.raises(CorruptDataError, match="do not make"):
        joined(MessageJoiner(), [first, (last[0], last[1], b"b" * len(last[2]))])
    with pytest.raises(CorruptDataError, match="no whole head"):
        MessageJoiner().take(b"p", 0, b"\0part", b"")


def test_parts_below_what_was_applied_hold_no_reader_back() -> None:
    joiner = MessageJoiner()
    joined(joiner, parts_of(b"p", b"k", b"a" * 50, 40)[:2])
    assert joiner.from_offset(9) == 0
    joiner.forget(b"o")
    assert joiner.from_offset(9) == 0
    joiner.forget(b"p")
    assert joiner.from_offset(9) == 9


@given(st.integers(0, 2**64))
def test_records_in_parts_fit_their_topics_and_come_to_the_same(seed: int) -> None:
    rng = random.Random(seed)
    limits = {"a": rng.randint(250, 400), "b": rng.randint(250, 400)}
    rows = []
    for number in range(rng.randint(1, 12)):
        kind = rng.choice([PositionClass.ROW] * 4 + [PositionClass.WATERMARK])
        position = Position(Ts(number), kind, Ts(0), RowOp.NONE, b"k").encode()
        key, size = (b"form", rng.choice([5, 900])) if kind is PositionClass.ROW else (None, 900)
        rows.append((rng.choice("ab"), rng.randint(0, 1), key, rng.randbytes(size), position))
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OUTPUT_SCHEMA, strict=True)]
    records = in_parts(pa.table(arrays, schema=OUTPUT_SCHEMA), limits.__getitem__)
    joiners: dict[tuple[str, int], MessageJoiner] = {}
    joined_records = []
    for topic, partition, key, value, position in (tuple(row.values()) for row in records.to_pylist()):
        if not is_part(key):
            joined_records.append((topic, partition, key, value, position))
            continue
        assert len(key) + len(value) + len(position) + MESSAGE_OVERHEAD_BYTES <= limits[topic]
        message = joiners.setdefault((topic, partition), MessageJoiner()).take(position, 0, key, value)
        if message is not None:
            joined_records.append((topic, partition, message.key, message.value, position))
    assert joined_records == rows
