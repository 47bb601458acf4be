"""Spans of tables: which make a table whole, and where their rows land."""

from itertools import pairwise

import pytest

from schemas.ids import TableId
from schemas.rawlog.topics import raw_partition, raw_partition_of_span
from schemas.tidb.keys import row_key, table_span
from schemas.tidb.spans import TableSpan, incomplete_tables

TABLE, OTHER = TableId(45), TableId(46)
START, END = table_span(TABLE)
ONE, TWO = row_key(TABLE, 100), row_key(TABLE, 200)
WHOLE = TableSpan.of_table(TABLE)


def parts(*bounds: bytes) -> list[TableSpan]:
    return [TableSpan(TABLE, start, end) for start, end in pairwise(bounds)]


@pytest.mark.parametrize(
    ("spans", "incomplete"),
    [
        ([], []),
        ([WHOLE], []),
        (parts(START, ONE, TWO, END)[::-1], []),
        ([*parts(START, ONE, END), TableSpan.of_table(OTHER)], []),
        (parts(START, ONE, TWO), [TABLE]),
        (parts(ONE, TWO, END), [TABLE]),
        ([*parts(START, ONE), *parts(TWO, END)], [TABLE]),
        ([*parts(START, TWO), *parts(ONE, END)], [TABLE]),
        ([*parts(START, ONE, END), WHOLE], [TABLE]),
        ([*parts(START, TWO), *parts(TWO, ONE), *parts(ONE, END)], [TABLE]),
    ],
    ids=["none", "whole", "parts", "two-tables", "no-end", "no-start", "hole", "overlap", "part-and-whole", "backward"],
)
def test_spans_that_cover_their_table_otherwise_than_once_are_incomplete(
    spans: list[TableSpan], incomplete: list[TableId]
) -> None:
    assert incomplete_tables(spans) == incomplete


def test_spans_whole_is_told_from_a_part_and_said_shortly() -> None:
    first, last = parts(START, ONE, END)
    assert (WHOLE.whole, first.whole, last.whole) == (True, False, False)
    assert TableSpan(TABLE, *table_span(TABLE)) == WHOLE
    assert str(WHOLE) == "table 45"
    assert str(first) == f"table 45 [{START.hex()}, {ONE.hex()})"
    assert first.overlaps(WHOLE)
    assert not first.overlaps(last)
    assert not WHOLE.overlaps(TableSpan.of_table(OTHER))


def test_raw_partition_of_a_whole_table_is_the_tables_and_of_its_parts_spread() -> None:
    assert all(
        raw_partition_of_span(TableSpan.of_table(TableId(table)), 8) == raw_partition(TableId(table), 8)
        for table in range(1000)
    )
    for step in (1, 7, 256, 1 << 16, 1 << 32):  # handles where regions begin are often evenly spaced
        cuts = [row_key(TABLE, step * number) for number in range(1, 800)]
        landed = [raw_partition_of_span(span, 8) for span in parts(START, *cuts, END)]
        assert max(landed.count(number) for number in range(8)) < 150, f"100 each, evenly; handles {step} apart"
