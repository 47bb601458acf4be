"""Tables with hundreds of columns, whose messages are many times their rows: encoded and merged in chunks."""

import numpy as np
import pyarrow as pa
import pytest

from schemas.changes import RowChanges
from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.sink.position import Position, PositionClass, RowOp
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.records import runs as runs_module
from sorters.core.records.order import OUTPUT_SCHEMA, in_order, sort_records
from sorters.core.records.runs import WINDOW_ROWS, merge_runs
from sorters.core.rows import pipeline
from sorters.core.rows.pipeline import CELLS_MAX, encodable
from sorters.core.rows.wanted_rows import by_version
from sorters.cut.worker import FeedProgram, output_records
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLE, FIRST_TS = TableId(112), 445644800000000001


def store(columns: int) -> SchemaStore:
    specs = [column(1, "id", not_null=True, flag=PRIMARY), *(column(at, f"c{at}") for at in range(2, columns + 1))]
    info = table_info(TABLE, "t1", columns=[spec | {"offset": offset} for offset, spec in enumerate(specs)])
    return snapshot(("test", 1, [info]))


def changes(count: int) -> list[CommittedChange]:
    value = encode_row_v2({2: b"\x01"})
    return [
        CommittedChange(FIRST_TS + at, FIRST_TS - 1, row_key(TABLE, at), "put", value, b"", 0) for at in range(count)
    ]


def encodable_chunks(rows: RowChanges, schemas: SchemaStore) -> list[RowChanges]:
    return [chunk for version, group in by_version(rows, schemas) for chunk in encodable(group, version)]


@pytest.mark.parametrize(("columns", "rows"), [(400, 6_000), (2, 6_000), (400, 0), (400, 2_500), (400, 2_501)])
def test_chunks_of_a_table_hold_all_rows_once_in_order_and_few_cells(columns: int, rows: int) -> None:
    whole = row_changes(TABLE, changes(rows))
    chunks = encodable_chunks(whole, store(columns))
    assert [ts for chunk in chunks for ts in chunk.commit_ts.tolist()] == whole.commit_ts.tolist()
    assert all(0 < len(chunk) * columns <= CELLS_MAX for chunk in chunks)
    assert len(chunks) == -(-rows * columns // CELLS_MAX)


def test_chunks_of_rows_over_several_versions_go_by_the_columns_of_each() -> None:
    schemas = store(2)
    specs = [column(at, f"c{at}") for at in range(2, 1001)]
    wide = [column(1, "id", not_null=True, flag=PRIMARY), *specs]
    info = table_info(TABLE, "t1", columns=[spec | {"offset": offset} for offset, spec in enumerate(wide)])
    schemas.apply(job(FIRST_TS + 100, 5, schema_id=1, table_id=TABLE, schema="test", query="…", table_info=info))
    chunks = encodable_chunks(row_changes(TABLE, changes(2_500)), schemas)
    assert [len(chunk) for chunk in chunks] == [101, 1_000, 1_000, 399]


def test_records_made_in_chunks_are_those_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = compile_feed(load_changefeed("kafka://h:1/t?protocol=debezium"), "default", {"t": 3})
    raw = encode_region_batch(
        RegionBatch(region_id=RegionId(1), may_repeat=False, rows=row_changes(TABLE, changes(90))), 1
    )
    cut = Cut(after_ts=Ts(FIRST_TS - 1), upto_ts=Ts(FIRST_TS + 90), start=(0,), end=(1,), may_repeat=False, ddl_end=0)
    program = FeedProgram(store(5), feed)
    whole = list(output_records(iter([raw]), cut, program, 7))
    monkeypatch.setattr(pipeline, "CELLS_MAX", 100)
    parts = list(output_records(iter([raw]), cut, program, 7))
    assert (len(whole), len(parts)) == (1, 5)
    assert in_order(parts, may_repeat=False).equals(in_order(whole, may_repeat=False))


@pytest.mark.parametrize(("row_bytes", "window_rows"), [(10, WINDOW_ROWS), (500, WINDOW_ROWS // 4)])
def test_windows_of_long_rows_hold_fewer_of_them(
    row_bytes: int, window_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "ROW_BYTES", 150)
    count, block = 40_000, 1_000
    values = pa.array([b"v" * row_bytes], pa.binary()).take(pa.array(np.zeros(block, np.int64)))
    runs = []
    for start in range(0, count, block):
        positions = [
            Position(Ts(FIRST_TS + at), PositionClass.ROW, Ts(0), RowOp.INSERT, b"k").encode()
            for at in range(start, start + block)
        ]
        columns = [pa.repeat("t", block), pa.array(np.zeros(block, np.int32)), pa.nulls(block, pa.binary()), values,
                   pa.array(positions, pa.binary())]  # fmt: skip
        runs.append(pa.record_batch(columns, schema=OUTPUT_SCHEMA))
    sizes = []
    for window in merge_runs(runs, may_repeat=False):
        assert window.equals(sort_records(window))
        sizes.append(window.num_rows)
    assert sum(sizes) == count
    assert max(sizes) <= window_rows + block
    assert sizes[0] >= window_rows // 2
