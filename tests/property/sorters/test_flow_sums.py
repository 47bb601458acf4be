"""Ids and sums of many rows at once are those of one row after the other, from the raw log and from positions alike."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.changes import Op, RowChanges
from schemas.flow.flow_sum import NOTHING, FlowSum, parse_sum, row_id
from schemas.ids import TableId, Ts
from schemas.sink.position import Position, PositionClass, RowOp
from sorters.core.flow import row_ids
from sorters.core.flow.row_ids import RowIds, ids_of_changes, sums_of_changes

TS = st.integers(1, 2**62)
TABLES = st.integers(1, 3)
Row = tuple[int, int, int, bytes, bool]
"""Table, commit_ts, start_ts, what follows the table in the key, whether it deletes."""


def rows_of(tails: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Row]]:
    return st.lists(st.tuples(TABLES, TS, TS, tails, st.booleans()), min_size=1, max_size=30)


ROWS = st.one_of(
    rows_of(st.binary(min_size=10, max_size=10)),
    rows_of(st.binary(min_size=7, max_size=7)),
    rows_of(st.binary(min_size=0, max_size=40)),
)


def key_of(row: Row) -> bytes:
    return b"t" + (row[0] ^ 1 << 63).to_bytes(8, "big") + row[3]


def changes_of(rows: list[Row]) -> RowChanges:
    none = pa.array([b""] * len(rows), pa.binary())
    return RowChanges(
        table_id=TableId(rows[0][0]),
        commit_ts=np.array([row[1] for row in rows], np.int64),
        start_ts=np.array([row[2] for row in rows], np.int64),
        op=np.array([Op.DELETE if row[4] else Op.PUT for row in rows], np.int8),
        key=pa.array([key_of(row) for row in rows], pa.binary()),
        value=none,
        old_value=none,
        txn_source=np.zeros(len(rows), np.int64),
    )


def id_of(row: Row) -> int:
    return row_id(key_of(row), row[1], row[2], deletes=row[4])


def positions_of(rows: list[Row], others: list[int]) -> pa.Array:
    """Return the positions of rows, and in between, before the rows with these numbers, those of watermarks."""
    made = list[bytes]()
    for number, row in enumerate(rows):
        made += [Position(Ts(row[1]), PositionClass.WATERMARK).encode()] * others.count(number)
        op = RowOp.DELETE if row[4] else RowOp.INSERT if row[2] % 2 else RowOp.UPDATE
        made.append(Position(Ts(row[1]), PositionClass.ROW, Ts(row[2]), op, key_of(row)).encode())
    return pa.array(made, pa.binary())


@given(ROWS, st.integers(0, 3))
def test_ids_of_columns_are_those_of_one_row_after_the_other(rows: list[Row], skipped: int) -> None:
    expected = list(map(id_of, rows))
    changes = changes_of(rows)
    assert ids_of_changes([changes]).tolist() == expected
    assert ids_of_changes([changes, changes]).tolist() == expected * 2
    assert sums_of_changes([changes, changes])[1] == FlowSum(len(rows), sum(expected) % 2**64)
    # The same columns behind an offset, as a slice has them.
    few = positions_of(rows, []).slice(min(skipped, len(rows) - 1))
    assert RowIds(few).ids.tolist() == expected[-len(few) :]


@given(ROWS, st.lists(st.integers(0, 30), max_size=4))
def test_ids_of_positions_are_those_of_the_rows_among_them_by_table(rows: list[Row], others: list[int]) -> None:
    rowids = RowIds(positions_of(rows, others))
    assert rowids.ids.tolist() == list(map(id_of, rows))
    counts = Counter(row[0] for row in rows)
    sums = {
        table: FlowSum(count, sum(id_of(row) for row in rows if row[0] == table) % 2**64)
        for table, count in counts.items()
    }
    assert rowids.sums() == sums
    odd = np.array([number % 2 == 1 for number in range(len(rows))])
    even = [row for number, row in enumerate(rows) if number % 2 == 0]
    left = rowids.sums(~odd)
    assert sum(left.values(), NOTHING) == FlowSum(len(even), sum(map(id_of, even)) % 2**64)


@given(ROWS)
def test_sums_of_many_rows_are_those_of_their_halves(rows: list[Row]) -> None:
    rowids = RowIds(positions_of(rows, []))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_ids, "_SUMMED_MAX", 4)
        assert rowids.sums() == RowIds(positions_of(rows, [])).sums()


@given(ROWS, st.data())
def test_a_row_that_is_lost_changed_or_comes_twice_changes_the_sum(rows: list[Row], data: st.DataObject) -> None:
    distinct = list(dict.fromkeys(rows))
    whole = sum(map(id_of, distinct)) % 2**64
    table, commit_ts, start_ts, tail, deletes = row = data.draw(st.sampled_from(distinct))
    for other in (
        (table, commit_ts + 1, start_ts, tail, deletes),
        (table, commit_ts, start_ts + 1, tail, deletes),
        (table, commit_ts, start_ts, tail + b"\0", deletes),
        (table + 1, commit_ts, start_ts, tail, deletes),
        (table, commit_ts, start_ts, tail, not deletes),
    ):
        assert (whole - id_of(row) + id_of(other)) % 2**64 != whole
    assert id_of(row) != 0


def test_sum_is_written_and_read_as_text() -> None:
    for each in (NOTHING, FlowSum(3, 2**64 - 1), FlowSum(-1, 5)):
        assert parse_sum(str(each)) == each
    for text in ("", "1", "1:", "x:0000000000000000", "1:000000000000000g", "١:0000000000000000", "1:00", None):
        with pytest.raises(ValueError, match="no sum of rows"):
            parse_sum(text)


def test_id_is_the_one_that_the_format_gives_as_example() -> None:
    key = bytes.fromhex("7480000000000000705f728000000000000001")
    assert row_id(key, 445644800000000001, 445644799999999999, deletes=False) == 7874292637477143487
