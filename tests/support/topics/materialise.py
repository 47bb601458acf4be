"""Table contents out of a topic's messages, as a plain consumer would build them, and their comparison with SELECT.

A consumer applies rows and DDL statements in commit_ts order. What it cannot know without a partition engine of its own
is said by :data:`PARTITION_DDL`; every other difference is a failure.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tests.support.topics.messages import Message

Row = dict[str, Any]
Pk = tuple[str, ...]
_NAME = r"`?(?:(?P<{0}schema>[^`.\s]+)`?\.`?)?(?P<{0}table>[^`.\s,;]+)`?"
PARTITION_DDL = re.compile(
    r"ALTER TABLE .*((EXCHANGE|TRUNCATE|DROP|REORGANIZE|COALESCE) PARTITION|REMOVE PARTITIONING|PARTITION BY)",
    re.IGNORECASE,
)
"""These move or end rows by partition without a row change; messages do not say in which partition a row is."""
_TRUNCATE = re.compile(r"TRUNCATE TABLE", re.IGNORECASE)
_DROP_TABLE = re.compile(r"DROP TABLE", re.IGNORECASE)
_DROP_SCHEMA = re.compile(r"DROP DATABASE", re.IGNORECASE)
_RECOVER = re.compile(r"RECOVER TABLE", re.IGNORECASE)
_RENAME = re.compile(r"RENAME TABLE " + _NAME.format("old") + r" TO " + _NAME.format("new"), re.IGNORECASE)
_DROP_COLUMN = re.compile(r"DROP COLUMN (?:IF EXISTS )?`(?P<column>[^`]+)`", re.IGNORECASE)
_EXCHANGE = re.compile(r"EXCHANGE PARTITION .* WITH TABLE " + _NAME.format("with"), re.IGNORECASE)


@dataclass
class Table:
    """Rows by primary key, with the types that their own messages gave them."""

    rows: dict[Pk, tuple[Row, Mapping[str, str]]] = field(default_factory=dict)
    pk: Pk = ()
    unknowable: str = ""
    """The DDL after which a consumer cannot know the contents."""


@dataclass
class Contents:
    """All tables, by ``schema.table``. Feed it messages in commit_ts order, each once."""

    tables: dict[str, Table] = field(default_factory=dict)
    dropped: dict[str, Table] = field(default_factory=dict)

    def apply(self, message: Message) -> None:
        if message.kind == "row":
            self._row(message)
        elif message.kind == "ddl":
            self._ddl(message)

    def _row(self, message: Message) -> None:
        table = self.tables.setdefault(message.name, Table())
        if table.pk != message.pk:
            table.rows = {_pk(row, message.pk): (row, types) for row, types in table.rows.values()}
            table.pk = message.pk
        assert message.columns is not None
        before = {**message.columns, **(message.old or {})}
        if message.op != "insert":
            table.rows.pop(_pk(before, message.pk), None)
        if message.op != "delete":
            table.rows[_pk(message.columns, message.pk)] = (dict(message.columns), message.types or {})

    def _ddl(self, message: Message) -> None:
        query, name = message.query, message.name
        if PARTITION_DDL.search(query):
            self.tables.setdefault(name, Table()).unknowable = query
            if exchange := _EXCHANGE.search(query):
                other = f"{exchange['withschema'] or message.schema}.{exchange['withtable']}"
                self.tables.setdefault(other, Table()).unknowable = query
        elif _TRUNCATE.match(query):
            self.tables[name] = Table()
        elif _DROP_TABLE.match(query):
            self.dropped[name] = self.tables.pop(name, Table())
        elif _RECOVER.match(query):
            self.tables[name] = self.dropped.pop(name, Table())
        elif _DROP_SCHEMA.match(query):
            self.tables = {key: table for key, table in self.tables.items() if not key.startswith(f"{message.schema}.")}
        elif rename := _RENAME.match(query):
            old = f"{rename['oldschema'] or message.schema}.{rename['oldtable']}"
            self.tables[name] = self.tables.pop(old, Table())
        else:
            for column in _DROP_COLUMN.finditer(query):
                for row, _ in self.tables.get(name, Table()).rows.values():
                    row.pop(column["column"], None)


def materialise(messages: Iterable[tuple[int, Message]], read_ts: int) -> Contents:
    """Return the contents at ``read_ts`` out of ``(commit_ts, message)`` in commit_ts order, rows before DDL at one."""
    contents = Contents()
    for commit_ts, message in messages:
        if commit_ts <= read_ts:
            contents.apply(message)
    return contents


def differences(
    table: Table, columns: list[str], types: list[str], selected: list[list[Any]], elements: Mapping[str, list[str]]
) -> Iterator[str]:
    """Yield each row and cell that differs from a SELECT's result.

    ``elements`` gives the names of ENUM and SET columns. A column that a row's message does not have was added later,
    or is virtual: it is left out, as TiDB's own README of the recording says.
    """
    kinds = dict(zip(columns, types, strict=True))
    wanted: dict[tuple[Any, ...], Row] = {}
    for cells in selected:
        row = {name: plain(cell, kinds[name]) for name, cell in zip(columns, cells, strict=True)}
        wanted[tuple(row[name] for name in table.pk)] = row
    have: dict[tuple[Any, ...], Row] = {}
    for values, own_types in table.rows.values():
        row = {
            name: plain(value, kinds[name], own_types.get(name, ""), elements.get(name, ()))
            for name, value in values.items()
            if name in kinds
        }
        have[tuple(row[name] for name in table.pk)] = row
    yield from (f"row {key} is not in the SELECT" for key in have.keys() - wanted.keys())
    yield from (f"row {key} is missing" for key in wanted.keys() - have.keys())
    for key in have.keys() & wanted.keys():
        for name, value in have[key].items():
            if value != wanted[key][name]:
                yield f"row {key} column {name} ({kinds[name]}): {value!r} instead of {wanted[key][name]!r}"


def plain(value: Any, select_type: str, message_type: str = "", elements: Sequence[str] = ()) -> Any:
    """Return a value of a message, or a cell of a SELECT, as something that compares equal when they mean the same.

    Nothing is rounded but FLOAT, of which SELECT prints six digits.
    """
    kind = select_type.removeprefix("UNSIGNED ")
    if isinstance(value, dict):
        value = bytes.fromhex(value["hex"])
        return int.from_bytes(value, "big") if kind == "BIT" else value
    if value is None:
        return None
    if kind == "BIT":
        return int.from_bytes(value, "big") if isinstance(value, bytes) else int(value)
    if kind in ("BINARY", "VARBINARY", "BLOB"):
        return value if isinstance(value, bytes) else str(value).encode("latin-1")
    if kind == "FLOAT":
        return f"{float(value):.5g}"
    if kind == "DOUBLE":
        return float(value)
    if kind == "BIGINT" and select_type != kind and isinstance(value, int):
        return Decimal(value % (1 << 64))  # Avro's mode "long" gives the 64 bits as a signed number
    if kind in ("DECIMAL", "BIGINT", "INT", "MEDIUMINT", "SMALLINT", "TINYINT", "YEAR"):
        return Decimal(str(value))
    if elements and message_type in ("enum", "set") and str(value).isdigit():
        return _element(int(value), message_type, elements)
    return str(value)


def _element(number: int, message_type: str, elements: Sequence[str]) -> str:
    if message_type == "set":
        return ",".join(name for bit, name in enumerate(elements) if number >> bit & 1)
    return elements[number - 1] if number else ""


def _pk(row: Mapping[str, Any], pk: Pk) -> Pk:
    return tuple(str(row.get(column)) for column in pk)


NO_KEY = {
    "d1.t_nopk": "no primary key and no not-null unique key: not replicated without force-replicate",
    "d2.t_nopk2": "the same table after its rename",
    "tpcc.history_2024": "no key either",
}
VECTOR_V1 = re.compile(r"d1\.t_v1: .* column c_vec ")
"""TiCDC, and so we, decode a VECTOR of a row in the old format as an empty one (README: Known limits)."""


def explained(what: str, contents: Contents) -> str:
    """Return why the recording's table, or ``table: difference``, cannot equal the SELECT; '' when it must."""
    if what in NO_KEY:
        return NO_KEY[what]
    if VECTOR_V1.match(what):
        return "VECTOR in row format v1"
    table = contents.tables.get(what)
    return f"contents unknown to a consumer after: {table.unknowable}" if table is not None and table.unknowable else ""


def message_of(encoded: Mapping[str, Any]) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a line of ``tests/data/tidb/encoded``."""
    key, value = encoded.get("key"), encoded.get("value")
    return (base64.b64decode(key) if key else None), (base64.b64decode(value) if value else None)
