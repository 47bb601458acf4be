"""Avro messages (TiCDC's form of Confluent's) as changes; schemas come from the registry, each id once."""

import io
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import fastavro

from consumers.client.changes import Change, Ddl, Row
from consumers.client.core.partition import StreamRecord
from consumers.client.errors import MessageError, StreamUnavailableError
from edges.registry.access import RegistryAccess
from schemas.json_text import read_json
from schemas.sink.position import Position, PositionClass, RowOp

_EXTENSION: Final = frozenset(
    {
        "_tidb_op",
        "_tidb_commit_ts",
        "_tidb_commit_physical_time",
        "_tidb_row_level_checksum",
        "_tidb_corrupted",
        "_tidb_checksum_version",
    }
)
_OPS: Final[Mapping[RowOp, Any]] = {RowOp.INSERT: "insert", RowOp.UPDATE: "update", RowOp.DELETE: "delete"}
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


class AvroDecoder:
    """Reads one message; which kind of change it is says the position header, as in an INSERT without extension."""

    def __init__(self, schema_text: Callable[[int], str]) -> None:
        """``schema_text`` gives the registry's text of a schema id."""

        @cache
        def parsed(schema_id: int) -> tuple[dict[str, Any], Any]:
            raw = read_json(schema_text(schema_id))
            try:
                # TiCDC writes a DOUBLE's default as 0, where Avro has 0.0. Nothing is read by a default.
                return raw, fastavro.parse_schema(raw, _ignore_default_error=True)
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
                return Ddl(schema=raw["schema"], table=raw["table"], query=raw["query"], **stamps)
            key, schema = self._read(record.key or b"")
            columns = dict(key)
            if record.value is not None:
                columns, schema = self._read(record.value)
                columns = {name: value for name, value in columns.items() if name not in _EXTENSION}
            return Row(
                schema=str(schema["namespace"]).split(".", 1)[1],
                table=schema["name"],
                op="delete" if record.value is None else _OPS[position.op],
                columns=columns,
                key_names=tuple(key),
                types=_types(schema),
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

    def _read(self, datum: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        magic, schema_id = _HEAD.unpack_from(datum)
        if magic != 0:
            raise ValueError(f"no Confluent magic byte: {datum[:8].hex()}")
        raw, schema = self._parsed(schema_id)
        try:
            return dict(fastavro.schemaless_reader(io.BytesIO(datum[_HEAD.size :]), schema, None)), raw
        except Exception as error:  # as above
            raise ValueError(f"not of schema {schema_id}: {error!r}") from error


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
