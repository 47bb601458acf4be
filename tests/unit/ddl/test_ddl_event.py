"""DDL events against TiCDC's (``ddl_events``): every job of the recording, byte by byte."""

from functools import cache
from typing import Any

import pytest

from schemas.ddl.job import DDL_TYPE_NAMES, DdlType
from schemas.ddl.schema_change import SchemaChange
from schemas.ids import Ts
from sorters.core.sql.ddl_event import DdlEvent, Eligibility, ddl_events, eligibility
from tests.support.recorded.ddl_jobs import column, job, snapshot, table_info
from tests.support.recorded.recording import committed_changes, oracle
from tests.support.recorded.schema_feed import schema_store

DISCARDED = "discarded by ddl type/filter"
NOT_SENT = {
    Eligibility.SEND: None,
    Eligibility.INELIGIBLE: "applied to the schema but not sent: ineligible table",
    Eligibility.BECAME_INELIGIBLE: "error: an eligible table became ineligible (changefeed would fail)",
}


@cache
def recorded() -> dict[int, SchemaChange]:
    return {change.job.job_id: change for change in schema_store(committed_changes()).changes}


def as_oracle(event: DdlEvent) -> dict[str, Any]:
    pre = event.pre and {
        "pre_schema": event.pre_schema,
        "pre_table": event.pre_table,
        "pre_table_id": event.pre.table_id,
    }
    return {
        "charset": event.charset,
        "collate": event.collation,
        "query": event.original_query,
        "restored_query": event.restored_query,
        "schema": event.schema,
        "seq": event.seq,
        "sql_mode": event.sql_mode,
        "table": event.table,
        "table_id": event.table_id,
        "type": event.type_name,
        "type_id": event.ddl_type,
    } | (pre or {})


def test_ddl_events_of_the_recording_equal_ticdcs() -> None:
    changes = dict(recorded())
    events = 0
    for line in oracle("ddl_events"):
        if line.get("not_sent") == DISCARDED:
            assert line["job_id"] not in changes
            continue
        change = changes.pop(line["job_id"])
        assert [as_oracle(event) for event in ddl_events(change)] == line["events"]
        assert NOT_SENT[eligibility(change)] == line.get("not_sent")
        ddl_job = change.job
        assert ddl_job.type is not None
        assert (
            ddl_job.finished_ts,
            ddl_job.start_ts,
            ddl_job.schema_version,
            ddl_job.query,
            DDL_TYPE_NAMES[ddl_job.type],
        ) == (
            line["commit_ts"],
            line["start_ts"],
            line["schema_version"],
            line["job_query"],
            line["type"],
        )
        events += len(line["events"])
    assert not changes
    assert events == 102


def test_ddl_events_of_the_recording_are_all_restored() -> None:
    assert all(event.restored for change in recorded().values() for event in ddl_events(change))


def test_ddl_type_names_cover_every_replicated_type() -> None:
    assert set(DDL_TYPE_NAMES) == set(DdlType)


def applied(record_type: int, **fields: Any) -> SchemaChange:
    store = snapshot(("d", 2, [table_info(100, "t"), table_info(101, "u")]))
    change = store.apply(job(20, record_type, schema_id=2, **fields))
    assert change is not None
    return change


def test_create_tables_job_gives_one_event_a_table_with_its_own_statement() -> None:
    infos = [table_info(102, "a"), table_info(103, "b")]
    query = "CREATE TABLE a (id INT PRIMARY KEY, v INT); create table b (id int primary key, v int);"
    events = ddl_events(applied(60, query=query, table_infos=infos))
    assert [(e.seq, e.table, e.type, e.query) for e in events] == [
        (0, "a", DdlType.CREATE_TABLE, "CREATE TABLE `a` (`id` INT PRIMARY KEY,`v` INT)"),
        (1, "b", DdlType.CREATE_TABLE, "CREATE TABLE `b` (`id` INT PRIMARY KEY,`v` INT)"),
    ]


def test_drop_table_of_several_names_only_the_jobs_own_table() -> None:
    (event,) = ddl_events(applied(4, table_id=101, table_info=table_info(101, "u"), query="DROP TABLE d.t, d.u"))
    assert event.query == "DROP TABLE `d`.`u`"
    assert (event.table, event.pre_table, event.post) == ("u", "u", None)


@pytest.mark.parametrize("validation", ["", " WITHOUT VALIDATION"])
def test_exchange_partition_names_both_tables_in_full(validation: str) -> None:
    partitioned = table_info(200, "p")
    definitions = [{"id": 201, "name": {"O": "p0"}}, {"id": 202, "name": {"O": "p1"}}]
    partitioned["partition"] = {"enable": True, "definitions": definitions}
    after = {
        **partitioned,
        "partition": {"enable": True, "definitions": [definitions[0], {**definitions[1], "id": 100}]},
    }
    store = snapshot(("d", 2, [table_info(100, "t"), partitioned]))
    query = f"alter table p exchange partition p1 with table t{validation.lower()}"
    change = store.apply(job(20, 42, schema_id=2, table_id=100, table_info=after, query=query))
    assert change is not None
    (event,) = ddl_events(change)
    assert event.query == f"ALTER TABLE `d`.`p` EXCHANGE PARTITION `p1` WITH TABLE `d`.`t`{validation}"
    assert (event.table, event.pre_table) == ("p", "t")
    assert {pid: t.table for pid, t in store.pullable_tables_at(Ts(20)).items()} == {201: "p", 100: "p", 202: "t"}


def test_statement_beyond_the_restorer_goes_out_as_it_was() -> None:
    query = "ALTER TABLE t ADD COLUMN c INT DEFAULT (EXTRACT(DAY FROM '2024-01-01'))"
    (event,) = ddl_events(applied(5, table_id=100, table_info=table_info(100, "t"), query=query))
    assert (event.query, event.restored) == (query, False)


def test_dropped_primary_key_of_the_only_key_makes_the_changefeed_fail() -> None:
    keyless = table_info(100, "t", columns=[column(1, "id")], pk_is_handle=False)
    assert eligibility(applied(33, table_id=100, table_info=keyless)) is Eligibility.BECAME_INELIGIBLE
