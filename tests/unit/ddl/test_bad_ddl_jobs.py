"""DDL jobs that cannot be read or applied: what is noted, whom they concern, and what the frontier says of them."""

import json
from dataclasses import replace

import pytest

from consumers.control.core.frontier.frontier import HELD_DDL_MAX, FrontierInputs, advance, first_record
from schemas.config.changefeed import load_changefeed
from schemas.ddl.bad_jobs import BadJobs
from schemas.ddl.job import DdlDecodeError, DdlType, JobScope, job_scope, undecodable_record
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import (
    DdlReport,
    FrontierRecord,
    HeldDdl,
    LandingReport,
    decode_frontier,
    encode_frontier,
    follow_frontier,
)
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.spans import TableSpan
from sorters.core.cut.cut import cut_between, frontier_for
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.scope import concerns
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

JOB_TABLE = {"cols": [{"id": 1, "name": {"O": "job_id"}}, {"id": 2, "name": {"O": "job_meta"}, "type": {"Tp": 252}}]}
CAPTURE, TABLE = CaptureId("a"), TableId(100)


def unread(record: DdlRecord, meta: bytes | None = None) -> DdlRecord:
    """Return what a producer lands that could not read the job's row."""
    row = encode_row_v2({2: meta if meta is not None else json.dumps(record.payload).encode()})
    error = DdlDecodeError("no", reason="too new")
    return undecodable_record(b"k", row, JOB_TABLE, start_ts=record.start_ts, commit_ts=record.ts, error=error)


def creation(ts: int, table_id: int) -> DdlRecord:
    info = table_info(table_id, f"t{table_id}")
    return job(ts, DdlType.CREATE_TABLE, schema_id=2, table_id=table_id, table_info=info)


def names(store: SchemaStore, ts: int) -> set[str]:
    return {stored.table for stored in store.stored_at(Ts(ts))}


# -- what is noted -----------------------------------------------------------------------------------------------------


def test_store_when_a_row_can_be_read_after_all_takes_its_job_once() -> None:
    store = snapshot(("d", 2, []))
    change = store.apply(unread(creation(20, 100)))
    assert change is not None
    assert (change.job.finished_ts, change.job.start_ts, names(store, 20)) == (20, 19, {"t100"})
    again = replace(creation(20, 100), ts=Ts(25))
    assert store.apply(unread(again)) is None, "the same job, its row written once more"
    running = b'{"id":30,"state":2,"binlog":{"SchemaVersion":0}}'
    assert store.apply(unread(creation(30, 300), running)) is None, "no finished job"


def test_bad_jobs_notes_each_with_its_place_and_reads_on() -> None:
    store, bad = snapshot(("d", 2, [table_info(100, "t")])), BadJobs()
    drop_unknown = job(21, DdlType.DROP_TABLE, schema_id=2, table_id=999, query="DROP TABLE `x`")
    for offset, record in enumerate(
        [unread(creation(20, 200), b"\xff"), drop_unknown, drop_unknown, creation(22, 300)]
    ):
        bad.apply(store, record, topic="ddl", offset=offset)
    assert names(store, 22) == {"t", "t300"}
    first, second = (str(bad_job.error) for bad_job in bad.jobs)
    for part in ("schema.undecodable_ddl", "key=6b", "commit_ts=20", "start_ts=19", "topic=ddl", "offset=0", "upgrade"):
        assert part in first
    for part in ("schema.inconsistent_ddl", "job_id=21", "commit_ts=21", "offset=1", "ignore-txn-start-ts"):
        assert part in second


def test_bad_jobs_snapshot_that_does_not_decode_is_no_job() -> None:
    broken = DdlRecord(kind="table", ts=Ts(5), schema_id=9, payload={"id": 1})
    with pytest.raises(BusError, match="offset=3"):
        BadJobs().apply(SchemaStore.empty(), broken, offset=3)


# -- whom it concerns --------------------------------------------------------------------------------------------------


def feed(*rules: str, ignore: tuple[int, ...] = ()) -> CompiledFeed:
    config = {"filter": {"rules": list(rules), "ignore-txn-start-ts": list(ignore)}}
    return compile_feed(load_changefeed("kafka://127.0.0.1:1/t?protocol=canal-json", config), "default")


@pytest.mark.parametrize(
    ("schema", "table", "table_id", "concerned"),
    [("d", "t", 100, True), ("e", "t", 100, True), ("e", "t", 555, False), ("d", "new", 555, True), ("", "", 0, True)],
    ids=["by name and id", "by id alone", "another table", "by name alone", "unknown"],
)
def test_concerns_job_of_one_table_only_changefeeds_that_have_it(
    schema: str, table: str, table_id: int, *, concerned: bool
) -> None:
    store = snapshot(("d", 2, [table_info(100, "t")]))
    scope = JobScope(ts=Ts(20), start_ts=Ts(19), schema=schema, table=table, table_id=TableId(table_id))
    assert concerns(scope, store, feed("d.*")) is concerned
    assert not concerns(scope, store, feed("d.*", ignore=(19,)))


