"""What rows from before a column was added hold in it, as TiDB's ``Datum.ConvertTo`` reads the default's text."""

from typing import Any

import pytest

from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table_info import table_version
from schemas.tidb.value import Value
from sorters.core.encode.sql.rows import SqlRowsEncoder
from sorters.core.mount import mount
from tests.support.recorded.ddl_jobs import column, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

FLOAT, DOUBLE, YEAR, VECTOR, SET = 4, 5, 13, 225, 248


def absent(tp: int, default: str | None, **fields: Any) -> Value:
    """Return what a row without the column holds."""
    spec = column(1, "c", tp=tp, origin_default=default, **fields)
    info = table_info(100, "t", columns=[spec], pk_is_handle=False)
    return table_version(info, schema_id=1, schema="d", version=Ts(1)).columns[0].absent_value


@pytest.mark.parametrize(
    ("tp", "default", "held"),
    [
        # 32 bits have 23 after the first: 3.14 = 13170115 / 2^22, 0.1 = 13421773 / 2^27, 16777217 = 2^24 + 1.
        (FLOAT, "3.14", 13170115 / 2**22),
        (FLOAT, "-0.1", -13421773 / 2**27),
        (FLOAT, "16777217", 16777216.0),
        (FLOAT, "0.5", 0.5),
        (FLOAT, "1e39", 0.0),
        (DOUBLE, "3.14", 3.14),
        (VECTOR, "[1,0.1]", (1.0, 13421773 / 2**27)),
    ],
)
def test_absent_float_has_as_many_bits_as_its_column(tp: int, default: str, held: Value) -> None:
    assert absent(tp, default, flen=-1, decimal=-1) == held


@pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])
def test_row_without_key_from_before_a_float_came_is_deleted_by_the_float_that_it_holds(small_rows: int) -> None:
    columns = [column(1, "a"), column(2, "f", tp=FLOAT, flen=12, decimal=-1, origin_default="3.14") | {"offset": 1}]
    info = table_info(100, "t", columns=columns, pk_is_handle=False)
    table = table_version(info, schema_id=1, schema="d", version=Ts(1))
    row = CommittedChange(9, 8, row_key(TableId(100), 1), "delete", b"", encode_row_v2({1: b"\x07"}), 0)
    rows = SqlRowsEncoder().encode_rows(mount(table, row_changes(100, [row]), small_rows=small_rows))
    assert b"(`a`<=>7 AND `f`<=>3.140000104904175e0)" in rows.values[0].as_py()


@pytest.mark.parametrize(
    ("elems", "collation", "default", "held"),
    [
        (["a", "A"], "utf8mb4_bin", "A", 0b10),
        (["a", "A"], "utf8mb4_bin", "A,a", 0b11),
        (["a", "b"], "utf8mb4_general_ci", "B", 0b10),  # b'1000010' is kept as it is written
        (["a", "b"], "utf8mb4_bin", "a ,b", 0b11),
        (["a", "b"], "utf8mb4_bin", "", 0),
        (["a", "b", "c"], "utf8mb4_bin", "5", 0b101),
        (["a", "b", "5"], "utf8mb4_bin", "5", 0b100),
    ],
)
def test_absent_set_has_the_names_of_its_default(elems: list[str], collation: str, default: str, held: int) -> None:
    assert absent(SET, default, elems=elems, charset="utf8mb4", collation=collation) == held


@pytest.mark.parametrize(
    ("default", "held"),
    [
        ("70", 1970),
        ("99", 1999),
        ("1", 2001),
        ("69", 2069),
        ("0", 2000),
        ("00", 2000),
        ("0000", 0),
        (" 0", 2000),
        ("1901", 1901),
        ("2155", 2155),
    ],
)
def test_absent_year_of_two_digits_is_of_this_century_or_the_last(default: str, held: int) -> None:
    assert absent(YEAR, default, flen=4) == held
