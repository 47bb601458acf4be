"""FLASHBACK TABLE, DATABASE and CLUSTER: what becomes of the schema, of the rows, and of each destination."""

import json
import pickle
from typing import Any

import pytest

from consumers.control.core.frontier.table_set import TableSet
from consumers.control.core.images.feed_tables import FeedTables
from schemas.config.changefeed import load_changefeed
from schemas.ddl.bad_jobs import BadJobs
from schemas.ddl.flashback import FlashbackClusterError
from schemas.ddl.job import DdlType, decode_ddl_job_row
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import NoSchema, SchemaStore
from schemas.ids import PHYSICAL_SHIFT_BITS, TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.encode.wire.protocol import EncodedMessage
from sorters.core.feed.ddl_filter import events_to_send
from sorters.core.feed.ddl_route import routed_event
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.scope import concerns, schemas_at
from sorters.core.lake.commits import check_rows
from sorters.core.lake.errors import LakeSchemaError
from tests.support.recorded.ddl_jobs import job, snapshot, table_info, view_info

DROP_TABLE, DROP_SCHEMA, RECOVER_TABLE, FLASHBACK_CLUSTER, RECOVER_SCHEMA = 4, 2, 25, 62, 63
"""As TiDB numbers them (``pkg/meta/model/job.go``)."""
T = TableId(100)


def feed(uri: str = "kafka://h:1/t?protocol=canal-json", **config: Any) -> CompiledFeed:
    return compile_feed(load_changefeed(uri, {"filter": {"rules": ["d.*", "e.*"]}, **config}), "default")


def dropped_table() -> SchemaStore:
    store = snapshot(("d", 2, [table_info(T, "t")]))
    store.apply(job(20, DROP_TABLE, schema_id=2, table_id=T, query="drop table t"))
    return store


def table_back(store: SchemaStore, query: str, name: str) -> SchemaChange:
    change = store.apply(job(30, RECOVER_TABLE, schema_id=2, table_id=T, query=query, table_info=table_info(T, name)))
    assert change is not None
    return change


def dropped_schema() -> SchemaStore:
    """Return a store whose schema ``d`` went at 20, with a table and a view; another table of it went before."""
    tables = [table_info(T, "t"), table_info(101, "gone"), view_info(102, "v", "SELECT id FROM d.t")]
    store = snapshot(("d", 2, tables), ("other", 3, [table_info(200, "o")]))
    store.apply(job(15, DROP_TABLE, schema_id=2, table_id=101, query="drop table gone"))
    store.apply(job(20, DROP_SCHEMA, schema_id=2, query="drop database d", db_info=None))
    return store


def schema_job(ts: int, query: str, name: str = "d", *, args: Any = None) -> DdlRecord:
    """Return a job as TiDB writes it: schema and table are nowhere but in the db info, since 7.1 the tables are not."""
    loaded = {"recover_info": {"id": 2, "LoadTablesOnExecute": True, "RecoverTableInfos": None, "DropJobID": 20}}
    info = {"id": 2, "db_name": {"O": name, "L": name}}
    return job(ts, RECOVER_SCHEMA, schema="", query=query, db_info=info, raw_args=loaded if args is None else args)


def schema_back(store: SchemaStore, query: str = "flashback database d", name: str = "d") -> SchemaChange:
    change = store.apply(schema_job(30, query, name))
    assert change is not None
    return change


# -- the schema, and whose rows come -----------------------------------------------------------------------------------


def test_flashback_of_a_table_gives_its_id_another_name_and_its_rows_a_schema_again() -> None:
    store = dropped_table()
    change = table_back(store, "flashback table t to t_back", "t_back")
    assert store.lookup(T, Ts(25)) is NoSchema.DROPPED
    at_31 = store.table_at(T, Ts(31))
    assert at_31 is not None and at_31.name == "d.t_back"
    gone = TableSet(known_ts=Ts(10), starts={}).with_ddl(change)
    assert dict(gone.starts) == {T: 30}


