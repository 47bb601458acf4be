"""TRUNCATE PARTITION has its effect before it is done: by hand-made jobs."""

from typing import Any

import pytest

from producers.pull.core.ddl.book import DdlBook
from producers.pull.core.ddl.early_jobs import as_done, is_early, may_count
from schemas.ddl.job import DdlDecodeError, DdlType, undecodable_record
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.row_v2 import encode_row_v2
from tests.support.recorded.ddl_jobs import column, job, table_info

TABLE = 100
DELETE_ONLY, DONE = Ts(30), Ts(40)
V2 = {"old_partition_ids": [102], "new_partition_ids": [112]}


def partitioned(
    *ids: int, table_id: int = TABLE, name: str = "t", columns: Any = None, **fields: Any
) -> dict[str, Any]:
    """Return the TableInfo of a table with these partitions."""
    names = [{"O": f"p{number}", "L": f"p{number}"} for number in range(len(ids))]
    definitions = [{"id": id_, "name": each, "less_than": ["1"]} for id_, each in zip(ids, names, strict=True)]
    partition = {"type": 1, "expr": "`id`", "enable": True, "definitions": definitions, "ddl_state": 0, **fields}
    return {**table_info(table_id, name, columns=columns), "partition": partition}


def partition_ids(record: DdlRecord) -> list[int]:
    definitions = record.payload["binlog"]["TableInfo"]["partition"]["definitions"]
    return [definition["id"] for definition in definitions]


def snapshot(*tables: dict[str, Any]) -> list[DdlRecord]:
    schema = {"id": 2, "db_name": {"O": "d", "L": "d"}}
    return [
        DdlRecord(kind="schema", ts=Ts(10), schema_id=2, payload=schema),
        *(DdlRecord(kind="table", ts=Ts(10), schema_id=2, payload=table) for table in tables),
        DdlRecord(kind="snapshot_end", ts=Ts(10), payload={}),
    ]


def changed(finished_ts: int, type_: DdlType, table_id: int = TABLE, **fields: Any) -> DdlRecord:
    """Return a done job of schema d."""
    return job(finished_ts, type_, schema_id=2, table_id=table_id, **fields)


def truncation(ts: Ts, *, raw_args: Any = None, table_id: int = TABLE, **fields: Any) -> DdlRecord:
    """Return the record of a row of job 7, as it stands when it is delete-only."""
    payload = {
        "id": 7,
        "type": DdlType.TRUNCATE_PARTITION,
        "schema_id": 2,
        "schema_name": "d",
        "table_id": table_id,
        "state": 1,
        "schema_state": 1,
        "query": "ALTER TABLE t TRUNCATE PARTITION p1",
        "raw_args": V2 if raw_args is None else raw_args,
        "binlog": {"SchemaVersion": 0, "DBInfo": None, "TableInfo": None, "FinishedTS": 0, "MultipleTableInfos": None},
        "last_schema_version": 55,
        **fields,
    }
    return DdlRecord(kind="job", ts=ts, start_ts=Ts(ts - 1), payload=payload)


def done(info: dict[str, Any]) -> DdlRecord:
    """Return the record of the same job when it is done."""
    args = {"old_partition_ids": V2["old_partition_ids"]}
    binlog = {"SchemaVersion": 57, "DBInfo": None, "TableInfo": info, "FinishedTS": 0, "MultipleTableInfos": None}
    return truncation(DONE, raw_args=args, state=4, schema_state=0, binlog=binlog)


def landed(book: DdlBook, *records: DdlRecord) -> list[DdlRecord]:
    """Return what goes out of these, in whatever order they come."""
    for record in reversed(records):
        book.add(record)
    return book.resolved(Ts(100))


