"""The recording's rows as batches for the mounter, and the messages that TiCDC made of them, row by row."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.changes import Op, RowChanges
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from tests.support.recorded.recording import (
    TIDB_DATA,
    CommittedChange,
    committed_changes,
    oracle,
    read_jsonl,
    row_table_id,
)
from tests.support.recorded.schema_feed import schema_store

ROWS_DATA = TIDB_DATA.parent / "rows"
LOSSY_DDL_BITS = 0xFF00
"""txn_source bits of a lossy DDL's reorganization: TiKV does not deliver those rows."""

RowId = tuple[int, int, int, str]
"""commit_ts, start_ts, physical table id, key in hex."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All rows of one table version and physical id, in commit order."""

    table: TableVersion
    rows: RowChanges

    def row_id(self, row: int) -> RowId:
        rows = self.rows
        return int(rows.commit_ts[row]), int(rows.start_ts[row]), int(rows.table_id), rows.key[row].as_py().hex()


@dataclass(frozen=True, slots=True)
class OracleMessage:
    """What TiCDC's encoder gave for a row."""

    op: str
    key: bytes | None
    value: bytes | None
    error: str | None


def row_changes(table_id: int, changes: list[CommittedChange]) -> RowChanges:
    """Pack changes of one physical table."""
    return RowChanges(
        table_id=TableId(table_id),
        commit_ts=np.array([change.commit_ts for change in changes], np.int64),
        start_ts=np.array([change.start_ts for change in changes], np.int64),
        op=np.array([Op.PUT if change.op == "put" else Op.DELETE for change in changes], np.int8),
        key=pa.array([change.key for change in changes], pa.binary()),
        value=pa.array([change.value for change in changes], pa.binary()),
        old_value=pa.array([change.old_value for change in changes], pa.binary()),
        txn_source=np.array([change.txn_source for change in changes], np.int64),
    )


@cache
def recorded_store() -> SchemaStore:
    """Return the schema store of the whole recording."""
    return schema_store(committed_changes())


@cache
def recorded_batches() -> tuple[Batch, ...]:
    """Return every row change of an eligible user table that TiKV would deliver, by table version."""
    store = recorded_store()
    groups: dict[tuple[int, Ts], tuple[TableVersion, list[CommittedChange]]] = {}
    for change in committed_changes():
        table_id = row_table_id(change.key)
        if table_id is None or change.txn_source & LOSSY_DDL_BITS or store.is_system(TableId(table_id)):
            continue
        table = store.table_at(TableId(table_id), Ts(change.commit_ts))
        if table is not None and table.eligible:
            groups.setdefault((table_id, table.version), (table, []))[1].append(change)
    return tuple(Batch(table, row_changes(table_id, rows)) for (table_id, _), (table, rows) in groups.items())


@cache
def mounted_oracle() -> tuple[dict[str, Any], ...]:
    """Return the mounted rows that TiKV would deliver, in the oracle's order."""
    return tuple(row for row in oracle("mounted") if not row.get("txn_source", 0) & LOSSY_DDL_BITS)


@cache
def encoded_oracle(name: str) -> dict[RowId, OracleMessage]:
    """Return TiCDC's messages by row; its lines have no row key, but stand in the order of the mounted rows."""
    lines = [line for line in oracle(f"encoded/{name}") if line["op"] in {"insert", "update", "delete"}]
    messages = {}
    for line, row in zip(lines, mounted_oracle(), strict=True):
        row_id = row["commit_ts"], row["start_ts"], row["table_id"], row["key"]
        assert (line["commit_ts"], line["start_ts"], line["table_id"], line["op"]) == (*row_id[:3], row["op"])
        messages[row_id] = OracleMessage(line["op"], _raw(line, "key"), _raw(line, "value"), line.get("error"))
    return messages


def _raw(line: dict[str, Any], field: str) -> bytes | None:
    text = line.get(field)
    return None if text is None else base64.b64decode(text)


def benchmark_rows(shape: str, count: int, *, updates: bool = False) -> tuple[TableVersion, RowChanges]:
    """Return a shape of ``tests/data/rows``, its real rows repeated up to ``count``, with distinct commit_ts."""
    lines: Iterator[dict[str, Any]] = read_jsonl(ROWS_DATA / f"{shape}.jsonl.zst")
    table = table_version(next(lines)["table_info"], schema_id=1, schema="bench", version=Ts(1))
    rows = [(bytes.fromhex(r["key"]), bytes.fromhex(r["value"]), bytes.fromhex(r["value2"])) for r in lines]
    rows = (rows * (count // len(rows) + 1))[:count]
    first_ts = 470_615_985_201_872_896
    return table, row_changes(
        int(table.table_id),
        [
            CommittedChange(first_ts + 2 * n, first_ts + 2 * n - 1, key, "put", new if updates else value,
                            value if updates else b"", 0)
            for n, (key, value, new) in enumerate(rows)
        ],
    )  # fmt: skip
