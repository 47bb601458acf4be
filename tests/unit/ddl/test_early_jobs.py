"""Jobs that take effect before they are done: by hand-made rows of them."""

from collections.abc import Mapping
from typing import Any

import pytest

from producers.pull.core.ddl.book import DdlBook
from producers.pull.core.ddl.early_jobs import as_done, is_early, may_count
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import NoSchema, SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from tests.support.recorded.ddl_jobs import column, index, table_info

TABLE = 100
EARLY, DONE = Ts(30), Ts(40)
NO_BINLOG = {"SchemaVersion": 0, "DBInfo": None, "TableInfo": None, "FinishedTS": 0, "MultipleTableInfos": None}
DELETE_ONLY, WRITE_ONLY, WRITE_REORG, PUBLIC = 1, 2, 3, 5
RUNNING, STATE_DONE = 1, 4


BEFORE = [column(1, "id", not_null=True, flag=2), column(2, "v")]
NEW_V = column(3, "v", tp=15, flen=20)


def with_columns(*columns: dict[str, Any], indexes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    info = table_info(TABLE, "t", columns=[dict(each) for each in columns], indexes=indexes)
    for offset, each in enumerate(info["cols"]):
        each["offset"] = offset
    return info


def partitioned(*ids: int, dropping: tuple[int, ...] = (), **fields: Any) -> dict[str, Any]:
    """Return the TableInfo of a table with these partitions."""
    names = [{"O": f"p{number}", "L": f"p{number}"} for number in range(len(ids) + len(dropping))]
    parts = [{"id": id_, "name": each, "less_than": ["1"]} for id_, each in zip((*ids, *dropping), names, strict=True)]
    partition = {"type": 1, "expr": "`id`", "enable": True, "definitions": parts[: len(ids)], "ddl_state": 0, **fields}
    return {**with_columns(*BEFORE), "partition": {**partition, "dropping_definitions": parts[len(ids) :] or None}}


def snapshot(*tables: dict[str, Any]) -> list[DdlRecord]:
    schema = {"id": 2, "db_name": {"O": "d", "L": "d"}}
    return [
        DdlRecord(kind="schema", ts=Ts(10), schema_id=2, payload=schema),
        *(DdlRecord(kind="table", ts=Ts(10), schema_id=2, payload=table) for table in tables),
        DdlRecord(kind="snapshot_end", ts=Ts(10), payload={}),
    ]


def row(ts: int, type_: DdlType, schema_state: int, **fields: Any) -> DdlRecord:
    """Return the record of a row of job 7, which runs."""
    payload = {
        "id": 7,
        "type": type_,
        "schema_id": 2,
        "schema_name": "d",
        "table_id": TABLE,
        "state": RUNNING,
        "schema_state": schema_state,
        "query": "ALTER TABLE t",
        "binlog": NO_BINLOG,
        "last_schema_version": 55,
        **fields,
    }
    return DdlRecord(kind="job", ts=Ts(ts), start_ts=Ts(ts - 1), payload=payload)


def done(type_: DdlType, info: dict[str, Any]) -> DdlRecord:
    """Return the record of the same job when it is done."""
    return row(DONE, type_, 0, state=STATE_DONE, binlog={**NO_BINLOG, "SchemaVersion": 57, "TableInfo": info})


def landed(book: DdlBook, *records: DdlRecord, tables: Mapping[int, dict[str, Any]]) -> list[DdlRecord]:
    """Return what goes out of these, in whatever order they come; ``tables``: what is read, by ts."""
    for record in reversed(records):
        book.add(record)
    for record in book.unread():
        book.read(record, tables.get(record.ts))
    return book.resolved(Ts(100))


TRUNCATED, DROPPED = (
    (DdlType.TRUNCATE_PARTITION, partitioned(101, 112, 103)),
    (DdlType.DROP_PARTITION, partitioned(101, 103)),
)


@pytest.mark.parametrize(("type_", "after"), [TRUNCATED, DROPPED])
def test_partition_job_goes_out_as_done_when_it_is_delete_only_and_no_more_when_done(
    type_: DdlType, after: dict[str, Any]
) -> None:
    before = partitioned(101, 102, 103)
    ids = [definition["id"] for definition in after["partition"]["definitions"]]
    running = partitioned(*ids, dropping=(102,), ddl_state=DELETE_ONLY, ddl_action=int(type_), new_partition_ids=[112])
    sent = landed(
        DdlBook(enumerate(snapshot(before))), row(EARLY, type_, DELETE_ONLY), done(type_, after), tables={30: running}
    )
    assert [(record.ts, record.start_ts, record.payload["id"]) for record in sent] == [(30, 29, 7)]
    payload = sent[0].payload
    assert (payload["state"], payload["schema_state"], payload["binlog"]["SchemaVersion"]) == (4, 0, 55)
    assert payload["binlog"]["TableInfo"] == after
    store = SchemaStore.empty()
    for record in (*snapshot(before), *sent, done(type_, after)):
        store.apply(record)
    assert [change.job.finished_ts for change in store.changes] == [30]
    # Sessions a version behind may still write there.
    assert store.lookup(TableId(102), Ts(35)) in (NoSchema.TRUNCATED, NoSchema.DROPPED)


@pytest.mark.parametrize(("type_", "after"), [TRUNCATED, DROPPED])
def test_partition_job_that_was_in_effect_when_the_snapshot_was_taken_changes_nothing_when_done(
    type_: DdlType, after: dict[str, Any]
) -> None:
    store = SchemaStore.empty()
    for record in (*snapshot(after), done(type_, after)):
        store.apply(record)
    assert store.changes == []


CHANGING = {"raw_args": {"old_column_id": 2, "changing_column": {"id": 3}}}


def test_modified_column_goes_out_when_the_new_one_is_public_and_the_old_one_is_left_out() -> None:
    old = {**column(2, "_Tombstone$_v"), "state": WRITE_ONLY}
    removing = {**index(1, "_Tombstone$_i", [2]), "state": WRITE_ONLY}
    running = with_columns(BEFORE[0], NEW_V, old, indexes=[index(2, "i", [1]), removing])
    after = with_columns(BEFORE[0], NEW_V, indexes=[index(2, "i", [1])])
    type_ = DdlType.MODIFY_COLUMN
    records = (row(EARLY, type_, PUBLIC, **CHANGING), row(33, type_, PUBLIC, **CHANGING), done(type_, after))
    sent = landed(DdlBook(enumerate(snapshot(with_columns(*BEFORE)))), *records, tables={30: running, 33: running})
    assert [record.ts for record in sent] == [30]
    assert sent[0].payload["binlog"]["TableInfo"] == after and sent[0].payload["schema_state"] == PUBLIC


def several(*changes: dict[str, Any], revertible: bool = False) -> dict[str, Any]:
    return {"multi_schema_info": {"sub_jobs": list(changes), "revertible": revertible, "seq": 0}}


ADDED = {"type": DdlType.ADD_COLUMN, "state": STATE_DONE, "schema_state": PUBLIC}
DROPPING = {"type": DdlType.DROP_COLUMN, "state": RUNNING, "schema_state": WRITE_ONLY}
MODIFYING = {"type": DdlType.MODIFY_COLUMN, "state": RUNNING, "schema_state": PUBLIC, **CHANGING}


def test_several_changes_go_out_when_none_is_revertible_without_what_is_dropped() -> None:
    running = with_columns(*BEFORE, column(4, "w"), {**column(5, "x"), "state": WRITE_ONLY})
    after = with_columns(*BEFORE, column(4, "w"))
    early = row(EARLY, DdlType.MULTI_SCHEMA_CHANGE, 0, **several(ADDED, DROPPING))
    book = DdlBook(enumerate(snapshot(with_columns(*BEFORE, column(5, "x")))))
    sent = landed(book, early, done(DdlType.MULTI_SCHEMA_CHANGE, after), tables={30: running})
    assert [(record.ts, record.payload["binlog"]["TableInfo"]) for record in sent] == [(30, after)]


@pytest.mark.parametrize(
    ("is_one", "record"),
    [
        (True, row(30, DdlType.TRUNCATE_PARTITION, DELETE_ONLY)),
        (True, row(30, DdlType.DROP_PARTITION, DELETE_ONLY)),
        (True, row(30, DdlType.MODIFY_COLUMN, PUBLIC)),
        (True, row(30, DdlType.MULTI_SCHEMA_CHANGE, 0, **several(ADDED))),
        (True, row(30, DdlType.MULTI_SCHEMA_CHANGE, 0, **several(ADDED, DROPPING, MODIFYING))),
        (False, row(30, DdlType.MULTI_SCHEMA_CHANGE, 0, **several(ADDED, {**DROPPING, "type": DdlType.DROP_INDEX}))),
        (
            False,
            row(30, DdlType.MULTI_SCHEMA_CHANGE, 0, **several(ADDED, {**DROPPING, "type": DdlType.DROP_PRIMARY_KEY})),
        ),
        (True, row(30, DdlType.MULTI_SCHEMA_CHANGE, 0, **several({**MODIFYING, "state": STATE_DONE}))),
        (False, row(30, DdlType.TRUNCATE_PARTITION, WRITE_ONLY)),
        (False, row(30, DdlType.DROP_PARTITION, PUBLIC)),
        (False, row(30, DdlType.DROP_PARTITION, DELETE_ONLY, state=2)),
        (False, row(30, DdlType.DROP_PARTITION, DELETE_ONLY, state=7)),
        (False, row(30, DdlType.MODIFY_COLUMN, WRITE_REORG)),
        (False, row(30, DdlType.MODIFY_COLUMN, PUBLIC, state=8)),
        (False, row(30, DdlType.ADD_COLUMN, PUBLIC)),
        (False, row(30, DdlType.DROP_COLUMN, DELETE_ONLY)),
        (False, row(30, DdlType.REORGANIZE_PARTITION, DELETE_ONLY)),
        (False, row(30, DdlType.MULTI_SCHEMA_CHANGE, 0, **several(ADDED, revertible=True))),
        (False, row(30, DdlType.MULTI_SCHEMA_CHANGE, 0, **several(DROPPING))),
        (False, row(30, DdlType.MULTI_SCHEMA_CHANGE, 0, **several(ADDED, {**MODIFYING, "schema_state": 0}))),
        (False, row(30, DdlType.MULTI_SCHEMA_CHANGE, 0, **several(ADDED, {**DROPPING, "type": DdlType.ADD_INDEX}))),
    ],
)
def test_early_row_is_one_of_a_job_that_tidb_does_not_roll_back_any_more(is_one: bool, record: DdlRecord) -> None:
    assert is_early(record.payload) is is_one
    assert may_count(record.payload) is is_one


def test_done_job_counts_and_is_no_early_one() -> None:
    job = done(DdlType.DROP_PARTITION, partitioned(101)).payload
    assert may_count(job) and not is_early(job)


PARTITION_ROW = row(30, DdlType.DROP_PARTITION, DELETE_ONLY)
COLUMN_ROW = row(30, DdlType.MODIFY_COLUMN, PUBLIC, **CHANGING)
NOT_FITTING: dict[str, tuple[DdlRecord, dict[str, Any]]] = {
    "another table": (PARTITION_ROW, {**partitioned(101, dropping=(102,)), "id": 200}),
    "no partitions": (PARTITION_ROW, with_columns(*BEFORE)),
    "nothing is dropped": (PARTITION_ROW, partitioned(101, 102)),
    "what is dropped is there": (PARTITION_ROW, partitioned(101, 102, dropping=(102,))),
    "partitions are numbers": (PARTITION_ROW, {**with_columns(*BEFORE), "partition": {"definitions": [5]}}),
    "new column is not public": (COLUMN_ROW, with_columns(*BEFORE, {**NEW_V, "state": WRITE_REORG})),
    "no changing column": (row(30, DdlType.MODIFY_COLUMN, PUBLIC, raw_args={}), with_columns(*BEFORE)),
    "column keeps its id": (
        row(30, DdlType.MODIFY_COLUMN, PUBLIC, raw_args={"old_column_id": 2, "changing_column": {"id": 2}}),
        with_columns(*BEFORE),
    ),
    "arguments are a list": (row(30, DdlType.MODIFY_COLUMN, PUBLIC, raw_args=[1, 2]), with_columns(*BEFORE, NEW_V)),
    "public columns are behind": (COLUMN_ROW, with_columns(BEFORE[0], {**BEFORE[1], "state": WRITE_ONLY}, NEW_V)),
    "columns are numbers": (COLUMN_ROW, {"id": TABLE, "cols": [1]}),
    "columns are none": (COLUMN_ROW, {"id": TABLE}),
    "new column of several is not public": (
        row(30, DdlType.MULTI_SCHEMA_CHANGE, 0, **several(ADDED, MODIFYING)),
        with_columns(*BEFORE, column(4, "w")),
    ),
}


@pytest.mark.parametrize("why", NOT_FITTING)
def test_early_job_whose_table_does_not_fit_lands_when_it_is_done(why: str) -> None:
    early, info = NOT_FITTING[why]
    assert is_early(early.payload) and as_done(early, info) is None
    at_last = done(DdlType(early.payload["type"]), partitioned(101))
    assert landed(DdlBook(enumerate(snapshot())), early, at_last, tables={30: info}) == [at_last]


def other(job_id: int, ts: int) -> DdlRecord:
    return DdlRecord(kind="job", ts=Ts(ts), payload={"id": job_id})


def test_nothing_above_an_early_job_goes_out_before_its_table_has_been_read() -> None:
    book = DdlBook(enumerate(snapshot(partitioned(101, 102))))
    for record in (other(8, 35), PARTITION_ROW, other(6, 25)):
        book.add(record)
    assert [record.ts for record in book.resolved(Ts(50))] == [25]
    book.acked(4)
    assert book.report().landed_ts == 29 and book.to_send() == []
    (unread,) = book.unread()
    book.read(unread, partitioned(101, dropping=(102,)))
    assert [(record.ts, record.payload["id"]) for record in book.to_send()] == [(30, 7), (35, 8)]
    book.acked(5)
    book.acked(6)
    assert book.report().landed_ts == 50 and book.unread() == []


def test_early_job_whose_table_is_not_there_any_more_holds_nothing_back_and_lands_when_done() -> None:
    book, at_last = DdlBook(enumerate(snapshot(partitioned(101, 102)))), done(DdlType.DROP_PARTITION, partitioned(101))
    assert landed(book, PARTITION_ROW, other(8, 35), tables={}) == [other(8, 35)]
    book.add(at_last)
    assert book.resolved(Ts(200)) == [at_last]


def test_early_job_when_its_row_comes_again_then_the_first_counts_and_a_reopened_book_knows_it() -> None:
    records, tables = snapshot(partitioned(101, 102)), dict.fromkeys((30, 33), partitioned(101, dropping=(102,)))
    later = row(33, DdlType.DROP_PARTITION, DELETE_ONLY)
    sent = landed(DdlBook(enumerate(records)), PARTITION_ROW, later, tables=tables)
    assert [record.ts for record in sent] == [30]
    reopened = DdlBook(enumerate([*records, *sent]))
    reopened.add(PARTITION_ROW)
    assert reopened.unread() == []
    assert landed(reopened, later, done(DdlType.DROP_PARTITION, partitioned(101)), tables=tables) == []


def test_early_job_when_an_earlier_row_comes_while_it_is_read_then_that_one_is_read() -> None:
    book, info = DdlBook(enumerate(snapshot(partitioned(101, 102)))), partitioned(101, dropping=(102,))
    later = row(33, DdlType.DROP_PARTITION, DELETE_ONLY)
    book.add(later)
    book.add(PARTITION_ROW)
    book.read(later, info)
    assert book.unread() == [PARTITION_ROW] and book.resolved(Ts(50)) == []
    book.read(PARTITION_ROW, info)
    assert [record.ts for record in book.to_send()] == [30]
