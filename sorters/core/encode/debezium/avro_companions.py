"""DDL and watermarks of debezium-avro, TiCDC's test mode: debezium's JSON messages, as its converter makes them Avro.

Source: pingcap/ticdc ``pkg/sink/codec/debezium/avro.go`` (``toAvroSchema``, ``toNative``) of 2026-08-18. A subject is
named as its schema, for no topic is. The record of ``source`` in DDL is named as in debezium's JSON: TiCDC names it
after the database whose DDL came first.
"""

import io
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import fastavro

from schemas.avro_name import sanitize_name
from schemas.ids import TableId, Ts
from sorters.core.encode.avro.schema import go_json
from sorters.core.encode.debezium.avro_schema import SOURCE_FIELDS
from sorters.core.encode.debezium.ddl import DDL_KEY_SCHEMA, DDL_SCHEMA
from sorters.core.encode.debezium.schema import envelope_schema, key_schema
from sorters.core.encode.wire.protocol import SchemaText

NO_TABLE: Final = TableId(0), Ts(0)
"""These schemas are of no table."""
_PRIMITIVES: Final = {
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
    "int32": "int",
    "int64": "long",
}
_SOURCE: Final = "io.debezium.connector.mysql.Source"
ConnectSchema = Mapping[str, Any]
"""Kafka Connect's, as it stands in debezium's JSON."""


@lru_cache(maxsize=64)
def connect_schemas(cluster_id: str) -> dict[str, ConnectSchema]:
    """Return the schemas of keys and values by name: of DDL, then of watermarks."""
    watermark = f"{sanitize_name(cluster_id)}.watermark"
    texts = (DDL_KEY_SCHEMA, DDL_SCHEMA, key_schema(watermark), envelope_schema(watermark))
    schemas = [_with_source(json.loads(text), f"{watermark}.Source") for text in texts]
    return {schema["name"]: schema for schema in schemas}


def companion_texts(cluster_id: str) -> tuple[SchemaText, ...]:
    """Return what is to be registered."""
    return tuple(
        SchemaText(name, *NO_TABLE, go_json(avro_schema(schema), sort_keys=True))
        for name, schema in connect_schemas(cluster_id).items()
    )


@lru_cache(maxsize=64)
def _parsed(cluster_id: str, name: str) -> Any:
    return fastavro.parse_schema(avro_schema(connect_schemas(cluster_id)[name]))


def companion_bytes(cluster_id: str, message: bytes, head: Mapping[str, bytes]) -> bytes:
    """Return a key or value of debezium's JSON (with its schema) as Avro; ``head`` is what stands before, by name."""
    said = json.loads(message)
    name = said["schema"]["name"]
    written = io.BytesIO()
    payload = _native(connect_schemas(cluster_id)[name], said["payload"])
    fastavro.schemaless_writer(written, _parsed(cluster_id, name), payload)
    return head[name] + written.getvalue()


def avro_schema(schema: ConnectSchema) -> Any:
    """Return the Avro schema of one of Kafka Connect's; a record that comes again is named only."""
    return _avro(schema, "", set())


def _with_source(schema: dict[str, Any], source: str) -> ConnectSchema:
    """Return a schema of debezium's JSON with the ``source`` that debezium-avro has."""
    fields = [{"type": kind, "optional": optional, "field": field} for field, kind, optional in SOURCE_FIELDS]
    name = _SOURCE if schema["name"] == json.loads(DDL_SCHEMA)["name"] else source
    ours = {"type": "struct", "optional": False, "name": name, "field": "source", "fields": fields}
    return {**schema, "fields": [ours if field["field"] == "source" else field for field in schema["fields"]]}


def _avro(schema: ConnectSchema, fallback: str, defined: set[str]) -> Any:
    more: dict[str, Any] = {"connect.name": schema["name"]} if schema.get("name") else {}
    more |= {"connect.version": schema["version"]} if schema.get("version") else {}
    kind = schema["type"]
    if kind == "array":
        return {"type": "array", "items": _avro(schema["items"], f"{fallback}Item", defined), **more}
    if kind != "struct":
        return {"type": _PRIMITIVES[kind], **more} if more else _PRIMITIVES[kind]
    full_name = ".".join(map(sanitize_name, (schema.get("name") or fallback).split(".")))
    if full_name in defined:
        return full_name
    defined.add(full_name)
    namespace, _, name = full_name.rpartition(".")
    space = {"namespace": namespace} if namespace else {}
    return {"type": "record", "name": name, **space, **more, "fields": _fields(schema["fields"], defined)}


def _fields(schemas: Sequence[ConnectSchema], defined: set[str]) -> list[dict[str, Any]]:
    fields = []
    for schema in schemas:
        name = sanitize_name(schema["field"])
        avro = _avro(schema, name, defined)
        union = {"type": ["null", avro], "default": None} if schema["optional"] else {"type": avro}
        fields.append({"name": name, "connect.field": schema["field"], **union})
    return fields


def _native(schema: ConnectSchema, value: Any) -> Any:
    """Return a value of the JSON as its type has it: a number is a float there at times, a default any number."""
    if value is None:
        return None
    match schema["type"]:
        case "struct":
            return {sanitize_name(of["field"]): _native(of, value.get(of["field"])) for of in schema["fields"]}
        case "array":
            return [_native(schema["items"], item) for item in value]
        case "int32" | "int64":
            return int(value)
        case "string" if not isinstance(value, str):
            return json.dumps(value)
    return value
