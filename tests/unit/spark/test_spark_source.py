"""The Spark source's pure half: options, the DDLs that a query stops at, and TiDB's values as Spark's."""

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from schemas.changes import Op
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import TableVersion
from sorters.core.source.change_rows import Program
from sorters.core.source.errors import RowsReplacedError, SchemaChangedError, SourceOptionError, SourceTableError
from sorters.core.source.feed_filter import FeedFilter
from sorters.core.source.offsets import SourceOffset
from sorters.core.source.options import FeedName, TableName, check_time, read_options
from sorters.core.source.row_shape import CHANGE_FIELDS, RowShape
from sorters.core.source.table_history import physical_ids, stop_between, table_at
from sorters.source.data_source import TideBusReader
from tests.support.lakes.lake_bank import row as lake_row
from tests.support.rawlog.raw_log import Change, row_changes, row_key
from tests.support.recorded import ddl_jobs
from tests.support.recorded.ddl_jobs import column, job, snapshot, table_info
from tests.support.recorded.mounting import Batch, encoded_oracle, recorded_batches, recorded_store

GIVEN = {"raw": "local", "table": "shop.orders", "kafka": "k:9092"}
OF_FEED = {"changefeed": "a", "zookeeper": "z:2181", "table": "shop.orders", "kafka": "k:9092"}
NAME = TableName("d", "t")
ID = column(1, "id", not_null=True, flag=ddl_jobs.PRIMARY)


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"changefeed": "a", "zookeeper": "z:2181"}, "raw"),
        ({"zookeeper": "z:2181"}, "zookeeper"),
        ({"cluster": "c"}, "cluster"),
        ({"tabel": "a.b"}, "tabel"),
        ({"raw": "a b"}, "raw"),
        ({"table": "orders"}, "table"),
        ({"table": "a.b.c"}, "table"),
        ({"kafka": ""}, "kafka"),
        ({"startingTs": "yesterday"}, "startingTs"),
        ({"startingTs": "-1"}, "startingTs"),
        ({"endingTs": "5"}, "endingTs"),
        ({"maxRowsPerBatch": "many"}, "maxRowsPerBatch"),
        ({"passDdlTs": "x"}, "passDdlTs"),
    ],
)
def test_option_that_is_not_allowed_is_refused_by_its_name(more: dict[str, str], option: str) -> None:
    with pytest.raises(SourceOptionError) as raised:
        read_options({**GIVEN, **more}, stream=True)
    assert raised.value.fields["option"] == option


def test_ts_that_is_none_is_refused_with_what_is_allowed_in_its_place() -> None:
    with pytest.raises(SourceOptionError, match=r"seen=earlyest.*allowed=earliest, latest, image, a ts of TiDB"):
        read_options({**GIVEN, "startingTs": "earlyest"}, stream=True)
    with pytest.raises(SourceOptionError, match=r"seen=now.*allowed=latest, a ts of TiDB"):
        read_options({**GIVEN, "endingTs": "now"}, stream=False)


def test_ts_of_a_time_that_has_not_come_is_refused_unless_a_clock_may_be_wrong_by_so_much() -> None:
    now_s, hour_ms = 1_790_000_000, 3_600_000
    with pytest.raises(SourceOptionError, match="ahead_s=3601"):
        check_time(Ts((now_s * 1000 + hour_ms + 1000) << 18), now_s)
    check_time(Ts((now_s * 1000 + hour_ms) << 18), now_s)


def test_options_are_read_in_any_case_with_defaults_of_a_stream_and_of_a_read() -> None:
    stream = read_options({**GIVEN, "MAXROWSPERBATCH": "0", "STARTINGTS": "7"}, stream=True)
    assert (stream.starting, stream.batch_rows_max, stream.pass_ddl_ts) == (7, None, 0)
    assert read_options(GIVEN, stream=True).starting == "latest"
    read = read_options({**GIVEN, "endingTs": "9"}, stream=False)
    assert (read.starting, read.ending) == ("earliest", 9)
    assert read_options({**GIVEN, "table": "`a.b`.`c``d`"}, stream=False).table == TableName("a.b", "c`d")


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"raw": "local"}, "raw"),
        ({"changefeed": "a b"}, "changefeed"),
        ({"changefeed": "../a"}, "changefeed"),
        ({"changefeed": ""}, "changefeed"),
        ({"cluster": "a/b"}, "cluster"),
        ({"zookeeper": ""}, "zookeeper"),
    ],
)
def test_option_of_a_changefeed_that_is_not_allowed_is_refused_by_its_name(more: dict[str, str], option: str) -> None:
    with pytest.raises(SourceOptionError) as raised:
        read_options({**OF_FEED, **more}, stream=True)
    assert raised.value.fields["option"] == option


