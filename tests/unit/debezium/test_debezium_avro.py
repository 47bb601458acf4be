"""debezium-avro, from the changefeed's settings to the bytes.

Expected schemas and values are the reference's (pingcap/ticdc ``pkg/sink/codec/debezium`` of 2026-08-18: ``avro.go``,
and the table ``foo`` of ``avro_test.go``); messages are read by fastavro; nothing here is taken from what the encoder
said.
"""

import io
import json
import struct
from datetime import UTC
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from edges.registry.access import RegistryAccess
from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError
from schemas.ids import Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.debezium.avro import DebeziumAvroEncoder
from sorters.core.encode.wire.protocol import EncodeRefusedError, Partitions, SchemaMissingError
from sorters.core.feed.feed import compile_feed
from sorters.core.mount import mount
from sorters.registry.named import registry_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

COMMIT_TS, ENCODED_AT_MS = 445644800000000001, 1_700_000_000_100
URI = "kafka://h:1/t?protocol=debezium-avro&schema-registry=http://r:1"
BINARY, UNSIGNED = 128, 32
INT_KEY = column(1, "id", not_null=True, flag=PRIMARY)
VAL = column(2, "val", tp=15, flen=32, charset="utf8mb4", collation="utf8mb4_bin")
FOO = (
    column(2, "name", tp=15, flen=16, charset="utf8mb4", collation="utf8mb4_bin"),
    column(3, "bin", tp=15, flen=16, charset="binary", collation="binary", flag=BINARY),
    column(4, "price", tp=246, flen=10, decimal=4),
    column(5, "ubig", tp=8, flag=UNSIGNED),
    column(6, "v", tp=8),
)
PATHS = pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])
Row = dict[int, bytes | None]


def table_of(*columns: dict[str, Any], name: str = "foo") -> TableVersion:
    specs = [spec | {"offset": offset} for offset, spec in enumerate((INT_KEY, *columns))]
    return table_version(table_info(112, name, columns=specs), schema_id=1, schema="test", version=Ts(1))


def encoder(options: str = "", text: dict[str, Any] | None = None) -> DebeziumAvroEncoder:
    made = compile_feed(load_changefeed(URI + options, text or {}), "default").encoder
    assert isinstance(made, DebeziumAvroEncoder)
    return made


def message_of(
    by: DebeziumAvroEncoder, table: TableVersion, new: Row | None, old: Row | None, small_rows: int
) -> tuple[Any, Any]:
    """Return key and value of one row change as fastavro reads them; rows are column id to value bytes."""
    value, before = (b"" if row is None else encode_row_v2(row) for row in (new, old))
    key = row_key(table.table_id, 1)
    change = CommittedChange(COMMIT_TS, COMMIT_TS - 1, key, "delete" if new is None else "put", value, before, 0)
    mounted = mount(table, row_changes(table.table_id, [change]), zone=UTC, small_rows=small_rows)
    texts = by.schemas(table, "t.x")
    assert [text.subject for text in texts] == ["t.x-key", "t.x-value"]
    ids = {text.key: number for number, text in enumerate(texts, 7)}
    encoded = by.encode_rows(mounted, topic="t.x", encoded_at_ms=ENCODED_AT_MS, schema_ids=ids)
    read = []
    for number, (text, data) in enumerate(
        zip(texts, (encoded.keys[0].as_py(), encoded.values[0].as_py()), strict=True)
    ):
        assert data[:5] == b"\0" + struct.pack(">i", 7 + number)
        rest = io.BytesIO(data[5:])
        read.append(fastavro.schemaless_reader(rest, fastavro.parse_schema(json.loads(text.text)), None))
        assert not rest.read()
    return read[0], read[1]


def decimal_1234(scale: int) -> bytes:
    """12.34 as a row value holds it: precision, scale, digits in groups of nine."""
    return bytes([10, scale]) + bytes.fromhex("80000c0d48" if scale == 4 else "")


def test_debezium_avro_schemas_are_the_references() -> None:
    key, value = encoder().schemas(table_of(VAL, name="t1"), "t")
    assert key.text == (
        '{"connect.name":"default.test.t1Key","fields":[{"connect.field":"id","default":null,"name":"id",'
        '"type":["null","int"]}],"name":"t1Key","namespace":"default.test","type":"record"}'
    )
    schema = json.loads(value.text)
    assert (schema["name"], schema["namespace"], schema["connect.version"]) == ("t1Envelope", "default.test", 1)
    assert schema["connect.name"] == "default.test.t1Envelope"
    before, after, source, op, ts_ms = schema["fields"]
    row = {
        "connect.name": "default.test.t1",
        "fields": [
            {"connect.field": "id", "default": None, "name": "id", "type": ["null", "int"]},
            {"connect.field": "val", "default": None, "name": "val", "type": ["null", "string"]},
        ],
        "name": "t1",
        "namespace": "default.test",
        "type": "record",
    }
    assert before == {"connect.field": "before", "default": None, "name": "before", "type": ["null", row]}
    assert after == {"connect.field": "after", "default": None, "name": "after", "type": ["null", "default.test.t1"]}
    assert (source["type"]["connect.name"], source["type"]["name"]) == ("default.test.Source", "Source")
    names = [field["name"] for field in source["type"]["fields"]]
    assert names == [
        "version",
        "connector",
        "name",
        "ts_ms",
        "snapshot",
        "db",
        "table",
        "server_id",
        "gtid",
        "file",
        "pos",
        "row",
        "thread",
        "query",
        "commit_ts",
        "cluster_id",
    ]
    assert [name for name, field in zip(names, source["type"]["fields"], strict=True) if "default" in field] == [
        "snapshot",
        "gtid",
        "thread",
        "query",
    ]
    assert op == {"connect.field": "op", "name": "op", "type": "string"}
    assert ts_ms == {"connect.field": "ts_ms", "name": "ts_ms", "type": "long"}


