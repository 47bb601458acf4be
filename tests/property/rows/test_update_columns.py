"""``ignore-update-only-columns`` says the same of rows as columns and of rows one by one."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.changefeed import load_changefeed
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.filter.update_columns import UpdateColumns
from sorters.core.mount import mount
from sorters.core.mount.column import value_text
from sorters.core.mount.mounted import RowKind
from tests.support.recorded.mounting import row_changes
from tests.support.topics.random_rows import random_change, random_table


def same(spec: ColumnVersion, old: Value, new: Value) -> bool:
    return old == new if isinstance(old, float) else value_text(spec, old) == value_text(spec, new)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**48), count=st.sampled_from([1, 40]))
def test_columnar_updates_are_ignored_as_scalar_ones(seed: int, count: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    names = [spec.name for spec in table.columns if rng.random() < 0.8] or ["none"]
    rules = [{"matcher": ["*.*"], "ignore-update-only-columns": names}]
    filters = UpdateColumns(load_changefeed("kafka://h:1/t?protocol=simple", {"filter": {"event-filters": rules}}))
    rows = row_changes(table.table_id, [random_change(rng, table, at, damage=False) for at in range(count)])
    keys = {offset for key in table.index_columns_offset for offset in key}
    held = [spec for spec in table.columns if spec.offset in keys or spec.name not in names]
    for form in (0, 10**9):
        for part in mount(table, rows, small_rows=form).parts:
            marked = filters.ignored(part)
            ignored = np.zeros(len(part), np.bool_) if marked is None else marked
            if part.kind is not RowKind.UPDATE or len(held) == len(table.columns):
                assert not ignored.any() or part.kind is RowKind.UPDATE
                continue
            scalar = next(p for p in mount(table, rows, small_rows=10**9).parts if p.kind is RowKind.UPDATE)
            assert scalar.old_rows is not None and scalar.new_rows is not None
            pairs = zip(scalar.old_rows, scalar.new_rows, strict=True)
            expected = [all(same(spec, old[spec.offset], new[spec.offset]) for spec in held) for old, new in pairs]
            assert ignored.tolist() == expected