def test_job_scope_names_a_table_only_where_the_job_can_have_no_other() -> None:
    payload = creation(20, 100).payload | {"table_name": "t"}
    assert job_scope(DdlRecord(kind="job", ts=Ts(20), payload=payload)).table == "t"
    for broken in (
        {"type": DdlType.RENAME_TABLE},
        {"type": 999},
        {"type": "3"},
        {"table_name": None},
        {"table_id": "x"},
    ):
        assert job_scope(DdlRecord(kind="job", ts=Ts(20), payload=payload | broken)).schema == ""
    assert job_scope(unread(creation(20, 100))).schema == ""


# -- what the frontier says --------------------------------------------------------------------------------------------


def report(landed: dict[int, int], end: int) -> dict[CaptureId, LandingReport]:
    landed_ts = {TableSpan.of_table(TableId(table)): Ts(ts) for table, ts in landed.items()}
    landing = LandingReport(
        capture=CAPTURE, landed_ts=landed_ts, ends=(end,), chunks=(), floors=(end,), repeat_ends=(0,)
    )
    return {CAPTURE: landing}


def step(previous: FrontierRecord, landed: dict[int, int], end: int, *bad: int) -> FrontierRecord:
    scopes = tuple(JobScope(ts=Ts(ts), start_ts=Ts(ts - 1)) for ts in bad)
    tables = {TableSpan.of_table(TableId(table)): CAPTURE for table in landed}
    return advance(
        previous, FrontierInputs(report(landed, end), DdlReport(landed_ts=Ts(1000), end=9), tables, bad_ddl=scopes)
    )


def test_frontier_bad_job_is_held_from_the_low_before_it_until_all_has_landed_without_it() -> None:
    first = step(first_record(1, Ts(0), 1), {100: 15}, 5)
    second = step(first, {100: 30}, 9, 20)
    assert second.resolved_ts == 30
    assert second.held_ddl == (HeldDdl(ts=Ts(20), start_ts=Ts(19), low=first.low),)
    third = step(second, {100: 40}, 12, 20)
    assert third.held_ddl == second.held_ddl
    # A new owner can read the job; it made table 200, whose rows from 20 on come now.
    fourth = step(third, {100: 40, 200: 35}, 20)
    assert (fourth.resolved_ts, fourth.held_ddl) == (40, second.held_ddl)
    fifth = step(fourth, {100: 50, 200: 45}, 25)
    assert (fifth.resolved_ts, fifth.held_ddl) == (45, ())
    frontiers = [frontier_for(record, lambda _: False) for record in (first, second, third, fourth, fifth)]
    assert [frontier.resolved_ts for frontier in frontiers] == [15, 20, 20, 20, 45]
    cut = cut_between(frontiers[3], frontiers[4], Ts(20), Ts(45))
    assert (cut.start, cut.end) == (first.low, (25,)), "what came late for (20, 40] is in it"
    not_concerned = [frontier_for(record, lambda _: False, lambda _: False).resolved_ts for record in (second, third)]
    assert not_concerned == [30, 40]


def test_frontier_with_more_bad_jobs_than_a_record_lists_stands_still_below_the_next() -> None:
    bad = range(10, 10 + HELD_DDL_MAX + 3)
    record = step(first_record(1, Ts(0), 1), {100: 500}, 5, *bad)
    assert [held.ts for held in record.held_ddl] == list(bad)[:HELD_DDL_MAX]
    assert record.resolved_ts == bad[HELD_DDL_MAX] - 1
    assert step(record, {100: 500}, 6, *bad).resolved_ts == record.resolved_ts
    assert step(record, {100: 500}, 6).resolved_ts == 500, "a version that reads them goes on"


def test_frontier_record_with_held_jobs_reads_back_and_is_followed() -> None:
    held = HeldDdl(ts=Ts(20), start_ts=Ts(19), low=(3,), schema="d", table="名", table_id=TABLE)
    record = replace(first_record(1, Ts(30), 1), held_ddl=(held,))
    assert decode_frontier(encode_frontier(record)) == record
    assert follow_frontier(record, replace(record, resolved_ts=Ts(31), held_ddl=())).held_ddl == ()
    late = replace(record, resolved_ts=Ts(29), held_ddl=())
    assert follow_frontier(record, late).held_ddl == (held,)


def test_frontier_record_without_held_jobs_is_as_earlier_versions_wrote_it() -> None:
    assert "held_ddl" not in json.loads(encode_frontier(first_record(1, Ts(0), 1)))
