"""The schema store against TiCDC's schema storage (``table_versions``), and its own promises."""

import pickle
from functools import cache
from typing import Any

import pytest

from schemas.ddl.job import DDL_JOB_TABLE_ID, DdlDecodeError, decode_ddl_job_row
from schemas.ddl.schema_change import InconsistentDdlError
from schemas.ddl.schema_store import NoSchema, SchemaGoneError, SchemaStore, UnknownTableError
from schemas.errors import BusError, CorruptDataError
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import HandleKind, TableVersion
from tests.support.recorded.ddl_jobs import column, index, job, snapshot, table_info
from tests.support.recorded.recording import CommittedChange, committed_changes, oracle
from tests.support.recorded.schema_feed import ddl_records, job_table_info, schema_store


@cache
def recorded_changes() -> tuple[CommittedChange, ...]:
    return tuple(committed_changes())


@cache
def recorded_store() -> SchemaStore:
    return schema_store(recorded_changes())


def as_oracle(table: TableVersion) -> dict[str, Any]:
    """Return a version in the form of ``table_versions``."""
    columns = [
        {
            "cdc_flag": int(part.cdc_flag),
            "cdc_visible": part.visible,
            "charset": part.charset,
            "collation": part.collation,
            "decimal": part.decimal,
            "default": part.default,
            "flen": part.flen,
            "generated": part.generated,
            "id": part.id,
            "mysql_flag": part.mysql_flag,
            "name": part.name,
            "origin_default": part.origin_default,
            "state": "public",
            "stored": part.stored,
            "type": int(part.tp),
        }
        | ({"row_offset": part.offset} if part.visible else {})
        | ({"elems": list(part.elems)} if part.elems else {})
        for part in table.all_columns
    ]
    partitions = [{"id": part.id, "name": part.name} for part in table.partitions]
    return {
        "columns": columns,
        "common_handle": table.handle_kind is HandleKind.COMMON,
        "eligible": table.eligible,
        "handle_index_id": table.handle_index_id,
        "index_columns_offset": [list(offsets) for offsets in table.index_columns_offset] or None,
        "is_sequence": table.is_sequence,
        "is_view": table.is_view,
        "pk_is_handle": table.pk_is_handle,
        "schema": table.schema,
        "schema_id": table.schema_id,
        "table": table.table,
        "table_id": table.table_id,
        "update_ts": table.update_ts,
        "valid_after_commit_ts": table.version,
        "version": table.version,
    } | ({"partitions": partitions} if partitions else {})


def test_store_fed_with_the_recording_has_every_version_of_ticdc_and_no_other() -> None:
    def version_key(line: dict[str, Any]) -> tuple[int, int]:
        return line["valid_after_commit_ts"], line["table_id"]

    changes = recorded_store().changes
    posts = [item.post for change in changes for item in change.tables if item.post]
    ours = sorted((as_oracle(post.decode()) for post in posts), key=version_key)
    theirs = sorted(oracle("table_versions"), key=version_key)
    assert len(ours) == len(theirs) == 89
    for mine, line in zip(ours, theirs, strict=True):
        assert mine == line


def test_store_lookup_just_after_each_version_gives_it_for_every_physical_id() -> None:
    store = recorded_store()
    for line in oracle("table_versions"):
        ids = [part["id"] for part in line.get("partitions", [])] or [line["table_id"]]
        for physical_id in [] if line["is_view"] else ids:
            table = store.table_at(TableId(physical_id), Ts(line["valid_after_commit_ts"] + 1))
            assert table is not None
            assert as_oracle(table) == line


def test_store_row_at_the_ts_of_a_ddl_uses_the_schema_before_it() -> None:
    store = recorded_store()
    ddl_ts = Ts(470615986052530180)  # ADD COLUMN note on bank.acct_a (219)
    before, after = store.table_at(TableId(219), ddl_ts), store.table_at(TableId(219), Ts(ddl_ts + 1))
    assert before is not None
    assert after is not None
    assert [c.name for c in after.columns] == [*(c.name for c in before.columns), "note"]


