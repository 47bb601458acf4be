"""Ids and sums of rows in messages, and what a sorter tells of them with its watermarks."""

import random
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.flow.flow_sum import FlowSum
from schemas.ids import Ts
from schemas.sink.flow_mark import FlowMark, joined_marks, read_mark
from schemas.sink.message_rows import (
    RowSummer,
    message_row_id,
    message_row_ids,
    sum_of_ids,
    sums_of,
    table_word,
    word_of_form,
)
from schemas.sink.position import Position, PositionClass
from schemas.sink.sql_rows import HEADS, decode_rows, encode_form
from schemas.sink.storage_rows import FolderForm, encode_folder
from sorters.core.flow.flow_marks import FlowMarker
from sorters.core.records.order import OUTPUT_SCHEMA, make_records, sort_records
from tests.support.rawlog.flow_rows import FORMS, WRITER, cuts_of, messages, watermark

# -- ids and sums

KEYS = st.binary(max_size=40)
U63 = st.integers(0, 2**63 - 1)
ROWS = st.lists(st.tuples(U63, U63, st.integers(0, 0x83), KEYS, st.integers(0, 2**64 - 1)), min_size=1, max_size=30)


@given(ROWS)
def test_message_row_ids_of_any_rows_are_those_of_each_row(rows: list[tuple[int, int, int, bytes, int]]) -> None:
    heads, keys, at = np.zeros(len(rows), HEADS), bytes(8), list[int]()
    for number, (commit_ts, start_ts, op, key, _) in enumerate(rows):
        heads[number] = commit_ts, start_ts, op, len(key), 0
        at.append(len(keys))
        keys += key
    tables = np.array([row[4] for row in rows], np.uint64)
    ids = message_row_ids(heads, np.frombuffer(keys, np.uint8), np.array(at), tables)
    assert ids.tolist() == [message_row_id(*row) for row in rows]


def test_message_row_id_is_what_the_format_says() -> None:
    """The constant was computed apart from this code, after docs/formats/sink-topic.md."""

    def mixed(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    key, name = b"(`a`=7 AND `b`='x') OR ", b"d\0t"
    words = [7, 5, len(key) * 256 + 3, int.from_bytes(blake2b(name, digest_size=8).digest(), "little")]
    words += [int.from_bytes(part, "little") for part in (key[-8:], key[:8], key[8:16])]
    factors = [mixed(0x9E3779B97F4A7C15 * (n + 1) % 2**64) | 1 for n in range(len(words))]
    expected = mixed(sum(a * b for a, b in zip(factors, words, strict=True)) % 2**64)
    assert message_row_id(7, 5, 3, key, table_word("d", "t")) == expected


@given(st.integers(0, 2**32))
def test_row_summer_however_rows_are_joined_has_their_sum(seed: int) -> None:
    rng = random.Random(seed)
    rows = [row for cut in cuts_of(rng) for row in cut]
    summer = RowSummer()
    for _, key, value in messages(rows, rng):
        assert key is not None
        decoded = decode_rows(value)
        # Each message in two pieces, as repeats and claims divide it.
        border = rng.randint(0, len(decoded))
        for first, end in ((0, border), (border, len(decoded))):
            if first < end:
                keys = int(decoded.key_at[first]), int(decoded.key_at[end])
                summer.add(value, first, end, keys, word_of_form(key))
    assert summer.take() == sum_of_ids([row.id for row in rows])
    assert summer.take() == FlowSum()


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 15)), max_size=50))
def test_sums_of_ids_by_home_are_those_of_each(pairs: list[tuple[int, int]]) -> None:
    ids, home = np.array([each for each, _ in pairs], np.uint64), np.array([where for _, where in pairs], np.int32)
    expected = {number: sum_of_ids([each for each, where in pairs if where == number]) for _, number in pairs}
    assert sums_of(ids, home) == expected


def test_word_of_a_folder_is_that_of_its_table() -> None:
    key = encode_folder(FolderForm("d", "t", Ts(9), 7, "head"))
    assert word_of_form(key) == word_of_form(encode_form(FORMS["t"])) == table_word("d", "t")


# -- what the sorter tells


@given(st.integers(0, 2**32), st.booleans())
def test_flow_marker_tells_each_partition_the_sum_of_its_rows(seed: int, in_windows: bool) -> None:
    rng = random.Random(seed)
    rows = [(row, rng.randint(0, 3)) for row in cuts_of(rng)[0]]
    records = [("topic", home, *messages([row], rng)[0]) for row, home in rows]
    ddl = Position(Ts(15), PositionClass.DDL, Ts(14), key=bytes(4)).encode()
    bootstrap = Position(Ts(20), PositionClass.BOOTSTRAP, key=bytes(8)).encode()
    marks = [("topic", home, *watermark(20, 10, (), None)) for home in range(5)]
    records += [("topic", 0, ddl, None, b"{}"), ("topic", 1, bootstrap, None, b"{}"), *marks]
    columns = list(zip(*((t, p, k, v, at) for t, p, at, k, v in records), strict=True))
    table = sort_records(make_records([pa.array(column, field.type) for column, field in
                                       zip(columns, OUTPUT_SCHEMA, strict=True)]))  # fmt: skip
    marker = FlowMarker(Ts(10), WRITER)
    border = rng.randint(0, table.num_rows)
    pieces = [table.slice(0, border), table.slice(border)] if in_windows else [table]
    written = [record for piece in map(marker.marked, marker.stream(pieces)) for record in piece.to_pylist()]
    before = table.to_pylist()
    assert len(written) == len(before)
    for old, new in zip(before, written, strict=True):
        if old["position"][8] != PositionClass.WATERMARK:
            assert old == new
            continue
        expected = sum_of_ids([row.id for row, home in rows if home == old["partition"]])
        assert read_mark(new["value"]) == FlowMark(Ts(10), expected, WRITER)
        assert {**old, "value": b""} == {**new, "value": b""}


@pytest.mark.parametrize(
    "value",
    [
        b"", b"{", b'{"watermark":7}', b'{"flow":7}', b'{"flow":{}}', b"\xff" + b'"flow"', b'"flow"',
        b'{"flow":{"version":2,"after_ts":1,"rows":"0:0000000000000000","writer":"w"}}',
        b'{"flow":{"version":1,"after_ts":-1,"rows":"0:0000000000000000","writer":"w"}}',
        b'{"flow":{"version":1,"after_ts":1,"rows":"0","writer":"w"}}',
        b'{"flow":{"version":1,"after_ts":1,"rows":"0:0000000000000000","writer":7}}',
    ],
)  # fmt: skip
def test_mark_that_cannot_be_read_is_none(value: bytes) -> None:
    assert read_mark(value) is None


def test_marks_are_joined_only_where_they_meet_and_are_one_writers() -> None:
    first, second = FlowMark(Ts(1), FlowSum(1, 5), "w"), FlowMark(Ts(7), FlowSum(2, 6), "w")
    assert joined_marks(first, Ts(7), second) == FlowMark(Ts(1), FlowSum(3, 11), "w")
    assert joined_marks(first, Ts(6), second) == second
    assert joined_marks(replace(first, writer="v"), Ts(7), second) == second
    assert joined_marks(None, Ts(7), second) == second
    assert joined_marks(first, Ts(7), None) is None
