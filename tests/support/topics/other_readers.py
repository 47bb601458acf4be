"""Messages of every protocol read by other people's code, and what a value must have become in each."""

import ast
import base64
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from schemas.changes import Op
from schemas.ids import Ts
from schemas.proto import canal_pb2 as pb
from schemas.tidb.mysql_types import DATETIME_TYPES, INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.value import Value
from sorters.core.mount.scalar import MountedRow, mount_row
from tests.support.recorded.recording import TIDB_DATA, CommittedChange
from tests.support.topics.random_rows import INTEGERS

BLOBS = (MysqlType.TINYBLOB, MysqlType.BLOB, MysqlType.MEDIUMBLOB, MysqlType.LONGBLOB)
NUMBERS = (*INTEGER_TYPES, MysqlType.YEAR, MysqlType.ENUM, MysqlType.SET, MysqlType.BIT)
FLOATS = (MysqlType.FLOAT, MysqlType.DOUBLE)
SIMPLE_SCHEMA = fastavro.parse_schema(json.loads((TIDB_DATA / "encoded" / "simple-avro.avsc").read_text()))
Side = Mapping[str, Any] | None


@dataclass(frozen=True)
class Told:
    """What a message says of a row; values are as the reader got them."""

    op: str
    new: Side
    old: Side


Read = Callable[[bytes | None, bytes | None, SchemaRegistryClient], Told]
Same = Callable[[ColumnVersion, Value, Any], bool]


def columns_of(row: tuple[Value, ...] | None, table: TableVersion) -> dict[str, tuple[ColumnVersion, Value]] | None:
    return None if row is None else {spec.name: (spec, row[spec.offset]) for spec in table.columns}


def mounted(table: TableVersion, change: CommittedChange) -> MountedRow:
    row = mount_row(
        table,
        key=change.key,
        op=Op.DELETE if change.op == "delete" else Op.PUT,
        value=change.value,
        old_value=change.old_value,
        commit_ts=Ts(change.commit_ts),
        start_ts=Ts(change.start_ts),
    )
    assert row is not None
    return row


def is_text(spec: ColumnVersion, value: Value) -> bool:
    return spec.tp in STRING_TYPES and not spec.binary and isinstance(value, bytes)


def comparable(spec: ColumnVersion, value: Value) -> bool:
    """Bytes in a text column that are no UTF-8 have no JSON form; what is written for them has tests of its own."""
    if not is_text(spec, value):
        return True
    assert isinstance(value, bytes)
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def same_number(spec: ColumnVersion, value: Value, said: float) -> bool:
    return np.float32(said) == np.float32(value) if spec.tp is MysqlType.FLOAT else said == value  # type: ignore[arg-type]


def same_vector(value: Value, said: str) -> bool:
    assert isinstance(value, tuple)
    return np.array_equal(np.array(json.loads(said), np.float32), np.array(value, np.float32))


def same_text(spec: ColumnVersion, value: Value, said: Any) -> bool:  # canal-json, canal, and most of simple
    if value is None or said is None:
        return value is said
    assert isinstance(said, str)
    if isinstance(value, bytes):
        return said.encode("latin-1" if spec.binary else "utf-8") == value
    if isinstance(value, float):
        return "e" not in said and same_number(spec, value, float(said))
    return same_vector(value, said) if isinstance(value, tuple) else said == str(value)


def same_simple(spec: ColumnVersion, value: Value, said: Any) -> bool:
    if value is None or said is None:
        return value is said
    if spec.tp is MysqlType.TIMESTAMP:
        return bool(said == {"location": "UTC", "value": value})
    if isinstance(value, bytes) and spec.binary:
        return base64.b64decode(said, validate=True) == value
    return same_text(spec, value, said)


