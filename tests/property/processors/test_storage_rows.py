"""Lines for storage sinks: columnar and scalar forms agree, a CSV reader reads the values back, messages come apart."""

import csv
import io
import itertools
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp, decode_position
from schemas.sink.storage_rows import FolderForm, decode_folder, decode_storage_rows, encode_folder
from schemas.tidb.mysql_types import MysqlType
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.encode.storage.csv_lines import CsvLines
from sorters.core.encode.storage.csv_values import CsvForm
from sorters.core.encode.storage.rows import CanalJsonLines, LineFormat, StorageEncoder
from sorters.core.encode.wire.row_heads import HeadedJoiner
from sorters.core.mount import mount
from sorters.core.mount.mounted import RowKind
from sorters.core.records.order import OUTPUT_SCHEMA, OutputRecords, make_records, sort_records
from sorters.core.records.row_batches import join_neighbours
from tests.support.recorded.mounting import row_changes
from tests.support.topics.random_rows import random_change, random_table

ALWAYS, NEVER = 10**9, 0
FORMATS: list[LineFormat] = [
    CsvLines(),
    CsvLines(include_commit_ts=True, output_old_value=True, output_field_header=True, terminator="\n"),
    CsvLines(form=CsvForm(quote="", delimiter="|+", binary_encoding_method="hex", null="")),
    CsvLines(form=CsvForm(quote="'", delimiter="\t", null="NULL")),
    CanalJsonLines(encoder=CanalJsonEncoder(enable_tidb_extension=True)),
]
START = Ts(7)


@given(st.integers(0, 2**64), st.integers(1, 60), st.sampled_from(FORMATS))
def test_storage_rows_columnar_and_scalar_say_the_same(seed: int, count: int, lines: LineFormat) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    rows = row_changes(table.table_id, [random_change(rng, table, number, damage=False) for number in range(count)])
    encoder = StorageEncoder(format=lines, start_ts=START)
    columnar, scalar = (
        encoder.encode_rows(mount(table, rows, small_rows=small_rows), encoded_at_ms=5)
        for small_rows in (NEVER, ALWAYS)
    )
    assert columnar.keys.equals(scalar.keys)
    assert columnar.values.to_pylist() == scalar.values.to_pylist()
    for key, value, row in zip(columnar.keys.to_pylist(), columnar.values.to_pylist(), columnar.rows, strict=True):
        folder = decode_folder(key)
        assert (folder.schema, folder.table, folder.version) == (table.schema, table.table, max(table.version, START))
        message = decode_storage_rows(value)
        position = decode_position(message.position(0))
        assert (position.commit_ts, position.key) == (rows.commit_ts[row], rows.key[int(row)].as_py())


