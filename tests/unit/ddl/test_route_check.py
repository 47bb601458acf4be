"""Dispatcher rules against the tables that a changefeed starts with: every misfit at once, with key and line."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.route_check import SHOWN_MAX, check_routes
from sorters.core.route.dispatch import DispatchError
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

URI = "kafka://h:1/t?protocol=canal-json"
RULES = """
[sink]
dispatchers = [
  {matcher = ['d.orders*'], partition = "columns", columns = ["id", "region"]},
  {matcher = ['d.users'], partition = "index-value", index = "uk"},
]
"""


def feed(toml: str = RULES) -> CompiledFeed:
    return compile_feed(load_changefeed(URI, toml, file="feed.toml"), "default")


def tables(*names: str) -> SchemaStore:
    """Return a store whose snapshot of ts 10 has tables ``(id, v)`` of schema d."""
    return snapshot(("d", 1, [table_info(number, name) for number, name in enumerate(names, 100)]))


def test_check_routes_one_table_misfits_names_table_key_file_and_line() -> None:
    with pytest.raises(DispatchError) as caught:
        check_routes(tables("orders", "items"), Ts(10), feed())
    assert caught.value.message == "table has no column `region`"
    assert caught.value.fields == {
        "table": "d.orders",
        "version": 10,
        "key": "sink.dispatchers[0].columns[1]",
        "file": "feed.toml",
        "line": 4,
    }


def test_check_routes_several_tables_misfit_names_all_of_them_in_one_error() -> None:
    with pytest.raises(DispatchError) as caught:
        check_routes(tables("users", "orders_2", "items", "orders_1"), Ts(10), feed())
    assert caught.value.message == (
        "dispatcher rules do not fit 3 tables: "
        "d.orders_1: table has no column `region` (sink.dispatchers[0].columns[1], line 4); "
        "d.orders_2: table has no column `region` (sink.dispatchers[0].columns[1], line 4); "
        "d.users: table has no index `uk`; unique ones are: none (sink.dispatchers[1].index, line 5)"
    )
    assert caught.value.fields["keys"] == "sink.dispatchers[0].columns[1],sink.dispatchers[1].index"


def test_check_routes_very_many_tables_misfit_says_how_many_more_there_are() -> None:
    with pytest.raises(DispatchError) as caught:
        check_routes(tables(*(f"orders_{number}" for number in range(SHOWN_MAX + 7))), Ts(10), feed())
    assert f"do not fit {SHOWN_MAX + 7} tables" in caught.value.message
    assert caught.value.message.endswith("; and 7 tables more")


@pytest.mark.parametrize("rules", ["d.items", "!d.orders"])
def test_check_routes_tables_that_are_not_replicated_do_not_count(rules: str) -> None:
    check_routes(tables("orders", "items"), Ts(10), feed(f"[filter]\nrules = ['{rules}']\n{RULES}"))


def test_check_routes_tables_without_a_usable_key_count_only_with_force_replicate() -> None:
    keyless = snapshot(("d", 1, [table_info(100, "orders", pk_is_handle=False)]))
    check_routes(keyless, Ts(10), feed())
    with pytest.raises(DispatchError, match="region"):
        check_routes(keyless, Ts(10), feed(f"force-replicate = true\n{RULES}"))


def test_check_routes_a_table_that_comes_later_is_left_to_its_first_row() -> None:
    store = tables("items")
    store.apply(job(20, DdlType.CREATE_TABLE, schema_id=1, table_id=200, table_info=table_info(200, "orders")))
    check_routes(store, Ts(19), feed())
    with pytest.raises(DispatchError, match=r"d\.orders"):
        check_routes(store, Ts(20), feed())