@pytest.mark.parametrize("raw_args", [V2, [[102], [112]]], ids=["job version 2", "job version 1"])
def test_early_job_goes_out_as_done_when_it_is_delete_only_and_no_more_when_done(raw_args: Any) -> None:
    before, after = partitioned(101, 102, 103), partitioned(101, 112, 103)
    sent = landed(DdlBook(enumerate(snapshot(before))), truncation(DELETE_ONLY, raw_args=raw_args), done(after))
    assert [(record.ts, record.start_ts, record.payload["id"]) for record in sent] == [(30, 29, 7)]
    payload = sent[0].payload
    assert (payload["state"], payload["schema_state"], payload["binlog"]["SchemaVersion"]) == (4, 0, 55)
    assert payload["binlog"]["TableInfo"] == after
    store = SchemaStore.empty()
    for record in (*snapshot(before), *sent, done(after)):
        store.apply(record)
    assert [(change.job.finished_ts, change.truncated) for change in store.changes] == [(30, (102,))]


def test_early_job_when_the_snapshot_was_taken_before_its_step_then_no_mark_of_it_is_left() -> None:
    running = partitioned(101, 102, new_partition_ids=[112], ddl_action=23)
    running["partition"]["ddl_state"] = 2
    sent = landed(DdlBook(enumerate(snapshot(running))), truncation(DELETE_ONLY))
    assert sent[0].payload["binlog"]["TableInfo"] == partitioned(101, 112)


def test_early_job_when_its_row_comes_again_then_the_first_counts_and_a_reopened_book_knows_it() -> None:
    records = snapshot(partitioned(101, 102))
    sent = landed(DdlBook(enumerate(records)), truncation(DELETE_ONLY), truncation(Ts(33)))
    assert [record.ts for record in sent] == [30]
    reopened = DdlBook(enumerate([*records, *sent]))
    assert landed(reopened, truncation(DELETE_ONLY), done(partitioned(101, 112))) == []


def test_early_job_when_the_next_truncation_follows_then_it_builds_upon_the_first() -> None:
    args = {"old_partition_ids": [112, 101], "new_partition_ids": [122, 121]}
    second = truncation(Ts(50), raw_args=args, id=8)
    sent = landed(DdlBook(enumerate(snapshot(partitioned(101, 102)))), truncation(DELETE_ONLY), second)
    assert [(record.ts, partition_ids(record)) for record in sent] == [(30, [101, 112]), (50, [121, 122])]


WIDER = [column(1, "id", not_null=True, flag=2), column(2, "v"), column(3, "w")]
BY_JOBS: dict[str, tuple[list[DdlRecord], dict[str, Any]]] = {
    "added column": (
        [changed(20, DdlType.ADD_COLUMN, table_info=partitioned(101, 102, columns=WIDER))],
        partitioned(101, 112, columns=WIDER),
    ),
    "renamed": (
        [changed(20, DdlType.RENAME_TABLE, table_info=partitioned(101, 102, name="u"))],
        partitioned(101, 112, name="u"),
    ),
    "renamed with others": (
        [changed(20, DdlType.RENAME_TABLES, 0, table_infos=[table_info(90, "x"), partitioned(101, 102, name="u")])],
        partitioned(101, 112, name="u"),
    ),
    "created with others": (
        [
            changed(19, DdlType.DROP_TABLE, table_info=partitioned(101, 102)),
            changed(20, DdlType.CREATE_TABLES, 0, table_infos=[table_info(90, "x"), partitioned(102, 103)]),
        ],
        partitioned(112, 103),
    ),
    "exchanged": (
        [changed(20, DdlType.EXCHANGE_PARTITION, 90, table_info=partitioned(101, 90, 102))],
        partitioned(101, 90, 112),
    ),
    "action that is not replicated": (
        [job(20, 30, schema_id=2, table_id=TABLE, table_info=partitioned(101, 102, name="tiflash"))],
        partitioned(101, 112, name="tiflash"),
    ),
}


@pytest.mark.parametrize("how", BY_JOBS)
def test_early_job_after_other_jobs_of_its_table_has_the_table_info_that_they_left(how: str) -> None:
    before, after = BY_JOBS[how]
    waiting = landed(DdlBook(enumerate(snapshot(partitioned(101, 102)))), *before, truncation(DELETE_ONLY))
    assert waiting[-1].ts == DELETE_ONLY and waiting[-1].payload["binlog"]["TableInfo"] == after
    reopened = DdlBook(enumerate([*snapshot(partitioned(101, 102)), *before]))
    assert landed(reopened, truncation(DELETE_ONLY))[0].payload["binlog"]["TableInfo"] == after