@pytest.mark.parametrize(
    ("spec", "options", "wanted"),
    [
        (column(2, "c", tp=1), "", {"connect.type": "int16", "type": "int"}),
        (column(2, "c", tp=2, flag=UNSIGNED), "", "int"),
        (column(2, "c", tp=3, flag=UNSIGNED), "", "long"),
        (column(2, "c", tp=8, flag=UNSIGNED), "", "long"),
        (column(2, "c", tp=8, flag=UNSIGNED), "&avro-bigint-unsigned-handling-mode=string", "string"),
        (column(2, "c", tp=4, decimal=-1), "", "float"),
        (column(2, "c", tp=4, flen=5, decimal=2), "", "double"),
        (column(2, "c", tp=5), "", "double"),
        (column(2, "c", tp=16, flen=1), "", "boolean"),
        (
            column(2, "c", tp=16, flen=9),
            "",
            {
                "connect.name": "io.debezium.data.Bits",
                "connect.parameters": {"length": "9"},
                "connect.version": 1,
                "type": "bytes",
            },
        ),
        (
            column(2, "c", tp=246, flen=10, decimal=4),
            "",
            {
                "connect.name": "org.apache.kafka.connect.data.Decimal",
                "connect.parameters": {"precision": "10", "scale": "4"},
                "logicalType": "decimal",
                "precision": 10,
                "scale": 4,
                "type": "bytes",
            },
        ),
        (column(2, "c", tp=246, flen=10, decimal=4), "&avro-decimal-handling-mode=string", "string"),
        (
            column(2, "c", tp=12, decimal=6),
            "",
            {"connect.name": "io.debezium.time.MicroTimestamp", "connect.version": 1, "type": "long"},
        ),
        (
            column(2, "c", tp=13),
            "",
            {"connect.name": "io.debezium.time.Year", "connect.version": 1, "type": "int"},
        ),
        (
            column(2, "c", tp=245, charset="binary", collation="binary", flag=BINARY),
            "",
            {"connect.name": "io.debezium.data.Json", "connect.version": 1, "type": "string"},
        ),
    ],
)
def test_debezium_avro_type_of_a_column_is_the_references(spec: dict[str, Any], options: str, wanted: Any) -> None:
    _, value = encoder(options).schemas(table_of(spec), "t")
    (_, field) = json.loads(value.text)["fields"][0]["type"][1]["fields"]
    assert field["type"] == ["null", wanted]


@PATHS
def test_debezium_avro_insert_is_the_references_message(small_rows: int) -> None:
    by = encoder("&avro-bigint-unsigned-handling-mode=string")
    new: Row = {2: b"alice", 3: b"\1\2\3", 4: decimal_1234(4), 5: b"\xff" * 8, 6: None}
    key, value = message_of(by, table_of(*FOO), new, None, small_rows)
    assert key == {"id": 1}
    assert value == {
        "before": None,
        "after": {
            "id": 1,
            "name": "alice",
            "bin": b"\1\2\3",
            "price": Decimal("12.3400"),
            "ubig": "18446744073709551615",
            "v": None,
        },
        "source": {
            "version": "2.4.0.Final",
            "connector": "TiCDC",
            "name": "default",
            "ts_ms": 1_700_000_000_000,
            "snapshot": None,
            "db": "test",
            "table": "foo",
            "server_id": 0,
            "gtid": None,
            "file": "",
            "pos": 0,
            "row": 0,
            "thread": None,
            "query": None,
            "commit_ts": COMMIT_TS,
            "cluster_id": "default",
        },
        "op": "c",
        "ts_ms": ENCODED_AT_MS,
    }