def same_simple_avro(spec: ColumnVersion, value: Value, said: Any) -> bool:
    if value is None or said is None:
        return value is said
    if spec.tp is MysqlType.TIMESTAMP:
        return bool(said == {"location": "UTC", "value": value})
    if isinstance(said, dict):
        return spec.unsigned and spec.tp is MysqlType.BIGINT and said["value"] % 2**64 == value
    if isinstance(value, bytes):
        return bool(said == (value if spec.binary else value.decode()))
    if isinstance(value, float):
        return same_number(spec, value, said)
    return same_vector(value, said) if isinstance(value, tuple) else _wraps(spec, value, said)


def _wraps(spec: ColumnVersion, value: Value, said: Any) -> bool:
    """SET and BIT of 64 bits go into a signed long."""
    if isinstance(value, int) and value >= 2**63:
        return bool(said == value - 2**64)
    return bool(said == value)


def same_open(spec: ColumnVersion, value: Value, said: Any) -> bool:
    if value is None or said is None:
        return value is said
    if spec.tp in NUMBERS:
        return bool(said == value)
    if spec.tp in FLOATS:
        return same_number(spec, value, said)
    if spec.tp in BLOBS:
        return base64.b64decode(said, validate=True) == value
    if isinstance(value, bytes) and spec.binary:
        return unquoted(said) == value
    return same_text(spec, value, said)


def unquoted(said: str) -> bytes:
    r"""Undo Go's quoting. Python's bytes literals know \x.., \a … \v as Go's; \u and \U stand for a character."""
    parts = re.split(r"((?<!\\)(?:\\\\)*)(\\u[0-9a-f]{4}|\\U[0-9a-f]{8})", said)
    out = b""
    for at, part in enumerate(parts):
        if at % 3 == 2:
            out += chr(int(part[2:], 16)).encode()
        else:
            out += ast.literal_eval('b"' + "".join(c if ord(c) < 128 else _escaped(c) for c in part) + '"')
    return out


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def same_avro(spec: ColumnVersion, value: Value, said: Any) -> bool:
    if value is None or said is None:
        return value is said
    if spec.tp is MysqlType.DECIMAL:
        return isinstance(said, Decimal) and said == Decimal(str(value))
    if spec.tp is MysqlType.BIT:
        assert isinstance(value, int)
        return int.from_bytes(said, "big") == value and (value == 0 or said[:1] != b"\0")
    if spec.tp is MysqlType.ENUM:
        return isinstance(value, int) and bool(said == spec.elems[value - 1])
    if spec.tp is MysqlType.SET:
        assert isinstance(value, int)
        return bool(said == ",".join(name for at, name in enumerate(spec.elems) if value >> at & 1))
    if isinstance(value, bytes):
        return bool(said == (value if spec.binary else value.decode()))
    if isinstance(value, float):
        return same_number(spec, value, said)
    return same_vector(value, said) if isinstance(value, tuple) else _wraps(spec, value, said)


def read_canal_json(key: bytes | None, value: bytes | None, registry: SchemaRegistryClient) -> Told:
    said = json.loads(value or b"")
    assert key is None
    kind, data, old = said["type"].lower(), said["data"][0], (said["old"] or [None])[0]
    return Told(kind, None if kind == "delete" else data, data if kind == "delete" else old)


def read_canal(key: bytes | None, value: bytes | None, registry: SchemaRegistryClient) -> Told:
    assert key is None
    (message,) = pb.Messages.FromString(pb.Packet.FromString(value or b"").body).messages
    entry = pb.Entry.FromString(message)
    (row,) = pb.RowChange.FromString(entry.storeValue).rowDatas
    before, after = (
        {column.name: None if column.isNull else column.value for column in side} or None
        for side in (row.beforeColumns, row.afterColumns)
    )
    return Told(pb.EventType.Name(entry.header.eventType).lower(), after, before)


def read_open(key: bytes | None, value: bytes | None, registry: SchemaRegistryClient) -> Told:
    assert key is not None
    assert value is not None
    assert (key[:8], value[:8]) == ((1).to_bytes(8, "big"), (len(value) - 8).to_bytes(8, "big"))
    said = json.loads(value[8:])
    new, old = ({k: v["v"] for k, v in said[side].items()} if side in said else None for side in ("u", "p"))
    if "d" in said:
        return Told("delete", None, {k: v["v"] for k, v in said["d"].items()})
    return Told("insert" if old is None else "update", new, old)


