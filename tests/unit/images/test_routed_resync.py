"""A resync under a table route: of a table that has another name at the destination, and of several under one name."""

from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.sink.sql_rows import ResyncStep, decode_ddl, decode_form
from schemas.sink.topic import sorter_config
from sorters.core.feed.companions import ddl_records
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.resync_events import noted_names
from sorters.core.feed.route_check import check_routes
from sorters.core.records.order import no_records
from sorters.core.route.table_route import TableRouteConflictError
from sorters.cut.raw_cut import RawCut
from sorters.cut.whole_cut import whole_cut
from sorters.run.lake.tables import LakeTables
from tests.support.recorded.ddl_jobs import job, snapshot, table_info
from tests.unit.images.test_image_chunks import ONE, S, cut_of, inserts, program, raw_chunk
from tests.unit.images.test_resync import INFO, UNIQUE, applied, database, ids, opened, resynced, said_of

ROUTE: dict[str, Any] = {
    "sink": {"dispatchers": [{"matcher": ["d.*"], "target-schema": "far", "target-table": "x_{table}"}]}
}


def test_a_routed_table_loses_at_its_own_name_what_a_chunk_lacks() -> None:
    records = resynced(database(ROUTE), raw_chunk(ONE, 0, 3, 500), raw=(inserts(ONE, 7, ts=S - 9),))
    assert {(form.schema, form.table) for form in map(decode_form, records.column("key").to_pylist())} == {
        ("far", "x_one")
    }
    assert applied(records, dict.fromkeys([-5, 3, 40], 111), "far.x_one") == {3: 3, 500: 0}


def test_keys_of_a_routed_table_are_noted_and_struck_off_under_its_own_name() -> None:
    store = snapshot(("d", 1, [{**table_info(11, "one"), "pk_is_handle": False, **UNIQUE}]))
    by = database(ROUTE, store)
    (event,) = [decode_ddl(record["value"]) for record in said_of(opened(ONE), store, by).to_pylist()]
    assert (event.step, event.schema, event.table, event.table_id) == (ResyncStep.NOTE, "far", "x_one", ONE)
    cut = replace(cut_of(), resync=ids(ONE))
    cut = replace(cut, noted=noted_names(cut, store, by.feed))
    made = whole_cut(cut, RawCut([inserts(ONE, 7, ts=S - 1)], 0), by, no_records(), 1, 1 << 30)
    assert made is not None
    (form,) = [decode_form(record["key"]) for record in made.records.to_pylist()]
    assert (form.schema, form.table, form.notes) == ("far", "x_one", ONE)


def test_consumers_empty_a_routed_table_under_its_own_name() -> None:
    by = program("canal-json")
    assert isinstance(by.schemas, SchemaStore)
    routed = compile_feed(load_changefeed("kafka://h:1/t?protocol=canal-json", ROUTE), "default")
    by = replace(by, feed=replace(by.feed, routes=routed.routes))
    assert isinstance(by.schemas, SchemaStore)
    (record,) = said_of(opened(ONE), by.schemas, by).to_pylist()
    assert b"TRUNCATE TABLE `far`.`x_one`" in record["value"]


MERGE: dict[str, Any] = {"sink": {"dispatchers": [{"matcher": ["d.*", "e.*"], "target-schema": "one"}]}}
"""Of two schemas' tables of one name: what one of them is resynced by would take the other's rows."""


@pytest.mark.parametrize(
    "uri",
    [
        "mysql://root@h:1/",
        "kafka://h:1/t?protocol=canal-json",
        "file:///f?protocol=csv",
        "iceberg://?warehouse=file:///w&mode=upsert",
    ],
)
@pytest.mark.parametrize("initial", [{}, {"initial": "snapshot"}], ids=["changes", "images"])
def test_several_sources_in_one_table_are_refused_by_name_before_anything_could_be_resynced(
    uri: str, initial: dict[str, Any]
) -> None:
    config = load_changefeed(uri, {**MERGE, **initial})
    feed = compile_feed(config if config.uri.is_lake else sorter_config(config, INFO, "h:1"), "default")
    both = snapshot(("d", 1, [table_info(11, "t")]), ("e", 2, [table_info(12, "t")]))
    with pytest.raises(TableRouteConflictError, match="holds the rows of one table") as caught:
        check_routes(both, Ts(10), feed)
    assert (caught.value.fields["tables"], caught.value.fields["target"]) == ("d.t,e.t", "one.t")
    later = snapshot(("d", 1, [table_info(11, "t")]), ("e", 2, []))
    check_routes(later, Ts(10), feed)
    made = job(20, DdlType.CREATE_TABLE, schema_id=2, table_id=12, schema="e", table_info=table_info(12, "t"))
    change = later.apply(made)
    assert change is not None
    if not config.uri.is_lake:
        with pytest.raises(TableRouteConflictError):
            ddl_records(later, Ts(10), Ts(20), feed, 1)
        return
    catalog = MagicMock()
    tables = LakeTables(catalog, MagicMock(), config.sink.iceberg, feed, lambda: None)
    with pytest.raises(TableRouteConflictError):
        tables.follow(change, later)
    assert not catalog.load.called, "the other source's lake table was to begin anew"
