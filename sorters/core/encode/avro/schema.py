"""Avro schemas of tables, text for text as TiCDC registers them.

Source: pingcap/ticdc ``pkg/sink/codec/avro/arvo.go``. The text is Go's ``json.Marshal`` of maps (keys sorted) and
structs (declared order: type, connect.parameters, logicalType, precision, scale).
"""

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from schemas.avro_name import sanitize_name
from schemas.tidb.mysql_types import INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.columnar.numbers import plain_digits

_INT_TYPES = frozenset({MysqlType.TINYINT, MysqlType.SMALLINT, MysqlType.MEDIUMINT})
_TIDB_TYPES = {
    MysqlType.FLOAT: "FLOAT",
    MysqlType.DOUBLE: "DOUBLE",
    MysqlType.BIT: "BIT",
    MysqlType.DECIMAL: "DECIMAL",
    MysqlType.ENUM: "ENUM",
    MysqlType.SET: "SET",
    MysqlType.JSON: "JSON",
    MysqlType.DATE: "DATE",
    MysqlType.DATETIME: "DATETIME",
    MysqlType.TIMESTAMP: "TIMESTAMP",
    MysqlType.TIME: "TIME",
    MysqlType.YEAR: "YEAR",
    MysqlType.VECTOR: "TiDBVECTORFloat32",
}
_DEFAULT_BIT_LENGTH, _DEFAULT_DECIMAL_LENGTH = 1, 10
EXTENSION_FIELDS = (
    {"default": "", "name": "_tidb_op", "type": "string"},
    {"default": 0, "name": "_tidb_commit_ts", "type": "long"},
    {"default": 0, "name": "_tidb_commit_physical_time", "type": "long"},
)
BEFORE_FIELD = "_ticdc_before"
"""The row before an UPDATE or DELETE, or null."""
CHECKSUM_FIELDS = (
    {"default": "", "name": "_tidb_row_level_checksum", "type": "string"},
    {"default": False, "name": "_tidb_corrupted", "type": "boolean"},
    {"default": 0, "name": "_tidb_checksum_version", "type": "int"},
)
_SMALL, _LARGE = 1e-6, 1e21
"""Go writes floats outside with an exponent."""
_GO_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True, slots=True)
class AvroModes:
    """How numbers that Avro lacks are written."""

    decimal: str = "precise"
    bigint_unsigned: str = "long"


def is_string_type(column: ColumnVersion, modes: AvroModes) -> bool:
    """Tell whether the Avro type is string though the column's is a number or decimal."""
    if column.tp is MysqlType.DECIMAL:
        return modes.decimal == "string"
    return column.tp is MysqlType.BIGINT and column.unsigned and modes.bigint_unsigned == "string"


def default_comes_first(column: ColumnVersion, modes: AvroModes) -> bool:
    """Tell whether a nullable column's union is ``[T, "null"]``: its default is not NULL. Decimals never have one."""
    logical = column.tp is MysqlType.DECIMAL and modes.decimal == "precise"
    return not logical and _default(column, modes) is not None


def record_schema(
    table: TableVersion,
    columns: Sequence[ColumnVersion],
    *,
    namespace: str,
    modes: AvroModes,
    extension: bool,
    checksum: bool = False,
    before: bool = False,
) -> str:
    """Return the compact schema text of a record of these columns."""
    fields = [_field(column, modes) for column in columns]
    name, namespace = sanitize_name(table.table), f"{sanitize_name(namespace)}.{sanitize_name(table.schema)}"
    row = {"type": "record", "name": name, "namespace": namespace, "fields": list(fields)}
    if before:
        fields.append({"default": None, "name": BEFORE_FIELD, "type": ["null", {**row, "name": f"{name}_before"}]})
    if extension:
        fields += EXTENSION_FIELDS
    elif before:
        fields += EXTENSION_FIELDS[:1]
    if checksum:
        fields += CHECKSUM_FIELDS
    return _with_go_numbers(go_json({**row, "fields": fields}), fields)


def _with_go_numbers(text: str, fields: Sequence[dict[str, Any]]) -> str:
    """Return a record's schema with the floats among its defaults as Go writes them. Within a string the quotes of such
    a member would be escaped.
    """
    for default in (field["default"] for field in fields if isinstance(field.get("default"), float)):
        text = text.replace(f'{{"default":{json.dumps(default)},', f'{{"default":{go_number(default)},')
    return text


def go_number(value: float) -> str:
    """Return a float as Go's ``json.Marshal`` writes it.

    >>> go_number(5.0), go_number(1e-5), go_number(1e-7), go_number(1e20), go_number(1e21)
    ('5', '0.00001', '1e-7', '100000000000000000000', '1e+21')
    """
    if value == 0 or _SMALL <= abs(value) < _LARGE:
        return plain_digits(repr(value))
    mantissa, _, exponent = repr(value).partition("e")
    return f"{mantissa.removesuffix('.0')}e{exponent[0]}{exponent[1:].lstrip('0')}"