def test_flashback_of_a_database_brings_what_it_had_when_it_was_dropped_and_its_ddl_goes_on() -> None:
    store = dropped_schema()
    change = schema_back(store)
    assert {table.table for table in store.stored_at(Ts(30))} == {"t", "v", "o"}
    assert store.lookup(T, Ts(25)) is NoSchema.DROPPED
    at_31 = store.table_at(T, Ts(31))
    assert at_31 is not None and (at_31.name, at_31.version) == ("d.t", 30)
    assert dict(TableSet(known_ts=Ts(10), starts={}).with_ddl(change).starts) == {T: 30}
    # Else each of these would not fit, and hold changefeeds back: a table of it, a new one, the schema itself.
    store.apply(job(40, DROP_TABLE, schema_id=2, table_id=T, query="drop table t"))
    store.apply(job(41, DdlType.CREATE_TABLE, schema_id=2, table_id=103, table_info=table_info(103, "new")))
    store.apply(job(42, DROP_SCHEMA, schema_id=2, query="drop database d"))
    assert {table.table for table in store.stored_at(Ts(42))} == {"o"}


def test_flashback_of_a_database_under_a_new_name_has_its_tables_there() -> None:
    store = dropped_schema()
    schema_back(store, "flashback database d to e", "e")
    at_31 = store.table_at(T, Ts(31))
    assert at_31 is not None and at_31.name == "e.t"
    assert store.schema_names()[2] == "e"
    assert schemas_at(store, Ts(30), feed()) == {"e"} and schemas_at(store, Ts(29), feed()) == set()


@pytest.mark.parametrize(
    "args",
    [
        [{"id": 2, "RecoverTabsInfo": [{"TableInfo": table_info(T, "t")}]}, 1],
        {"recover_info": {"id": 2, "RecoverTableInfos": [{"TableInfo": table_info(T, "t")}]}},
    ],
    ids=["before TiDB 7.1", "job version 2"],
)
def test_flashback_of_a_database_takes_the_tables_that_its_job_carries(args: Any) -> None:
    store = snapshot(("other", 3, []))  # the drop was before the raw log began
    store.apply(schema_job(30, "flashback database d", args=args))
    at_31 = store.table_at(T, Ts(31))
    assert at_31 is not None and at_31.name == "d.t"


def test_flashback_of_a_database_is_the_same_to_who_has_forgotten_and_who_was_copied_or_pickled() -> None:
    forgetful = dropped_schema()
    forgetful.gc(Ts(25))
    for store in (forgetful, dropped_schema().copy(), pickle.loads(pickle.dumps(dropped_schema()))):
        schema_back(store)
        assert store.table_at(T, Ts(31)) is not None


def test_flashback_of_a_database_that_nobody_knows_is_named_and_holds_no_other_back() -> None:
    store, bad = snapshot(("other", 3, [table_info(200, "o")])), BadJobs()
    assert bad.apply(store, schema_job(30, "flashback database d")) is None
    (unknown,) = bad.jobs
    assert unknown.error.code == "schema.inconsistent_ddl" and "before the raw log began" in str(unknown.error)
    assert concerns(unknown.scope, store, feed())


def test_a_database_dropped_a_week_ago_is_forgotten_at_the_next_drop() -> None:
    store, day = dropped_schema(), 24 * 3600 * 1000 << PHYSICAL_SHIFT_BITS
    store.apply(job(8 * day, DROP_SCHEMA, schema_id=3, query="drop database other"))
    bad = BadJobs()
    bad.apply(store, schema_job(9 * day, "flashback database d"))
    assert len(bad.jobs) == 1


def test_tables_that_a_flashback_brings_come_with_rows_that_an_image_can_bring() -> None:
    def wanted(_: object) -> bool:
        return True

    for change in (table_back(dropped_table(), "flashback table t", "t"), schema_back(dropped_schema())):
        assert FeedTables.at([], wanted, wanted).with_ddl(change).entered_by(lambda ts: ts == Ts(30)) == [T]


