"""Packed changes are the changes, in slices that fit, whatever parts they came in."""

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.pull.core.landing.packing import ROW_BYTES_FIXED, pack
from producers.pull.core.match.change_columns import Change, ChangeColumns
from schemas.changes import RowChanges
from schemas.ids import RegionId, TableId
from schemas.rawlog.region_batch import RegionBatch, decode_region_batch, encode_region_batch

TSOS = st.integers(1, 2**62)
BYTES = st.binary(max_size=60)
CHANGES = st.lists(st.tuples(TSOS, TSOS, st.sampled_from((1, 2)), BYTES, BYTES, BYTES, st.integers(0, 9)), min_size=1)


def one_by_one(rows: RowChanges) -> list[Change]:
    strings = (column.to_pylist() for column in (rows.key, rows.value, rows.old_value))
    numbers = (column.tolist() for column in (rows.commit_ts, rows.start_ts, rows.op))
    return list(zip(*numbers, *strings, rows.txn_source.tolist(), strict=True))


@settings(max_examples=200, deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=5), st.integers(1, 600))
def test_pack_parts_of_any_size_then_the_slices_hold_all_changes_in_order(
    parts: list[list[Change]], bytes_max: int
) -> None:
    columns = [ChangeColumns.of(*zip(*part, strict=True)) for part in parts]
    assert [list(column) for column in columns] == parts
    packed: list[Change] = []
    for rows in pack(TableId(7), columns, bytes_max):
        slice_rows = one_by_one(rows)
        assert len(rows) == 1 or sum(map(size, slice_rows)) <= bytes_max
        record = encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)
        assert one_by_one(decode_region_batch(record).rows) == slice_rows
        packed += slice_rows
    assert packed == [change for part in parts for change in part]


def size(change: Change) -> int:
    return len(change[3]) + len(change[4]) + len(change[5]) + ROW_BYTES_FIXED
