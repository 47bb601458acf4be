"""Names of the storage sink's schema files against TiCDC's own numbers."""

import base64
import json
import zlib
from typing import Any

import pytest

from schemas.sink.storage_rows import SchemaFile
from sorters.core.encode.storage.schema import ddl_file, schema_file_path
from sorters.core.sql.ddl_event import ddl_events
from tests.support.recorded.ddl_jobs import column, job, snapshot, table_info

STRING, BIT, ENUM, SET = 15, 16, 247, 248
# The table of pingcap/tiflow `pkg/sink/cloudstorage/table_definition_test.go` (Apache-2.0), `generateTableDef`, with
# its defaults, which are numbers there. A column's keys stand in the order of TiCDC's structure.
TABLE1 = [
    {
        "ColumnName": "Id",
        "ColumnType": "INT",
        "ColumnDefault": 10,
        "ColumnPrecision": "11",
        "ColumnNullable": "false",
        "ColumnIsPk": "true",
    },
    {
        "ColumnName": "LastName",
        "ColumnType": "VARCHAR",
        "ColumnDefault": "Default LastName",
        "ColumnPrecision": "128",
        "ColumnNullable": "false",
    },
    {
        "ColumnName": "FirstName",
        "ColumnType": "VARCHAR",
        "ColumnDefault": "Default FirstName",
        "ColumnPrecision": "64",
    },
    {"ColumnName": "Birthday", "ColumnType": "DATETIME", "ColumnDefault": 12345678},
]


def definition(schema: str, table: str, columns: list[dict[str, Any]], version: int) -> dict[str, Any]:
    return {
        "Table": table,
        "Schema": schema,
        "Version": 1,
        "TableVersion": version,
        "Query": "anything",
        "Type": 5,
        "TableColumns": columns or None,
        "TableColumnsTotal": len(columns),
    }


def created_schema(name: str) -> SchemaFile:
    change = snapshot().apply(
        job(
            20,
            1,
            schema=name,
            schema_id=2,
            query=f"CREATE DATABASE {name}",
            db_info={"id": 2, "db_name": {"O": name, "L": name}},
        )
    )
    assert change is not None
    (event,) = ddl_events(change)
    return ddl_file(event)


def created_columns(*columns: dict[str, Any], output_column_id: bool = False) -> dict[str, dict[str, Any]]:
    info = table_info(9, "t", columns=[column(1, "id", not_null=True, flag=2), *columns])
    change = snapshot(("d", 2, [])).apply(
        job(20, 3, schema="d", schema_id=2, table_id=9, query="CREATE TABLE t (id INT PRIMARY KEY)", table_info=info)
    )
    assert change is not None
    (event,) = ddl_events(change)
    table = json.loads(ddl_file(event, output_column_id=output_column_id).content)
    return {entry["ColumnName"]: entry for entry in table["TableColumns"]}


# `bank` was seen beside a real TiCDC 8.5.4; the other two stand in TiCDC's own test, `TestTableDefinitionGenFilePath`.
@pytest.mark.parametrize(
    ("schema", "table", "columns", "version", "path"),
    [
        ("bank", "", [], 7, "bank/meta/schema_7_0527512808.json"),
        ("schema1", "", [], 100, "schema1/meta/schema_100_3233644819.json"),
        ("schema1", "table1", TABLE1, 100, "schema1/table1/meta/schema_100_3752767265.json"),
        ("schema1", "table1", TABLE1[::-1], 100, "schema1/table1/meta/schema_100_3752767265.json"),
    ],
)
def test_a_name_is_the_one_that_ticdc_gives(
    schema: str, table: str, columns: list[dict[str, Any]], version: int, path: str
) -> None:
    assert schema_file_path(definition(schema, table, columns, version)) == path


def test_a_schemas_file_has_null_where_its_checksum_has_an_empty_list() -> None:
    file = created_schema("bank")
    assert file.path == "bank/meta/schema_20_0527512808.json"
    assert '"TableColumns": null,' in file.content


def test_column_ids_stand_there_where_they_are_asked_for() -> None:
    columns = [column(7, "v", tp=STRING, charset="utf8mb4", collation="utf8mb4_bin")]
    assert {name: entry["ColumnId"] for name, entry in created_columns(*columns, output_column_id=True).items()} == {
        "id": "1",
        "v": "7",
    }
    assert not any("ColumnId" in entry for entry in created_columns(*columns).values())


def test_an_empty_default_stands_there_and_a_missing_one_does_not() -> None:
    def text(column_id: int, name: str) -> dict[str, Any]:
        return column(column_id, name, tp=STRING, charset="utf8mb4", collation="utf8mb4_bin")

    columns = created_columns({**text(2, "a"), "default": ""}, text(3, "b"))
    assert columns["a"]["ColumnDefault"] == ""
    assert "ColumnDefault" not in columns["b"]


def test_names_of_an_enum_or_set_stand_behind_all_else() -> None:
    """TiCDC's reader of csv parses such a value by them (pingcap/ticdc ``pkg/cloudstorage/schema_file.go``)."""
    columns = [
        column(2, "e", tp=ENUM, charset="utf8mb4", collation="utf8mb4_bin", elems=["a", "", "<é>"], not_null=True),
        column(3, "s", tp=SET, charset="utf8mb4", collation="utf8mb4_bin", elems=["x"]),
        column(4, "v", tp=STRING, charset="utf8mb4", collation="utf8mb4_bin"),
    ]
    entries = created_columns(*columns)
    assert list(entries["e"].items())[-2:] == [("ColumnNullable", "false"), ("ColumnElems", ["a", "", "<é>"])]
    assert entries["s"]["ColumnElems"] == ["x"]
    assert not any("ColumnElems" in entries[name] for name in ("id", "v"))


def test_names_of_an_enum_count_in_the_checksum() -> None:
    """By the form that ``marshalForChecksum`` gives them, written down by hand."""
    entry = {"ColumnName": "e", "ColumnType": "ENUM", "ColumnElems": ["a", "<b"]}
    checked = """{
    "Table": "t",
    "Schema": "d",
    "Version": 0,
    "TableColumns": [
        {
            "ColumnName": "e",
            "ColumnType": "ENUM",
            "ColumnElems": [
                "a",
                "\\u003cb"
            ]
        }
    ],
    "TableColumnsTotal": 1
}"""
    path = schema_file_path(definition("d", "t", [entry], 7))
    assert path == f"d/t/meta/schema_7_{zlib.crc32(checked.encode()):010d}.json"


def test_a_bits_default_is_read_as_go_reads_bytes() -> None:
    def bits(value: bytes) -> dict[str, Any]:
        return {**column(2, "a", tp=BIT, flen=32), "default_bit": base64.b64encode(value).decode()}

    assert created_columns(bits(b"A\xc3\xa9"))["a"]["ColumnDefault"] == "Aé"
    assert created_columns(bits(b"\xff\xe2\x82"))["a"]["ColumnDefault"] == "\ufffd\ufffd\ufffd"
