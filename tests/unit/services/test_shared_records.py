"""Raw records that many changefeeds read are taken apart once, and those of other tables not at all."""

import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from schemas.changes import Op, RowChanges
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog import region_batch
from schemas.rawlog.region_batch import (
    RegionBatch,
    SharedRecord,
    decode_region_batch,
    encode_region_batch,
    read_batch_head,
)
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import CompiledFeed
from sorters.cut.worker import FeedProgram, gather_rows

OURS, THEIRS, UNKNOWN = TableId(7), TableId(8), TableId(9)


def record(table: TableId, *commit_ts: int) -> bytes:
    ts = np.array(commit_ts, np.int64)
    values = pa.array([b"v"] * len(ts), pa.binary())
    rows = RowChanges(
        table_id=table,
        commit_ts=ts,
        start_ts=ts - 1,
        op=np.full(len(ts), Op.PUT, np.int8),
        key=values,
        value=values,
        old_value=values,
        txn_source=np.zeros(len(ts), np.int64),
    )
    return encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1)


def cut() -> Cut:
    return Cut(after_ts=Ts(1), upto_ts=Ts(9), start=(0,), end=(9,), may_repeat=False, ddl_end=0)


def test_shared_record_reads_as_its_bytes_do_and_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = record(OURS, 2, 3)
    shared = SharedRecord(plain)
    assert read_batch_head(shared) == read_batch_head(plain)
    batch = decode_region_batch(shared)
    assert batch.rows.key.to_pylist() == decode_region_batch(plain).rows.key.to_pylist()
    assert batch.rows.commit_ts.tolist() == [2, 3]
    monkeypatch.setattr(region_batch, "_column_fields", None)
    assert decode_region_batch(shared) is batch


def test_shared_record_does_not_keep_itself_by_what_it_decoded() -> None:
    shared = SharedRecord(record(OURS, 2))
    holders = sys.getrefcount(shared)
    decode_region_batch(shared)
    assert sys.getrefcount(shared) == holders
    shared.forget()
    assert shared.batch is None
    assert decode_region_batch(shared).rows.commit_ts.tolist() == [2]


def test_gathered_are_rows_of_tables_that_the_changefeed_has_or_nobody_knows() -> None:
    versions: dict[TableId, list[tuple[str, str] | None]] = {OURS: [("gen", "ours")], THEIRS: [("gen", "theirs"), None]}
    schemas = SimpleNamespace(
        stored_of=lambda table: [
            version and SimpleNamespace(schema=version[0], table=version[1], eligible=True)
            for version in versions.get(TableId(table), [])
        ]
    )
    asked: list[tuple[str, str]] = []

    def contains(schema: str, table: str, *, eligible: bool) -> bool:
        asked.append((schema, table))
        return (schema, table, eligible) == ("gen", "ours", True)

    program = FeedProgram(cast(SchemaStore, schemas), cast(CompiledFeed, SimpleNamespace(contains=contains)))
    raw = [record(OURS, 2), record(THEIRS, 3), record(UNKNOWN, 4), record(OURS, 5)]
    for _ in range(2):
        rows: dict[Any, list[int]] = {
            chunk.table_id: chunk.commit_ts.tolist() for chunk in gather_rows(iter(raw), cut(), program.is_wanted)
        }
        assert rows == {OURS: [2, 5], UNKNOWN: [4]}
    assert asked == [("gen", "ours"), ("gen", "theirs")]
    versions[UNKNOWN] = [("gen", "theirs")]
    assert UNKNOWN not in {chunk.table_id for chunk in gather_rows(iter(raw), cut(), program.is_wanted)}