def test_store_boundaries_give_vectorised_callers_the_same_versions() -> None:
    store = recorded_store()
    boundaries, versions = store.boundaries_of(TableId(157)), store.versions_of(TableId(157))
    assert boundaries.tolist() == [ts for ts, _ in versions]
    for ts, table in versions:
        index = int(boundaries.searchsorted(ts + 1, side="left")) - 1
        assert versions[index][1] is table
        assert store.table_at(TableId(157), Ts(ts + 1)) is table


def test_store_pickled_answers_the_same() -> None:
    store = recorded_store()
    copy: SchemaStore = pickle.loads(pickle.dumps(store))
    for line in oracle("table_versions"):
        at = TableId(line["table_id"]), Ts(line["valid_after_commit_ts"] + 1)
        assert copy.table_at(*at) == store.table_at(*at)
    assert copy.changes_between(Ts(0), Ts(1 << 62)) == store.changes_between(Ts(0), Ts(1 << 62))


def test_store_fed_twice_ignores_what_was_landed_again() -> None:
    store = SchemaStore.empty()
    records = list(ddl_records(recorded_changes()))
    for record in (*records, *records[:40], records[-1]):
        store.apply(record)
    assert [c.job.job_id for c in store.changes] == [c.job.job_id for c in recorded_store().changes]


def test_pullable_tables_are_physical_ids_of_user_tables_ineligible_ones_too() -> None:
    store, view_there = recorded_store(), Ts(470615985538990079)
    stored = {table.table: table for table in store.stored_at(view_there)}
    assert stored["v1"].is_view
    pullable = store.pullable_tables_at(view_there)
    assert {"t_nopk", "t_hash", "t_ddl_renamed"} <= {table.table for table in pullable.values()}
    assert {140, 141, 142, 143} <= set(pullable)  # the partitions of t_hash, not its own id
    assert 139 not in pullable
    assert "v1" not in {table.table for table in pullable.values()}
    assert {table.schema for table in pullable.values()} == {"d1"}


def test_pullable_tables_of_system_schemas_are_none_and_their_rows_are_skipped() -> None:
    store = snapshot(("mysql", 1, [table_info(4, "user")]), ("d", 2, [table_info(100, "t")]))
    assert set(store.pullable_tables_at(Ts(10))) == {100}
    assert store.lookup(TableId(4), Ts(20)) is NoSchema.SYSTEM
    assert store.lookup(DDL_JOB_TABLE_ID, Ts(20)) is NoSchema.SYSTEM


def test_lookup_reserved_ids_are_of_the_system_and_the_largest_user_id_is_not() -> None:
    store = snapshot(("d", 1, []))
    largest_user_id = (1 << 48) - 1 - 1000
    for table_id in (largest_user_id + 1, DDL_JOB_TABLE_ID, (1 << 48) - 1):
        assert store.lookup(TableId(table_id), Ts(50)) is NoSchema.SYSTEM
    for table_id in (largest_user_id, 1 << 48):
        with pytest.raises(UnknownTableError):
            store.lookup(TableId(table_id), Ts(50))


def test_lookup_unknown_table_names_id_and_commit_ts() -> None:
    store = snapshot(("d", 2, [table_info(100, "t")]))
    with pytest.raises(UnknownTableError, match="table_id=777, commit_ts=20"):
        store.lookup(TableId(777), Ts(20))


def test_lookup_row_older_than_the_snapshot_says_so() -> None:
    store = snapshot(("d", 2, [table_info(100, "t")]), ts=10)
    with pytest.raises(SchemaGoneError, match="schema_from=10"):
        store.lookup(TableId(100), Ts(10))


def test_lookup_dropped_truncated_and_coming_tables_say_why_to_skip() -> None:
    store = snapshot(("d", 2, [table_info(100, "t"), table_info(101, "u")]))
    store.apply(job(20, 11, table_id=100, schema_id=2, table_info=table_info(102, "t")))
    store.apply(job(30, 4, table_id=101, schema_id=2, table_info=table_info(101, "u")))
    assert store.lookup(TableId(100), Ts(25)) is NoSchema.TRUNCATED
    assert isinstance(store.lookup(TableId(100), Ts(20)), TableVersion)
    assert store.lookup(TableId(101), Ts(31)) is NoSchema.DROPPED
    assert store.lookup(TableId(102), Ts(20)) is NoSchema.NOT_YET


