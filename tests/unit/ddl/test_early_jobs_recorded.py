"""TRUNCATE PARTITION as a real TiDB ran it: job 149 of the recording, through what takes the job table's rows."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.control.core.frontier.table_set import TableSet
from producers.pull.core.ddl.book import DdlBook
from producers.pull.core.match.change_columns import Change
from producers.pull.ddl.ddl_feed import _DdlSink
from schemas.changes import Op
from schemas.ddl.job import DDL_JOB_TABLE_ID
from schemas.ddl.schema_store import NoSchema, SchemaStore
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.spans import TableSpan
from schemas.tidb.table import TableVersion
from sorters.core.mount.scalar import mount_row
from tests.support.recorded.job_rows import EARLY_JOB, EARLY_TS, EARLY_TS_OF_TICDC, job_rows_after, snapshot_at
from tests.support.recorded.recording import committed_changes, oracle, row_table_id
from tests.support.recorded.schema_feed import ddl_records

OLD, NEW = TableId(135), TableId(148)
BEFORE, INSIDE = 470615985300000000, 470615985343000000
JOB, DELETE_ONLY, DONE = EARLY_JOB, EARLY_TS, EARLY_TS_OF_TICDC
SPAN = TableSpan.of_table(DDL_JOB_TABLE_ID)


class Broker:
    """Stands for a producer; takes each record at once."""

    def __init__(self) -> None:
        self.end = 0

    def produce(self, topic: str, *, value: bytes, partition: int, on_delivery: Any) -> None:
        offset, self.end = self.end, self.end + 1
        on_delivery(None, SimpleNamespace(offset=lambda: offset))


def fed(sink: _DdlSink, rows: Sequence[Change], step: int) -> list[DdlRecord]:
    """Return what lands of ``rows``, of which ``step`` come at a time, the newest first."""
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        sink.rows(SPAN, RegionId(1), some[::-1], may_repeat=False)
        sink.resolved(SPAN, Ts(some[-1][0]))
    return sink.take()


def sink_over(records: Sequence[DdlRecord]) -> _DdlSink:
    broker: Any = Broker()
    return _DdlSink(DdlBook(enumerate(records)), broker, "ddl", list(records))


def landed(snapshot_ts: int, step: int = 1000) -> list[DdlRecord]:
    """Return the ddl topic of a raw log that begins there."""
    return fed(sink_over(snapshot_at(snapshot_ts)), job_rows_after(snapshot_ts), step)


def store_of(records: Sequence[DdlRecord]) -> tuple[SchemaStore, TableSet]:
    """Return what the owner knows after these: schemas, and the tables to pull."""
    store, tables = SchemaStore.empty(), None
    for record in records:
        change = store.apply(record)
        if record.kind == "snapshot_end":
            tables = TableSet.at_snapshot(store, record.ts)
        elif change is not None and tables is not None:
            tables = tables.with_ddl(change)
    assert tables is not None
    return store, tables


def row_in_the_window() -> tuple[bytes, bytes, dict[str, Any]]:
    """Return key and value of the one row that was inserted into the new partition, and what TiCDC mounted of it."""
    change = next(change for change in committed_changes() if row_table_id(change.key) == NEW)
    mounted = next(line for line in oracle("mounted") if line["commit_ts"] == change.commit_ts)
    return change.key, change.value, mounted


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_recorded_truncation_lands_when_it_is_delete_only_and_all_other_jobs_when_done(step: int) -> None:
    jobs = [record for record in landed(BEFORE, step) if record.kind == "job"]
    places = [(record.ts, int(record.payload["id"])) for record in jobs]
    at_done = [
        (record.ts, record.payload["id"])
        for record in ddl_records(committed_changes())
        if record.kind == "job" and record.ts > BEFORE
    ]
    assert (DONE, JOB) in at_done
    assert places == sorted([*(landed_at for landed_at in at_done if landed_at[1] != JOB), (DELETE_ONLY, JOB)])
    events = {(line["commit_ts"], line["job_id"]) for line in oracle("ddl_events") if line["commit_ts"] > BEFORE}
    assert events - set(places) == {(DONE, JOB)}


def test_recorded_truncation_has_the_table_info_that_tidb_wrote_when_it_was_done() -> None:
    early = next(record for record in landed(BEFORE) if record.kind == "job" and record.payload["id"] == JOB)
    at_done = next(record for record in ddl_records(committed_changes()) if record.payload.get("id") == JOB)
    infos = [record.payload["binlog"]["TableInfo"] for record in (early, at_done)]
    assert [definition["id"] for definition in infos[0]["partition"]["definitions"]] == [148, 145, 137]
    # It counts each step of a job.
    assert [{**info, "revision": 0} for info in infos[:1]] == [{**info, "revision": 0} for info in infos[1:]]


def test_recorded_truncation_when_a_row_comes_before_it_is_done_then_it_is_pulled_and_mounted() -> None:
    store, tables = store_of(landed(BEFORE))
    key, value, wanted = row_in_the_window()
    assert tables.starts[NEW] == DELETE_ONLY < INSIDE < DONE
    table = store.lookup(NEW, Ts(INSIDE))
    assert isinstance(table, TableVersion) and table.name == "d1.t_part"
    row = mount_row(
        table, key=key, op=Op.PUT, value=value, old_value=b"", commit_ts=Ts(INSIDE), start_ts=Ts(INSIDE - 1)
    )
    assert row is not None
    texts = [part.decode() if isinstance(part, bytes) else str(part) for part in row.columns or ()]
    assert texts == [str(part["value"]) for part in wanted["columns"]]
    assert store.lookup(NEW, Ts(DELETE_ONLY)) is NoSchema.NOT_YET
    assert store.lookup(OLD, Ts(INSIDE)) is NoSchema.TRUNCATED


def test_recorded_truncation_when_the_feed_begins_again_before_it_is_done_then_it_does_not_land_twice() -> None:
    rows = [row for row in job_rows_after(BEFORE) if row[0] <= INSIDE]
    first = fed(sink_over(snapshot_at(BEFORE)), rows, 1)
    assert first[-1].payload["id"] == JOB and first[-1].ts == DELETE_ONLY
    again = fed(sink_over(first), [row for row in job_rows_after(BEFORE) if row[0] >= DELETE_ONLY], 1)
    assert again[: len(first)] == first
    assert [record.ts for record in again if record.payload.get("id") == JOB and record.kind == "job"] == [DELETE_ONLY]


def test_recorded_truncation_when_the_snapshot_has_the_new_ids_then_nothing_is_truncated_later() -> None:
    records = landed(INSIDE)
    assert next(record.ts for record in records if record.kind == "job") == DONE
    store, tables = store_of(records)
    assert tables.starts[NEW] == INSIDE
    assert [change.job.query for change in store.changes if change.job.job_id == JOB] == []
    assert store.changes[0].job.job_id == 150 and len(store.changes) > 50
    table = store.lookup(NEW, Ts(DONE + 1))
    assert isinstance(table, TableVersion) and [part.id for part in table.partitions] == [148, 145, 137]