# -- what destinations are told ----------------------------------------------------------------------------------------


def message_of(change: SchemaChange, uri: str, **config: Any) -> EncodedMessage | None:
    compiled = feed(uri, **config)
    (event,) = events_to_send(change, compiled)
    return compiled.encoder.encode_ddl(routed_event(event, compiled.routes), encoded_at_ms=0)


TABLE, TABLE_SQL = "flashback table t to t_back", "FLASHBACK TABLE `t` TO `t_back`"
SCHEMA, SCHEMA_SQL = "flashback database d to e", "FLASHBACK DATABASE `d` TO `e`"


@pytest.fixture(params=["table", "database"])
def flashback(request: pytest.FixtureRequest) -> tuple[SchemaChange, str, int]:
    """Return a change, its statement downstream, and TiDB's number of its type."""
    if request.param == "table":
        return table_back(dropped_table(), TABLE, "t_back"), TABLE_SQL, RECOVER_TABLE
    return schema_back(dropped_schema(), SCHEMA, "e"), SCHEMA_SQL, RECOVER_SCHEMA


def test_flashback_is_a_query_to_canal_json_and_simple(flashback: tuple[SchemaChange, str, int]) -> None:
    change, sql, _ = flashback
    message = message_of(change, "kafka://h:1/t?protocol=canal-json")
    assert message is not None
    read = json.loads(message.value)
    assert (read["type"], read["sql"], read["isDdl"]) == ("QUERY", sql, True)
    message = message_of(change, "kafka://h:1/t?protocol=simple")
    assert message is not None
    read = json.loads(message.value)
    assert (read["type"], read["sql"]) == ("QUERY", sql)


def test_flashback_has_tidbs_number_in_open_protocol_and_in_files(flashback: tuple[SchemaChange, str, int]) -> None:
    change, sql, number = flashback
    message = message_of(change, "kafka://h:1/t?protocol=open-protocol")
    assert message is not None
    assert json.loads(message.value[8:]) == {"q": sql, "t": number}
    message = message_of(change, "file:///x?protocol=csv")
    assert message is not None
    file = json.loads(json.loads(message.value)["content"])
    assert (file["Type"], file["Query"]) == (number, sql)


@pytest.mark.parametrize("protocol", ["avro", "debezium"])
def test_flashback_is_not_told_where_ticdc_has_no_message_for_it(
    flashback: tuple[SchemaChange, str, int], protocol: str
) -> None:
    assert message_of(flashback[0], f"blackhole://?protocol={protocol}") is None


def test_flashback_is_said_to_a_database_as_it_is(flashback: tuple[SchemaChange, str, int]) -> None:
    change, sql, number = flashback
    message = message_of(change, "mysql://root@h:1/")
    assert message is not None
    assert sql.encode() in message.value and str(number).encode() in message.value


def test_flashback_under_a_route_brings_back_what_the_destination_has() -> None:
    sink = {"dispatchers": [{"matcher": ["d.*", "e.*"], "target-schema": "far_{schema}"}]}
    message = message_of(schema_back(dropped_schema(), SCHEMA, "e"), "mysql://root@h:1/", sink=sink)
    assert message is not None and b"FLASHBACK DATABASE `far_d` TO `far_e`" in message.value
    message = message_of(table_back(dropped_table(), TABLE, "t_back"), "mysql://root@h:1/", sink=sink)
    assert message is not None and b"FLASHBACK TABLE `far_d`.`t` TO `t_back`" in message.value


@pytest.mark.parametrize(("event", "left"), [("recover table", 1), ("recover database", 0), ("all ddl", 0)])
def test_flashback_of_a_database_has_an_event_name_of_its_own(event: str, left: int) -> None:
    rules = {"rules": ["*.*"], "event-filters": [{"matcher": ["*.*"], "ignore-event": [event]}]}
    assert len(events_to_send(schema_back(dropped_schema()), feed(filter=rules))) == left