def read_simple(key: bytes | None, value: bytes | None, registry: SchemaRegistryClient) -> Told:
    assert key is None
    said = json.loads(value or b"")
    return Told(said["type"].lower(), said.get("data"), said.get("old"))


def read_simple_avro(key: bytes | None, value: bytes | None, registry: SchemaRegistryClient) -> Told:
    assert key is None
    said: Any = fastavro.schemaless_reader(io.BytesIO(value or b""), SIMPLE_SCHEMA, None)
    row = said["payload"]
    return Told(row["type"].lower(), row["data"], row["old"])


def read_avro(key: bytes | None, value: bytes | None, registry: SchemaRegistryClient) -> Told:
    """Avro tells the row after a change alone; of a row that is gone the key."""
    context = (SerializationContext("t", field) for field in (MessageField.KEY, MessageField.VALUE))
    said = [
        None if data is None else AvroDeserializer(registry)(data, where)
        for data, where in zip((key, value), context, strict=True)
    ]
    if said[1] is None:
        return Told("delete", None, said[0])
    extension = {name: said[1].pop(name) for name in list(said[1]) if name.startswith("_tidb")}
    return Told({"c": "insert", "u": "update"}[extension["_tidb_op"]], said[1], None)


def read_debezium(key: bytes | None, value: bytes | None, registry: SchemaRegistryClient) -> Told:
    """Hand on each value with the field's own schema, which says how a Kafka Connect client reads it."""
    said = json.loads(value or b"")
    fields = {field["field"]: field for field in said["schema"]["fields"]}
    assert json.loads(key or b"{}")["schema"]["name"].endswith(".Key")

    def side(name: str) -> Side:
        schemas = {field["field"]: field for field in fields[name]["fields"]}
        row = said["payload"][name]
        return None if row is None else {column: (schemas[column], datum) for column, datum in row.items()}

    op = {"c": "insert", "u": "update", "d": "delete"}[said["payload"]["op"]]
    return Told(op, side("after"), side("before"))


def same_debezium(spec: ColumnVersion, value: Value, said: Any) -> bool:
    schema, shown = said
    if value is None:
        return shown is None or spec.default is not None  # TiCDC writes the default in place of NULL
    match schema.get("name", schema["type"]):
        case "io.debezium.data.Bits":
            bits = base64.b64decode(shown, validate=True)
            # TiDB keeps a BIT within its length; rows here do not.
            return isinstance(value, int) and int.from_bytes(bits, "little") == value % 256 ** len(bits)
        case "io.debezium.data.Enum":
            return isinstance(value, int) and bool(shown == spec.elems[value - 1])
        case "io.debezium.data.EnumSet":
            return same_avro(spec, value, shown)
        case "io.debezium.time.Date":
            return str(date(1970, 1, 1) + timedelta(days=shown)) == value
        case "io.debezium.time.Timestamp" | "io.debezium.time.MicroTimestamp" as name:
            unit = 1 if name.endswith("MicroTimestamp") else 1000
            time = datetime(1970, 1, 1) + timedelta(microseconds=shown * unit)  # noqa: DTZ001 # a DATETIME has no zone
            return time == datetime.fromisoformat(str(value))
        case "io.debezium.time.ZonedTimestamp":
            return datetime.fromisoformat(shown) == datetime.fromisoformat(str(value) + "+00:00")
        case "io.debezium.time.MicroTime":
            hours, minutes, seconds = str(value).removeprefix("-").split(":")
            micros = (int(hours) * 3600 + int(minutes) * 60) * 10**6 + int(Decimal(seconds) * 10**6)
            return bool(shown == (-micros if str(value).startswith("-") else micros))
        case "io.debezium.data.TiDBVectorFloat32":
            return same_vector(value, shown)
        case "string" | "io.debezium.data.Json":
            if isinstance(value, bytes) and spec.binary:
                return base64.b64decode(shown, validate=True) == value
            return bool(shown == (value.decode() if isinstance(value, bytes) else value))
        case "float" | "double":
            number = float(shown)  # of a whole one json makes an int
            return number == float(str(value)) if spec.tp is MysqlType.DECIMAL else same_number(spec, value, number)
        case "boolean":
            return bool(shown == (value != 0))
        case _:
            return (shown == -1 and out_of_range(spec, value)) or _wraps(spec, value, shown)


