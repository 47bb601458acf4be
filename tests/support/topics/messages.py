"""Records of output topics decoded by other people's code: json and fastavro. Shares nothing with the encoders."""

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import fastavro

Kind = Literal["row", "ddl", "watermark"]
Op = Literal["insert", "update", "delete", ""]


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One record as a consumer gets it; ``position`` is its position header, if it has one."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    position: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a record says. ``commit_ts`` is None where only the header can say it (an Avro DELETE has no value)."""

    kind: Kind
    commit_ts: int | None
    schema: str = ""
    table: str = ""
    op: Op = ""
    columns: Mapping[str, Any] | None = None
    """The row after the change; of a DELETE what the message has of the row that went."""
    old: Mapping[str, Any] | None = None
    """The row before an update, as far as the message has it."""
    pk: tuple[str, ...] = ()
    types: Mapping[str, str] | None = None
    """MySQL type names, lower case, by column."""
    query: str = ""
    identity: bytes = b""
    """Equal for records that say the same; leaves out the moment of encoding."""

    @property
    def name(self) -> str:
        """``schema.table``."""
        return f"{self.schema}.{self.table}"


class Decoder(Protocol):
    """Turns a record into a message."""

    def __call__(self, record: TopicRecord) -> Message: ...


def decode_canal_json(record: TopicRecord) -> Message:
    """Read canal-json; without the TiDB extension a row's commit_ts is None."""
    assert record.value is not None
    raw = json.loads(record.value)
    extension = raw.get("_tidb") or {}
    raw.pop("ts")
    identity = json.dumps([record.key.hex() if record.key else None, raw], sort_keys=True).encode()
    if raw["type"] == "TIDB_WATERMARK":
        return Message(kind="watermark", commit_ts=int(extension["watermarkTs"]), identity=identity)
    commit_ts = int(extension["commitTs"]) if "commitTs" in extension else None
    if raw["isDdl"]:
        return Message(
            kind="ddl",
            commit_ts=commit_ts,
            schema=raw["database"],
            table=raw["table"],
            query=raw["sql"],
            identity=identity,
        )
    ops: dict[str, Op] = {"INSERT": "insert", "UPDATE": "update", "DELETE": "delete"}
    return Message(
        kind="row",
        commit_ts=commit_ts,
        schema=raw["database"],
        table=raw["table"],
        op=ops[raw["type"]],
        columns=raw["data"][0],
        old=raw["old"][0] if raw["old"] else None,
        pk=tuple(raw["pkNames"] or ()),
        types={name: tp.lower() for name, tp in raw["mysqlType"].items()},
        identity=identity,
    )


class AvroDecoder:
    """Reads Avro in Confluent's wire format; ``schema_by_id`` gives the registry's text (or parsed schema) of an id."""

    def __init__(self, schema_by_id: Callable[[int], Any]) -> None:
        self._parsed = cache(lambda schema_id: _parse(schema_by_id(schema_id)))

    def __call__(self, record: TopicRecord) -> Message:
        identity = json.dumps([_hex(record.key), _hex(record.value)]).encode()
        if record.value is not None and record.value[0] == 2:
            return Message(kind="watermark", commit_ts=struct.unpack(">Q", record.value[1:])[0], identity=identity)
        if record.value is not None and record.value[0] == 1:
            ddl = json.loads(record.value[1:])
            return Message(
                kind="ddl",
                commit_ts=int(ddl["commitTs"]),
                schema=ddl["schema"],
                table=ddl["table"],
                query=ddl["query"],
                identity=identity,
            )
        assert record.key is not None
        key, schema = self._read(record.key)
        name: dict[str, Any] = {"schema": schema["namespace"].split(".", 1)[1], "table": schema["name"]}
        if record.value is None:
            return Message(
                kind="row", commit_ts=None, op="delete", columns=key, pk=tuple(key), identity=identity, **name
            )
        row, schema = self._read(record.value)
        commit_ts = row.pop("_tidb_commit_ts", None)
        op: Op = {"c": "insert", "u": "update"}[row.pop("_tidb_op", "c")]  # type: ignore[assignment]
        for extra in (
            "_tidb_commit_physical_time",
            "_tidb_row_level_checksum",
            "_tidb_corrupted",
            "_tidb_checksum_version",
        ):
            row.pop(extra, None)
        return Message(
            kind="row",
            commit_ts=commit_ts,
            op=op,
            columns=row,
            pk=tuple(key),
            types=_tidb_types(schema),
            identity=identity,
            **name,
        )

    def _read(self, datum: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        magic, schema_id = struct.unpack(">bI", datum[:5])
        if magic != 0:
            raise ValueError(f"no Confluent magic byte: {datum[:8].hex()}")
        raw, parsed = self._parsed(schema_id)
        return fastavro.schemaless_reader(io.BytesIO(datum[5:]), parsed, None), raw


def _parse(schema: Any) -> tuple[dict[str, Any], Any]:
    raw = json.loads(schema) if isinstance(schema, str) else schema
    return raw, fastavro.parse_schema(raw)


def _tidb_types(schema: Mapping[str, Any]) -> dict[str, str]:
    types = {}
    for field in schema["fields"]:
        for branch in field["type"] if isinstance(field["type"], list) else [field["type"]]:
            if isinstance(branch, dict) and "connect.parameters" in branch:
                types[field["name"]] = branch["connect.parameters"]["tidb_type"].lower()
    return types


def _hex(part: bytes | None) -> str | None:
    return None if part is None else part.hex()
