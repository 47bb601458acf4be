"""Options of storage sinks: folders by table id, and files of selected columns."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from consumers.processors.core.storage.paths import PathForm
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ids import TableId, Ts
from schemas.sink.file_names import is_schema_file_path
from schemas.sink.storage_rows import decode_folder, decode_storage_rows
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from sorters.core.columnar.row_changes import join_rows
from sorters.core.feed.companions import bootstrap_records, ddl_records
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.mount import mount
from sorters.core.mount.alike_tables import AlikeTables
from sorters.core.rows.pipeline import Settings, run_version
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

PATHS = pytest.mark.parametrize("count", [1, 40], ids=["scalar", "columnar"])
COLUMNS = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "a") | {"offset": 1}, column(3, "b") | {"offset": 2}]
INFO = table_info(100, "t", columns=COLUMNS)


def compiled(form: str, **config: Any) -> CompiledFeed:
    given = compile_feed(load_changefeed(f"file:///d?protocol={form}", config), "default")
    return replace(given, partitions={given.default_topic: 1})


def table() -> TableVersion:
    stored = snapshot(("d", 1, [INFO])).stored_table_at(TableId(100), Ts(10))
    assert stored is not None
    return stored.decode()


def rows_of(table_id: int, count: int) -> Any:
    value = encode_row_v2({2: b"\1", 3: b"\2"})
    return row_changes(
        table_id,
        [CommittedChange(20 + n, 19, row_key(TableId(table_id), n), "put", value, b"", 0) for n in range(count)],
    )


def lines_of(given: CompiledFeed, count: int) -> list[bytes]:
    settings = Settings(encoded_at_ms=5, store_claim=None, on_corrupt=None)
    records = run_version(rows_of(100, count), table(), given, settings)
    return [bytes(decode_storage_rows(value).lines()) for value in records.column("value").to_pylist()]


@PATHS
def test_column_selectors_choose_the_columns_of_files(count: int) -> None:
    selectors = [{"matcher": ["d.t"], "columns": ["id", "b"]}]
    assert lines_of(compiled("csv", sink={"column-selectors": selectors}), count)[0] == b'"I","t","d",0,2\r\n'
    (first, *_) = lines_of(compiled("canal-json", sink={"column-selectors": selectors}), count)
    assert json.loads(first)["data"] == [{"id": "0", "b": "2"}]
    header = {"column-selectors": selectors, "csv": {"output-field-header": True}}
    given = compiled("csv", sink=header)
    records = run_version(rows_of(100, count), table(), given, Settings(5, None, None))
    assert decode_folder(records.column("key")[0].as_py()).file_head.endswith(",id,b\r\n")


def test_schema_files_tell_all_columns_whatever_is_selected() -> None:
    given = compiled("csv", sink={"column-selectors": [{"matcher": ["d.t"], "columns": ["id"]}]})
    records = bootstrap_records(snapshot(("d", 1, [INFO])), Ts(10), Ts(20), given, 1, at_start=True)
    (value,) = records.column("value").to_pylist()
    assert json.loads(json.loads(value)["content"])["TableColumnsTotal"] == 3


BY_ID = {"sink": {"cloud-storage-config": {"use-table-id-as-path": True}}}


@PATHS
@pytest.mark.parametrize("form", ["csv", "canal-json"])
def test_rows_go_to_the_folder_of_their_table_id(form: str, count: int) -> None:
    settings = Settings(encoded_at_ms=5, store_claim=None, on_corrupt=None)
    given = compiled(form, **BY_ID)
    records = run_version(rows_of(100, count), table(), given, settings)
    (folder,) = {decode_folder(key) for key in records.column("key").to_pylist()}
    assert PathForm(extension="csv").table_folder(folder) == "100/10"
    if count > 1:
        tables = (table(), replace(table(), table="u", table_id=TableId(101)))
        both = join_rows([rows_of(100, count), rows_of(101, count)])
        topics = tuple(given.select(version)[0].topic for version in tables)
        alike = AlikeTables(tables, topics, (b"", b""), np.repeat([0, 1], count))
        records = run_version(both, tables[0], given, settings, alike)
        keys = {PathForm(extension="csv").table_folder(decode_folder(key)) for key in records.column("key").to_pylist()}
        assert keys == {"100/10", "101/10"}


def test_rows_of_a_partition_go_to_the_folder_of_its_id() -> None:
    definitions = [{"id": 201, "name": {"O": "p0"}}, {"id": 202, "name": {"O": "p1"}}]
    info = {**INFO, "partition": {"enable": True, "definitions": definitions}}
    stored = snapshot(("d", 1, [info])).stored_table_at(TableId(100), Ts(10))
    assert stored is not None
    encoder = compiled("csv", **BY_ID).encoder
    encoded = encoder.encode_rows(mount(stored.decode(), rows_of(202, 2)), topic="t", encoded_at_ms=5, schema_ids={})
    (folder,) = {decode_folder(key) for key in encoded.keys.to_pylist()}
    assert PathForm(extension="csv").table_folder(folder) == "202/10"


def test_schema_files_stand_by_table_id_and_there_are_none_of_schemas() -> None:
    store = snapshot(("d", 1, [INFO]))
    info = {"id": 2, "db_name": {"O": "e", "L": "e"}}
    store.apply(job(20, DdlType.CREATE_SCHEMA, schema_id=2, schema="e", query="CREATE DATABASE e", db_info=info))
    store.apply(job(30, DdlType.DROP_TABLE, schema_id=1, table_id=100, query="DROP TABLE t", table_info=INFO))
    given = compiled("csv", **BY_ID)
    values = [
        *bootstrap_records(store, Ts(10), Ts(15), given, 1, at_start=True).column("value").to_pylist(),
        *ddl_records(store, Ts(10), Ts(40), given, 1).column("value").to_pylist(),
    ]
    paths = [json.loads(value)["path"] for value in values]
    assert [path.rpartition("_")[0] for path in paths] == ["100/meta/schema_10", "100/meta/schema_30"]
    assert all(map(is_schema_file_path, paths))
