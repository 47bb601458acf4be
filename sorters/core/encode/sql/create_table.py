"""CREATE TABLE from a TableInfo: what a destination gets that lacks a table whose rows are to come as an image.

The text is read in NO_BACKSLASH_ESCAPES. What only TiDB knows stands in its special comments. Left out is what rows do
not need and the destination would hold against them, or against the order of statements: foreign keys, checks,
AUTO_INCREMENT's next value, the visibility of indexes, and TiDB's options of storage (shards, TTL, placement). A
default of ``nextval`` needs a sequence that is not there, one of a TIMESTAMP a time zone: rows bring both values along.

Source: pingcap/tidb ``pkg/executor/show.go``, ``ConstructResultOfShowCreateTable`` and ``AppendPartitionInfo``.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from schemas.ddl.schema_change import StoredTable
from schemas.errors import CorruptDataError
from schemas.tidb.info_json import (
    JsonObject,
    ci_name,
    names_in,
    number_in,
    objects_in,
    optional_lists_in,
    optional_object_in,
    optional_objects_in,
    text_in,
    texts_in,
)
from schemas.tidb.mysql_types import SCHEMA_STATE_PUBLIC, MysqlFlag, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.encode.wire.mysql_names import bare_type_name, mysql_type_name
from sorters.core.sql.tokens import quote_name, quote_string

_NAMED: Final = frozenset({MysqlType.ENUM, MysqlType.SET})
_TEXTS: Final = _NAMED | {
    *(MysqlType.VARCHAR, MysqlType.STRING, MysqlType.VAR_STRING),
    *(MysqlType.TINYBLOB, MysqlType.BLOB, MysqlType.MEDIUMBLOB, MysqlType.LONGBLOB),
}
_NOW: Final = frozenset({MysqlType.TIMESTAMP, MysqlType.DATETIME})
_RANGE, _HASH, _LIST, _KEY = 1, 2, 3, 4
"""TiDB's ``ast.PartitionType``."""
_WORD: Final = re.compile(r"[a-zA-Z0-9_]+")
_OTHER_INDEXES: Final = ("vector_index", "inverted_index", "full_text_index")
"""Indexes that hold no order of rows: TiFlash's."""


def create_table(stored: StoredTable) -> str:
    """Return the statement that makes a table as a TableInfo has it, if there is none of its name.

    Raises:
        CorruptDataError: the TableInfo does not decode.
    """
    table, info = stored.decode(), stored.info()
    try:
        parts = [*_columns(table, info), *_keys(table, info)]
        name = f"{quote_name(table.schema)}.{quote_name(table.table)}"
        text = f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(parts)}){_options(table, info)}"
        return text + _partitions(optional_object_in(info, "partition") or {})
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(
            "table info does not make a table", table_id=stored.table_id, table=table.name, reason=repr(error)
        ) from error


def create_schema(name: str, charset: str = "", collation: str = "") -> str:
    """Return the statement that makes a schema, if there is none of its name; '': the destination's own charset, and
    what is no word of SQL counts as that.
    """
    text = f"CREATE DATABASE IF NOT EXISTS {quote_name(name)}"
    if not _WORD.fullmatch(charset):
        return text
    text += f" CHARACTER SET {charset}"
    return f"{text} COLLATE {collation}" if _WORD.fullmatch(collation) else text


def _columns(table: TableVersion, info: JsonObject) -> Iterator[str]:
    expressions = {number_in(raw, "id"): text_in(raw, "generated_expr_string") for raw in objects_in(info, "cols")}
    for column in table.all_columns:
        if not column.hidden:
            yield _column(column, expressions[column.id])


def _column(column: ColumnVersion, generated_as: str) -> str:
    text = f"{quote_name(column.name)} {sql_type(column)}"
    if column.tp in _TEXTS and not column.binary and column.charset:
        text += f" CHARACTER SET {column.charset} COLLATE {column.collation}"
    if column.generated:
        text += f" GENERATED ALWAYS AS ({generated_as}) {'STORED' if column.stored else 'VIRTUAL'}"
    if not column.nullable:
        text += " NOT NULL"
    elif column.tp is MysqlType.TIMESTAMP:
        text += " NULL"  # to some servers one that says nothing is NOT NULL
    if column.mysql_flag & MysqlFlag.AUTO_INCREMENT:
        text += " AUTO_INCREMENT"
    elif not column.generated:
        text += _default(column)
    if column.mysql_flag & MysqlFlag.ON_UPDATE_NOW:
        text += f" ON UPDATE CURRENT_TIMESTAMP{_digits(column)}"
    return text + (f" COMMENT {quote_string(column.comment)}" if column.comment else "")


def sql_type(column: ColumnVersion) -> str:
    """Return a column's type as SQL."""
    if column.tp in _NAMED:
        return f"{bare_type_name(column)}({','.join(quote_string(elem) for elem in column.elems)})"
    return mysql_type_name(column, parameters=True)