def test_gc_forgets_versions_that_only_older_rows_need() -> None:
    store = snapshot(("d", 2, [table_info(100, "t")]))
    for ts in (20, 30, 40):
        store.apply(job(ts, 5, table_id=100, schema_id=2, table_info=table_info(100, "t")))
    store.gc(Ts(30))
    assert [ts for ts, _ in store.versions_of(TableId(100))] == [30, 40]
    assert [c.job.finished_ts for c in store.changes] == [40]
    table = store.table_at(TableId(100), Ts(31))
    assert table is not None
    assert table.version == 30
    assert isinstance(store.lookup(TableId(100), Ts(31)), TableVersion)


def test_rename_tables_swap_through_a_temporary_name_ends_with_both_names_swapped() -> None:
    """TiCDC's schema storage fails at such a statement; ours must not."""
    store = snapshot(("d", 2, [table_info(100, "a"), table_info(101, "b")]))
    steps = ((100, "a", "tmp"), (101, "b", "a"), (100, "tmp", "b"))
    renames = [
        {
            "table_id": table_id,
            "old_schema_id": 2,
            "old_schema_name": {"O": "d"},
            "old_table_name": {"O": old},
            "new_schema_id": 2,
            "new_table_name": {"O": new},
        }
        for table_id, old, new in steps
    ]
    infos = [table_info(100, "b"), table_info(101, "a")]
    change = store.apply(
        job(20, 47, table_id=100, schema_id=2, raw_args={"rename_table_infos": renames}, table_infos=infos)
    )
    assert change is not None
    assert [(item.pre and item.pre.table, item.post and item.post.table) for item in change.tables] == [
        ("a", "tmp"),
        ("b", "a"),
        ("tmp", "b"),
    ]
    assert {t.table_id: t.table for t in store.tables_at(Ts(20))} == {100: "b", 101: "a"}


def test_rename_tables_of_old_versions_with_positional_arguments_applies() -> None:
    store = snapshot(("d", 2, [table_info(100, "a")]), ("e", 3, []))
    args = [[2], [3], [{"O": "b", "L": "b"}], [100], [{"O": "d", "L": "d"}]]
    store.apply(job(20, 47, table_id=100, schema_id=3, raw_args=args, table_infos=[table_info(100, "b")]))
    assert [t.name for t in store.tables_at(Ts(20))] == ["e.b"]


def test_create_or_replace_view_leaves_only_the_new_one() -> None:
    view = {"pk_is_handle": False, "view": {"view_select": "SELECT 1"}}
    store = snapshot(("d", 2, [table_info(100, "v") | view, table_info(101, "t")]))
    store.apply(job(20, 21, table_id=102, schema_id=2, table_info=table_info(102, "V") | view))
    assert {t.table_id: t.table for t in store.stored_at(Ts(20))} == {101: "t", 102: "V"}


def test_create_table_that_a_snapshot_of_its_running_job_holds_already_applies() -> None:
    store = snapshot(("d", 2, [table_info(100, "t") | {"state": 2}]))
    store.apply(job(20, 3, table_id=100, schema_id=2, table_info=table_info(100, "t")))
    assert [(t.table_id, t.version) for t in store.stored_at(Ts(20))] == [(100, 20)]


@pytest.mark.parametrize(
    ("type_id", "table_id", "info"),
    [(4, 999, None), (5, 999, table_info(999, "x")), (11, 999, table_info(1000, "x")), (5, 100, table_info(101, "t"))],
    ids=["drop", "add column", "truncate", "another id"],
)
def test_apply_job_that_does_not_fit_names_the_job_and_changes_nothing(
    type_id: int, table_id: int, info: dict[str, Any] | None
) -> None:
    store = snapshot(("d", 2, [table_info(100, "t")]))
    before = pickle.dumps(store)
    with pytest.raises(InconsistentDdlError, match="job_id=20, finished_ts=20"):
        store.apply(job(20, type_id, table_id=table_id, schema_id=2, table_info=info))
    assert pickle.dumps(store) == before