def read_debezium_avro(key: bytes | None, value: bytes | None, registry: SchemaRegistryClient) -> Told:
    """Hand on each value with its type, which Kafka Connect's converter reads back from Avro's."""
    assert key is not None
    assert value is not None
    if len(key) > 5:  # else the table has no handle key, and changefeeds leave it out
        assert AvroDeserializer(registry)(key, SerializationContext("t", MessageField.KEY))
    said: Any = AvroDeserializer(registry)(value, SerializationContext("t", MessageField.VALUE))
    schema = json.loads(registry.get_schema(int.from_bytes(value[1:5], "big")).schema_str or "")
    columns = {field["name"]: field for field in schema["fields"][0]["type"][1]["fields"]}

    def side(name: str) -> Side:
        row = said[name]
        if row is None:
            return None
        return {columns[field]["connect.field"]: (columns[field]["type"][1], datum) for field, datum in row.items()}

    return Told({"c": "insert", "u": "update", "d": "delete"}[said["op"]], side("after"), side("before"))


def same_debezium_avro(spec: ColumnVersion, value: Value, said: Any) -> bool:
    """String mode of BIGINT UNSIGNED, decimals precise."""
    kind, shown = said
    if value is None or shown is None:
        return same_debezium(spec, value, ({"type": ""}, shown)) if value is None else False
    named = kind if isinstance(kind, dict) else {"type": kind}
    match named.get("connect.name", named["type"]):
        case "org.apache.kafka.connect.data.Decimal":
            return isinstance(shown, Decimal) and shown == Decimal(str(value))
        case "io.debezium.data.Bits":
            return isinstance(value, int) and int.from_bytes(shown, "little") == value % 256 ** len(shown)
        case "bytes":
            return bool(shown == value)
        case "string" if spec.tp is MysqlType.BIGINT:
            return bool(shown == str(value))
        case name:
            return same_debezium(spec, value, ({"name": name, "type": named["type"]}, shown))


def out_of_range(spec: ColumnVersion, value: Value) -> bool:
    """TiDB itself keeps integers within their types; of others, and of the largest BIGINT UNSIGNED, TiCDC makes -1."""
    assert isinstance(value, int)
    bits = INTEGERS.get(spec.tp, 64)
    least, most = (0, (1 << bits) - 1) if spec.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return not least <= value <= most or value == 2**64 - 1


def has_no_calendar(spec: ColumnVersion, value: Value) -> bool:
    """Times that are no time of the calendar are refused, and dates of the first century read as this one's."""
    if spec.tp not in DATETIME_TYPES or value is None:
        return False
    try:
        return datetime.fromisoformat(str(value)).year < 1000
    except ValueError:
        return True


PROTOCOLS: dict[str, tuple[str, Read, Same]] = {
    "canal-json": ("canal-json&enable-tidb-extension=true", read_canal_json, same_text),
    "canal": ("canal", read_canal, same_text),
    "open-protocol": ("open-protocol", read_open, same_open),
    "simple": ("simple", read_simple, same_simple),
    "simple-avro": ("simple&encoding-format=avro", read_simple_avro, same_simple_avro),
    "debezium": ("debezium", read_debezium, same_debezium),
    "debezium-avro": (
        "debezium-avro&avro-bigint-unsigned-handling-mode=string&schema-registry=http://r:1",
        *(read_debezium_avro, same_debezium_avro),
    ),
    "avro": ("avro&enable-tidb-extension=true&schema-registry=http://r:1", read_avro, same_avro),
}
