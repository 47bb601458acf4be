"""Avro schemas of debezium-avro: Kafka Connect's description of Debezium's messages, as Avro's converter writes it.

Source: pingcap/ticdc ``pkg/sink/codec/debezium/avro.go`` of 2026-08-18. Every column is a union of null and its type,
keys' too, and none has a default. The text is Go's ``json.Marshal`` of maps: keys sorted.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from schemas.avro_name import sanitize_name
from schemas.tidb.mysql_types import STRING_TYPES, CdcFlag, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.encode.avro.schema import AvroModes, go_json, is_string_type
from sorters.core.encode.debezium.schema import connect_type, tidb_type

_CACHED_TABLES = 1024
_PRIMITIVES: Final = {
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
}
"""Avro's types of Kafka Connect's."""
_DECIMAL_NAME: Final = "org.apache.kafka.connect.data.Decimal"
_DECIMAL_DIGITS_DEFAULT: Final = 10
SOURCE_FIELDS: Final = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("table", "string", False),
    ("server_id", "int64", False),
    ("gtid", "string", True),
    ("file", "string", False),
    ("pos", "int64", False),
    ("row", "int32", False),
    ("thread", "int64", True),
    ("query", "string", True),
    ("commit_ts", "int64", False),
    ("cluster_id", "string", False),
)
"""Fields of ``source`` in their order, with Kafka Connect's type, and whether they may be null."""


@dataclass(frozen=True, slots=True)
class RecordNames:
    """Full names of a table's records."""

    key: str
    row: str
    envelope: str
    source: str


def record_names(table: TableVersion, cluster_id: str) -> RecordNames:
    """Return the names. A table called Source would take the name of ``source`` (where TiCDC fails)."""
    namespace, name = f"{sanitize_name(cluster_id)}.{sanitize_name(table.schema)}", sanitize_name(table.table)
    row, source = f"{namespace}.{name}", f"{namespace}.Source"
    return RecordNames(f"{row}Key", row, f"{row}Envelope", f"{source}Info" if source == row else source)


@lru_cache(maxsize=_CACHED_TABLES)
def avro_schemas(table: TableVersion, cluster_id: str, modes: AvroModes, *, extension: bool) -> tuple[str, str]:
    """Return the schemas of a table's keys and values; ``extension``: they name TiDB's types."""
    names = record_names(table, cluster_id)
    keys = [column for column in table.columns if column.cdc_flag & CdcFlag.HANDLE_KEY]
    row = _record(names.row, _columns(table.columns, modes, extension))
    source = [_field(name, _PRIMITIVES[kind], optional=optional) for name, kind, optional in SOURCE_FIELDS]
    fields = [
        _field("before", row, optional=True),
        _field("after", names.row, optional=True),
        _field("source", _record(names.source, source)),
        _field("op", "string"),
        _field("ts_ms", "long"),
    ]
    envelope = {**_record(names.envelope, fields), "connect.version": 1}
    key = _record(names.key, _columns(keys, modes, extension))
    return go_json(key, sort_keys=True), go_json(envelope, sort_keys=True)


def _record(full_name: str, fields: Sequence[dict[str, Any]]) -> dict[str, Any]:
    namespace, _, name = full_name.rpartition(".")
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "connect.name": full_name,
        "fields": list(fields),
    }


def _field(name: str, avro_type: Any, *, optional: bool = False, tidb: str = "") -> dict[str, Any]:
    field: dict[str, Any] = {"name": sanitize_name(name), "connect.field": name, "type": avro_type}
    if tidb:
        field["tidb_type"] = tidb
    if optional:
        field |= {"type": ["null", avro_type], "default": None}
    return field


def _columns(columns: Sequence[ColumnVersion], modes: AvroModes, extension: bool) -> list[dict[str, Any]]:
    return [
        _field(column.name, _type(column, modes), optional=True, tidb=tidb_type(column) if extension else "")
        for column in columns
    ]


def _type(column: ColumnVersion, modes: AvroModes) -> Any:
    """Return the Avro type of a column's values."""
    if column.tp is MysqlType.DECIMAL and modes.decimal == "precise":
        digits = column.flen if column.flen != -1 else _DECIMAL_DIGITS_DEFAULT
        scale = max(column.decimal, 0)
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": digits,
            "scale": scale,
            "connect.name": _DECIMAL_NAME,
            "connect.parameters": {"precision": str(digits), "scale": str(scale)},
        }
    if is_string_type(column, modes):
        return "string"
    if column.tp in STRING_TYPES and column.binary:
        return "bytes"
    kind, name, has_version, parameters = connect_type(column)
    more: dict[str, Any] = {"connect.type": kind} if kind == "int16" else {}
    if name:
        more["connect.name"] = name
    if has_version:
        more["connect.version"] = 1
    if parameters:
        more["connect.parameters"] = json.loads(b"{%s}" % parameters)
    return {"type": _PRIMITIVES[kind], **more} if more else _PRIMITIVES[kind]
