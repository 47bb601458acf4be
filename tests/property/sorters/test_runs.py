"""Runs that come in any order and size are merged to what sorting everything at once gives."""

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pytest import MonkeyPatch

from sorters.core.records import runs as runs_module
from sorters.core.records.order import OUTPUT_SCHEMA, drop_repeats, sort_records
from sorters.core.records.runs import merge_runs, pack_run, slots_of, split_runs, unpack_run
from sorters.spark.tasks.run_store import RunStore

RECORDS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3), st.binary(min_size=1, max_size=3)), max_size=40
)


def _table(records: list[tuple[str, int, bytes]]) -> pa.Table:
    """Return records whose key and value follow from their place, as those of one changefeed do."""
    columns = list(zip(*records, strict=True)) or [(), (), ()]
    keys = [None if len(position) == 1 else position[:1] for position in columns[2]]
    values = [b"v" + position for position in columns[2]]
    return pa.table(
        [
            pa.array(column, field.type)
            for column, field in zip([*columns[:2], keys, values, columns[2]], OUTPUT_SCHEMA, strict=True)
        ],
        schema=OUTPUT_SCHEMA,
    )


@given(
    st.lists(RECORDS, max_size=5),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 999),
)
def test_merge_runs_of_any_tasks_gives_each_slot_what_sorting_all_at_once_gives(
    tasks: list[list[tuple[str, int, bytes]]], slots: int, rows: int, sample: int, may_repeat: bool, memory: int
) -> None:
    with MonkeyPatch.context() as patch:
        patch.setattr(runs_module, "RUN_BYTES", 200)
        patch.setattr(runs_module, "SAMPLE_ROWS", sample)
        blocks = [(slot, pack_run(run)) for task in tasks for slot, run in split_runs(_table(task), slots)]
        everything = _table([record for task in tasks for record in task])
        slot_of_all = slots_of(everything, slots)
        for number in range(slots):
            with RunStore(memory) as store:
                for slot, block in blocks:
                    if slot == number:
                        store.add(block)
                windows = [window.to_pylist() for window in merge_runs(store.take(), may_repeat=may_repeat, rows=rows)]
            got = [row for window in windows for row in window]
            want = sort_records(everything.filter(pa.array(slot_of_all == number)))
            assert got == (drop_repeats(want) if may_repeat else want).to_pylist()
            for before, after in pairwise(windows):
                assert before[-1]["position"] < after[0]["position"], "equal positions stand in one window"


def test_merge_runs_of_long_overlapping_runs_holds_windows_to_their_size() -> None:
    parts = [_table([("a", 0, (10 * at + task).to_bytes(4, "big")) for at in range(5_000)]) for task in range(10)]
    unpacked = [unpack_run(pack_run(run)) for part in parts for _, run in split_runs(part, 1)]
    sizes = [window.num_rows for window in merge_runs(unpacked, may_repeat=False, rows=4_096)]
    assert sum(sizes) == 50_000
    assert max(sizes) <= 4_096 + (10 + 1) * runs_module.SAMPLE_ROWS


def test_slots_of_neighbouring_partitions_are_different_ones() -> None:
    table = _table([("a", partition, b"x") for partition in range(6)])
    assert sorted(slots_of(table, 3).tolist()) == [0, 0, 1, 1, 2, 2]