def test_apply_job_that_does_not_decode_names_the_job_and_its_ts() -> None:
    store = snapshot(("d", 2, []))
    broken = DdlRecord(kind="job", ts=Ts(20), payload={"id": 7, "type": 3, "binlog": None})
    with pytest.raises(DdlDecodeError, match="job_id=7, finished_ts=20") as caught:
        store.apply(broken)
    assert isinstance(caught.value, BusError)


def test_apply_table_info_that_does_not_decode_is_corrupt() -> None:
    store = snapshot(("d", 2, []))
    with pytest.raises(CorruptDataError, match="table_id=100"):
        store.apply(job(20, 3, table_id=100, schema_id=2, table_info={"id": 100, "name": {"O": "t"}}))


def test_apply_partition_job_whose_partitions_the_snapshot_has_changes_nothing() -> None:
    definitions = [{"id": 112, "name": {"O": "p0", "L": "p0"}}, {"id": 102, "name": {"O": "p1", "L": "p1"}}]
    partitioned = {**table_info(100, "t"), "partition": {"enable": True, "definitions": definitions}}
    store = snapshot(("d", 2, [partitioned]))
    truncate, drop, later = (
        job(ts, type_, table_id=100, schema_id=2, table_info=partitioned) for ts, type_ in ((20, 23), (30, 20), (40, 5))
    )
    assert [store.apply(record) is None for record in (truncate, drop, later)] == [True, True, False]
    assert isinstance(store.lookup(TableId(112), Ts(25)), TableVersion)
    assert [change.job.finished_ts for change in store.changes] == [40]


def test_ddl_job_row_not_done_or_without_schema_change_is_no_record() -> None:
    table = job_table_info(recorded_changes())
    meta_id = next(c["id"] for c in table["cols"] if c["name"]["L"] == "job_meta")
    for meta in (b'{"state":1,"binlog":{"SchemaVersion":5}}', b'{"state":4,"binlog":{"SchemaVersion":0}}'):
        row = encode_row_v2({meta_id: meta})
        assert decode_ddl_job_row(row, table, start_ts=Ts(1), commit_ts=Ts(2)) is None


@pytest.mark.parametrize("meta", [b"not json", b"[]", b'{"binlog":null}', None])
def test_ddl_job_row_that_does_not_decode_names_its_ts(meta: bytes | None) -> None:
    table = job_table_info(recorded_changes())
    meta_id = next(c["id"] for c in table["cols"] if c["name"]["L"] == "job_meta")
    with pytest.raises(DdlDecodeError, match="commit_ts=2"):
        decode_ddl_job_row(encode_row_v2({meta_id: meta}), table, start_ts=Ts(1), commit_ts=Ts(2))


def test_handle_key_without_a_primary_key_is_the_shortest_not_null_unique_key() -> None:
    columns = [column(1, "a", not_null=True), column(2, "b", not_null=True), column(3, "c")]
    indexes = [
        index(1, "two", [0, 1], unique=True),
        index(2, "nullable", [2], unique=True),
        index(3, "one", [1], unique=True),
        index(4, "plain", [0]),
    ]
    store = snapshot(("d", 2, [table_info(100, "t", columns=columns, indexes=indexes, pk_is_handle=False)]))
    table = store.table_at(TableId(100), Ts(20))
    assert table is not None
    assert (table.handle_index_id, table.handle_columns, table.handle_kind) == (3, (1,), HandleKind.ROW_ID)
    assert table.eligible


def test_columns_and_indexes_of_a_ddl_under_way_are_invisible() -> None:
    columns = [column(1, "a", not_null=True), column(2, "coming", state=2), column(3, "b", not_null=True)]
    indexes = [index(1, "u", [2], unique=True, state=3)]
    store = snapshot(("d", 2, [table_info(100, "t", columns=columns, indexes=indexes, pk_is_handle=False)]))
    table = store.table_at(TableId(100), Ts(20))
    assert table is not None
    assert [c.name for c in table.columns] == ["a", "b"]
    assert not table.eligible
