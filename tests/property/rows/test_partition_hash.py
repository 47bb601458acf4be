"""The partition hash over columns equals the one by rows, which is zlib's CRC-32."""

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorters.core.route.partition_hash import VECTOR_ROWS_MIN, crc32_column, hash_row, hash_rows

VALUES = st.one_of(st.none(), st.binary(max_size=12), st.binary(min_size=30, max_size=70))
TYPES = st.sampled_from([pa.binary(), pa.large_binary()])


@given(st.lists(VALUES, max_size=20), st.integers(1, 60), TYPES, st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_crc32_column_any_values_equals_zlib(
    values: list[bytes | None], repeats: int, kind: pa.DataType, state: int, skipped: int
) -> None:
    # Repeated, so that small and vectorised groups both come up; sliced, so that offsets do not start at 0.
    rows = values * repeats
    array = pa.array(rows, kind).slice(skipped)
    expected = [zlib.crc32(b"null" if value is None else value, state) for value in rows[skipped:]]
    assert crc32_column(array, state).tolist() == expected


@given(st.lists(st.tuples(VALUES, VALUES), max_size=20), st.integers(1, 40), st.text(max_size=5))
def test_hash_rows_any_columns_equals_hash_row(
    pairs: list[tuple[bytes | None, bytes | None]], repeats: int, name: str
) -> None:
    rows = pairs * repeats
    columns = [(name, pa.array([a for a, _ in rows], pa.binary())), ("b", pa.array([b for _, b in rows], pa.binary()))]
    expected = [hash_row("s", "t", [(name, a), ("b", b)]) for a, b in rows]
    assert hash_rows("s", "t", columns, len(rows)).tolist() == expected


@given(st.permutations([("a", "1"), ("b", None), ("c", "x")]))
def test_hash_row_any_column_order_is_the_same(columns: list[tuple[str, str | None]]) -> None:
    assert hash_row("s", "t", columns) == hash_row("s", "t", sorted(columns))


@pytest.mark.parametrize("longest", [0, 1, 3, 4, 5, 8, 70_000])
def test_crc32_column_large_group_with_one_long_value_equals_zlib(longest: int) -> None:
    values = [bytes([row % 251]) * (row % 11) for row in range(3 * VECTOR_ROWS_MIN)] + [b"x" * longest]
    assert crc32_column(pa.array(values, pa.binary()), 7).tolist() == [zlib.crc32(value, 7) for value in values]


@pytest.mark.parametrize("length", [0, 1, 4, 7, 8])
def test_crc32_column_large_group_of_one_length_equals_zlib(length: int) -> None:
    values = [row.to_bytes(8)[8 - length :] for row in range(2 * VECTOR_ROWS_MIN)]
    result = crc32_column(pa.array(values, pa.binary()), 0)
    assert result.dtype == np.uint32
    assert result.tolist() == [zlib.crc32(value) for value in values]


def test_crc32_column_all_null_large_group_counts_as_the_word_null() -> None:
    count = 2 * VECTOR_ROWS_MIN
    assert set(crc32_column(pa.array([None] * count, pa.binary()), 0).tolist()) == {zlib.crc32(b"null")}
