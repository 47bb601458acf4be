"""Schema files of TiCDC's storage sink: the definition of a table version, or of a schema, as JSON beside the data.

A file's name ends with a checksum of what the columns are, so that equal definitions of one version are one file. Who
reads the files computes it again, and stops at a name that has another.

Source: pingcap/ticdc ``pkg/cloudstorage/schema_file.go`` and ``generator.go``; the reference's section 7. Files of the
classic architecture have no names of ENUM and SET; its own reader computes other checksums of tables with such columns.
"""

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

from schemas.ids import Ts
from schemas.sink.file_names import path_name, schema_path_name
from schemas.sink.storage_rows import SchemaFile
from schemas.tidb.mysql_types import MysqlFlag, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.encode.wire.mysql_names import DISPLAY_LENGTH, bare_type_name
from sorters.core.encode.wire.protocol import DdlMessage

_FORMAT_VERSION: Final = 1
_TEXT_LENGTH: Final[dict[MysqlType, int]] = {
    MysqlType.TINYBLOB: 255,
    MysqlType.BLOB: 65_535,
    MysqlType.MEDIUMBLOB: 16_777_215,
    MysqlType.LONGBLOB: 4_294_967_295,
}
_INTEGERS = (MysqlType.TINYINT, MysqlType.SMALLINT, MysqlType.MEDIUMINT, MysqlType.INT, MysqlType.BIGINT)
_TEXTS = (MysqlType.VARCHAR, MysqlType.STRING, MysqlType.VAR_STRING, *_TEXT_LENGTH)
_WITH_LENGTH: Final = frozenset({*_INTEGERS, *_TEXTS, MysqlType.BIT, MysqlType.YEAR})
_WITH_FRACTION: Final = frozenset({MysqlType.TIMESTAMP, MysqlType.DATETIME, MysqlType.TIME})
_FLOATS: Final = frozenset({MysqlType.FLOAT, MysqlType.DOUBLE})
_ALWAYS: Final = ("ColumnName", "ColumnType", "ColumnDefault")
Entry = str | list[str]
_NO_UTF8: Final = re.compile(r"[\ud800-\udfff]")


def ddl_file(event: DdlMessage, *, output_column_id: bool = False, table_id: int | None = None) -> SchemaFile:
    """Return the file that a DDL writes: of the table as it left it, of a table that went as it was, or of a schema.

    Args:
        event: the DDL.
        output_column_id: write the ids of columns too.
        table_id: the folder's name; None: schema and table.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    stored = event.post or event.pre
    table = None if stored is None or not event.table else stored.decode()
    columns = [] if table is None else [_column(column, output_column_id) for column in _columns(table)]
    definition = _definition(event.schema, event.table, event.commit_ts, event.query, event.ddl_type, columns)
    return SchemaFile(schema_file_path(definition, table_id), _json(definition), is_ddl=True)


def table_file(
    table: TableVersion, version: Ts, *, output_column_id: bool = False, table_id: int | None = None
) -> SchemaFile:
    """Return the file of a table that no DDL has told of: it was there when the changefeed began."""
    columns = [_column(column, output_column_id) for column in _columns(table)]
    definition = _definition(table.schema, table.table, version, "", 0, columns)
    return SchemaFile(schema_file_path(definition, table_id), _json(definition), is_ddl=False)


def schema_file_path(definition: Mapping[str, Any], table_id: int | None = None) -> str:
    """Return the path of a definition's file, from the storage's root.

    The checksum is one of the definition without ``TableVersion``, ``Query`` and ``Type``, with a ``Version`` of 0 and
    the columns by name; a schema's, which stand in the file as ``null``, are an empty list in it.
    """
    checked = {name: value for name, value in definition.items() if name not in ("TableVersion", "Query", "Type")}
    columns = definition["TableColumns"] or []
    checked |= {"Version": 0, "TableColumns": sorted(columns, key=lambda column: _go_order(column["ColumnName"]))}
    crc = zlib.crc32(_json(checked).encode())
    folder = schema_path_name(definition["Schema"]) if table_id is None else str(table_id)
    if definition["Table"] and table_id is None:
        folder += f"/{path_name(definition['Table'])}"
    return f"{folder}/meta/schema_{definition['TableVersion']}_{crc:010d}.json"


def _columns(table: TableVersion) -> list[ColumnVersion]:
    return [column for column in table.columns if not column.hidden]


def _definition(
    schema: str, table: str, version: Ts, query: str, ddl_type: int, columns: list[dict[str, Entry]]
) -> dict[str, Any]:
    return {
        "Table": table,
        "Schema": schema,
        "Version": _FORMAT_VERSION,
        "TableVersion": version,
        "Query": query,
        "Type": ddl_type,
        "TableColumns": columns or None,
        "TableColumnsTotal": len(columns),
    }


def _go_order(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _json(value: Mapping[str, Any]) -> str:
    """Return JSON as Go's ``MarshalIndent`` with four spaces: it escapes what HTML would read and bytes that are none
    of UTF-8.
    """
    text = _NO_UTF8.sub(r"\\ufffd", json.dumps(value, ensure_ascii=False, indent=4))
    for char, form in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(char, form)
    return text


def _column(column: ColumnVersion, output_column_id: bool) -> dict[str, Entry]:
    name = bare_type_name(column).upper() + (" UNSIGNED" if column.unsigned else "")
    parts = {
        "ColumnId": str(column.id) if output_column_id else "",
        "ColumnName": column.name,
        "ColumnType": name,
        "ColumnDefault": _default(column),
        **_sizes(column),
        "ColumnNullable": "" if column.nullable else "false",
        "ColumnIsPk": "true" if column.mysql_flag & MysqlFlag.PRIMARY_KEY else "",
    }
    # Go leaves a default out where there is none (nil), not where it is an empty text.
    entry: dict[str, Entry] = {
        key: text or "" for key, text in parts.items() if text or (key in _ALWAYS and text is not None)
    }
    if column.elems and column.tp in (MysqlType.ENUM, MysqlType.SET):
        entry["ColumnElems"] = list(column.elems)
    return entry


def _default(column: ColumnVersion) -> str | None:
    """Return the default as TiDB keeps it; a BIT's bytes are a Go string, read as UTF-8."""
    if column.default is None or column.tp is not MysqlType.BIT or column.default_is_expression:
        return column.default
    return column.default.encode("latin-1").decode("utf-8", "surrogateescape")


def _sizes(column: ColumnVersion) -> dict[str, str]:
    """Return precision and scale, as far as the type has them."""
    tp = column.tp
    length = column.flen if column.flen != -1 else (DISPLAY_LENGTH | _TEXT_LENGTH).get(tp, 0)
    scale = column.decimal
    if tp is MysqlType.DECIMAL:
        return {"ColumnPrecision": str(length), "ColumnScale": str(max(scale, 0))}
    fraction = {"ColumnScale": str(scale)} if scale > 0 else {}
    if tp in _WITH_FRACTION:
        return fraction
    if tp in _FLOATS:
        return {"ColumnPrecision": str(length), **fraction}
    return {"ColumnPrecision": str(length)} if tp in _WITH_LENGTH else {}
