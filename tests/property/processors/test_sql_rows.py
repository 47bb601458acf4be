"""The literals of database sinks: columnar and scalar forms agree, and joined messages say what single ones did."""

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.sink.position import PositionClass
from schemas.sink.sql_rows import SqlRow, TableForm, decode_form, decode_rows, encode_form, encode_rows
from sorters.core.encode.sql.rows import SqlRowsEncoder, form_of
from sorters.core.encode.wire.row_heads import HeadedJoiner
from sorters.core.mount import MountedColumns, mount
from sorters.core.records.order import OUTPUT_SCHEMA, sort_records
from sorters.core.records.row_batches import join_neighbours
from tests.support.recorded.mounting import row_changes
from tests.support.topics.random_rows import random_change, random_table

ALWAYS, NEVER = 10**9, 0


def _rows(mounted: MountedColumns) -> list[tuple[bytes, SqlRow]]:
    encoded = SqlRowsEncoder().encode_rows(mounted)
    messages = zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True)
    return [(key, row) for key, value in messages for row in _rows_said(key, value)]


def _rows_said(key: bytes, value: bytes) -> list[SqlRow]:
    form, rows = decode_form(key), decode_rows(value)
    return [rows.row(at, form) for at in range(len(rows))]


@given(st.integers(0, 2**64), st.integers(1, 60))
def test_sql_rows_columnar_and_scalar_say_the_same(seed: int, count: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    changes = [random_change(rng, table, number, damage=False) for number in range(count)]
    rows = row_changes(table.table_id, changes)
    columnar, scalar = (_rows(mount(table, rows, small_rows=small_rows)) for small_rows in (NEVER, ALWAYS))
    assert columnar == scalar
    assert {decode_form(key) for key, _ in columnar} <= {form_of(table)}


FORMS = [
    encode_form(TableForm(schema="d", table=name, version=Ts(1), columns=("a", "b"), key=("a", "b")[:keys]))
    for name, keys in (("t", 1), ("u", 2))
]
DRAWN = st.tuples(st.integers(0, 2), st.sampled_from(FORMS), st.integers(0, 12), st.integers(0, 40))


@given(st.lists(DRAWN, max_size=40))
def test_sql_rows_joined_messages_hold_rows_of_one_form_in_their_order(
    drawn: list[tuple[int, bytes, int, int]],
) -> None:
    rows = [
        SqlRow(100 + n, 90 + n, 1 + n % 3, b"k" * key_bytes, b"(%d)" % n + b"x" * row_bytes if row_bytes else b"")
        for n, (_, _, key_bytes, row_bytes) in enumerate(drawn)
    ]
    positions = [n.to_bytes(8, "big") + bytes((PositionClass.ROW,)) + bytes(9) for n in range(len(rows))]
    values = [encode_rows(decode_form(form), [row]) for (_, form, _, _), row in zip(drawn, rows, strict=True)]
    columns = [
        pa.array(["t"] * len(rows), pa.string()),
        pa.array([home for home, *_ in drawn], pa.int32()),
        pa.array([form for _, form, *_ in drawn], pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(positions, pa.binary()),
    ]
    records = sort_records(pa.table(columns, schema=OUTPUT_SCHEMA))
    joined = join_neighbours(records, HeadedJoiner(rows_per_message=5), lambda _: 700)
    for home in range(3):
        mine = joined.filter(pa.array(joined.column("partition").to_numpy() == home))
        forms, values = mine.column("key").to_pylist(), mine.column("value").to_pylist()
        said = [(form, row) for form, value in zip(forms, values, strict=True) for row in _rows_said(form, value)]
        meant = [(form, row) for (at, form, *_), row in zip(drawn, rows, strict=True) if at == home]
        assert said == meant
        assert all(len(value) <= 700 for value in values)


def test_sql_rows_of_a_message_are_neighbours_as_in_a_statement() -> None:
    first, second = (decode_form(form) for form in FORMS)
    rows = [SqlRow(7, 5, 2, b"1", b"(1,2)"), SqlRow(7, 5, 3, b"2", b"(2,3)")]
    assert encode_rows(first, rows).endswith(b"1,2,(1,2),(2,3),")
    assert encode_rows(second, rows).endswith(b"1 OR 2 OR (1,2),(2,3),")


@given(st.binary(max_size=200))
def test_sql_rows_of_something_else_are_refused_or_add_up(value: bytes) -> None:
    try:
        rows = decode_rows(value)
    except CorruptDataError:
        return
    assert (rows.key_at[0], rows.row_at[0], rows.row_at[-1]) == (25 * len(rows), rows.key_at[-1], len(value))


def test_sql_rows_of_another_release_are_refused_by_their_version() -> None:
    with pytest.raises(CorruptDataError, match="one release"):
        decode_form(b'[1,"d","t",5,["a"],["a"]]')