def test_early_job_of_a_truncated_table_finds_it_by_its_new_id_alone() -> None:
    other = changed(20, DdlType.TRUNCATE_TABLE, table_info=partitioned(101, 102, table_id=200))
    old, new = truncation(DELETE_ONLY), truncation(Ts(31), table_id=200, id=8)
    sent = landed(DdlBook(enumerate(snapshot(partitioned(101, 102)))), other, old, new)
    assert [(record.ts, record.payload["id"]) for record in sent] == [(20, 20), (31, 8)]


def _unreadable() -> DdlRecord:
    table = {"cols": [{"id": 2, "name": {"O": "job_meta", "L": "job_meta"}}]}
    error = DdlDecodeError("no", reason="too new")
    row = encode_row_v2({2: b"\xff"})
    return undecodable_record(b"k", row, table, start_ts=Ts(19), commit_ts=Ts(20), error=error)


NOT_SURE: dict[str, DdlRecord] = {
    "table is dropped": changed(20, DdlType.DROP_TABLE, table_info=partitioned(101, 102)),
    "partitions are gone": changed(20, DdlType.REMOVE_PARTITIONING, table_info=table_info(200, "t")),
    "partition has another id": changed(20, DdlType.REORGANIZE_PARTITION, table_info=partitioned(101, 109)),
    "job says nothing of the table": job(20, 76, schema_id=2, table_id=TABLE),
    "row that nobody could read": _unreadable(),
    "flashback of the cluster": job(20, 62),
}


@pytest.mark.parametrize("why", NOT_SURE)
def test_early_job_whose_table_is_not_known_for_sure_lands_when_it_is_done(why: str) -> None:
    book = DdlBook(enumerate(snapshot(partitioned(101, 102))))
    at_last = done(partitioned(101, 112))
    assert landed(book, NOT_SURE[why], truncation(DELETE_ONLY), at_last) == [NOT_SURE[why], at_last]


@pytest.mark.parametrize(
    "raw_args",
    [
        {"old_partition_ids": [102]},
        {"old_partition_ids": [102], "new_partition_ids": []},
        {"old_partition_ids": [102], "new_partition_ids": [112, 113]},
        {"old_partition_ids": [999], "new_partition_ids": [112]},
        {"old_partition_ids": [102, 102], "new_partition_ids": [112, 113]},
        {"old_partition_ids": [101, 102], "new_partition_ids": [112, 112]},
        {"old_partition_ids": [102], "new_partition_ids": [102]},
        {"old_partition_ids": [], "new_partition_ids": []},
        {"old_partition_ids": ["102"], "new_partition_ids": ["112"]},
        {"old_partition_ids": 102, "new_partition_ids": 112},
        [[102]],
        [[102], [112], 3],
        "bytes",
    ],
)
def test_early_job_whose_arguments_do_not_fit_lands_when_it_is_done(raw_args: Any) -> None:
    book, at_last = DdlBook(enumerate(snapshot(partitioned(101, 102)))), done(partitioned(101, 112))
    assert landed(book, truncation(DELETE_ONLY, raw_args=raw_args), at_last) == [at_last]


@pytest.mark.parametrize("table", [table_info(TABLE, "t"), {"id": TABLE, "partition": {"definitions": [5]}}])
def test_early_job_as_done_of_a_table_without_partitions_is_none(table: dict[str, Any]) -> None:
    assert as_done(truncation(DELETE_ONLY).payload, table) is None


def test_early_job_is_only_a_truncation_that_runs_and_is_delete_only() -> None:
    row = truncation(DELETE_ONLY).payload
    assert is_early(row) and may_count(row)
    for other in ({"type": DdlType.DROP_PARTITION}, {"state": 2}, {"state": 7}, {"schema_state": 2}):
        assert not is_early({**row, **other}) and not may_count({**row, **other})
    assert not is_early(done(partitioned(112)).payload) and may_count(done(partitioned(112)).payload)