def go_json(value: Any, *, sort_keys: bool = False) -> str:
    """Return JSON as Go's ``json.Marshal`` writes it: compact, with ``<``, ``>`` and ``&`` escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
    return "".join(_GO_ESCAPES.get(char, char) for char in text)


def _field(column: ColumnVersion, modes: AvroModes) -> dict[str, Any]:
    """Return a field with its members sorted by name, as Go writes maps."""
    avro_type = _type(column, modes)
    name = sanitize_name(column.name)
    if "logicalType" in avro_type:
        if column.nullable:
            return {"default": None, "name": name, "type": ["null", avro_type]}
        return {"name": name, "type": avro_type}
    default = _default(column, modes)
    if column.nullable:
        union = ["null", avro_type] if default is None else [avro_type, "null"]
        return {"default": default, "name": name, "type": union}
    return (
        {"name": name, "type": avro_type} if default is None else {"default": default, "name": name, "type": avro_type}
    )


def _type(column: ColumnVersion, modes: AvroModes) -> dict[str, Any]:
    parameters = {"tidb_type": _tidb_type(column)}
    tp = column.tp
    if tp in {MysqlType.ENUM, MysqlType.SET}:
        allowed = ",".join(elem.replace(",", "\\,") for elem in column.elems)
        return {"type": "string", "connect.parameters": {"allowed": allowed, **parameters}}
    if tp is MysqlType.BIT:
        length = column.flen if column.flen != -1 else _DEFAULT_BIT_LENGTH
        return {"type": "bytes", "connect.parameters": {"length": str(length), **parameters}}
    if tp is MysqlType.DECIMAL and modes.decimal == "precise":
        return {
            "type": "bytes",
            "connect.parameters": parameters,
            "logicalType": "decimal",
            "precision": column.flen if column.flen != -1 else _DEFAULT_DECIMAL_LENGTH,
            "scale": max(column.decimal, 0),
        }
    return {"type": _type_name(column, modes), "connect.parameters": parameters}


def _type_name(column: ColumnVersion, modes: AvroModes) -> str:
    tp = column.tp
    if is_string_type(column, modes):
        return "string"
    if tp in _INT_TYPES or tp is MysqlType.YEAR:
        return "int"
    if tp is MysqlType.INT:
        return "long" if column.unsigned else "int"
    if tp is MysqlType.BIGINT:
        return "long"
    if tp is MysqlType.FLOAT:
        return "float"
    if tp is MysqlType.DOUBLE:
        return "double"
    return "bytes" if tp in STRING_TYPES and column.binary else "string"


def _tidb_type(column: ColumnVersion) -> str:
    if column.tp in INTEGER_TYPES:
        name = "BIGINT" if column.tp is MysqlType.BIGINT else "INT"
        return f"{name} UNSIGNED" if column.unsigned else name
    if column.tp in STRING_TYPES:
        return "BLOB" if column.binary else "TEXT"
    return _TIDB_TYPES.get(column.tp, "TEXT")


def _default(column: ColumnVersion, modes: AvroModes) -> str | int | float | None:
    """Return the default; None: there is none, or no value of the type: an expression's text, where TiCDC fails."""
    try:
        return None if column.default_is_expression else _default_value(column, modes)
    except ValueError:
        return None


def _default_value(column: ColumnVersion, modes: AvroModes) -> str | int | float | None:
    text, tp = column.default, column.tp
    if text is None or is_string_type(column, modes):
        return text
    if tp in INTEGER_TYPES or tp is MysqlType.YEAR:
        number = int(text)
        return number - (1 << 64) if tp is MysqlType.BIGINT and number >= 1 << 63 else number
    if tp in {MysqlType.FLOAT, MysqlType.DOUBLE}:
        return _float_default(text, tp is MysqlType.FLOAT)
    # Go's json writes []byte in base64. By Avro's own rule these characters are the bytes, but so TiCDC registers them.
    if tp is MysqlType.BIT:
        return base64.b64encode(text.encode("latin-1")).decode()
    if tp in STRING_TYPES and column.binary:
        return base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()
    return text


@lru_cache(maxsize=4_096)  # asked for each value of a few rows
def _float_default(text: str, is_float: bool) -> float:
    """Return the number; a FLOAT's is the nearest float, with all the digits that tell it as a double: Go's
    ParseFloat(v, 32).

    Raises:
        ValueError: it is none, or not finite.
    """
    kind = pa.float32() if is_float else pa.float64()
    value = float(pa.scalar(text.strip().removeprefix("+")).cast(kind).as_py())
    if not math.isfinite(value):
        raise ValueError(text)
    return value