@PATHS
def test_debezium_avro_update_and_delete_hold_the_row_before(small_rows: int) -> None:
    table = table_of(VAL)
    _, updated = message_of(encoder(), table, {2: b"bb"}, {2: b"aa"}, small_rows)
    assert (updated["op"], updated["before"], updated["after"]) == ("u", {"id": 1, "val": "aa"}, {"id": 1, "val": "bb"})
    _, deleted = message_of(encoder(), table, None, {2: b"bb"}, small_rows)
    assert (deleted["op"], deleted["before"], deleted["after"]) == ("d", {"id": 1, "val": "bb"}, None)
    bare = encoder(text={"sink": {"debezium": {"output-old-value": False}}})
    assert message_of(bare, table, {2: b"bb"}, {2: b"aa"}, small_rows)[1]["before"] is None
    assert message_of(bare, table, None, {2: b"bb"}, small_rows)[1]["before"] == {"id": 1, "val": "bb"}


@PATHS
def test_debezium_avro_null_of_a_column_with_a_default_is_the_default(small_rows: int) -> None:
    number, day = column(2, "n", tp=3) | {"default": "5"}, column(3, "d", tp=10) | {"default": "2020-01-02"}
    # A FLOAT(5,2) is a double in Avro, and TiCDC makes it of the default's digits.
    price = column(5, "p", tp=4, flen=5, decimal=2) | {"default": "3.14"}
    table = table_of(number, day, column(4, "x", tp=3), price)
    _, value = message_of(encoder(), table, dict.fromkeys(range(2, 6)), None, small_rows)
    assert value["after"] == {"id": 1, "n": 5, "d": 18263, "x": None, "p": 3.14}


@PATHS
def test_debezium_avro_unsigned_bigint_beyond_a_long_is_refused_and_its_value_not_told(small_rows: int) -> None:
    with pytest.raises(EncodeRefusedError, match="beyond avro's long") as caught:
        message_of(encoder(), table_of(FOO[3]), {5: b"\xff" * 8}, None, small_rows)
    assert caught.value.fields["column"] == "ubig"
    assert "18446744073709551615" not in str(caught.value)


@PATHS
def test_debezium_avro_names_that_avro_lacks_are_made_legal_and_told(small_rows: int) -> None:
    table = table_of(column(2, "1-st", tp=3), name="foo-bar")
    key, value = encoder("&enable-tidb-extension=true").schemas(table, "t")
    assert json.loads(key.text)["name"] == "foo_barKey"
    (_, field) = json.loads(value.text)["fields"][0]["type"][1]["fields"]
    assert (field["name"], field["connect.field"], field["tidb_type"]) == ("_1_st", "1-st", "int")
    assert message_of(encoder(), table, {2: b"\7"}, None, small_rows)[1]["after"] == {"id": 1, "_1_st": 7}


@PATHS
def test_debezium_avro_table_of_the_sources_name_has_both_records(small_rows: int) -> None:
    _, value = message_of(encoder(), table_of(VAL, name="Source"), {2: b"a"}, None, small_rows)
    assert (value["after"]["val"], value["source"]["table"]) == ("a", "Source")


def test_debezium_avro_sends_rows_alone() -> None:
    by = encoder()
    assert (by.ddl_partitions, by.watermark_partitions) == (Partitions.NONE, Partitions.NONE)
    assert by.encode_watermark(Ts(1)) is None
    assert by.companion_schemas() == ()


def test_debezium_avro_without_registered_schemas_says_so() -> None:
    with pytest.raises(SchemaMissingError):
        encoder().topic_part(table_of(VAL), "t", {})


def test_debezium_avro_settings_are_held_as_those_of_avro() -> None:
    with pytest.raises(ConfigError, match="debezium-avro needs a schema registry"):
        load_changefeed("kafka://h:1/t?protocol=debezium-avro")
    with pytest.raises(ConfigError, match="not allowed with protocol debezium-avro"):
        load_changefeed(URI, "force-replicate = true")
    with pytest.raises(ConfigError, match="a topic per table"):
        load_changefeed(URI, "[[sink.dispatchers]]\nmatcher = ['*.*']\ntopic = '{schema}'")
    with pytest.raises(ConfigError, match="avro-enable-watermark needs enable-tidb-extension"):
        load_changefeed(URI + "&avro-enable-watermark=true")
    (note,) = load_changefeed(URI + "&enable-tidb-extension=true&avro-enable-watermark=true").notes
    assert "test mode" in note
    config = load_changefeed(URI + "&debezium-disable-schema=true")
    assert config.notes == ("sink.debezium-disable-schema has no effect: protocol debezium-avro does not read it",)
    registry = registry_of(config, RegistryAccess.at(""))
    assert registry is not None
    registry.close()


@PATHS
def test_debezium_avro_virtual_generated_column_stands_in_no_schema_and_no_row(small_rows: int) -> None:
    virtual = column(3, "twice") | {"generated_expr_string": "`id` * 2", "generated_stored": False}
    table = table_of(VAL, virtual, name="t1")
    assert encoder().schemas(table, "t") == encoder().schemas(table_of(VAL, name="t1"), "t")
    _, value = message_of(encoder(), table, {2: b"aa"}, None, small_rows)
    assert value["after"] == {"id": 1, "val": "aa"}
