"""Jobs that take effect before they are done as a real TiDB ran them, through what takes the job table's rows."""

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
from tests.support.recorded.job_rows import EARLY_JOBS, EarlyJob, job_rows_after, snapshot_at, table_info_at
from tests.support.recorded.recording import committed_changes, oracle, row_table_id
from tests.support.recorded.schema_feed import ddl_records

BEFORE = 470615985300000000
TRUNCATION, DROP = EARLY_JOBS[:2]
OLD, NEW = TableId(135), TableId(148)
"""The id of p0 of d1.t_part before it is truncated, and after."""
ACCOUNTS = {"bank.acct_b": TableId(221), "bank.acct_a": TableId(219)}
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
    book = DdlBook(enumerate(records))

    def read(early: Sequence[DdlRecord]) -> None:
        for record in early:
            job = record.payload
            book.read(record, table_info_at(record.ts, job["schema_id"], job["table_id"]))

    return _DdlSink(book, broker, "ddl", list(records), read)


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


def inside(job: EarlyJob) -> Ts:
    return Ts((job.ts + job.done_ts) // 2)


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_recorded_early_jobs_land_when_they_take_effect_and_all_others_when_done(step: int) -> None:
    landed_jobs = [record for record in landed(BEFORE, step) if record.kind == "job"]
    places = [(record.ts, int(record.payload["id"])) for record in landed_jobs]
    at_done = {
        (record.ts, record.payload["id"])
        for record in ddl_records(committed_changes())
        if record.kind == "job" and record.ts > BEFORE
    }
    late = {(job.done_ts, job.id) for job in EARLY_JOBS}
    assert late <= at_done
    assert places == sorted((at_done - late) | {(job.ts, job.id) for job in EARLY_JOBS})
    events = {(line["commit_ts"], line["job_id"]) for line in oracle("ddl_events") if line["commit_ts"] > BEFORE}
    assert events - set(places) == late


@pytest.mark.parametrize("job", EARLY_JOBS, ids=lambda job: str(job.id))
def test_recorded_early_job_has_the_table_info_that_tidb_wrote_when_it_was_done(job: EarlyJob) -> None:
    early = next(record for record in landed(BEFORE) if record.kind == "job" and record.payload["id"] == job.id)
    at_done = next(record for record in ddl_records(committed_changes()) if record.payload.get("id") == job.id)
    # Both count the steps of a job.
    steps = {"revision": 0, "update_timestamp": 0}
    ours, theirs = ({**record.payload["binlog"]["TableInfo"], **steps} for record in (early, at_done))
    assert ours == theirs
    assert early.payload["schema_state"] == at_done.payload["schema_state"]


def test_recorded_truncation_when_a_row_comes_before_it_is_done_then_it_is_pulled_and_mounted() -> None:
    store, tables = store_of(landed(BEFORE))
    change = next(change for change in committed_changes() if row_table_id(change.key) == NEW)
    wanted = next(line for line in oracle("mounted") if line["commit_ts"] == change.commit_ts)
    ts = inside(TRUNCATION)
    assert tables.starts[NEW] == TRUNCATION.ts < ts < TRUNCATION.done_ts
    table = store.lookup(NEW, ts)
    assert isinstance(table, TableVersion) and table.name == "d1.t_part"
    row = mount_row(table, key=change.key, op=Op.PUT, value=change.value, old_value=b"", commit_ts=ts, start_ts=ts)
    assert row is not None
    texts = [part.decode() if isinstance(part, bytes) else str(part) for part in row.columns or ()]
    assert texts == [str(part["value"]) for part in wanted["columns"]]
    assert store.lookup(NEW, Ts(TRUNCATION.ts)) is NoSchema.NOT_YET
    assert store.lookup(OLD, ts) is NoSchema.TRUNCATED


@pytest.mark.parametrize("job", [job for job in EARLY_JOBS if job.values], ids=lambda job: str(job.id))
def test_recorded_rows_written_before_a_job_was_done_have_the_values_of_its_new_columns(job: EarlyJob) -> None:
    store, _ = store_of(landed(BEFORE))
    table_id, mounted = ACCOUNTS[job.table], 0
    for change in committed_changes():
        if row_table_id(change.key) == table_id and job.ts < change.commit_ts <= job.done_ts and change.op == "put":
            ts = Ts(change.commit_ts)
            table = store.lookup(table_id, ts)
            assert isinstance(table, TableVersion)
            value, old = change.value, change.old_value
            row = mount_row(table, key=change.key, op=Op.PUT, value=value, old_value=old, commit_ts=ts, start_ts=ts)
            assert row is not None and row.columns is not None
            names = [each.name for each in table.columns]
            values = dict(zip(names, row.columns, strict=True))
            texts = {name: _text(values[name]) for name in job.values}
            assert texts == job.values
            mounted += 1
    assert mounted > 5


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.parametrize("job", EARLY_JOBS, ids=lambda job: str(job.id))
def test_recorded_early_job_when_the_feed_begins_again_before_it_is_done_then_it_does_not_land_twice(
    job: EarlyJob,
) -> None:
    rows = [row for row in job_rows_after(BEFORE) if row[0] <= inside(job)]
    first = fed(sink_over(snapshot_at(BEFORE)), rows, 1)
    assert first[-1].payload["id"] == job.id and first[-1].ts == job.ts
    again = fed(sink_over(first), [row for row in job_rows_after(BEFORE) if row[0] >= job.ts], 1)
    assert again[: len(first)] == first
    assert [record.ts for record in again if record.payload.get("id") == job.id and record.kind == "job"] == [job.ts]


@pytest.mark.parametrize("job", [TRUNCATION, DROP], ids=lambda job: str(job.id))
def test_recorded_partition_job_when_the_snapshot_has_its_partitions_then_it_changes_nothing_later(
    job: EarlyJob,
) -> None:
    records = landed(inside(job))
    assert next((record.ts, record.payload["id"]) for record in records if record.kind == "job") == (
        job.done_ts,
        job.id,
    )
    store, tables = store_of(records)
    assert tables.starts[NEW] == inside(job)
    assert [change.job.query for change in store.changes if change.job.job_id == job.id] == []
    assert store.changes[0].job.finished_ts > job.done_ts and len(store.changes) > 50