def test_options_of_a_changefeed_name_it_and_its_zookeeper() -> None:
    feed = read_options(OF_FEED, stream=True).feed
    assert feed == FeedName(
        namespace="default", changefeed_id="a", cluster="default", zookeeper="z:2181", zookeeper_config=""
    )
    feed = read_options({**OF_FEED, "changefeed": "n/a", "cluster": "c"}, stream=False).feed
    assert feed is not None
    assert (feed.namespace, feed.changefeed_id, feed.cluster) == ("n", "a", "c")


FILTERS = {
    "filter": {
        "rules": ["d.t"],
        "ignore-txn-start-ts": [19],
        "event-filters": [
            {"matcher": ["d.t"], "ignore-event": ["delete"], "ignore-insert-value-expr": "v > 5"},
        ],
    }
}


def test_rows_of_a_changefeed_are_those_that_its_filters_leave() -> None:
    feed_filter = FeedFilter.of(load_changefeed("kafka://k:9092/t?protocol=canal-json", FILTERS))
    store = store_with()
    of = [
        Change(20, row_key(10, 1), lake_row(1)),
        Change(30, row_key(10, 2), lake_row(6)),
        Change(40, row_key(10, 3), lake_row(2)),
        Change(50, row_key(10, 3), lake_row(7), lake_row(2)),
        Change(60, row_key(10, 3), b"", lake_row(7), op=Op.DELETE),
    ]

    def left(changes: list[Change], table_id: int) -> list[tuple[int, str, int]]:
        program = Program(store, NAME, shape_at(store, 100), feed_filter)
        batches = program.batches(row_changes(table_id, changes))
        names = ("_commit_version", "_change_type", "v")
        return sorted(tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist())

    # 20: its transaction began at 19; 30: an insert with a v above 5; 60: a delete.
    assert left(of, 10) == [(40, "insert", 2), (50, "update_postimage", 7), (50, "update_preimage", 2)]
    assert not feed_filter.contains(store.decoded(table_at(store, TableName("d", "u"), Ts(100))))


@pytest.mark.parametrize(
    "raw", [{}, {"form": 2, "resolved_ts": 1, "frontier_offset": 1}, {"form": 1, "resolved_ts": "x"}]
)
def test_checkpoint_of_another_source_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(CorruptDataError):
        SourceOffset.read(raw)


def changed(type_id: int, ts: int, info: dict[str, Any] | None, *, table_id: int = 10) -> Any:
    return job(ts, type_id, schema_id=1, table_id=table_id, table_info=info, query=f"ddl at {ts}")


def store_with(*jobs: Any) -> SchemaStore:
    store = snapshot(("d", 1, [table_info(10, "t", columns=[ID, column(2, "v")]), table_info(11, "u")]))
    for each in jobs:
        store.apply(each)
    return store


def shape_at(store: SchemaStore, ts: int) -> RowShape:
    return RowShape.of(store.decoded(table_at(store, NAME, Ts(ts))))


ADDED = table_info(10, "t", columns=[ID, column(2, "v"), column(3, "w", origin_default="5")])
WIDENED = table_info(10, "t", columns=[ID, column(2, "v", tp=int(MysqlType.BIGINT), flen=20)])
MADE_ANEW = table_info(10, "t", columns=[ID, column(3, "v", tp=int(MysqlType.VARCHAR), charset="utf8mb4")])
RENAMED_COLUMN = table_info(10, "t", columns=[ID, column(2, "x")])
INDEXED = table_info(10, "t", columns=[ID, column(2, "v")], indexes=[ddl_jobs.index(1, "i", [1])])


