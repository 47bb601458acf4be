"""Soft deletes say the same of rows as columns and of rows one by one, and what they say is the rule row by row."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import TableVersion
from sorters.core.filter.soft_deletes import sent_parts
from sorters.core.mount import mount
from sorters.core.mount.mounted import MountedPart, RowKind
from tests.support.recorded.mounting import row_changes
from tests.support.topics.random_rows import random_change, random_table


def table_with_a_nullable_column(rng: random.Random) -> tuple[TableVersion, int]:
    """Return a table and the offset of a column that holds NULLs: any type will do for the rule."""
    while True:
        table = replace(random_table(rng), soft_deletes=True)
        nullable = [spec.offset for spec in table.columns if spec.nullable and spec.tp is not MysqlType.VECTOR]
        if nullable:
            return table, rng.choice(nullable)


def said(parts: list[MountedPart]) -> dict[int, tuple[RowKind, list[object]]]:
    """Return what goes out of each row, by its number: its kind, and its sides as text."""
    out: dict[int, tuple[RowKind, list[object]]] = {}
    for part in parts:
        new = [] if part.kind is RowKind.DELETE else [column.text.to_pylist() for column in part.new_columns()]
        old = [] if part.kind is RowKind.INSERT else [column.text.to_pylist() for column in part.old_columns()]
        for at, number in enumerate(part.rows.tolist()):
            assert number not in out
            out[number] = part.kind, [column[at] for column in (*old, *new)]
    return out


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**48), count=st.sampled_from([1, 40]))
def test_columnar_soft_deletes_are_the_scalar_ones_and_the_rule(seed: int, count: int) -> None:
    rng = random.Random(seed)
    table, offset = table_with_a_nullable_column(rng)
    rows = row_changes(table.table_id, [random_change(rng, table, at, damage=False) for at in range(count)])
    scalar = mount(table, rows, small_rows=10**9).parts
    columns = mount(table, rows, small_rows=0).parts
    by_rule = {}
    for part in scalar:
        for at, number in enumerate(part.rows.tolist()):
            kind = part.kind
            if kind is RowKind.DELETE:
                continue
            if kind is RowKind.UPDATE:
                assert part.old_rows is not None and part.new_rows is not None
                if part.old_rows[at][offset] is None and part.new_rows[at][offset] is not None:
                    kind = RowKind.DELETE
            by_rule[number] = kind
    by_values, by_columns = said(sent_parts(scalar, offset)), said(sent_parts(columns, offset))
    assert {number: kind for number, (kind, _) in by_columns.items()} == by_rule
    assert by_columns == by_values
