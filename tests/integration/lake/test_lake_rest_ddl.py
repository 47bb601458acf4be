"""Lake tables of a REST catalog follow DDL, by steps in this process: the server gets changes of a table, and compares
no more of it than they name.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from compose.stack.spark_files import name_spark_files
from schemas.ddl.job import DdlType
from schemas.ids import Ts
from sorters.core.lake.columns import key_names
from sorters.run.lake.held_changes import HeldChanges
from sorters.run.lake.step_writes import write_step
from sorters.spark.session import create_session
from tests.support.lakes.lake_catalogs import RestLake, rest_server
from tests.support.lakes.lake_steps import LakeSteps, arrow_changes, cut
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info

ID = column(1, "id", not_null=True, flag=PRIMARY)


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