def test_flashback_of_a_database_that_the_filter_leaves_out_is_not_sent() -> None:
    change = schema_back(dropped_schema(), SCHEMA, "e")
    assert events_to_send(change, feed(filter={"rules": ["d.*"]})) == []


# -- FLASHBACK CLUSTER -------------------------------------------------------------------------------------------------


def cluster_job(ts: int, args: Any) -> DdlRecord:
    return job(ts, FLASHBACK_CLUSTER, schema="", query="flashback cluster to timestamp '2026-11-28'", raw_args=args)


def test_flashback_of_the_cluster_is_landed_though_it_counts_no_schema_version() -> None:
    table = {"cols": [{"id": 2, "name": {"O": "job_meta"}}]}
    payload = cluster_job(30, {"flashback_ts": 15}).payload
    payload["binlog"]["SchemaVersion"] = 0
    value = encode_row_v2({2: json.dumps(payload).encode()})
    record = decode_ddl_job_row(value, table, start_ts=Ts(29), commit_ts=Ts(30))
    assert record is not None and record.ts == 30
    payload["type"] = 11
    value = encode_row_v2({2: json.dumps(payload).encode()})
    assert decode_ddl_job_row(value, table, start_ts=Ts(29), commit_ts=Ts(30)) is None


@pytest.mark.parametrize("args", [{"flashback_ts": 20}, [20, {}, True]], ids=["job version 2", "job version 1"])
def test_flashback_of_the_cluster_that_takes_no_ddl_back_is_passed_over(args: Any) -> None:
    store = dropped_table()
    assert store.apply(cluster_job(30, args)) is None
    assert (
        store.apply(job(40, DdlType.CREATE_TABLE, schema_id=2, table_id=7, table_info=table_info(7, "n"))) is not None
    )


@pytest.mark.parametrize(
    ("store", "args"),
    [
        (dropped_table(), {"flashback_ts": 19}),
        (snapshot(("d", 2, [])), {"flashback_ts": 9}),
        (dropped_table(), None),
    ],
    ids=["a drop", "before the snapshot", "to nobody knows when"],
)
def test_flashback_of_the_cluster_that_takes_ddl_back_stops_who_does_not_say_otherwise(
    store: SchemaStore, args: Any
) -> None:
    bad = BadJobs()
    assert bad.apply(store, cluster_job(30, args)) is None
    (stop,) = bad.jobs
    assert isinstance(stop.error, FlashbackClusterError)
    assert "--upstream" in str(stop.error) and "ignore-txn-start-ts" in str(stop.error)
    assert (stop.error.fields["commit_ts"], stop.error.fields["start_ts"]) == (30, 29)
    assert concerns(stop.scope, store, feed())
    assert not concerns(stop.scope, store, feed(filter={"rules": ["*.*"], "ignore-txn-start-ts": [29]}))


# -- lake tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_there", [True, False])
def test_flashback_to_another_name_stops_a_lake_table_that_would_lack_its_rows(*, is_there: bool) -> None:
    changes = table_back(dropped_table(), TABLE, "t_back"), schema_back(dropped_schema(), SCHEMA, "e")
    for change in changes:
        with pytest.raises(LakeSchemaError, match=r"add 29 to ignore-txn-start-ts .* `tidebus table backfill`"):
            check_rows(change, "lake.t", is_there=is_there, imaged=False)
        check_rows(change, "lake.t", is_there=is_there, imaged=True)


def test_flashback_to_the_old_name_finds_its_rows_in_the_lake_table() -> None:
    for change in (table_back(dropped_table(), "flashback table `to`", "t"), schema_back(dropped_schema())):
        check_rows(change, "lake.t", is_there=True, imaged=False)
