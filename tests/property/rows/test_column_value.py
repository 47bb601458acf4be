"""A value is the same value in a v2 row, in a v1 row and in a row key; each encoder here is written from the
reference.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from schemas.changes import Op
from schemas.ids import TableId, Ts
from schemas.tidb import codec
from schemas.tidb.keys import row_key
from schemas.tidb.mysql_decimal import encode_decimal
from schemas.tidb.packed_time import pack_time
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from schemas.tidb.value import Value
from sorters.core.mount.scalar import mount_row
from tests.support.recorded.ddl_jobs import column, index, table_info

UNSIGNED, PRIMARY = 32, 2


@dataclass(frozen=True)
class Case:
    """One value of one column type in its three encodings; ``key`` None: the type can be in no key."""

    tp: int
    v2: bytes
    v1: bytes
    key: bytes | None
    mounted: Value
    flag: int = 0
    decimal: int = 0
    charset: str = "binary"


def sized(value: int, *, signed: bool) -> bytes:
    """Return the smallest of 1, 2, 4, 8 bytes that hold it."""
    for size in (1, 2, 4, 8):
        try:
            return value.to_bytes(size, "little", signed=signed)
        except OverflowError:
            continue
    raise AssertionError(value)


def signed_case(tp: int, value: int) -> Case:
    mounted: Value = value
    return Case(
        tp, sized(value, signed=True), b"\x08" + codec.encode_varint(value), b"\x03" + codec.encode_int(value), mounted
    )


def unsigned_case(tp: int, value: int, mounted: Value = None, *, flag: int = 0, decimal: int = 0) -> Case:
    v1, key = b"\x09" + codec.encode_uvarint(value), b"\x04" + codec.encode_uint(value)
    return Case(
        tp, sized(value, signed=False), v1, key, value if mounted is None else mounted, flag=flag, decimal=decimal
    )


def time_case(parts: tuple[int, ...], tp: int) -> Case:
    year, month, day, hour, minute, second, micro = parts
    date, clock = f"{year:04d}-{month:02d}-{day:02d}", f"{hour:02d}:{minute:02d}:{second:02d}.{micro:06d}"
    return unsigned_case(tp, pack_time(*parts), date if tp == 10 else f"{date} {clock}", decimal=6)


def duration_case(micro: int) -> Case:
    seconds, rest = divmod(abs(micro), 1_000_000)
    text = f"{'-' if micro < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:06d}"
    nano = micro * 1000
    key = b"\x07" + codec.encode_int(nano)
    return Case(11, sized(nano, signed=True), b"\x08" + codec.encode_varint(nano), key, text, decimal=6)


def double_case(value: float) -> Case:
    encoded = codec.encode_float(value)
    return Case(5, encoded, b"\x05" + encoded, b"\x05" + encoded, value)


def float_case(value: float) -> Case:
    return Case(
        4, codec.encode_float(value), b"\x05" + codec.encode_float(value), b"\x05" + codec.encode_float(value), value
    )


def decimal_case(units: int) -> Case:
    text = f"{'-' if units < 0 else ''}{abs(units) // 1000}.{abs(units) % 1000:03d}"
    encoded = encode_decimal(text, 20, 3)
    return Case(246, encoded, b"\x06" + encoded, b"\x06" + encoded, text, decimal=3)


def bytes_case(data: bytes) -> Case:
    return Case(15, data, b"\x02" + codec.encode_compact_bytes(data), b"\x01" + codec.encode_bytes(data), data)


def text_case(data: bytes) -> Case:
    return Case(15, data, b"\x02" + codec.encode_compact_bytes(data), None, data, charset="utf8mb4")


def json_case(value: int) -> Case:
    encoded = b"\x09" + struct.pack("<q", value)
    return Case(245, encoded, b"\x0a" + encoded, None, str(value))


I64, U64 = st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, (1 << 64) - 1)
PARTS = st.tuples(
    st.integers(1, 9999), st.integers(1, 12), st.integers(1, 28), st.integers(0, 23), st.integers(0, 59),
    st.integers(0, 59), st.integers(0, 999_999),
)  # fmt: skip
CASES = st.one_of(
    st.builds(signed_case, st.sampled_from([1, 2, 3, 8, 9]), I64),
    st.builds(lambda value: unsigned_case(8, value, flag=UNSIGNED), U64),
    st.builds(signed_case, st.just(13), st.integers(0, 2155)),
    st.builds(unsigned_case, st.sampled_from([16, 247, 248]), U64),
    st.builds(time_case, PARTS, st.sampled_from([7, 10, 12])),
    st.builds(duration_case, st.integers(-3_020_399_999_999, 3_020_399_999_999)),
    st.builds(double_case, st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(float_case, st.floats(allow_nan=False, allow_infinity=False, width=32)),
    st.builds(decimal_case, st.integers(-(10**20) + 1, 10**20 - 1).filter(lambda units: units // 1000 or units >= 0)),
    st.builds(bytes_case, st.binary(max_size=30)),
    st.builds(text_case, st.text(max_size=12).map(str.encode)),
    st.builds(json_case, I64),
)


def table_of(case: Case, *, in_key: bool) -> TableVersion:
    collation = "utf8mb4_bin" if case.charset == "utf8mb4" else "binary"
    flag = case.flag | (PRIMARY if in_key else 0)
    made = column(1, "c", tp=case.tp, not_null=in_key, flag=flag, flen=20, decimal=case.decimal, charset=case.charset,
                  collation=collation)  # fmt: skip
    indexes = [index(1, "PRIMARY", [0], unique=True, primary=True)] if in_key else []
    info = table_info(9, "t", columns=[made], indexes=indexes, pk_is_handle=False, is_common_handle=in_key)
    return table_version(info, schema_id=2, schema="d", version=Ts(10))


def mounted(table: TableVersion, key: bytes, value: bytes) -> Value:
    row = mount_row(table, key=key, op=Op.PUT, value=value, old_value=b"", commit_ts=Ts(20), start_ts=Ts(19))
    assert row is not None
    assert row.columns is not None
    return row.columns[0]


@given(CASES)
def test_value_any_type_is_the_same_in_both_row_formats(case: Case) -> None:
    table, key = table_of(case, in_key=False), row_key(TableId(9), 1)
    rows: list[Callable[[], bytes]] = [lambda: encode_row_v2({1: case.v2}), lambda: b"\x08\x02" + case.v1]
    for row in rows:
        assert mounted(table, key, row()) == case.mounted
    assert mounted(table, key, encode_row_v2({1: None})) is None
    assert mounted(table, key, b"\x08\x02\x00") is None


@given(CASES.filter(lambda case: case.key is not None))
def test_value_any_type_that_only_the_key_holds_is_the_same(case: Case) -> None:
    assert case.key is not None
    assert mounted(table_of(case, in_key=True), row_key(TableId(9), case.key), encode_row_v2({})) == case.mounted
