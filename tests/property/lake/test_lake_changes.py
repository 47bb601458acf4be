"""Changes of a lake table: in the order of positions, once, and the last one of each key."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sorters.core.lake.changes import POSITION, in_order, last_changes

Change = tuple[int, int, str, int]
"""Position, both parts of a key, value."""

CHANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 3), st.sampled_from(["a", "A", "b"]), st.integers()), max_size=40
).map(lambda changes: list({change[0]: change for change in changes}.values()))
"""A position is of one change."""
BATCHES = st.lists(CHANGES, min_size=1, max_size=4)


def _table(changes: list[Change]) -> pa.Table:
    columns: list[tuple[Any, ...]] = list(zip(*changes, strict=True)) or [(), (), (), ()]
    return pa.table(
        {
            POSITION: pa.array([at.to_bytes(4, "big") for at in columns[0]], pa.binary()),
            "k1": pa.array(columns[1], pa.int64()),
            "k2": pa.array(columns[2], pa.string()),
            "v": pa.array([value % 1000 for value in columns[3]], pa.int64()),
        }
    )


def _expected(batches: list[list[Change]]) -> list[Change]:
    seen: dict[int, Change] = {}
    for change in (change for batch in batches for change in batch):
        seen.setdefault(change[0], change)
    return [seen[at] for at in sorted(seen)]


def _landed(batches: list[list[Change]]) -> list[list[Change]]:
    """Return the batches with one change a position, so that a repeat is the same change."""
    of = {change[0]: change for change in _expected(batches)}
    return [[of[change[0]] for change in batch] for batch in batches]


@given(BATCHES)
def test_changes_in_order_are_each_position_once_ascending(batches: list[list[Change]]) -> None:
    landed = _landed(batches)
    assert in_order(map(_table, landed)).to_pylist() == _table(_expected(landed)).to_pylist()


@given(BATCHES)
def test_last_changes_are_those_that_a_dictionary_is_left_with(batches: list[list[Change]]) -> None:
    landed = _landed(batches)
    last: dict[tuple[int, str], Change] = {}
    for change in _expected(landed):
        last[change[1:3]] = change
    expected = sorted(last.values())
    assert last_changes(in_order(map(_table, landed)), ["k1", "k2"], "d.t").to_pylist() == _table(expected).to_pylist()
