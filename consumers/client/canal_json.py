"""canal-json messages as changes (reference: TiCDC's docs, "Canal-JSON"): every value is text beside its MySQL type."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from consumers.client.changes import Change, Ddl, Row
from consumers.client.core.partition import StreamRecord
from consumers.client.errors import MessageError
from schemas.json_text import read_json
from schemas.sink.image_note import ImageNote
from schemas.sink.position import Position, PositionClass

_OPS: Final[Mapping[str, Any]] = {"INSERT": "insert", "UPDATE": "update", "DELETE": "delete"}
_INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit", "enum", "set"})
_FLOATS: Final = frozenset({"float", "double"})
_BINARY: Final = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})


class CanalJsonDecoder:
    """Reads one message; raises MessageError where it cannot."""

    def __call__(self, record: StreamRecord, position: Position) -> Change:
        """Return what ``record`` says.

        Raises:
            MessageError: not canal-json, or a message that lacks its row: it is kept elsewhere (claim check) or nowhere
                (handle-key-only). A DELETE's key is enough.
        """
        try:
            raw = read_json(record.value or b"")
            where = {"schema": raw["database"], "table": raw["table"]}
            stamps: dict[str, Any] = {"commit_ts": position.commit_ts, "start_ts": position.start_ts}
            if position.position_class is PositionClass.DDL:
                return Ddl(query=raw["sql"], **where, **stamps)
            _check_row_is_there(raw, record)
            types = {name: _base(kind) for name, kind in raw["mysqlType"].items()}
            return Row(
                op=_OPS[raw["type"]],
                columns=_values(raw["data"][0], types),
                old=_values(raw["old"][0], types) if raw.get("old") else None,
                key_names=tuple(raw["pkNames"] or ()),
                types=raw["mysqlType"],
                **where,
                **stamps,
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
            raise MessageError("not a canal-json message", reason=repr(error), **_where(record)) from error

    def images(self, note: ImageNote) -> ImageNote:
        """Return what a watermark says of images: rows have the same names."""
        return note


def _check_row_is_there(raw: Mapping[str, Any], record: StreamRecord) -> None:
    extension = raw.get("_tidb") or {}
    if "claimCheckLocation" in extension:
        raise MessageError(
            "the row is kept in a claim-check store, which this reader does not read",
            location=extension["claimCheckLocation"],
            **_where(record),
        )
    if extension.get("onlyHandleKey") and raw["type"] != "DELETE":
        raise MessageError(
            "the row was too large for its topic, and its message has the key alone (handle-key-only); allow larger "
            "messages, or leave the table out",
            table=f"{raw['database']}.{raw['table']}",
            **_where(record),
        )


def _where(record: StreamRecord) -> dict[str, Any]:
    return {
        "topic": record.topic_partition.topic,
        "partition": record.topic_partition.partition,
        "offset": record.offset,
    }


def _base(mysql_type: str) -> str:
    """Return ``int`` of ``int(11) unsigned``; canal-json may carry the short or the full form."""
    return mysql_type.lower().split("(", 1)[0].split(" ", 1)[0]


def _values(row: Mapping[str, str | None], types: Mapping[str, str]) -> dict[str, Any]:
    return {name: _value(text, types[name]) for name, text in row.items()}


def _value(text: str | None, kind: str) -> Any:
    if text is None:
        return None
    if kind in _INTEGERS:
        return int(text)
    if kind in _FLOATS:
        return float(text)
    if kind == "decimal":
        return Decimal(text)
    if kind in _BINARY:
        return text.encode("latin-1")
    return text
