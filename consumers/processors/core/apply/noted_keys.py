"""Keys that a resync has noted at the destination: which rows a table had before its image, and has not got since.

A resync of a table whose rows no range of keys tells (:mod:`schemas.sink.sql_rows`, ``notes``) goes in three steps::

    NOTE      while all partitions stand still, the table's keys go into a table of ours
    rows      each row that is written, of the image or a change, strikes its key off, in the same transaction
    DELETE    when the image is whole, and all partitions stand still again, what is left is deleted from the table

What is left then was there before, and the source has had no such row since: neither in its image nor by a change. All
of it is said in the destination's own words (its collations decide which keys are the same), and never by an order of
keys that it may not share with TiKV. The pages in which keys are noted go by the destination's own order.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from consumers.processors.core.apply.statements import NotedTable, quoted
from schemas.ids import TableId

NOTED_AT_ONCE: Final = 10_000
"""Keys of one transaction, so that no server has to hold all of them."""
DELETED_AT_ONCE: Final = 1_000
"""Rows of one transaction."""
_BY_NUMBER: Final = ("enum(", "set(")
"""Types that are ordered by their members' numbers, and compared by their texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumn:
    """A column of a unique key of the destination's table."""

    name: str
    tp: str
    """As the server writes it."""
    collation: str = ""
    prefix: int = 0
    """Characters that the key looks at; 0: all."""
    is_nullable: bool = False

    @property
    def shape(self) -> tuple[str, str, str]:
        """What must stay as it is for noted values to mean the same."""
        return self.name.lower(), self.tp.lower(), self.collation


_TEXT: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_INTEGER: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
_KINDS: Final = {
    **dict.fromkeys(_TEXT, "text"),
    **dict.fromkeys(_BYTES, "bytes"),
    **dict.fromkeys(_INTEGER, "integer"),
}
_TYPE: Final = re.compile(r"(\w+)(?:\(([\d,]+)\))?")


def type_misfits(names: Sequence[str], types: Sequence[str], key: Sequence[KeyColumn]) -> Iterator[str]:
    """Yield why a value that is written to a key column may be another there, so that its key would not be struck off.

    >>> column = KeyColumn(name="D", tp="decimal(10,1)")
    >>> list(type_misfits(["d"], ["decimal(10,2)"], [column]))
    ['its key column `D` is decimal(10,1), not decimal(10,2)']
    """
    there = {column.name.lower(): column for column in key}
    for name, tp in zip(names, types, strict=True):
        column = there[name.lower()]
        (kind, digits), (own_kind, own_digits) = _kind(tp), _kind(column.tp)
        if kind != own_kind or own_digits < digits:
            yield f"its key column `{column.name}` is {column.tp}, not {tp}"


def _kind(tp: str) -> tuple[str, int]:
    """Return what a type is, and how many digits it keeps behind the point or second."""
    match = _TYPE.match(tp.lower())
    if match is None:
        return tp, 0
    word, arguments = match[1], (match[2] or "").split(",")
    kept = arguments[1:] if word == "decimal" else arguments if word in ("datetime", "timestamp", "time") else []
    return _KINDS.get(word, word), int(kept[0]) if kept and kept[0] else 0


def notes_name(feed: str, table_id: TableId) -> str:
    """Return the table of ``tidebus`` that has the noted keys of one of a changefeed's tables."""
    return "resync_" + hashlib.sha256(f"{feed}\0{table_id}".encode()).hexdigest()[:40]


def noted_table(name: str, key: Sequence[str]) -> NotedTable:
    """Return how rows are struck off it."""
    return NotedTable(name=_notes(name), key=frozenset(column.lower() for column in key))


def create_statement(name: str, key: Sequence[KeyColumn]) -> bytes:
    """Return what makes the table of the noted keys, in the order of the key."""
    columns = [
        b"%s %s%s NOT NULL"
        % (
            quoted(column.name),
            column.tp.encode(),
            b" COLLATE " + column.collation.encode() if column.collation else b"",
        )
        for column in key
    ]
    parts = [quoted(column.name) + (b"(%d)" % column.prefix if column.prefix else b"") for column in key]
    return b"CREATE TABLE %s (%s, PRIMARY KEY (%s))" % (_notes(name), b", ".join(columns), b", ".join(parts))


def drop_statement(name: str) -> bytes:
    """Return what drops it."""
    return b"DROP TABLE IF EXISTS " + _notes(name)


def last_key_statement(name: str, key: Sequence[KeyColumn]) -> bytes:
    """Return what keeps the highest noted key in variables of the session."""
    by_key = b" ORDER BY " + b", ".join(quoted(column.name) + b" DESC" for column in key) + b" LIMIT 1)"
    values = (
        b"@tidebus_%d = (SELECT %s FROM %s%s" % (number, _order(column), _notes(name), by_key)
        for number, column in enumerate(key)
    )
    return b"SET " + b", ".join(values)


def note_statement(name: str, table: bytes, key: Sequence[KeyColumn], *, is_first: bool) -> bytes:
    """Return what notes the next keys of a table (quoted), above those that :func:`last_key_statement` kept.

    A row with a NULL in the key is none of the source's; :func:`null_statement` tells those.
    """
    columns = b", ".join(quoted(column.name) for column in key)
    conditions = [quoted(column.name) + b" IS NOT NULL" for column in key if column.is_nullable]
    if not is_first:
        conditions.append(b"(" + b" OR ".join(_above(key)) + b")")
    where = b" WHERE " + b" AND ".join(conditions) if conditions else b""
    return b"INSERT INTO %s (%s) SELECT %s FROM %s%s ORDER BY %s LIMIT %d" % (
        *(_notes(name), columns, columns, table, where, columns),
        NOTED_AT_ONCE,
    )


def delete_statements(name: str, table: bytes, key: Sequence[KeyColumn]) -> tuple[bytes, bytes]:
    """Return what deletes the next rows of a table whose keys are left, and what strikes these off."""
    columns = b", ".join(quoted(column.name) for column in key)
    next_keys = b"%s ORDER BY %s LIMIT %d" % (_notes(name), columns, DELETED_AT_ONCE)
    same = b" AND ".join(b"t.%s = n.%s" % (quoted(column.name), quoted(column.name)) for column in key)
    rows = b"DELETE t FROM %s AS t JOIN (SELECT %s FROM %s) AS n ON %s" % (table, columns, next_keys, same)
    return rows, b"DELETE FROM " + next_keys


def null_statement(table: bytes, key: Sequence[KeyColumn]) -> bytes | None:
    """Return what deletes some rows with a NULL in the key, which the source cannot have; None: there can be none."""
    conditions = [quoted(column.name) + b" IS NULL" for column in key if column.is_nullable]
    if not conditions:
        return None
    return b"DELETE FROM %s WHERE %s LIMIT %d" % (table, b" OR ".join(conditions), DELETED_AT_ONCE)


def _notes(name: str) -> bytes:
    return b"tidebus." + quoted(name)


def _order(column: KeyColumn) -> bytes:
    """Return a value of a column by which keys compare as they are ordered."""
    is_by_number = column.tp.lower().startswith(_BY_NUMBER)
    return quoted(column.name) + (b"+0" if is_by_number else b"")


def _above(key: Sequence[KeyColumn]) -> Iterator[bytes]:
    for number, column in enumerate(key):
        equal = [b"%s = @tidebus_%d" % (_order(before), at) for at, before in enumerate(key[:number])]
        yield b"(" + b" AND ".join([*equal, b"%s > @tidebus_%d" % (_order(column), number)]) + b")"