@pytest.mark.parametrize(
    ("ddl", "code"),
    [
        (changed(DdlType.ADD_COLUMN, 20, ADDED), "source.schema_changed"),
        (changed(DdlType.MODIFY_COLUMN, 20, WIDENED), "source.schema_changed"),
        (changed(DdlType.MODIFY_COLUMN, 20, MADE_ANEW), "source.schema_changed"),
        (changed(DdlType.MODIFY_COLUMN, 20, RENAMED_COLUMN), "source.schema_changed"),
        (changed(DdlType.DROP_COLUMN, 20, table_info(10, "t", columns=[ID])), "source.schema_changed"),
        (changed(DdlType.TRUNCATE_TABLE, 20, table_info(12, "t")), "source.rows_replaced"),
        (changed(DdlType.DROP_TABLE, 20, None), "source.rows_replaced"),
        (changed(DdlType.RENAME_TABLE, 20, table_info(10, "other")), "source.rows_replaced"),
        (changed(DdlType.ADD_INDEX, 20, INDEXED), None),
        (changed(DdlType.DROP_TABLE, 20, None, table_id=11), None),
    ],
)
def test_query_stops_at_a_ddl_that_its_columns_or_its_rows_do_not_outlive(ddl: Any, code: str | None) -> None:
    store = store_with(ddl)
    shape = shape_at(store, 15)

    stop = stop_between(store, NAME, shape, Ts(15), Ts(30), Ts(0))

    assert (stop and stop.error.code) == code
    assert stop is None or stop.ts == 20
    assert stop_between(store, NAME, shape, Ts(15), Ts(19), Ts(0)) is None
    if code == "source.rows_replaced":
        assert stop_between(store, NAME, shape, Ts(15), Ts(30), Ts(20)) is None


@pytest.mark.parametrize(("info", "fits"), [(ADDED, True), (WIDENED, True), (RENAMED_COLUMN, True), (MADE_ANEW, False)])
def test_query_loaded_after_a_ddl_takes_rows_from_before_it_unless_a_column_was_made_anew(
    info: dict[str, Any], fits: bool
) -> None:
    store = store_with(changed(DdlType.MODIFY_COLUMN, 20, info))

    stop = stop_between(store, NAME, shape_at(store, 25), Ts(15), Ts(30), Ts(0))

    assert (stop is None) is fits


def test_read_of_a_table_that_got_another_type_since_it_was_made_is_refused_with_where_it_may_start() -> None:
    created = changed(DdlType.CREATE_TABLE, 20, table_info(13, "t2", columns=[ID, column(2, "v")]), table_id=13)
    text = column(3, "v", tp=int(MysqlType.VARCHAR), charset="utf8mb4")
    retyped = changed(DdlType.MODIFY_COLUMN, 25, table_info(13, "t2", columns=[ID, text]), table_id=13)
    store, name = store_with(created, retyped), TableName("d", "t2")
    shape = RowShape.of(store.decoded(table_at(store, name, Ts(30))))
    for after_ts in (15, 22):
        stop = stop_between(store, name, shape, Ts(after_ts), Ts(30), Ts(0))
        assert stop is not None
        with pytest.raises(SchemaChangedError, match=r"spark\.read.*ddl_ts=25.*query=ddl at 25"):
            raise stop.error
    assert stop_between(store, name, shape, Ts(25), Ts(30), Ts(0)) is None


RENAMES = changed(DdlType.RENAME_TABLE, 20, table_info(10, "other"))


@pytest.mark.parametrize(
    ("ddl", "how"),
    [
        (changed(DdlType.TRUNCATE_TABLE, 20, table_info(12, "t")), r"passDdlTs, this ddl_ts \("),
        (RENAMES, "and its new name as table: d.other"),
        (changed(DdlType.DROP_TABLE, 20, None), "once there is a table of this name again"),
    ],
)
def test_query_that_stops_where_rows_are_replaced_says_how_it_goes_on(ddl: Any, how: str) -> None:
    store = store_with(ddl)
    stop = stop_between(store, NAME, shape_at(store, 15), Ts(15), Ts(30), Ts(0))
    assert stop is not None
    with pytest.raises(RowsReplacedError, match=how):
        raise stop.error


@pytest.mark.parametrize(("ddl", "now"), [(RENAMES, "d.other"), (changed(DdlType.DROP_TABLE, 20, None), "none")])
def test_table_whose_name_is_gone_names_the_ddl_and_what_it_is_called_now(ddl: Any, now: str) -> None:
    store = store_with(ddl)
    with pytest.raises(SourceTableError, match=f"any more.*ddl_ts=20, now={now}, query=ddl at 20"):
        table_at(store, NAME, Ts(30))
    with pytest.raises(SourceTableError, match=r"upstream has no table of this name \("):
        table_at(store, TableName("d", "never"), Ts(30))
    assert table_at(store, NAME, Ts(19)).table_id == 10


