"""The literals of database sinks: columnar and scalar forms agree, and joined messages say what single ones did."""

import random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from schemas.position import PositionClass
from schemas.sql_rows import SqlRow, decode_form, decode_rows
from sorters.core.columnar import MountedColumns, mount
from sorters.core.encode.sql_rows import SqlRowsEncoder, SqlRowsJoiner, form_of
from sorters.core.order import OUTPUT_SCHEMA, sort_records
from sorters.core.row_batches import join_neighbours
from tests.support.mounting import row_changes
from tests.support.random_rows import random_change, random_table

ALWAYS, NEVER = 10**9, 0


def _rows(mounted: MountedColumns) -> list[tuple[bytes, SqlRow]]:
    encoded = SqlRowsEncoder().encode_rows(mounted)
    messages = zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True)
    return [(key, row) for key, value in messages for row in decode_rows(value)]


@given(st.integers(0, 2**64), st.integers(1, 60))
def test_sql_rows_columnar_and_scalar_say_the_same(seed: int, count: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    changes = [random_change(rng, table, number, damage=False) for number in range(count)]
    rows = row_changes(table.table_id, changes)
    columnar, scalar = (_rows(mount(table, rows, small_rows=small_rows)) for small_rows in (NEVER, ALWAYS))
    assert columnar == scalar
    assert {decode_form(key) for key, _ in columnar} <= {form_of(table)}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([b"a", b"b"]), st.integers(1, 40)), max_size=40))
def test_sql_rows_joined_messages_hold_rows_of_one_form_in_their_order(rows: list[tuple[int, bytes, int]]) -> None:
    positions = [n.to_bytes(8, "big") + bytes((PositionClass.ROW,)) + bytes(9) for n in range(len(rows))]
    columns = [
        pa.array(["t"] * len(rows), pa.string()),
        pa.array([home for home, _, _ in rows], pa.int32()),
        pa.array([form for _, form, _ in rows], pa.binary()),
        pa.array([b"%03d." % n * size for n, (_, _, size) in enumerate(rows)], pa.binary()),
        pa.array(positions, pa.binary()),
    ]
    records = sort_records(pa.table(columns, schema=OUTPUT_SCHEMA))
    joined = join_neighbours(records, SqlRowsJoiner(rows_per_message=5), lambda _: 400)
    for home in range(3):
        mine = joined.filter(pa.array(joined.column("partition").to_numpy() == home))
        forms, values = mine.column("key").to_pylist(), mine.column("value").to_pylist()
        told = [(form, part) for form, value in zip(forms, values, strict=True) for part in value.split(b".") if part]
        meant = [(form, b"%03d" % n) for n, (at, form, size) in enumerate(rows) if at == home for _ in range(size)]
        assert told == meant
        assert all(len(value) <= 400 for value in values)