def _default(column: ColumnVersion) -> str:
    text = column.default
    if text is None:
        return ""
    if text.upper().startswith("CURRENT_TIMESTAMP") and column.tp in _NOW:
        return f" DEFAULT CURRENT_TIMESTAMP{_digits(column)}"
    if column.default_is_expression:
        return "" if text.lower().lstrip("(").startswith("nextval") else f" DEFAULT ({text})"
    if column.tp is MysqlType.BIT:
        return f" DEFAULT b'{int.from_bytes(text.encode('latin-1'), 'big'):b}'"
    if column.tp is MysqlType.TIMESTAMP and not text.startswith("0000-00-00"):
        return ""
    return f" DEFAULT {quote_string(text)}"


def _digits(column: ColumnVersion) -> str:
    return f"({column.decimal})" if column.decimal > 0 else ""


def _keys(table: TableVersion, info: JsonObject) -> Iterator[str]:
    if table.pk_is_handle:
        names = ",".join(quote_name(table.columns[offset].name) for offset in table.key_columns)
        yield f"PRIMARY KEY ({names}) /*T![clustered_index] CLUSTERED */"
    for raw in optional_objects_in(info, "index_info"):
        if number_in(raw, "state") == SCHEMA_STATE_PUBLIC and not any(raw.get(kind) for kind in _OTHER_INDEXES):
            yield _key(raw, info)


def _key(raw: JsonObject, info: JsonObject) -> str:
    columns = objects_in(info, "cols")
    parts = ",".join(_key_part(part, columns[number_in(part, "offset")]) for part in objects_in(raw, "idx_cols"))
    # A TiDB refuses a unique key without a partitioning column unless it is told that the key is over all partitions.
    end = " /*T![global_index] GLOBAL */" if raw.get("is_global") else ""
    if raw.get("is_primary"):
        kind = "CLUSTERED" if info.get("is_common_handle") else "NONCLUSTERED"
        return f"PRIMARY KEY ({parts}) /*T![clustered_index] {kind} */{end}"
    text = f"{'UNIQUE KEY' if raw.get('is_unique') else 'KEY'} {quote_name(ci_name(raw['idx_name']))} ({parts})"
    return text + (f" COMMENT {quote_string(str(raw['comment']))}" if raw.get("comment") else "") + end


def _key_part(part: JsonObject, column: JsonObject) -> str:
    if column.get("hidden"):
        return f"({column['generated_expr_string']})"
    length = number_in(part, "length")
    return quote_name(ci_name(column["name"])) + (f"({length})" if length > 0 else "")


def _options(table: TableVersion, info: JsonObject) -> str:
    text = f" DEFAULT CHARACTER SET {table.charset} COLLATE {table.collation}" if table.charset else ""
    return text + (f" COMMENT {quote_string(str(info['comment']))}" if info.get("comment") else "")


def _partitions(info: JsonObject) -> str:
    """Return the partitioning, '' where there is none."""
    if not info.get("enable"):
        return ""
    kind, definitions = number_in(info, "type"), optional_objects_in(info, "definitions")
    columns = ",".join(quote_name(name) for name in names_in(info, "columns"))
    if kind == _HASH:
        return f" PARTITION BY HASH ({info['expr']})" + _numbered(definitions)
    if kind == _KEY:
        return f" PARTITION BY KEY ({columns})" + _numbered(definitions)
    if kind not in (_RANGE, _LIST):
        raise ValueError(f"partitions of type {kind}")
    by = f"{'RANGE' if kind == _RANGE else 'LIST'}" + (f" COLUMNS ({columns})" if columns else f" ({info['expr']})")
    values = _less_than if kind == _RANGE else _values_in
    listed = ", ".join(f"PARTITION {quote_name(ci_name(item['name']))} {values(item)}" for item in definitions)
    return f" PARTITION BY {by} ({listed})"


def _numbered(definitions: Sequence[JsonObject]) -> str:
    names = [ci_name(item["name"]) for item in definitions]
    if names == [f"p{number}" for number in range(len(names))]:
        return f" PARTITIONS {len(names)}"
    return f" ({', '.join(f'PARTITION {quote_name(name)}' for name in names)})"


def _less_than(item: JsonObject) -> str:
    return f"VALUES LESS THAN ({','.join(texts_in(item, 'less_than'))})"


def _values_in(item: JsonObject) -> str:
    values = optional_lists_in(item, "in_values")
    if [value for value in values if list(value) == ["DEFAULT"]] == values and values:
        return "DEFAULT"
    shown = (",".join(map(str, value)) if len(value) == 1 else f"({','.join(map(str, value))})" for value in values)
    return f"VALUES IN ({','.join(shown)})"
