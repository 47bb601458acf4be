"""Lake tables follow DDL, by steps in this process: each shows TiDB's rows, or the changefeed stops; names are names in
Spark's SQL, whatever stands in them.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from compose.stack.spark_files import name_spark_files
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange
from schemas.ids import Ts
from sorters.core.lake.errors import LakeOvertakenError, LakeSchemaError
from sorters.run.lake import table
from sorters.run.lake.maintenance import compact
from sorters.run.lake.table import LakeTable
from sorters.run.lake.updates import evolve_fields
from sorters.spark.session import create_session
from tests.support.lakes.lake import Row
from tests.support.lakes.lake_steps import LakeSteps, StepsOfRun, cut
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info

SECRET = "hunter2-of-the-machine"
ENV, SYSTEM, CONF = "${env:TIDEBUS_TEST_SECRET}", "${system:java.version}", "${spark.app.name}"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    name_spark_files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEBUS_TEST_SECRET", SECRET)
        session = create_session("local[1]", "ddl", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def test_names_that_look_like_sparks_variables_are_names(spark: Any, tmp_path: Path) -> None:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, ENV), column(3, SYSTEM)]
    for mode in ("upsert", "append"):  # partitioned: Spark writes the rows
        store = snapshot(("d", 1, [table_info(11, "${env}", columns=columns)]))
        steps = LakeSteps(spark, tmp_path / mode, store, mode, "&partitioning=bucket(2,id)")
        steps.folder.mkdir()
        run = steps.run()
        run.find(10)
        run.step(10, 20, ("${env}", [("I", 15, {"id": 1, ENV: 2, SYSTEM: 3})]))
        added = table_info(11, "${env}", columns=[*columns, column(4, CONF, not_null=True, origin_default="4")])
        run.step(20, 30, ddl=[steps.ddl(job(30, DdlType.ADD_COLUMN, schema_id=1, table_id=11, table_info=added))])
        run.step(30, 40, ("${env}", [("I", 35, {"id": 5, ENV: 6, SYSTEM: 7, CONF: 8})]))
        held = [{name: row[name] for name in ("id", ENV, SYSTEM, CONF)} for row in steps.named("${env}")]
        former = None if mode == "append" else 4
        assert sorted(held, key=lambda row: int(row["id"])) == [
            {"id": 1, ENV: 2, SYSTEM: 3, CONF: former},
            {"id": 5, ENV: 6, SYSTEM: 7, CONF: 8},
        ]


def _dropped(steps: LakeSteps, number: int, ts: int) -> SchemaChange:
    return steps.ddl(job(ts, DdlType.DROP_TABLE, schema_id=1, table_id=number))


def test_table_that_takes_the_name_of_a_dropped_one_has_none_of_its_rows(spark: Any, tmp_path: Path) -> None:
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "c"), table_info(12, "b")])))
    run = steps.run()
    run.find(10)
    run.step(10, 30, ("c", [("I", 20, {"id": 1, "v": 100}), ("I", 21, {"id": 2, "v": 200})]), tag=True)
    run.step(30, 40, ddl=[_dropped(steps, 11, 40)])
    renamed = steps.ddl(job(50, DdlType.RENAME_TABLE, schema_id=1, table_id=12, table_info=table_info(12, "c")))
    run.step(40, 50, ddl=[renamed])
    run.step(50, 60, ("c", [("I", 55, {"id": 7, "v": 7})]), tag=True)
    assert steps.rows("c", 30) == [(1, 100), (2, 200)]
    assert steps.rows("c", 60) == [(7, 7)]

    again = steps.run()
    again.find(30)
    again.step(30, 50, ddl=steps.store.changes_between(Ts(30), Ts(50)))
    again.step(50, 70, ("c", [("I", 55, {"id": 7, "v": 7}), ("I", 65, {"id": 8, "v": 8})]), tag=True)
    assert steps.rows("c", 70) == [(7, 7), (8, 8)]


ID = column(1, "id", not_null=True, flag=PRIMARY)


def _replaced(steps: LakeSteps, columns: list[dict[str, Any]], row: Row) -> None:
    """Drop a table with a row, and let one of the same name, with another row, follow."""
    before = steps.version("c", 10)
    run = steps.run()
    run.find(10)
    run.step(10, 30, ("c", [("I", 20, {"id": 1, **{each.name: 3 for each in before.columns[1:]}})]), tag=True)
    run.step(30, 40, ddl=[_dropped(steps, 11, 40)])
    created = job(50, DdlType.CREATE_TABLE, schema_id=1, table_id=12, table_info=table_info(12, "c", columns=columns))
    run.step(40, 50, ddl=[steps.ddl(created)])
    run.step(50, 60, ("c", [("I", 55, row)]), tag=True)


@pytest.mark.parametrize(
    ("new", "row", "former"),
    [
        (
            [ID, column(2, "qty"), column(3, "weight")],
            {"id": 7, "qty": 4, "weight": 5},
            {"id": 1, "price_until_50": 3, "qty": 3},
        ),
        (
            [ID, column(2, "code"), column(3, "price"), column(4, "qty")],
            {"id": 7, "code": 1, "price": 2, "qty": 4},
            {"id": 1, "price": 3, "qty": 3},
        ),
        (
            [ID, column(2, "price", tp=12, flen=19)],
            {"id": 7, "price": datetime(2026, 1, 2)},  # noqa: DTZ001 # a DATETIME has no zone
            {"id": 1, "price_until_50": 3, "qty_until_50": 3},
        ),
        (
            [column(1, "ID", tp=8, not_null=True, flag=PRIMARY)],
            {"ID": 1 << 40},
            {"ID": 1, "price_until_50": 3, "qty_until_50": 3},
        ),
        (
            [column(1, "code", not_null=True, flag=PRIMARY)],
            {"code": 7},
            {"id_until_50": 1, "price_until_50": 3, "qty_until_50": 3},
        ),
    ],
)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_table_that_follows_a_dropped_one_has_its_own_columns_whatever_their_ids(
    spark: Any, tmp_path: Path, mode: str, new: list[dict[str, Any]], row: Row, former: Row
) -> None:
    old = [ID, column(2, "price"), column(3, "qty")]
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "c", columns=old)])), mode)
    _replaced(steps, new, row)
    if mode == "upsert":
        assert steps.named("c", 60) == [row]
        return
    held = [
        {name: value for name, value in each.items() if value is not None and not name.startswith("_tidb")}
        for each in steps.named("c", 60)
    ]
    assert held in ([row, former], [former, row])


def test_column_that_takes_the_name_of_one_that_is_renamed_in_the_same_ddl_is_a_new_field(
    spark: Any, tmp_path: Path
) -> None:
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "c")])))
    run = steps.run()
    run.find(10)
    run.step(10, 30, ("c", [("I", 20, {"id": 1, "v": 2})]))
    info = table_info(11, "c", columns=[ID, column(2, "w"), column(3, "v")])
    run.step(30, 40, ddl=[steps.ddl(job(40, DdlType.MULTI_SCHEMA_CHANGE, schema_id=1, table_id=11, table_info=info))])
    run.step(40, 50, ("c", [("I", 45, {"id": 3, "w": 4, "v": 5})]))
    assert sorted(steps.named("c"), key=str) == [{"id": 1, "w": 2, "v": None}, {"id": 3, "w": 4, "v": 5}]


@pytest.mark.parametrize("stands_still", ["at its lease", "within"])
@pytest.mark.parametrize("type_", [DdlType.TRUNCATE_TABLE, DdlType.ADD_COLUMN])
def test_ddl_of_a_process_that_has_lost_its_changefeed_is_refused_by_the_table(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands_still: str, type_: DdlType
) -> None:
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "c")])))
    meanwhile: list[Callable[[], None]] = []

    def stand_still() -> None:
        while meanwhile:
            meanwhile.pop()()

    late = steps.run(check_lease=stand_still if stands_still == "at its lease" else lambda: None)
    late.find(10)
    late.step(10, 30, ("c", [("I", 20, {"id": 1, "v": 1})]), tag=True)
    truncates = type_ is DdlType.TRUNCATE_TABLE
    added = [] if truncates else [column(3, "w")]
    info = table_info(12 if truncates else 11, "c", columns=[ID, column(2, "v"), *added])
    change = steps.ddl(job(40, type_, schema_id=1, table_id=11, table_info=info))

    def take_over() -> None:
        heir = steps.run()
        heir.find(30)
        heir.step(30, 40, ddl=[change])
        heir.step(40, 60, ("c", [("I", 50, {"id": 9, "v": 9, "w": 9})]), tag=True)

    def within(*args: Any) -> None:
        stand_still()
        evolve_fields(*args)

    meanwhile.append(take_over)
    if stands_still == "within":
        monkeypatch.setattr(table, "evolve_fields", within)
    with pytest.raises(LakeOvertakenError, match=r"another process of its changefeed"):
        late.step(30, 40, ddl=[change])
    held = [(9, 9)] if truncates else [(1, 1, None), (9, 9, 9)]
    assert (steps.rows("c"), steps.lake.watermarks("d", "c")[-1]) == (held, 60)
    again = steps.run()
    assert again.find(60) is None
    again.step(60, 70, ("c", [("I", 65, {"id": 10, "v": 10, "w": 10})]), tag=True)
    assert steps.rows("c", 70) == sorted([*held, (10, 10) if truncates else (10, 10, 10)], key=str)


def test_ddl_that_a_compaction_comes_into_is_followed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "c")])))
    run = steps.run()
    run.find(10)
    for ts in range(20, 80, 10):
        run.step(ts - 10, ts, ("c", [("I", ts - 5, {"id": ts, "v": 1})]))
    compacted: list[int] = []

    def within(*args: Any) -> None:
        if not compacted:
            by_hand = steps.run()
            (table,) = by_hand.catalog.tables()
            compacted.append(compact(table, by_hand.session).files_before)
        evolve_fields(*args)

    monkeypatch.setattr(table, "evolve_fields", within)
    info = table_info(11, "c", columns=[ID, column(2, "w")])
    change = steps.ddl(job(80, DdlType.MODIFY_COLUMN, schema_id=1, table_id=11, table_info=info))
    run.step(70, 80, ddl=[change])
    run.step(80, 90, ("c", [("I", 85, {"id": 85, "w": 2})]))
    assert (compacted, set(steps.named("c")[0])) == ([6], {"id", "w"})
    assert steps.rows("c") == [*((ts, 1) for ts in range(20, 80, 10)), (85, 2)]


def _killed_after(monkeypatch: pytest.MonkeyPatch, tables: int, run: StepsOfRun, ts: int) -> None:
    """Tag some tables, and no more."""
    with monkeypatch.context() as patch:
        calls = [LakeTable.tag] * tables
        patch.setattr(LakeTable, "tag", lambda *args: calls.pop()(*args))
        with suppress(IndexError):
            run.tables.tag(Ts(ts))


def test_tag_that_was_begun_is_for_the_tables_at_its_ts(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "a"), table_info(13, "x")])))
    run = steps.run()
    run.find(10)
    run.step(10, 20, ("a", [("I", 15, {"id": 1, "v": 1})]), ("x", [("I", 15, {"id": 1, "v": 1})]), tag=True)
    dropped = _dropped(steps, 13, 28)
    created = steps.ddl(job(30, DdlType.CREATE_TABLE, schema_id=1, table_id=12, table_info=table_info(12, "b")))
    run.step(20, 28, ddl=[dropped])
    run.step(28, 30, ddl=[created])
    run.step(30, 40, ("b", [("I", 35, {"id": 5, "v": 5})]))
    _killed_after(monkeypatch, 1, run, 40)
    assert [steps.lake.tags("d", table) for table in "abx"] == [{20, 40}, set(), {20}]

    for _ in range(2):  # and killed again before its checkpoint moves
        again = steps.run()
        unfinished = again.find(20)
        if unfinished is not None:
            again.tables.tag(*unfinished)
        assert [steps.lake.tags("d", table) for table in "abx"] == [{20, 40}, {40}, {20}]
    again.step(20, 28, ddl=[dropped])
    again.step(28, 30, ddl=[created])
    again.step(30, 50, ("b", [("I", 35, {"id": 5, "v": 5}), ("I", 45, {"id": 6, "v": 6})]), tag=True)
    assert steps.rows("b", 40) == [(5, 5)] and steps.rows("b", 50) == [(5, 5), (6, 6)]
    assert [steps.lake.tags("d", table) for table in "abx"] == [{20, 40, 50}, {40, 50}, {20}]


def test_tag_that_a_table_was_made_behind_stays_though_a_catalog_has_transactions(spark: Any, tmp_path: Path) -> None:
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "a"), table_info(13, "y")])))
    run = steps.run()
    run.find(10)
    run.step(10, 20, ("a", [("I", 15, {"id": 1, "v": 1})]), tag=True)
    run.step(20, 40, ("a", [("I", 35, {"id": 2, "v": 1})]), tag=True)  # and killed before its checkpoint moves
    killed = steps.run()
    assert killed.find(20) is None
    killed.tables.create([steps.version("y", 10)], cut(20, 60), lambda: False)
    again = steps.run()
    again.catalog.transacts = True
    unfinished = again.find(20)
    assert unfinished == (Ts(40), frozenset({"d.a", "d.y"}))
    assert [steps.lake.tags("d", table) for table in "ay"] == [{20, 40}, set()]
    again.catalog.transacts = False
    again.tables.tag(*unfinished)
    assert [steps.lake.tags("d", table) for table in "ay"] == [{20, 40}, {40}]
    assert steps.rows("y", 40) == []


def test_table_that_is_recovered_when_its_lake_table_has_been_anothers_is_refused_before_it_is_emptied(
    spark: Any, tmp_path: Path
) -> None:
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "c")])))
    run = steps.run()
    run.find(10)
    run.step(10, 30, ("c", [("I", 20, {"id": 1, "v": 1})]), tag=True)
    created = job(50, DdlType.CREATE_TABLE, schema_id=1, table_id=12, table_info=table_info(12, "c"))
    query = "recover table by job 40"
    recovered = job(70, DdlType.RECOVER_TABLE, schema_id=1, table_id=11, query=query, table_info=table_info(11, "c"))
    run.step(30, 40, ddl=[_dropped(steps, 11, 40)])
    run.step(40, 50, ddl=[steps.ddl(created)])
    run.step(50, 60, ("c", [("I", 55, {"id": 2, "v": 2})]), ddl=[_dropped(steps, 12, 60)])
    change = steps.ddl(recovered)
    with pytest.raises(LakeSchemaError, match=r"under a name by which no lake table has them.*ignore-txn-start-ts"):
        run.step(60, 70, ddl=[change])
    assert steps.rows("c") == [(2, 2)]

    passed = replace(steps, rules={"ignore-txn-start-ts": [69]}).run()
    passed.find(60)
    passed.step(60, 70, ddl=[change])
    passed.step(70, 80, ("c", [("I", 75, {"id": 3, "v": 3})]), tag=True)
    assert steps.rows("c", 80) == [(3, 3)], "a backfill brings the rest"


@pytest.mark.parametrize(("default", "former"), [(None, None), ("7", 7)])
def test_column_that_is_added_where_a_filter_let_nobody_drop_one_of_its_name_holds_none_of_its_values(
    spark: Any, tmp_path: Path, default: str | None, former: int | None
) -> None:
    rules = {"event-filters": [{"matcher": ["d.*"], "ignore-event": ["drop column"]}]}
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "c")])), rules=rules)
    run = steps.run()
    run.find(10)
    run.step(10, 30, ("c", [("I", 20, {"id": 1, "v": 100})]))
    info = table_info(11, "c", columns=[ID])
    run.step(30, 40, ddl=[steps.ddl(job(40, DdlType.DROP_COLUMN, schema_id=1, table_id=11, table_info=info))])
    info = table_info(11, "c", columns=[ID, column(3, "v", not_null=default is not None, origin_default=default)])
    run.step(40, 50, ddl=[steps.ddl(job(50, DdlType.ADD_COLUMN, schema_id=1, table_id=11, table_info=info))])
    run.step(50, 60, ("c", [("I", 55, {"id": 2, "v": 5})]), tag=True)
    assert steps.rows("c", 60) == [(1, former), (2, 5)]


@pytest.mark.parametrize("named", ["..", "x:y"])
@pytest.mark.parametrize("is_sent", [True, False])
@pytest.mark.parametrize("ends", ["dropped", "dropped with its schema", "renamed"])
def test_table_without_rows_that_cannot_be_a_lake_table_stops_nothing_where_it_goes_or_gets_another_name(
    spark: Any, tmp_path: Path, named: str, is_sent: bool, ends: str
) -> None:
    rules = {} if is_sent else {"ignore-txn-start-ts": [39]}
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "c"), table_info(12, named)])), rules=rules)
    run = steps.run()
    run.find(10)
    run.step(10, 30, ("c", [("I", 20, {"id": 1, "v": 1})]), tag=True)
    if ends == "dropped":
        change = _dropped(steps, 12, 40)
    elif ends == "renamed":
        info = table_info(12, "good")
        change = steps.ddl(job(40, DdlType.RENAME_TABLE, schema_id=1, table_id=12, table_info=info))
    else:
        change = steps.ddl(job(40, DdlType.DROP_SCHEMA, schema_id=1, table_id=0))
    run.step(30, 40, ddl=[change])
    if ends == "renamed":
        run.step(40, 50, ("good", [("I", 45, {"id": 2, "v": 2})]), tag=True)
        assert steps.rows("good", 50) == [(2, 2)]
    assert steps.rows("c") == [(1, 1)]


def test_table_that_gets_a_name_which_no_lake_table_can_have_stops_the_changefeed(spark: Any, tmp_path: Path) -> None:
    steps = LakeSteps(spark, tmp_path, snapshot(("d", 1, [table_info(11, "c")])))
    run = steps.run()
    run.find(10)
    change = steps.ddl(job(40, DdlType.RENAME_TABLE, schema_id=1, table_id=11, table_info=table_info(11, "x:y")))
    with pytest.raises(LakeSchemaError, match="x:y"):
        run.step(30, 40, ddl=[change])
