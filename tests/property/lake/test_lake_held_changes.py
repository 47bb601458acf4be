"""Changes of a commit that do not fit in memory are those that do: each once, in groups that share no key, in order."""

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import Ts
from schemas.tidb.table_info import table_version
from sorters.core.lake.changes import POSITION, in_order, last_changes
from sorters.run.lake import held_changes
from sorters.run.lake.held_changes import HeldChanges
from tests.support.recorded.ddl_jobs import table_info

TABLES = [table_version(table_info(number, "t"), schema_id=1, schema="d", version=Ts(5)) for number in (9, 10)]
PARTS = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),
        st.lists(
            st.tuples(st.integers(0, 200), st.integers(-3, 3), st.sampled_from(["a", "A", "", None])), max_size=20
        ),
    ),
    max_size=12,
)
"""Of which table; position, both parts of a key. A position says all of its change."""


def _part(changes: list[tuple[int, int, str | None]]) -> pa.Table:
    of = {at: (number, text) for at, number, text in changes}
    return pa.table(
        {
            POSITION: pa.array([at.to_bytes(4, "big") for at in of], pa.binary()),
            "k1": pa.array([number for number, _ in of.values()], pa.int32()),
            "k2": pa.array([text for _, text in of.values()], pa.string()),
        }
    )


def _one_change_a_position(parts: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    known: dict[tuple[int, int], tuple[int, int, str | None]] = {}
    return [(table, [known.setdefault((table, each[0]), each) for each in changes]) for table, changes in parts]


@given(PARTS, st.integers(1, 2_000), st.integers(1, 3_000), st.sampled_from([("k1", "k2"), ()]))
def test_changes_that_are_held_by_half_are_the_same_as_all_of_them(
    parts: list[tuple[int, Any]], held_bytes: int, group_bytes: int, keys: tuple[str, ...]
) -> None:
    parts = _one_change_a_position(parts)
    with pytest.MonkeyPatch.context() as patch, closing(HeldChanges(Path("/tmp"))) as held:
        patch.setattr(held_changes, "HELD_BYTES_MAX", held_bytes)
        patch.setattr(held_changes, "GROUP_BYTES", group_bytes)
        for table, changes in parts:
            held.add(held.of(TABLES[table], keys), _part(changes))
            assert sum(each.held_bytes for each in held) <= held_bytes
        for number, version in enumerate(TABLES):
            mine = [_part(changes) for table, changes in parts if table == number and changes]
            for _ in range(2):  # a commit that was overtaken is written again
                groups = list(held.of(version, keys).groups())
                if not mine:
                    assert not groups
                    continue
                expected = in_order(mine)
                assert in_order(groups).to_pylist() == expected.to_pylist()
                assert sum(group.num_rows for group in groups) == expected.num_rows, "each is in one group"
                assert all(group.to_pylist() == in_order([group]).to_pylist() for group in groups)
                if keys and not expected.column("k2").null_count:
                    last = pa.concat_tables([last_changes(group, keys, "d.t") for group in groups])
                    assert Counter(map(str, last.to_pylist())) == Counter(
                        map(str, last_changes(expected, keys, "d.t").to_pylist())
                    )
