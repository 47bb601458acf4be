"""A run of lake tables lets its catalog go when it has ended, whatever it has ended by."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from sorters.run import lake_run
from sorters.run.lake.known_tables import KnownTables
from sorters.run.lake.names import LakeName
from sorters.run.lake.rows import LakeRows
from sorters.run.lake_run import LakeRun, OwnReads


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> tuple[LakeRun, MagicMock]:
    rows = MagicMock()
    monkeypatch.setattr(lake_run, "LakeRows", lambda *_: rows)
    info = MagicMock(namespace="default", changefeed_id="lake", start_ts=Ts(5), target_ts=None, create_time="now")
    run = LakeRun(
        MagicMock(),
        sources=MagicMock(),
        info=info,
        config=load_changefeed(f"iceberg://?warehouse=file://{tmp_path}{more}", {}),
        checkpoint_ts=Ts(5),
        before_cut=lambda: None,
        on_progress=lambda _: None,
        own=OwnReads("lake", {}, MagicMock(), tmp_path),
    )
    return run, rows


def test_run_that_is_told_to_end_closes_its_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, rows = _run(tmp_path, monkeypatch)
    monkeypatch.setattr(lake_run, "LakeCatalog", MagicMock())
    monkeypatch.setattr(lake_run, "LakeTables", MagicMock(return_value=MagicMock(find=lambda *_: run.halt())))
    run.run_here()
    assert run.failure() is None
    rows.close.assert_called_once()


def test_run_that_fails_to_begin_closes_its_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, rows = _run(tmp_path, monkeypatch)
    monkeypatch.setattr(lake_run, "LakeCatalog", MagicMock(side_effect=CorruptDataError("no answer")))
    run.run_here()
    assert isinstance(run.failure(), CorruptDataError)
    rows.close.assert_called_once()


def test_run_that_finds_a_tag_beyond_its_checkpoint_knows_the_schema_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = _run(tmp_path, monkeypatch)
    monkeypatch.setattr(lake_run, "LakeCatalog", MagicMock())
    frontier, schemas = MagicMock(find=lambda ts: int(ts), end=lambda: 42), MagicMock()
    frontier.record_before = lambda offset: MagicMock(ddl_high=100 + offset)
    monkeypatch.setattr(run, "_frontier", frontier)
    monkeypatch.setattr(run, "_schemas", schemas)

    def find(checkpoint_ts: Ts, store: object, schema_at: Callable[[Ts], object]) -> None:
        assert (checkpoint_ts, store) == (5, schemas.store)
        assert schema_at(Ts(40)) is schema_at(Ts(42)) is schemas.store
        run.halt()

    monkeypatch.setattr(lake_run, "LakeTables", MagicMock(return_value=MagicMock(find=find)))
    run.run_here()
    assert run.failure() is None
    assert [call.args for call in schemas.advance.call_args_list] == [(105,), (141,), (142,)]


@pytest.mark.parametrize("is_there", [True, False, None])
def test_run_that_fails_says_so_where_a_table_that_it_knew_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool | None
) -> None:
    """``is_there`` None: the catalog does not answer."""
    catalog = MagicMock()
    catalog.has = MagicMock(side_effect=OSError("no answer")) if is_there is None else lambda name: is_there
    known = KnownTables(catalog, MagicMock(), MagicMock())
    known.take(LakeName(("shop",), "orders"), MagicMock())
    run, _ = _run(tmp_path, monkeypatch)
    monkeypatch.setattr(lake_run, "LakeCatalog", MagicMock())
    tables = MagicMock(find=lambda *_: None, check_there=known.check_there)
    monkeypatch.setattr(lake_run, "LakeTables", MagicMock(return_value=tables))
    monkeypatch.setattr(
        run, "_frontier", MagicMock(find=lambda _: 0, end=MagicMock(side_effect=OSError("36 is missing")))
    )
    run.run_here()
    failure = run.failure()
    assert failure is not None
    assert failure.code == ("lake.table_gone" if is_there is False else "sorter.spark_job")
    assert ("tables=shop.orders" if is_there is False else "36 is missing") in str(failure)


@pytest.mark.parametrize(("interval", "compacts"), [("0s", False), ("1s", True)])
def test_run_maintains_its_tables_each_interval_and_without_one_lets_them_forget_resyncs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: str, compacts: bool
) -> None:
    run, _ = _run(tmp_path, monkeypatch, f"&compaction-interval={interval}")
    monkeypatch.setattr(lake_run, "SETTLED_S", 1.0)
    monkeypatch.setattr(lake_run, "LakeCatalog", MagicMock())
    monkeypatch.setattr(run, "_frontier", MagicMock(find=lambda _: 0, end=lambda: 0))
    asked = list[bool]()

    def maintain(*_: object, compacts: bool) -> None:
        asked.append(compacts)
        run.halt()

    tables = MagicMock(find=lambda *_: None, maintain=maintain)
    monkeypatch.setattr(lake_run, "LakeTables", MagicMock(return_value=tables))
    monkeypatch.setattr(run._stopping, "wait", lambda _: None)
    run.run_here()
    assert run.failure() is None
    assert asked == [compacts]


@pytest.mark.parametrize(("kind", "closes"), [("jdbc", 1), ("rest", 1), ("hadoop", 0)])
def test_catalog_is_closed_once_where_it_holds_something_open(
    kind: str, closes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LakeRows, "_load_drivers", lambda _: None)
    spark = MagicMock()
    rows = LakeRows(spark, {"type": kind}, "b")
    catalog = rows.catalog()
    assert rows.catalog() is catalog
    rows.close()
    rows.close()
    assert catalog.close.call_count == closes


def test_catalog_that_nobody_asked_for_is_not_opened_to_be_closed() -> None:
    spark = MagicMock()
    LakeRows(spark, {"type": "rest"}, "b").close()
    spark.newSession.return_value._jsparkSession.sessionState.assert_not_called()


def test_secrets_of_a_catalog_leave_the_sessions_settings_when_it_has_read_them() -> None:
    spark = MagicMock()
    session = spark.newSession.return_value
    held = dict[str, str]()
    session.conf.set.side_effect = held.__setitem__
    session.conf.unset.side_effect = held.pop
    read = list[dict[str, str]]()

    def catalog(_: str) -> MagicMock:
        read.append(dict(held))
        return MagicMock()

    session._jsparkSession.sessionState().catalogManager().catalog.side_effect = catalog
    named = {"credential": "u:p", "token": "t", "jdbc.password": "w", "s3.access-key-id": "a"}
    rows = LakeRows(spark, {"type": "rest", "uri": "http://h", **named}, "b")
    assert rows.catalog() is rows.catalog()
    (seen,) = read
    assert {name: seen[f"spark.sql.catalog.lake.{name}"] for name in named} == named
    assert held["spark.sql.catalog.lake.uri"] == "http://h"
    assert not named.keys() & {key.removeprefix("spark.sql.catalog.lake.") for key in held}
