"""Where rows with given keys stand in a data file: by columns, and by a look at each row."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sorters.core.lake.positions import (
    columns_of_fields,
    delete_rows,
    deleted_positions,
    key_bounds,
    matching_positions,
    with_field_ids,
)

_MAKE: dict[str, Callable[[int], object]] = {"int": int, "text": "k{}".format, "bytes": lambda number: b"%d" % number}
_TYPES = {"int": pa.int64(), "text": pa.string(), "bytes": pa.binary()}
_key = st.tuples(st.integers(0, 4), st.integers(0, 4))


def _table(kinds: tuple[str, ...], keys: list[tuple[int, int]]) -> pa.Table:
    columns = [pa.array([_MAKE[kind](key[at]) for key in keys], _TYPES[kind]) for at, kind in enumerate(kinds)]
    return pa.table(columns, names=[f"c{at}" for at in range(len(kinds))])


@given(
    kinds=st.lists(st.sampled_from(sorted(_TYPES)), min_size=1, max_size=2).map(tuple),
    rows=st.lists(_key, max_size=30),
    wanted=st.lists(_key, max_size=8),
    gone=st.sets(st.integers(0, 29)),
    batch_rows=st.integers(1, 9),
)
def test_matching_positions_are_those_of_a_look_at_each_row(
    kinds: tuple[str, ...], rows: list[tuple[int, int]], wanted: list[tuple[int, int]], gone: set[int], batch_rows: int
) -> None:
    width = len(kinds)
    distinct = {key[:width]: key for key in wanted}
    positions = matching_positions(
        _table(kinds, rows).to_batches(max_chunksize=batch_rows),
        _table(kinds, list(distinct.values())),
        gone=np.array(sorted(gone), np.int64),
    )
    assert positions.tolist() == [at for at, row in enumerate(rows) if row[:width] in distinct and at not in gone]


def test_matching_positions_of_a_narrower_column_are_those_of_its_values() -> None:
    narrow = pa.table({"id": pa.array([5, 7, None], pa.int32())})
    keys = pa.table({"id": pa.array([7, 2**40])})
    assert matching_positions(narrow.to_batches(), keys, gone=np.empty(0, np.int64)).tolist() == [1]


def test_delete_files_are_read_back_for_their_own_data_file_alone() -> None:
    written = [delete_rows("file:/a", np.array([1, 4])), delete_rows("file:/b", np.array([2]))]
    assert deleted_positions(written, "file:/a").tolist() == [1, 4]
    assert deleted_positions(written, "file:/c").tolist() == []


def test_columns_are_known_by_field_id_whatever_a_file_calls_them() -> None:
    rows = with_field_ids(pa.table({"before": [1], "other": ["x"]}), {"before": 3, "other": 9})
    assert columns_of_fields(rows.schema, [9, 3]) == ["other", "before"]
    assert columns_of_fields(rows.schema, [3, 4]) is None
    assert columns_of_fields(pa.schema([("before", pa.int64())]), [3]) is None


def test_key_bounds_are_of_columns_that_files_are_told_apart_by() -> None:
    keys = pa.table({"id": [3, -1, 2], "day": pa.array([1, 2, 3], pa.date32()), "name": ["b", "a", "c"]})
    assert list(key_bounds(keys)) == [("id", -1, 3), ("name", "a", "c")]
