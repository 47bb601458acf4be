"""Update splitting: which updates of a real TiDB's recording TiCDC splits, and NULL's text."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas.ids import TableId
from schemas.sink.position import RowOp, decode_position
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from sorters.core.route.split_update import has_unseen_unique, split_columns, split_mask
from tests.support.database.sorted_rows import DATABASE, sorted_rows
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange, oracle
from tests.support.recorded.tables import make_table
from tests.support.topics.split_rule import must_split

UNIQUE_KEY, HANDLE_KEY = 16, 2
"""Column flags of the oracle."""


def text_of(column: dict[str, Any]) -> str | bytes | None:
    value = column["value"]
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def test_must_split_every_recorded_update_is_as_ticdc_decided() -> None:
    decided = []
    for line in oracle("mounted"):
        if line["op"] != "update":
            continue
        pairs = [
            (text_of(old), text_of(new))
            for old, new in zip(line["pre_columns"], line["columns"], strict=True)
            if new["flag"] & (UNIQUE_KEY | HANDLE_KEY)
        ]
        split = must_split([old for old, _ in pairs], [new for _, new in pairs])
        assert split is bool(line.get("split_update")), line["key"]
        old_arrays = [pa.array([_bytes(old)], pa.binary()) for old, _ in pairs]
        new_arrays = [pa.array([_bytes(new)], pa.binary()) for _, new in pairs]
        assert split_mask(old_arrays, new_arrays, np.array([True])).tolist() == [split]
        decided.append(split)
    assert len(decided) == 6933
    assert sum(decided) == 2


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def test_split_columns_are_those_of_any_unique_index_and_the_handle() -> None:
    table = make_table(
        ["id", "a", "b", "c"], pk_is_handle="id", unique={"u": ["b"]}, plain={"k": ["c"]}, nullable=["b"]
    )
    assert split_columns(table) == (0, 2)
    assert split_columns(make_table(["a"])) == ()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([], [], False),
        ([b"1"], [b"1"], False),
        ([b"1"], [b"2"], True),
        ([b"1", b"x"], [b"1", b"y"], True),
        ([None], [None], False),
        ([None], [b"1"], True),
        ([None], [b"null"], False),  # TiCDC compares texts, and NULL's is "null"
        ([b"a"], [b"A"], True),
    ],
)
def test_must_split_texts_differ_or_not_both_ways(
    old: list[bytes | None], new: list[bytes | None], expected: bool
) -> None:
    assert must_split(old, new) is expected
    arrays = [[pa.array([text], pa.binary()) for text in side] for side in (old, new)]
    assert split_mask(arrays[0], arrays[1], np.array([True])).tolist() == [expected]


def test_split_mask_row_that_is_no_update_is_never_split() -> None:
    old, new = pa.array([None, b"1", b"1"], pa.binary()), pa.array([b"1", None, b"2"], pa.binary())
    assert split_mask([old], [new], np.array([False, False, True])).tolist() == [False, False, True]
    assert split_mask([old], [new], np.zeros(3, np.bool_)).tolist() == [False] * 3


def _ops(table: TableVersion, uri: str) -> list[RowOp]:
    """Return what becomes of an update of ``v`` alone."""
    old, new = (encode_row_v2({2: b"\x01", 3: value}) for value in (b"\x01", b"\x02"))
    change = CommittedChange(10, 9, row_key(TableId(100), 1), "put", new, old, 0)
    records = sorted_rows(row_changes(100, [change]), table, uri=uri)
    return [decode_position(position).op for position in records.column("position").to_pylist()]


KAFKA = "kafka://h:1/t?protocol=canal-json"


@pytest.mark.parametrize(
    ("keys", "to_database"),
    [
        ({"unique": {"u": ["low"]}}, True),
        ({"unique": {"u": ["u", "low"]}}, True),
        ({"unique": {"u": ["u"]}, "plain": {"k": ["low"]}}, False),
        ({}, False),
    ],
)
def test_every_update_is_split_for_a_database_where_a_unique_key_is_over_what_rows_do_not_hold(
    keys: dict[str, Any], to_database: bool
) -> None:
    table = make_table(["id", "u", "v", "low"], pk_is_handle="id", virtual=["low"], nullable=["low"], **keys)
    assert has_unseen_unique(table) is to_database
    halves = [RowOp.DELETE, RowOp.INSERT]
    assert _ops(table, DATABASE) == (halves if to_database else [RowOp.UPDATE])
    assert _ops(table, KAFKA) == [RowOp.UPDATE]
