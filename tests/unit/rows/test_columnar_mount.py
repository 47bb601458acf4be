"""The columnar mounter on batches with odd rows in them; equality with the scalar one is a property test."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from schemas.changes import RowChanges
from schemas.ids import TableId, Ts
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import decode_row_v2, encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.mount import RowKind, mount
from sorters.core.mount.scalar import CorruptRowError
from tests.support.recorded.ddl_jobs import column, index, table_info
from tests.support.recorded.mounting import benchmark_rows, row_changes
from tests.support.recorded.recording import CommittedChange

COUNT, ODD_ROW = 1000, 617
JSON_ID, INT_ID, DECIMAL_ID = 9, 3, 4


@pytest.fixture(name="wide10")
def wide10_rows() -> tuple[TableVersion, RowChanges]:
    return benchmark_rows("wide10", COUNT)


def with_row(rows: RowChanges, row: int, value: bytes) -> RowChanges:
    values = rows.value.to_pylist()
    values[row] = value
    return replace(rows, value=pa.array(values, pa.binary()))


def changed(rows: RowChanges, row: int, column_id: int, data: bytes | None) -> RowChanges:
    """Return the rows with one column of one row replaced."""
    columns = decode_row_v2(rows.value[row].as_py()) | {column_id: data}
    return with_row(rows, row, encode_row_v2(columns))


def encode(table: TableVersion, rows: RowChanges) -> list[bytes]:
    values: list[bytes] = CanalJsonEncoder().encode_rows(mount(table, rows), encoded_at_ms=1).values.to_pylist()
    return values


@pytest.mark.parametrize(
    ("column_id", "data"),
    [
        (INT_ID, b"\x01\x02\x03"),
        (DECIMAL_ID, b"\x14"),
        (DECIMAL_ID, b"\x14\x04" + b"\xff" * 10),
        (JSON_ID, b"\x01\x05\x00"),
        (JSON_ID, b"\x63"),
    ],
    ids=["integer of 3 bytes", "short decimal", "decimal group too large", "short json", "json of unknown type"],
)
def test_mount_of_a_corrupt_value_among_many_names_table_key_and_commit_ts(
    wide10: tuple[TableVersion, RowChanges], column_id: int, data: bytes
) -> None:
    table, rows = wide10
    with pytest.raises(CorruptRowError) as caught:
        encode(table, changed(rows, ODD_ROW, column_id, data))
    fields = caught.value.fields
    assert fields["table"] == "bench.wide10"
    assert fields["key"] == rows.key[ODD_ROW].as_py().hex()
    assert fields["commit_ts"] == rows.commit_ts[ODD_ROW]
    assert caught.value.code == "mount.corrupt_row"


def test_mount_of_a_row_cut_short_among_many_names_it(wide10: tuple[TableVersion, RowChanges]) -> None:
    table, rows = wide10
    with pytest.raises(CorruptRowError) as caught:
        mount(table, with_row(rows, ODD_ROW, rows.value[ODD_ROW].as_py()[:20]))
    assert caught.value.fields["key"] == rows.key[ODD_ROW].as_py().hex()


def test_mount_of_rows_that_differ_from_the_rest_leaves_the_rest_alone(wide10: tuple[TableVersion, RowChanges]) -> None:
    table, rows = wide10
    v1_row = b"\x08\x06\x08\x0e"  # format v1: column 3 (INT) is 7, nothing else
    odd = changed(with_row(rows, 3, v1_row), ODD_ROW, JSON_ID, None)
    usual, other = encode(table, rows), encode(table, odd)
    assert [row for row in range(COUNT) if usual[row] != other[row]] == [3, ODD_ROW]
    assert b'"b":"7","d":null' in other[3]
    assert b'"j":null' in other[ODD_ROW]


@pytest.mark.parametrize("count", [3, 60])
def test_mount_of_a_negative_zero_in_an_odd_row_keeps_its_sign(count: int) -> None:
    info = table_info(77, "t", columns=[column(1, "id", not_null=True, flag=2), column(2, "d", tp=5, decimal=-1)])
    table = table_version(info, schema_id=2, schema="d", version=Ts(10))
    v1_row = b"\x08\x04\x05" + (1 << 63 ^ (1 << 64) - 1).to_bytes(8, "big")  # column 2 is -0.0, in TiDB's order
    changes = [
        CommittedChange(20, 19, row_key(TableId(77), at), "put", v1_row if at == 2 else encode_row_v2({}), b"", 0)
        for at in range(count)
    ]
    (part,) = mount(table, row_changes(77, changes)).parts
    numbers = part.new_columns()[1].numbers
    assert (numbers[2], np.signbit(numbers[2])) == (0, True)


def test_mount_of_slices_reads_the_rows_of_the_slice(wide10: tuple[TableVersion, RowChanges]) -> None:
    table, rows = wide10
    part = RowChanges(
        table_id=rows.table_id,
        **{
            name: getattr(rows, name)[100:300]
            for name in ("commit_ts", "start_ts", "op", "key", "value", "old_value", "txn_source")
        },
    )
    assert encode(table, part) == encode(table, rows)[100:300]


def test_mount_of_a_mixed_batch_keeps_row_order_and_drops_deletes_of_nothing(
    wide10: tuple[TableVersion, RowChanges],
) -> None:
    table, rows = wide10
    value, key = rows.value[0].as_py(), rows.key[0].as_py()
    sides = [(value, b""), (value, value), (b"", value), (b"", b"")] * 20
    changes = [
        CommittedChange(10 + n, 5, key, "put" if new else "delete", new, old, 0) for n, (new, old) in enumerate(sides)
    ]
    for small_rows in (0, 10**9):
        mounted = mount(table, row_changes(int(table.table_id), changes), small_rows=small_rows)
        assert mounted.kind.tolist() == [RowKind.INSERT, RowKind.UPDATE, RowKind.DELETE, 0] * 20
        encoded = CanalJsonEncoder(enable_tidb_extension=True).encode_rows(mounted, encoded_at_ms=1)
        assert encoded.rows.tolist() == [row for row in range(80) if row % 4 != 3]
        for row, message in zip(encoded.rows.tolist(), encoded.values.to_pylist(), strict=True):
            assert message.endswith(b'"_tidb":{"commitTs":%d}}' % (10 + row))


def test_mount_of_no_rows_gives_no_parts(wide10: tuple[TableVersion, RowChanges]) -> None:
    table, _ = wide10
    mounted = mount(table, row_changes(int(table.table_id), []))
    assert mounted.parts == ()
    encoded = CanalJsonEncoder().encode_rows(mounted, encoded_at_ms=1)
    assert len(encoded.rows) == len(encoded.keys) == len(encoded.values) == 0
    assert np.array_equal(mounted.kind, [])


def key_of(number: int) -> bytes:
    return row_key(TableId(77), b"\x01" + encode_bytes(b"Key %d " % number) + b"\x01" + encode_bytes(b"x" * number))


@pytest.mark.parametrize("count", [3, 60])
def test_clustered_key_of_strings_stands_in_the_key_alone_where_new_collations_are_off(count: int) -> None:
    columns = [
        column(1, "a", tp=15, not_null=True, flag=2, charset="utf8mb4", collation="utf8mb4_bin"),
        column(2, "b", tp=15, not_null=True, flag=2, charset="utf8mb4", collation="utf8mb4_general_ci"),
        column(3, "v"),
    ]
    info = table_info(
        77,
        "t",
        columns=columns,
        indexes=[index(1, "PRIMARY", [0, 1], unique=True, primary=True)],
        is_common_handle=True,
    )
    table = table_version(info, schema_id=2, schema="d", version=Ts(10))
    value, old = encode_row_v2({3: b"\x05"}), encode_row_v2({3: b"\x04"})
    rows = row_changes(
        table.table_id,
        [CommittedChange(20 + at, 19, key_of(at), "put", value, old, txn_source=0) for at in range(count)],
    )
    (part,) = mount(table, rows).parts
    expected = [[b"Key %d " % at for at in range(count)], [b"x" * at for at in range(count)]]
    for side in (part.new_columns(), part.old_columns()):
        assert [each.text.to_pylist() for each in side[:2]] == expected


LONG_TEXTS = [b"0" * 1100, b"a" * 1100, b"\x05\x02" * 600, "表".encode() * 400]
"""Of more bytes than the columnar walk over a key takes apart, so that it stops within them."""


def priced_key(url: bytes, units: int) -> bytes:
    """Return the row key of a url and ``units`` and a quarter: eight digits in four bytes, two in one."""
    return row_key(TableId(77), b"\x01" + encode_bytes(url) + b"\x06\x0a\x02\x80\x00\x00" + bytes([units, 25]))


@pytest.mark.parametrize("text", LONG_TEXTS, ids=["digits", "letters", "control characters", "three bytes each"])
@pytest.mark.parametrize("restored", [True, False])
def test_mount_of_a_decimal_behind_a_very_long_text_in_a_key_among_many_gives_its_value(
    text: bytes, *, restored: bool
) -> None:
    columns = [
        column(1, "url", tp=15, not_null=True, flag=2, flen=768, charset="utf8mb4", collation="utf8mb4_bin"),
        column(2, "amount", tp=246, not_null=True, flag=2, flen=10, decimal=2),
    ]
    primary = index(1, "PRIMARY", [0, 1], unique=True, primary=True)
    info = table_info(77, "t", columns=columns, indexes=[primary], is_common_handle=True)
    table = table_version(info, schema_id=2, schema="d", version=Ts(10))
    urls = [b"http://x/%d" % number for number in range(40)]
    urls[7] = b"http://x/" + text
    changes = [
        CommittedChange(20, 19, priced_key(url, at), "put", encode_row_v2({1: url} if restored else {}), b"", 0)
        for at, url in enumerate(urls)
    ]
    (part,) = mount(table, row_changes(77, changes)).parts
    part.check()
    url_column, amount = part.new_columns()
    assert url_column.text.to_pylist() == urls
    assert amount.text.to_pylist() == [b"%d.25" % at for at in range(40)]