def test_rows_of_a_table_that_was_truncated_are_looked_for_under_both_its_ids() -> None:
    store = store_with(changed(DdlType.TRUNCATE_TABLE, 20, table_info(12, "t")))
    assert physical_ids(store, NAME, Ts(15), Ts(30)) == {10, 12}
    assert physical_ids(store, NAME, Ts(20), Ts(30)) == {12}


def test_table_that_spark_cannot_have_or_that_is_not_there_is_refused() -> None:
    store = store_with()
    with pytest.raises(SourceTableError, match="similar=none"):
        table_at(store, TableName("other", "nothing"), Ts(30))
    with pytest.raises(SourceTableError, match=r"table=D\.tt.*similar=d\.t\)"):
        table_at(store, TableName("D", "tt"), Ts(30))
    info = table_info(13, "t2", columns=[ID, column(2, "_Commit_Version")])
    taken = snapshot(("d", 1, [info]))
    with pytest.raises(SourceTableError):
        RowShape.of(taken.decoded(table_at(taken, TableName("d", "t2"), Ts(30))))


def changes_of(batch: Batch) -> pa.Table:
    """Return the rows of a recorded batch as the source hands them out, in commit order."""
    shape = RowShape.of(batch.table)
    name = TableName(batch.table.schema, batch.table.table)
    batches = list(Program(recorded_store(), name, shape).batches(batch.rows))
    for each in batches:
        each.validate(full=True)
    return pa.Table.from_batches(batches, shape.arrow)


def same(spec: Any, value: Any, text: Any) -> bool:
    """Tell whether a value of the source is the one that TiCDC wrote as a text."""
    if text is None or value is None:
        return value is None and (text is None or "-00" in text)
    if isinstance(value, bytes):
        return bool(value.decode("latin-1") == text)
    if isinstance(value, bool | int | Decimal):
        return Decimal(value) == Decimal(text)
    if isinstance(value, float):
        return bool(np.isclose(value, float(text), rtol=1e-6))
    if isinstance(value, date) and not isinstance(value, datetime):
        return bool(value.isoformat() == text)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None) == datetime.fromisoformat(text)
    if isinstance(value, list) and spec.tp is MysqlType.VECTOR:
        return bool(np.allclose(value, json.loads(text)))
    if isinstance(value, list):
        return bool(sum(1 << spec.elems.index(name) for name in value) == int(text))
    if spec.tp is MysqlType.ENUM:
        return bool((spec.elems.index(value) + 1 if value else 0) == int(text))
    return bool(value == text)


def test_values_of_a_real_tidb_are_those_that_ticdc_writes() -> None:
    messages = encoded_oracle("canal-json")
    compared, moved, types = 0, 0, set[str]()
    for batch in recorded_batches():
        table: TableVersion = batch.table
        specs = [spec for spec in table.columns if not spec.hidden]
        of_commit: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
        for row in changes_of(batch).to_pylist():
            *values, kind, commit_ts, moment = row.values()
            assert int(moment.timestamp() * 1000) == commit_ts >> 18
            of_commit.setdefault((kind, commit_ts), []).append(tuple(values))
        for number in range(len(batch.rows)):
            message = messages.get(batch.row_id(number))
            if message is None or message.value is None or message.error:
                continue
            body = json.loads(message.value)
            texts = body["data"][0]
            kind = {"INSERT": "insert", "UPDATE": "update_postimage", "DELETE": "delete"}[body["type"]]
            old = (body.get("old") or [{}])[0]
            if any(old.get(key, texts[key]) != texts[key] for key in body["pkNames"] or ()):
                kind, moved = "insert", moved + 1
            rows = of_commit[kind, int(batch.rows.commit_ts[number])]
            assert any(
                all(
                    same(spec, value, texts[spec.name])
                    for spec, value in zip(specs, row, strict=True)
                    if spec.name in texts
                )
                for row in rows
            ), (table.name, texts, rows[:3])
            compared += 1
            types |= {spec.tp.name for spec in specs}
    assert compared > 15_000
    assert moved, "an update that changes its key in place is a delete and an insert"
    assert len(types) > 20


def test_columns_of_a_change_are_named_as_sparks_own() -> None:
    assert [field.name for field in CHANGE_FIELDS] == ["_change_type", "_commit_version", "_commit_timestamp"]


def test_read_that_has_no_tasks_has_no_rows() -> None:
    """Spark makes one of no partition."""
    options = read_options({"raw": "u", "table": "d.t", "kafka": "k:1"}, stream=False)
    assert list(TideBusReader(options, StructType()).read(None)) == []
