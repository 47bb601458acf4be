"""Value expressions of event filters in the pipeline: which rows go on, by kind and side."""

import json
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.feed.feed import compile_feed
from sorters.core.filter.row_conditions import ExpressionColumnNotFoundError, ExpressionRangeError
from sorters.core.mount.mounter import SMALL_ROWS
from sorters.core.mount.scalar import CorruptRowError
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, index, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLE_ID = TableId(112)
COLUMNS = [
    column(1, "id", not_null=True, flag=PRIMARY),
    column(2, "n"),
    column(3, "doc", tp=245),
    column(4, "k", not_null=True),
]
CORRUPT_JSON = b"\x01\xff\xff\xff\xff\xff\xff\xff\xff"
COUNTS = pytest.mark.parametrize("filler", [0, 3 * SMALL_ROWS], ids=["scalar", "columnar"])


def store() -> SchemaStore:
    placed = [spec | {"offset": offset} for offset, spec in enumerate(COLUMNS)]
    return snapshot(("d", 1, [table_info(TABLE_ID, "t", columns=placed, indexes=[index(1, "k", [3], unique=True)])]))


def written(filters: list[dict[str, Any]], changes: list[CommittedChange]) -> list[tuple[str, int]]:
    """Return kind and id of the rows that go on."""
    config = load_changefeed("kafka://h:1/t?protocol=canal-json", {"filter": {"event-filters": filters}})
    records = records_of(
        row_changes(TABLE_ID, changes), store(), compile_feed(config, "default", {"t": 1}), encoded_at_ms=1
    )
    said = [json.loads(value) for value in records.column("value").to_pylist()]
    return sorted((message["type"], int(message["data"][0]["id"])) for message in said)


def change(number: int, new: int | None, old: int | None, *, doc: bytes = b"\x04\x01", k: int = 0) -> CommittedChange:
    """Return a change of row ``number`` from ``n = old`` to ``n = new``; None: no such side."""
    value, before = (
        b"" if n is None else encode_row_v2({2: bytes([n]), 3: doc, 4: bytes([number % 100 + extra])})
        for n, extra in ((new, k), (old, 0))
    )
    op: Any = "put" if new is not None else "delete"
    return CommittedChange(100 + number, 99 + number, row_key(TABLE_ID, number), op, value, before, 0)


def of_each_kind(filler: int) -> list[CommittedChange]:
    """Return one row of each kind and value of n, and rows of n = 9 that no test ignores, so that groups are large."""
    rows = [(1, None), (2, None), (1, 5), (2, 5), (5, 1), (5, 2), (None, 1), (None, 2)]
    more = [sides for sides in ((9, None), (9, 9), (None, 9)) for _ in range(filler)]
    return [change(number, new, old) for number, (new, old) in enumerate([*rows, *more], 1)]


def rule(**expressions: str) -> dict[str, Any]:
    settings = {f"ignore-{event.replace('_', '-')}-value-expr": text for event, text in expressions.items()}
    return {"matcher": ["d.*"], **settings}


ALL = [("DELETE", 7), ("DELETE", 8), ("INSERT", 1), ("INSERT", 2), *(("UPDATE", number) for number in (3, 4, 5, 6))]


@COUNTS
@pytest.mark.parametrize(
    ("filters", "gone"),
    [
        ([], []),
        ([rule(insert="n = 1")], [("INSERT", 1)]),
        ([rule(update_new="n = 1")], [("UPDATE", 3)]),
        ([rule(update_old="n = 1")], [("UPDATE", 5)]),
        ([rule(update_new="n = 1", update_old="n < 2")], [("UPDATE", 3), ("UPDATE", 5)]),
        ([rule(delete="n = 1")], [("DELETE", 7)]),
        (
            [rule(insert="n = 1"), rule(insert="n = 2", delete="n < 3")],
            [("INSERT", 1), ("INSERT", 2), ("DELETE", 7), ("DELETE", 8)],
        ),
        ([{**rule(insert="n = 1"), "matcher": ["D.*"]}], []),
        ([rule(insert="n = null", delete="n <> n")], []),
    ],
)
def test_run_row_that_an_expression_is_true_of_does_not_go_on(
    filters: list[dict[str, Any]], gone: list[tuple[str, int]], filler: int
) -> None:
    said = written(filters, of_each_kind(filler))
    assert [row for row in said if row[1] <= 8] == [row for row in ALL if row not in gone]
    assert len(said) == len(ALL) - len(gone) + 3 * filler


@COUNTS
def test_run_update_that_is_split_is_filtered_as_an_update(filler: int) -> None:
    rows = [change(number, 1, 2, k=1) for number in range(1, 2 + filler)]
    filters = [rule(insert="true", delete="true")]
    assert len(written(filters, rows)) == 2 * len(rows)
    assert written([rule(update_old="n = 2")], rows) == []


@COUNTS
def test_run_corrupt_value_of_a_row_that_an_expression_drops_is_an_error_too(filler: int) -> None:
    rows = [change(number, 1, None, doc=CORRUPT_JSON) for number in range(1, 2 + filler)]
    with pytest.raises(CorruptRowError):
        written([rule(insert="n = 1")], rows)


@COUNTS
def test_run_expression_out_of_range_stops_the_feed_naming_the_row(filler: int) -> None:
    rows = [change(number, 0, None) for number in range(1, 2 + filler)] + [change(99, 2, None)]
    with pytest.raises(ExpressionRangeError) as caught:
        written([rule(insert="n * 9223372036854775807 > 1")], rows)
    fields = caught.value.fields
    assert (fields["table"], fields["key"], fields["commit_ts"]) == ("d.t", row_key(TABLE_ID, 99).hex(), 199)


@COUNTS
def test_run_expression_of_a_column_that_is_not_there_stops_the_feed(filler: int) -> None:
    with pytest.raises(ExpressionColumnNotFoundError, match="table has no column `nope` at character 1"):
        written([rule(insert="nope = 1")], of_each_kind(filler))
