"""Lake tables follow DDL, by steps in this process: each shows TiDB's rows, or the changefeed stops; names are names in
Spark's SQL, whatever stands in them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compose.stack.spark_files import name_spark_files
from schemas.ddl.job import DdlType
from sorters.spark.session import create_session
from tests.support.lakes.lake_steps import LakeSteps
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
