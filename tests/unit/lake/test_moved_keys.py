"""Updates that move a row's key in place: where changes are replayed by key, the old key's row must go."""

import struct
from collections.abc import Iterable
from datetime import UTC
from typing import Any

import pyarrow.compute as pc
import pytest

from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.tidb.codec import encode_bytes
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.lake.changes import in_order, part_changes, written_columns
from sorters.core.lake.columns import COMMIT_TS, OP
from sorters.core.mount.mounter import mount
from sorters.core.source.change_rows import INSERT, UPDATE_PREIMAGE, Program
from sorters.core.source.options import TableName
from sorters.core.source.row_counts import output_rows
from sorters.core.source.row_shape import COMMIT_TS as COMMIT_VERSION
from sorters.core.source.row_shape import RowShape
from sorters.core.source.table_history import table_at
from tests.support.rawlog.raw_log import Change, row_changes, row_key
from tests.support.recorded.ddl_jobs import PRIMARY, column, index, snapshot, table_info

TABLE = 10


def _row(key: str, value: int) -> bytes:
    return encode_row_v2({1: key.encode(), 2: struct.pack("<i", value)})


def _store(collation: str, *, is_clustered: bool) -> SchemaStore:
    key = column(
        1, "id", tp=MysqlType.VARCHAR, not_null=True, flag=PRIMARY, flen=30, charset="utf8mb4", collation=collation
    )
    columns = [key, column(2, "v")]
    primary = index(1, "PRIMARY", [0], unique=True, primary=True)
    info = table_info(TABLE, "t", columns=columns, indexes=[primary], pk_is_handle=False, is_common_handle=is_clustered)
    return snapshot(("d", 1, [info]))


def _clustered(sort_key: str) -> bytes:
    return row_key(TABLE, 0)[:-8] + b"\x01" + encode_bytes(sort_key.encode())


NOT_CLUSTERED = (
    _store("utf8mb4_bin", is_clustered=False),
    [
        Change(20, row_key(TABLE, 1), _row("a", 1)),
        Change(20, row_key(TABLE, 2), _row("b", 2)),
        Change(30, row_key(TABLE, 1), _row("c", 1), _row("a", 1)),
        Change(30, row_key(TABLE, 2), _row("b", 3), _row("b", 2)),
        # Two rows change places.
        Change(40, row_key(TABLE, 1), _row("b", 4), _row("c", 1)),
        Change(40, row_key(TABLE, 2), _row("c", 5), _row("b", 3)),
    ],
    {"b": 4, "c": 5},
)
OTHER_CASE = (
    _store("utf8mb4_general_ci", is_clustered=True),
    [
        Change(20, _clustered("A"), _row("a", 1)),
        Change(30, _clustered("A"), _row("A", 2), _row("a", 1)),
        Change(30, _clustered("B"), _row("b", 3)),
    ],
    {"A": 2, "b": 3},
)
CASES = pytest.mark.parametrize(
    ("store", "changes", "held"), [NOT_CLUSTERED, OTHER_CASE], ids=["key is not clustered", "key in another case"]
)


def _replayed(changes: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return what docs/spark.md's MERGE comes to: by commit_ts, where a transaction's deletes come first."""
    held: dict[str, int] = {}
    by_version = sorted(changes, key=lambda row: (row[COMMIT_VERSION], row["_change_type"] != "delete"))
    for row in by_version:
        if row["_change_type"] == "delete":
            held.pop(row["id"])
        elif row["_change_type"] != UPDATE_PREIMAGE:
            held[row["id"]] = row["v"]
    return held


@CASES
def test_changes_of_the_source_less_preimages_come_to_the_table_where_keys_move(
    store: SchemaStore, changes: list[Change], held: dict[str, int]
) -> None:
    shape = RowShape.of(store.decoded(table_at(store, TableName("d", "t"), Ts(100))))
    rows = row_changes(TABLE, changes)
    out = [row for batch in Program(store, TableName("d", "t"), shape).batches(rows) for row in batch.to_pylist()]
    assert _replayed(out) == held
    assert len(out) == output_rows(rows).sum(), "as many as were counted"
    assert sum(row["_change_type"] == INSERT for row in out) > sum(not change.old_value for change in changes)


@CASES
def test_changes_of_a_lake_table_come_to_the_table_where_keys_move(
    store: SchemaStore, changes: list[Change], held: dict[str, int]
) -> None:
    version = store.decoded(table_at(store, TableName("d", "t"), Ts(100)))
    parts = mount(version, row_changes(TABLE, changes), zone=UTC).parts
    lake = dict[str, int]()
    ordered = in_order(part_changes(part) for part in parts)
    for ts in sorted({change.commit_ts for change in changes}):
        commit = ordered.filter(pc.equal(ordered.column(COMMIT_TS), ts))
        for row in written_columns(commit, version, "upsert").to_pylist():
            if row[OP] == "D":
                lake.pop(row["id"], None)
            else:
                lake[row["id"]] = row["v"]
    assert lake == held
    assert written_columns(ordered, version, "append", says_changes=False).column_names == [
        column.name for column in version.columns
    ]
    replayed = dict[str, int]()
    for row in written_columns(ordered, version, "append").to_pylist():
        if row[OP] == "D":
            replayed.pop(row["id"])
        else:
            replayed[row["id"]] = row["v"]
    assert replayed == held, "mode append, by commit_ts, deletes first"
