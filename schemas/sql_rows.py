"""Messages from a sorter to the processors of a database sink: rows as SQL literals, DDL, watermarks.

A row message's **key** is its table's form: JSON with schema, table, the columns that a row literal holds and the
handle key's columns; all rows of a message have one form. Its **value** is one record a row, one after the other:

==========  =====  =====================================================================
commit_ts   8      big-endian, as all numbers
start_ts    8
op          1      :class:`schemas.position.RowOp`, and :data:`LOOSE`
key bytes   4      length of the key literal
row bytes   4      length of the row literal; 0 for a DELETE
key                of one column the literal itself: ``7``; of several ``(`a`=7 AND `b`='x')``
row                ``(7,'x',NULL)``: the columns of the form
==========  =====  =====================================================================

A joined message carries the position of its last row (:mod:`schemas.position`). DDL events and watermarks have no key
and a JSON value; DDL events go to every partition, since each must stop there.
"""

import json
import struct
from dataclasses import dataclass

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.position import RowOp

ROW_HEAD = struct.Struct(">QQBII")
LOOSE = 0x80
"""Beside the op: the row holds an ENUM's error value (0), which a server takes only outside strict mode."""
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm:
    """What a statement needs of a table beside the literals."""

    schema: str
    table: str
    version: Ts
    """finished_ts of the DDL that made the table so."""
    columns: tuple[str, ...]
    """Of a row literal: those of the table without generated ones."""
    key: tuple[str, ...]
    """Of a key literal: the handle key."""

    @property
    def name(self) -> str:
        """``schema.table``."""
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlDdl:
    """A DDL event."""

    commit_ts: Ts
    ddl_type: int
    """TiDB's action type."""
    schema: str
    table: str
    """Empty for a DDL on a schema."""
    pre_schema: str
    pre_table: str
    """Names before a rename, and the plain table of an EXCHANGE PARTITION; empty where there is none."""
    query: str
    plain_backslashes: bool = False
    """A backslash within its strings means itself: TiDB has restored the statement from its syntax tree."""
    clock: str = ""
    """What CURRENT_TIMESTAMP was, where it has filled a new column of old rows: ``YYYY-MM-DD hh:mm:ss[.f]`` in UTC."""

    @property
    def name(self) -> str:
        """What it is about, for people."""
        return f"{self.schema}.{self.table}" if self.table else self.schema


SqlRow = tuple[int, int, RowOp | int, bytes, bytes]
"""commit_ts, start_ts, op (with LOOSE), key literal, row literal: a plain tuple, as it is made once a row."""


def encode_form(form: TableForm) -> bytes:
    """Return a row message's key."""
    parts = [_VERSION, form.schema, form.table, form.version, form.columns, form.key]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")


def decode_form(key: bytes) -> TableForm:
    """Read a row message's key.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        version, schema, table, ts, columns, handle = json.loads(key.decode("utf-8", "surrogateescape"))
        if version != _VERSION:
            raise ValueError(f"version {version}")
        return TableForm(schema=schema, table=table, version=Ts(int(ts)), columns=tuple(columns), key=tuple(handle))
    except (ValueError, TypeError) as error:
        raise CorruptDataError("form of a row message does not decode", key=key[:200], reason=repr(error)) from error


def decode_rows(value: bytes) -> list[SqlRow]:
    """Return the rows of a message.

    Raises:
        CorruptDataError: it ends within a row.
    """
    rows: list[SqlRow] = []
    at, end, unpack, head = 0, len(value), ROW_HEAD.unpack_from, ROW_HEAD.size
    try:
        while at < end:
            commit_ts, start_ts, op, key_bytes, row_bytes = unpack(value, at)
            key_at = at + head
            row_at = key_at + key_bytes
            at = row_at + row_bytes
            rows.append((commit_ts, start_ts, op, value[key_at:row_at], value[row_at:at]))
    except struct.error as error:
        raise CorruptDataError("row message ends early", at=at, bytes=end) from error
    if at != end:
        raise CorruptDataError("row message ends early", at=at, bytes=end)
    return rows


def encode_ddl(ddl: SqlDdl) -> bytes:
    """Return a DDL message's value."""
    parts = {
        "ddl": ddl.query,
        "commit_ts": ddl.commit_ts,
        "type": ddl.ddl_type,
        "schema": ddl.schema,
        "table": ddl.table,
        "pre_schema": ddl.pre_schema,
        "pre_table": ddl.pre_table,
        "plain_backslashes": ddl.plain_backslashes,
        "clock": ddl.clock,
    }
    return json.dumps(parts).encode()


def decode_ddl(value: bytes) -> SqlDdl:
    """Read a DDL message's value.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        raw = json.loads(value)
        return SqlDdl(
            commit_ts=Ts(int(raw["commit_ts"])),
            ddl_type=int(raw["type"]),
            schema=raw["schema"],
            table=raw["table"],
            pre_schema=raw["pre_schema"],
            pre_table=raw["pre_table"],
            query=raw["ddl"],
            plain_backslashes=bool(raw["plain_backslashes"]),
            clock=raw["clock"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("ddl message does not decode", value=value[:200], reason=repr(error)) from error


def encode_watermark(ts: Ts) -> bytes:
    """Return a watermark's value, for people: machines read the position."""
    return b'{"watermark":%d}' % ts
