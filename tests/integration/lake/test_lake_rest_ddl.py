"""Lake tables of a REST catalog follow DDL, by steps in this process: the server gets changes of a table, and compares
no more of it than they name.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compose.stack.spark_files import name_spark_files
from schemas.ddl.job import DdlType
from schemas.ids import Ts
from sorters.core.lake.columns import key_names
from sorters.core.lake.errors import LakeOvertakenError
from sorters.run.lake import table
from sorters.run.lake.held_changes import HeldChanges
from sorters.run.lake.step_writes import write_step
from sorters.run.lake.updates import evolve_fields
from sorters.spark.session import create_session
from tests.support.lakes.catalog_door import CatalogDoor, Change, catalog_door
from tests.support.lakes.lake_catalogs import RestLake, rest_server
from tests.support.lakes.lake_steps import LakeSteps, arrow_changes, cut
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info

ID = column(1, "id", not_null=True, flag=PRIMARY)
WITH_W = [ID, column(2, "v"), column(3, "w", not_null=True, origin_default="7")]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    name_spark_files()
    session = create_session("local[1]", "rest-ddl", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestLake]:
    with rest_server(tmp_path / "lake") as lake:
        yield lake


@pytest.fixture
def door(rest: RestLake) -> Iterator[CatalogDoor]:
    with catalog_door(rest.address) as door:
        yield door


def _steps(spark: Any, folder: Path, rest: RestLake, rules: dict[str, Any] | None = None) -> LakeSteps:
    store = snapshot(("d", 1, [table_info(11, "c"), table_info(12, "b")]))
    return LakeSteps(spark, folder, store, rules=rules or {}, rest=rest)


def test_ddl_of_a_table_that_was_tagged_without_rows_is_followed_though_its_snapshots_say_no_watermark_any_more(
    spark: Any, tmp_path: Path, rest: RestLake
) -> None:
    steps = _steps(spark, tmp_path, rest)
    run = steps.run()
    run.find(10)
    row = [("I", 20, {"id": 1, "v": 1})]
    run.step(10, 30, ("c", row), ("b", row), tag=True)
    rest.touch("d", "c")
    by_others = next(each.java for each in steps.run().catalog.tables() if each.name.table == "c")
    by_others.manageSnapshots().removeTag("wm_30").commit()
    by_others.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    again = steps.run()
    again.find(30)
    for ts in (40, 50):
        again.step(ts - 10, ts, ("b", [("I", ts - 5, {"id": ts, "v": 1})]), tag=True)
    assert rest.tags("d", "c") >= {40, 50}
    info = table_info(11, "c", columns=[ID, column(2, "v"), column(3, "w")])
    again.step(50, 60, ddl=[steps.ddl(job(60, DdlType.ADD_COLUMN, schema_id=1, table_id=11, table_info=info))])
    again.step(60, 70, ("c", [("I", 65, {"id": 2, "v": 2, "w": 2})]), tag=True)
    assert steps.rows("c", 70) == [(1, 1, None), (2, 2, 2)]


@pytest.mark.parametrize("type_", [DdlType.ADD_INDEX, DdlType.TRUNCATE_TABLE, DdlType.ADD_COLUMN])
def test_ddl_of_a_process_that_loses_its_changefeed_as_its_request_is_under_way_is_refused_by_the_server(
    spark: Any, tmp_path: Path, rest: RestLake, door: CatalogDoor, type_: DdlType
) -> None:
    steps = _steps(spark, tmp_path, rest)
    late = steps.run(door=door.address)
    late.find(10)
    late.step(10, 30, ("c", [("I", 20, {"id": 1, "v": 1})]), tag=True)
    truncates = type_ is DdlType.TRUNCATE_TABLE
    number, columns = 13 if truncates else 11, [ID, column(2, "v")]
    if type_ is DdlType.ADD_COLUMN:
        columns.append(column(4, "u"))
    info = table_info(number, "c", columns=columns)
    late_one = steps.ddl(job(40, type_, schema_id=1, table_id=11, table_info=info))
    added = table_info(number, "c", columns=[*columns, WITH_W[2]])
    next_one = steps.ddl(job(50, DdlType.ADD_COLUMN, schema_id=1, table_id=number, table_info=added))
    row = ("I", 55, {"id": 9, "v": 9, "u": 9, "w": 9})

    def take_over(_: Change) -> None:
        door.before_commit = lambda _: None
        heir = steps.run()
        heir.find(30)
        heir.step(30, 40, ddl=[late_one])
        heir.step(40, 50, ddl=[next_one])
        heir.step(50, 60, ("c", [row]), tag=True)

    door.before_commit = take_over
    with pytest.raises(LakeOvertakenError, match=r"another process of its changefeed"):
        late.step(30, 40, ddl=[late_one])
    again = steps.run()
    again.find(30)
    again.step(30, 40, ddl=[late_one])
    again.step(40, 50, ddl=[next_one])
    again.step(50, 70, ("c", [row, ("I", 65, {"id": 10, "v": 1, "u": 1, "w": 1})]), tag=True)
    held = {
        DdlType.ADD_INDEX: [(1, 1, 7), (10, 1, 1), (9, 9, 9)],
        DdlType.TRUNCATE_TABLE: [(10, 1, 1), (9, 9, 9)],
        DdlType.ADD_COLUMN: [(1, 1, None, 7), (10, 1, 1, 1), (9, 9, 9, 9)],
    }
    assert steps.rows("c", 70) == held[type_]


def test_ddl_that_compactions_come_into_are_followed(
    spark: Any, tmp_path: Path, rest: RestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, comes = _steps(spark, tmp_path, rest), [1, 2]
    run = steps.run()
    run.find(10)
    run.step(10, 30, ("c", [("I", 20, {"id": 1, "v": 1})]), tag=True)

    def within(*args: Any) -> None:
        if comes:
            comes.pop()
            rest.touch("d", "c")
        evolve_fields(*args)

    monkeypatch.setattr(table, "evolve_fields", within)
    info = table_info(11, "c", columns=WITH_W)
    run.step(30, 40, ddl=[steps.ddl(job(40, DdlType.ADD_COLUMN, schema_id=1, table_id=11, table_info=info))])
    assert (comes, steps.rows("c")) == ([], [(1, 1, 7)])
    comes += [1, 2]
    info = table_info(13, "c", columns=WITH_W)
    run.step(40, 50, ddl=[steps.ddl(job(50, DdlType.TRUNCATE_TABLE, schema_id=1, table_id=11, table_info=info))])
    run.step(50, 60, ("c", [("I", 55, {"id": 2, "v": 2, "w": 2})]), tag=True)
    assert (comes, steps.rows("c", 60), steps.rows("c", 30)) == ([], [(2, 2, 2)], [(1, 1)])


def test_rows_of_two_versions_of_a_table_in_one_step_are_all_there(spark: Any, tmp_path: Path, rest: RestLake) -> None:
    rules = {"event-filters": [{"matcher": ["d.*"], "ignore-event": ["add column"]}]}
    steps = _steps(spark, tmp_path, rest, rules)
    run = steps.run()
    run.find(10)
    run.step(10, 30, ("c", [("I", 20, {"id": 1, "v": 1})]), tag=True)
    old = steps.version("c", 30)
    info = table_info(11, "c", columns=[ID, column(2, "v"), column(3, "w")])
    steps.ddl(job(40, DdlType.ADD_COLUMN, schema_id=1, table_id=11, table_info=info))
    new = steps.version("c", 50)
    with closing(HeldChanges(tmp_path)) as held:
        held.add(held.of(old, key_names(old)), arrow_changes(old, [("I", 35, {"id": 2, "v": 2})]))
        held.add(held.of(new, key_names(new)), arrow_changes(new, [("I", 45, {"id": 3, "v": 3, "w": 3})]))
        write_step(run.tables, list(held), cut(30, 60), lambda: False)
    run.tables.move(Ts(60), tags=False)
    assert steps.rows("c") == [(1, 1, None), (2, 2, None), (3, 3, 3)]


def test_ddl_moves_main_of_a_rest_catalogs_table_alone(spark: Any, tmp_path: Path, rest: RestLake) -> None:
    moved = {}
    for kind in ("rest", "files"):
        steps = _steps(spark, tmp_path / kind, rest)
        steps.folder.mkdir()
        steps = steps if kind == "rest" else replace(steps, rest=None)
        run = steps.run()
        run.find(10)
        run.step(10, 30, ("c", [("I", 20, {"id": 1, "v": 1})]), tag=True)
        before = steps.lake.table("d", "c").refs()["main"].snapshot_id
        info = table_info(11, "c", columns=[ID, column(2, "w")])
        run.step(30, 40, ddl=[steps.ddl(job(40, DdlType.MODIFY_COLUMN, schema_id=1, table_id=11, table_info=info))])
        moved[kind] = steps.lake.table("d", "c").refs()["main"].snapshot_id != before
    assert moved == {"rest": True, "files": False}
