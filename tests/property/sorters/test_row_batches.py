"""Messages of several rows: taken apart by the protocol's own framing they are the rows, in order, within limits."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config.sink.kafka import MESSAGE_OVERHEAD_BYTES
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp, decode_position
from sorters.core.encode.open.batches import OpenJoiner
from sorters.core.records.order import OUTPUT_SCHEMA, OutputRecords, make_records, sort_records
from sorters.core.records.row_batches import RowJoin, join_neighbours

VERSION = (1).to_bytes(8, "big")
Record = tuple[str, int, bytes, bytes, bytes]


def framed(text: bytes) -> bytes:
    return len(text).to_bytes(8, "big") + text


def table(records: list[Record]) -> OutputRecords:
    columns = list(zip(*records, strict=True)) if records else [()] * 5
    return make_records([pa.array(column, kind.type) for column, kind in zip(columns, OUTPUT_SCHEMA, strict=True)])


def parts(frames: bytes) -> list[bytes]:
    """Take lengths and bodies apart."""
    bodies = []
    while frames:
        length = int.from_bytes(frames[:8], "big")
        bodies.append(frames[8 : 8 + length])
        frames = frames[8 + length :]
    return bodies


@st.composite
def cuts(draw: st.DrawFn) -> list[Record]:
    """A cut's records, one row each: ts in any order, some DDL and watermarks among them."""
    count = draw(st.integers(0, 40))
    messages = []
    for number in range(count):
        topic, partition = draw(st.sampled_from("ab")), draw(st.integers(0, 1))
        kind = draw(st.sampled_from([PositionClass.ROW] * 6 + [PositionClass.DDL, PositionClass.WATERMARK]))
        op = RowOp.INSERT if kind is PositionClass.ROW else RowOp.NONE
        position = Position(Ts(draw(st.integers(1, 9))), kind, Ts(0), op, b"%d" % number)
        body = b"k%d" % number, b"v" * draw(st.integers(0, 30))
        messages.append((topic, partition, VERSION + framed(body[0]), framed(body[1]), position.encode()))
    return messages


def by_home(records: OutputRecords) -> dict[tuple[str, int], list[Any]]:
    homes: dict[tuple[str, int], list[Any]] = {}
    for row in records.to_pylist():
        homes.setdefault((row["topic"], row["partition"]), []).append(row)
    return homes


@given(records=cuts(), rows_max=st.integers(2, 5), spare=st.integers(0, 120))
def test_joined_messages_hold_every_row_once_in_order_and_within_the_limits(
    records: list[Record], rows_max: int, spare: int
) -> None:
    single = sort_records(table(records))
    # No limit is below the largest message of one row: that was refused before.
    limit = max([len(r[2]) + len(r[3]) for r in records], default=0) + MESSAGE_OVERHEAD_BYTES + spare
    joined = join_neighbours(single, OpenJoiner(rows_max), lambda _: limit)
    assert sort_records(joined).equals(joined)
    before, after = by_home(single), by_home(joined)
    assert before.keys() == after.keys()
    for home, rows in before.items():
        at = 0
        for message in after[home]:
            assert message["key"][:8] == VERSION
            keys, values = parts(message["key"][8:]), parts(message["value"])
            assert len(keys) == len(values) <= rows_max
            assert len(message["key"]) + len(message["value"]) + MESSAGE_OVERHEAD_BYTES <= limit
            mine = rows[at : at + len(keys)]
            assert [(VERSION + framed(k), framed(v)) for k, v in zip(keys, values, strict=True)] == [
                (row["key"], row["value"]) for row in mine
            ]
            assert message["position"] == mine[-1]["position"]
            classes = {decode_position(row["position"]).position_class for row in mine}
            assert len(keys) == 1 or classes == {PositionClass.ROW}
            at += len(keys)
            # No message ends early: the next row would have been one too many, too large, or is no row.
            if at < len(rows) and len(keys) < rows_max:
                more = rows[at]
                larger = len(message["key"]) + len(message["value"]) + len(more["key"]) - 8 + len(more["value"])
                is_row = decode_position(more["position"]).position_class is PositionClass.ROW
                assert larger + MESSAGE_OVERHEAD_BYTES > limit or not is_row or classes != {PositionClass.ROW}
        assert at == len(rows)


@given(records=cuts(), rows_max=st.integers(2, 5))
def test_joined_messages_of_some_partitions_are_those_of_the_whole_cut(records: list[Record], rows_max: int) -> None:
    # The shuffled job joins each task's partitions apart, the small ones a whole cut.
    whole = by_home(join_neighbours(sort_records(table(records)), OpenJoiner(rows_max), lambda _: 500))
    for partition in (0, 1):
        some = sort_records(table([record for record in records if record[1] == partition]))
        alone = by_home(join_neighbours(some, OpenJoiner(rows_max), lambda _: 500))
        assert alone == {home: rows for home, rows in whole.items() if home[1] == partition}


@given(records=cuts(), rows_max=st.integers(2, 5), sizes=st.lists(st.integers(0, 7), max_size=12))
def test_joined_stream_of_chunks_equals_the_whole(records: list[Record], rows_max: int, sizes: list[int]) -> None:
    single, joiner, at, chunks = sort_records(table(records)), OpenJoiner(rows_max), 0, []
    for size in sizes:
        chunks.append(single.slice(at, size))
        at += size
    join = pickle.loads(pickle.dumps(RowJoin(joiner, 150, {"a": 200})))
    streamed = list(join.stream([*chunks, single.slice(at)]))
    joined_rows: dict[tuple[str, int], list[Any]] = {}
    for chunk in streamed:
        for home, rows in by_home(chunk).items():
            joined_rows.setdefault(home, []).extend(rows)
    assert joined_rows == by_home(join.whole(single)) == by_home(join_neighbours(single, joiner, lambda _: 150))


def test_joined_insert_and_delete_equal_the_documented_bytes() -> None:
    # K1 and K2 are 55 bytes, the values 73: PingCAP's example of a batch of two.
    key = b'{"ts":445644800000000001,"scm":"test","tbl":"t1","t":1}'
    up = b'{"u":{"id":{"t":3,"h":true,"f":11,"v":1},"val":{"t":15,"f":64,"v":"aa"}}}'
    down = up.replace(b'"u"', b'"d"').replace(b"aa", b"bb")
    rows = [
        ("t", 0, VERSION + framed(key), framed(value), Position(Ts(5), PositionClass.ROW, Ts(4), op, b"x").encode())
        for value, op in ((up, RowOp.DELETE), (down, RowOp.INSERT))
    ]
    joined = join_neighbours(sort_records(table(rows)), OpenJoiner(16), lambda _: 10_000)
    (message,) = joined.to_pylist()
    length = bytes.fromhex("00 00 00 00 00 00 00 37")
    assert message["key"] == bytes.fromhex("00 00 00 00 00 00 00 01") + length + key + length + key
    size = bytes.fromhex("00 00 00 00 00 00 00 49")
    assert message["value"] == size + up + size + down


@pytest.mark.parametrize("count", [0, 1])
def test_joined_messages_of_nothing_or_one_record_are_the_same(count: int) -> None:
    rows = table([("t", 0, VERSION + framed(b"k"), framed(b"v"), Position(Ts(5), PositionClass.ROW).encode())][:count])
    assert join_neighbours(rows, OpenJoiner(16), lambda _: 10_000).equals(rows)
