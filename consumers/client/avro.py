"""Avro messages (TiCDC's form of Confluent's) as changes; schemas come from the registry, each id once.

Avro allows few characters in names, so rows call schemas, tables and columns by other ones. DDL and what watermarks say
of images have the real ones; here all go by those of the rows.
"""

import io
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Self

import fastavro

from consumers.client.changes import Change, Ddl, Op, Row
from consumers.client.core.partition import StreamRecord
from consumers.client.errors import MessageError, StreamUnavailableError
from edges.registry.access import RegistryAccess
from schemas.avro_name import sanitize_name
from schemas.json_text import read_json
from schemas.sink.image_note import ImageNote, TableName
from schemas.sink.position import Position, PositionClass, RowOp

_BEFORE: Final = "_ticdc_before"
"""The row before (``avro-include-before-value``); a DELETE has it as its columns, too."""
_EXTENSION: Final = frozenset(
    {
        _BEFORE,
        "_tidb_op",
        "_tidb_commit_ts",
        "_tidb_commit_physical_time",
        "_tidb_row_level_checksum",
        "_tidb_corrupted",
        "_tidb_checksum_version",
    }
)
_OPS: Final[Mapping[RowOp, Op]] = {RowOp.INSERT: "insert", RowOp.UPDATE: "update", RowOp.DELETE: "delete"}
_HEAD = struct.Struct(">bI")


def registry_schemas(url: str) -> Callable[[int], str]:
    """Return a function from a schema id to its text, by a registry with Confluent's API.

    It raises StreamUnavailableError where the registry does not answer or does not know the id.

    Raises:
        ConfigError: ``url`` is none.
    """
    access = RegistryAccess.at(url)

    def text_of(schema_id: int) -> str:
        try:
            with access.client() as client:  # once a schema: the decoder keeps them
                return str(client.get_schema(schema_id).schema_str)
        except Exception as error:  # its HTTP library's errors come through, and which one differs by version
            raise StreamUnavailableError(
                "the schema registry does not give a schema", url=access.url, schema_id=schema_id, reason=repr(error)
            ) from error

    return text_of


@dataclass(frozen=True, slots=True)
class _RecordSchema:
    """A schema of the registry, read once for all its messages."""

    schema: str
    table: str
    types: Mapping[str, str]
    unsigned: frozenset[str]
    """Columns whose numbers from 2^63 on are negative in the message, or texts: Avro's long has a sign."""
    parsed: Any

    @classmethod
    def read(cls, raw: Any) -> Self:
        types = _types(raw)
        return cls(
            schema=str(raw["namespace"]).split(".", 1)[1],
            table=raw["name"],
            types=types,
            unsigned=frozenset(name for name, kind in types.items() if kind == "BIGINT UNSIGNED"),
            # TiCDC writes a DOUBLE's default as 0, where Avro has 0.0. Nothing is read by a default.
            parsed=fastavro.parse_schema(raw, _ignore_default_error=True),
        )

    def values(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row's columns; of an unsigned BIGINT as the number that it is."""
        return {
            name: _unsigned(value) if name in self.unsigned and value is not None else value
            for name, value in row.items()
            if name not in _EXTENSION
        }


class AvroDecoder:
    """Reads one message; which kind of change it is says the position header, as in an INSERT without extension."""

    def __init__(self, schema_text: Callable[[int], str]) -> None:
        """``schema_text`` gives the registry's text of a schema id."""

        @cache
        def parsed(schema_id: int) -> _RecordSchema:
            raw = read_json(schema_text(schema_id))
            try:
                return _RecordSchema.read(raw)
            except Exception as error:  # a schema may be anything, and so are its library's errors then
                raise ValueError(f"schema {schema_id} is none of Avro's: {error!r}") from error

        self._parsed = parsed

    def __call__(self, record: StreamRecord, position: Position) -> Change:
        """Return what ``record`` says.

        Raises:
            MessageError: not Avro in Confluent's form.
            StreamUnavailableError: the registry does not give a schema.
        """
        stamps: dict[str, Any] = {"commit_ts": position.commit_ts, "start_ts": position.start_ts}
        try:
            if position.position_class is PositionClass.DDL:
                raw = read_json((record.value or b"")[1:])
                schema_name, table_name = sanitize_name(raw["schema"]), sanitize_name(raw["table"])
                return Ddl(schema=schema_name, table=table_name, query=raw["query"], **stamps)
            key, schema = self._read(record.key or b"")
            op: Op = "delete"
            row = key
            if record.value is not None:
                op = _OPS[position.op]
                row, schema = self._read(record.value)
            before = row.get(_BEFORE) if op == "update" else None
            return Row(
                schema=schema.schema,
                table=schema.table,
                op=op,
                columns=schema.values(row),
                old=None if before is None else schema.values(before),
                key_names=tuple(key),
                types=schema.types,
                **stamps,
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as error:
            topic_partition = record.topic_partition
            raise MessageError(
                "not an Avro message of a changefeed",
                topic=topic_partition.topic,
                partition=topic_partition.partition,
                offset=record.offset,
                reason=repr(error),
            ) from error

    def images(self, note: ImageNote) -> ImageNote:
        """Return what a watermark says of images, by the names that rows have; where two tables have one of them, and
        one waits, both do.
        """
        waiting = None if note.waiting is None else _sanitized(note.waiting)
        whole = tuple(name for name in _sanitized(note.whole) if name not in (waiting or ()))
        return ImageNote(note.left, whole, waiting)

    def _read(self, datum: bytes) -> tuple[dict[str, Any], _RecordSchema]:
        magic, schema_id = _HEAD.unpack_from(datum)
        if magic != 0:
            raise ValueError(f"no Confluent magic byte: {datum[:8].hex()}")
        schema = self._parsed(schema_id)
        try:
            return dict(fastavro.schemaless_reader(io.BytesIO(datum[_HEAD.size :]), schema.parsed, None)), schema
        except Exception as error:  # as above
            raise ValueError(f"not of schema {schema_id}: {error!r}") from error


def _sanitized(names: Iterable[TableName]) -> tuple[TableName, ...]:
    return tuple(dict.fromkeys((sanitize_name(schema), sanitize_name(table)) for schema, table in names))


def _unsigned(value: int | str) -> int:
    """Return the number that a long (``avro-bigint-unsigned-handling-mode``) or a text says."""
    number = int(value)
    return number + (1 << 64) if number < 0 else number


def _types(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns' types, which stand beside Avro's own."""
    types = {}
    for field in schema["fields"]:
        # Of a column that may be NULL, a union; Avro's own types stand alone, as of the extension's fields.
        options = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for option in options:
            kind = option.get("connect.parameters", {}).get("tidb_type") if isinstance(option, dict) else None
            if kind is not None:
                types[field["name"]] = kind
    return types
