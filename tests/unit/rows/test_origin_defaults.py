"""What rows from before a column was added hold in it, as TiDB's ``Datum.ConvertTo`` reads the default's text."""

from typing import Any

import pytest

from schemas.errors import CorruptDataError
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

INT, FLOAT, DOUBLE, DATE, TIME, YEAR, VARCHAR, BIT, VECTOR = 3, 4, 5, 10, 11, 13, 15, 16, 225
DECIMAL, ENUM, SET, CHAR = 246, 247, 248, 254
UNSIGNED = 32


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


@pytest.mark.parametrize(
    ("bits", "text", "held"),
    [
        ("", "", 0),  # ADD COLUMN b BIT NOT NULL: the zero value has no byte
        ("AA==", "\x00", 0),
        ("Aqs=", "\x02\ufffd", 0x2AB),
        (None, "\x01", 1),  # TiDB before it kept a BIT's bytes apart
    ],
)
def test_absent_bit_is_the_number_of_its_defaults_bytes(bits: str | None, text: str, held: int) -> None:
    assert absent(BIT, text, origin_default_bit=bits, flen=10, not_null=True, flag=UNSIGNED) == held


@pytest.mark.parametrize(
    ("tp", "default", "held"),
    [
        # Older TiDBs keep these texts as the statement has them. A half goes to the even digit.
        (FLOAT, "3.14159", 13170115 / 2**22),
        (DOUBLE, "3.14159", 3.14),
        (DOUBLE, "-0.125", -0.12),
        (DOUBLE, "0.375", 0.38),
        (DECIMAL, "1.005", "1.01"),
        (DECIMAL, "-0.001", "0.00"),
        (DECIMAL, "-0.005", "-0.01"),
        (DECIMAL, "1e1", "10.00"),
    ],
)
def test_absent_number_has_the_fraction_digits_of_its_column(tp: int, default: str, held: Value) -> None:
    assert absent(tp, default, flen=5, decimal=2) == held


@pytest.mark.parametrize(
    ("default", "held"),
    [
        # Older TiDBs keep these texts as the statement has them.
        ("20200131", "2020-01-31"),
        ("200131", "2020-01-31"),
        ("700131", "1970-01-31"),
        ("2020/1/31", "2020-01-31"),
        ("2020.01.31", "2020-01-31"),
        ("20-1-31", "2020-01-31"),
        ("99-01-31", "1999-01-31"),
        ("0000-00-00", "0000-00-00"),
        ("00-00-00", "0000-00-00"),
        ("00/00/00", "0000-00-00"),
        ("2020-01-31 10:11:12", "2020-01-31"),
    ],
)
def test_absent_date_is_read_as_mysql_writes_dates(default: str, held: str) -> None:
    assert absent(DATE, default) == held


@pytest.mark.parametrize(
    ("tp", "charset", "default", "held"),
    [
        (VARCHAR, "utf8mb4", "abc  ", b"abc"),
        (VARCHAR, "utf8mb4", "日本語 ", "日本語".encode()),
        (VARCHAR, "utf8mb4", "a  ", b"a  "),
        (CHAR, "utf8mb4", "abc ", b"abc"),
        (CHAR, "binary", "ab", b"ab\0"),
    ],
)
def test_absent_text_has_no_blanks_beyond_its_columns_length(tp: int, charset: str, default: str, held: bytes) -> None:
    collation = "binary" if charset == "binary" else "utf8mb4_bin"
    assert absent(tp, default, flen=3, charset=charset, collation=collation) == held


@pytest.mark.parametrize("tp", [INT, YEAR, FLOAT, DECIMAL, DATE, TIME, SET, ENUM])
def test_default_that_is_no_value_of_its_type_is_corrupt(tp: int) -> None:
    with pytest.raises(CorruptDataError, match="table info does not decode"):
        absent(tp, "no value", elems=["a"])