@given(st.integers(0, 2**64), st.integers(1, 30))
def test_csv_lines_read_by_a_csv_reader_hold_the_values_of_the_row(seed: int, count: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    changes = [random_change(rng, table, number, damage=False) for number in range(count)]
    mounted = mount(table, row_changes(table.table_id, changes), small_rows=ALWAYS)
    lines = CsvLines(form=CsvForm(null="<null>", binary_encoding_method="hex"), include_commit_ts=True)
    for part in mounted.parts:
        data = part.old_rows if part.kind is RowKind.DELETE else part.new_rows
        assert data is not None
        for text, values, commit_ts in zip(lines.lines(part, 0).to_pylist(), data, part.commit_ts, strict=True):
            (fields,) = csv.reader(io.StringIO(text.decode("utf-8", "surrogateescape"), newline=""))
            letter = {RowKind.INSERT: "I", RowKind.UPDATE: "U", RowKind.DELETE: "D"}[part.kind]
            assert fields[:4] == [letter, table.table, table.schema, str(commit_ts)]
            assert len(fields) == 4 + len(table.columns)
            for spec, field, value in zip(table.columns, fields[4:], values, strict=True):
                if value is None:
                    assert field == "<null>"
                elif spec.tp in (MysqlType.DOUBLE, MysqlType.FLOAT):
                    assert float(field) == pytest.approx(value, rel=1e-6)
                elif isinstance(value, bytes):
                    assert field == value.hex() if spec.binary else field.encode("utf-8", "surrogateescape") == value
                elif isinstance(value, str):
                    assert field == value
                elif spec.tp is MysqlType.ENUM and isinstance(value, int) and 1 <= value <= len(spec.elems):
                    assert field == spec.elems[value - 1]
                elif spec.tp not in (MysqlType.ENUM, MysqlType.SET, MysqlType.VECTOR):
                    assert field == str(value)


def single(home: int, folder: bytes, ts: int, key: bytes, line: bytes) -> tuple[Any, ...]:
    position = Position(Ts(ts), PositionClass.ROW, Ts(ts - 1), RowOp.INSERT, key)
    head = ts.to_bytes(8, "big") + (ts - 1).to_bytes(8, "big") + bytes((RowOp.INSERT,))
    head += len(key).to_bytes(4, "big") + len(line).to_bytes(4, "big")
    return "t", home, folder, head + key + line, position.encode()


def watermark(home: int, ts: int) -> tuple[Any, ...]:
    return "t", home, None, b"{}", Position(Ts(ts), PositionClass.WATERMARK).encode()


def records_of(rows: list[tuple[Any, ...]]) -> OutputRecords:
    columns = list(zip(*rows, strict=True))
    return make_records([pa.array(column, kind.type) for column, kind in zip(columns, OUTPUT_SCHEMA, strict=True)])


Drawn = tuple[int, bytes, bytes, bytes]
DRAWN = st.tuples(st.integers(0, 2), st.sampled_from([b"a", b"b"]), st.binary(max_size=9), st.binary(max_size=40))


@given(st.lists(DRAWN, min_size=1, max_size=40), st.integers(1, 6), st.integers(200, 900))
def test_storage_messages_joined_hold_each_row_with_its_position_and_its_lines_side_by_side(
    drawn: list[Drawn], rows_max: int, limit: int
) -> None:
    rows = [single(home, folder, 10 + n, key, line) for n, (home, folder, key, line) in enumerate(drawn)]
    marks = [watermark(home, 10 + len(drawn)) for home in range(3)]
    joined = join_neighbours(sort_records(records_of([*rows, *marks])), HeadedJoiner(rows_max), lambda _: limit)
    for home in range(3):
        mine = [row for row in joined.to_pylist() if row["partition"] == home]
        assert mine.pop()["value"] == b"{}"
        meant = [
            (folder, pos, line) for (at, folder, _, line), (*_, pos) in zip(drawn, rows, strict=True) if at == home
        ]
        rows_read = []
        for row in mine:
            message = decode_storage_rows(row["value"])
            assert len(message) <= rows_max
            positions = list(message.positions())
            assert positions[-1] == row["position"]
            tails = [bytes(message.lines(first)) for first in range(len(message))] + [b""]
            lines = [whole[: len(whole) - len(rest)] for whole, rest in itertools.pairwise(tails)]
            rows_read += [(row["key"], position, line) for position, line in zip(positions, lines, strict=True)]
        assert rows_read == meant


@given(st.binary(max_size=200))
def test_storage_rows_of_something_else_are_refused_or_add_up(value: bytes) -> None:
    try:
        message = decode_storage_rows(value)
    except CorruptDataError:
        return
    assert int(message.heads["key"].sum()) + int(message.heads["line"].sum()) + 25 * len(message) == len(value)


def test_folder_of_a_row_message_reads_back() -> None:
    for form in (FolderForm("d", "t", Ts(5)), FolderForm("ü", 'a"b', Ts(9), 77, "h,h\r\n")):
        assert decode_folder(encode_folder(form)) == form
    with pytest.raises(CorruptDataError):
        decode_folder(b'[2,"d","t",5,null,""]')
