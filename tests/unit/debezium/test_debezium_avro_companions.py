"""DDL and watermarks of debezium-avro, against debezium's JSON of a whole recording, read by fastavro."""

import io
import json
import struct
from typing import Any

import fastavro
import pytest

from schemas.ids import Ts
from sorters.core.encode.debezium.avro import DebeziumAvroEncoder
from sorters.core.encode.debezium.encoder import DebeziumEncoder
from sorters.core.encode.wire.protocol import Partitions, SchemaMissingError
from sorters.core.sql.ddl_event import ddl_events
from tests.support.recorded.mounting import recorded_store


def companion_reader(by: DebeziumAvroEncoder) -> tuple[DebeziumAvroEncoder, dict[int, Any]]:
    """Return the encoder with ids of its DDL and watermark schemas, and these schemas by id."""
    texts = by.companion_schemas()
    ids = {text.key: number for number, text in enumerate(texts, 41)}
    read = {ids[text.key]: fastavro.parse_schema(json.loads(text.text)) for text in texts}
    return by.with_companions(ids), read


def companion(data: bytes | None, schemas: dict[int, Any]) -> tuple[str, Any]:
    """Return the schema's name and what a key or value says by it, all of it."""
    assert data is not None and data[0] == 0
    schema, rest = schemas[struct.unpack(">i", data[1:5])[0]], io.BytesIO(data[5:])
    said = fastavro.schemaless_reader(rest, schema)
    assert rest.read() == b""
    return schema["name"], said


def test_debezium_avro_watermark_of_the_test_mode_is_by_schemas_of_its_own() -> None:
    by, schemas = companion_reader(DebeziumAvroEncoder(enable_tidb_extension=True, avro_enable_watermark=True))
    assert (by.ddl_partitions, by.watermark_partitions) == (Partitions.ALL, Partitions.ALL)
    subjects = [text.subject for text in by.companion_schemas()]
    connector = "io.debezium.connector.mysql"
    own = [f"{connector}.SchemaChangeKey", f"{connector}.SchemaChangeValue"]
    assert subjects == [*own, "default.watermark.Key", "default.watermark.Envelope"]
    message = by.encode_watermark(Ts(1 << 18), encoded_at_ms=77)
    assert message is not None
    assert companion(message.key, schemas) == ("default.watermark.Key", {})
    name, said = companion(message.value, schemas)
    assert name == "default.watermark.Envelope"
    assert (said["op"], said["ts_ms"], said["transaction"]) == ("m", 77, None)
    source = said["source"]
    assert (source["commit_ts"], source["ts_ms"], source["db"], source["table"]) == (1 << 18, 1, "", "")
    assert "sequence" not in source, "as in rows"
    (envelope,) = (json.loads(text.text) for text in by.companion_schemas() if "Envelope" in text.subject)
    fields = {field["name"]: field["type"] for field in envelope["fields"]}
    assert fields["source"]["connect.name"] == "default.watermark.Source"
    assert fields["ts_ms"] == ["null", "long"] and fields["op"] == "string"
    assert [kind if isinstance(kind, str) else kind["connect.name"] for kind in fields["transaction"]] == [
        "null",
        "event.block",
    ]


def test_debezium_avro_ddl_of_the_test_mode_says_what_debezium_says() -> None:
    made = DebeziumAvroEncoder(enable_tidb_extension=True, avro_enable_watermark=True)
    by, schemas = companion_reader(made)
    texts, seen = {text.subject: json.loads(text.text) for text in by.companion_schemas()}, 0
    value_name = "io.debezium.connector.mysql.SchemaChangeValue"
    for change in recorded_store().changes_between(Ts(0), Ts(2**62)):
        for event in ddl_events(change):
            wanted = DebeziumEncoder(enable_tidb_extension=True).encode_ddl(event, encoded_at_ms=77)
            message = by.encode_ddl(event, encoded_at_ms=77)
            assert (message is None) == (wanted is None)
            if message is None or wanted is None:
                continue
            assert companion(message.key, schemas)[1] == {"databaseName": event.schema}
            name, said = companion(message.value, schemas)
            assert name == value_name
            assert said == json.loads(wanted.value)["payload"], "so nothing of it lacks a place in the schema"
            seen += 1
    assert seen > 90
    changes = {field["name"]: field for field in texts[value_name]["fields"]}["tableChanges"]["type"]
    assert (changes["type"], changes["items"]["connect.name"]) == ("array", "io.debezium.connector.schema.Change")
    with pytest.raises(SchemaMissingError):
        made.encode_watermark(Ts(1))
