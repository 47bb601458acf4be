"""A remount by itself says whether its Spark runs: the driver holds more of a cut only while it does not."""

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, UpstreamId
from sorters.run import remount as remounts
from sorters.run.cut_job import RunBy
from sorters.run.remount import Remount, Remounted, remount_alone
from sorters.spark.session import Session


def test_remount_counts_its_spark_as_running_from_its_start_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool] = []

    def run(spark: Session, order: Remount, on_progress: object, run_by: RunBy) -> Remounted:
        said.append(run_by.is_warm())
        spark()
        said.append(run_by.is_warm())
        return Remounted(rows=0, cuts=0, corrupt_rows=0)

    monkeypatch.setattr(remounts, "remount", run)
    monkeypatch.setattr(remounts, "create_session", MagicMock())
    order = Remount(
        kafka=MagicMock(),
        upstream=UpstreamId("u"),
        config=load_changefeed("kafka://127.0.0.1:1/t?protocol=canal-json", {}),
        from_ts=Ts(1),
        to_ts=Ts(2),
        data_dir=tmp_path,
    )
    remount_alone(order, "local[1]", lambda _: None)
    assert said == [False, True]
