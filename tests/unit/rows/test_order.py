"""Order of output records: position bytes within a partition, repeats dropped."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp
from sorters.core.records.order import OUTPUT_SCHEMA, bytes_of, drop_repeats, row_positions, sort_records

POSITIONS = st.builds(
    Position,
    commit_ts=st.integers(1, 3).map(Ts),
    position_class=st.sampled_from(PositionClass),
    start_ts=st.integers(0, 2).map(Ts),
    op=st.sampled_from(RowOp),
    key=st.binary(max_size=2),
)
RECORDS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1), POSITIONS), max_size=30)


def _table(records: list[tuple[str, int, Position]]) -> pa.Table:
    return pa.table(
        [
            [topic for topic, _, _ in records],
            pa.array([partition for _, partition, _ in records], pa.int32()),
            pa.array([None] * len(records), pa.binary()),
            pa.array([b"v"] * len(records), pa.binary()),
            pa.array([position.encode() for _, _, position in records], pa.binary()),
        ],
        schema=OUTPUT_SCHEMA,
    )


@settings(deadline=None)  # the first call imports pyarrow's kernels
@given(RECORDS)
def test_sort_and_drop_repeats_leaves_each_partition_ordered_and_without_copies(
    records: list[tuple[str, int, Position]],
) -> None:
    done = drop_repeats(sort_records(_table(records))).to_pylist()
    for home in {(topic, partition) for topic, partition, _ in records}:
        got = [row["position"] for row in done if (row["topic"], row["partition"]) == home]
        want = {position for topic, partition, position in records if (topic, partition) == home}
        assert got == [position.encode() for position in sorted(want)]


@settings(deadline=None)  # the first call imports pyarrow's kernels
@given(
    st.lists(st.tuples(st.integers(1, 2**62), st.integers(1, 2**62), st.sampled_from(RowOp), st.binary(max_size=40)))
)
def test_row_positions_of_columns_equal_position_of_each_row(rows: list[tuple[int, int, RowOp, bytes]]) -> None:
    columns = [np.array([row[column] for row in rows], np.int64) for column in (0, 1)]
    op = np.array([row[2] for row in rows], np.int8)
    got = row_positions(columns[0], columns[1], op, pa.array([row[3] for row in rows], pa.binary()))
    want = [Position(Ts(ts), PositionClass.ROW, Ts(start), op, key).encode() for ts, start, op, key in rows]
    assert got.to_pylist() == want


@settings(deadline=None)
@given(
    parts=st.lists(st.lists(st.none() | st.binary(max_size=4), max_size=6), max_size=3),
    start=st.integers(0, 12),
    size=st.integers(0, 12),
)
def test_the_bytes_of_a_column_are_those_of_its_values_wherever_it_was_cut(
    parts: list[list[bytes | None]], start: int, size: int
) -> None:
    count = sum(map(len, parts))
    values = pa.chunked_array([pa.array(part, pa.binary()) for part in parts], pa.binary())
    position = pa.array([b"p"] * count, pa.binary())
    table = pa.table(
        [pa.array(["t"] * count), pa.array([0] * count, pa.int32()), values, values, position], schema=OUTPUT_SCHEMA
    )
    kept = [value for part in parts for value in part][start : start + size]
    assert bytes_of(table.slice(start, size), "value") == sum(len(value or b"") for value in kept)
