"""A column's type as far as a row's text hangs on it, read from COLUMN_TYPE of ``information_schema``.

canal-json and Avro name types by the same words, with or without what stands in brackets.
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from schemas.errors import ConfigError


class TextForm(Enum):
    """How a value becomes text."""

    INTEGER = "integer"
    FLOAT = "float"
    """Of 32 bits."""
    DOUBLE = "double"
    DECIMAL = "decimal"
    BIT = "bit"
    YEAR = "year"
    ENUM = "enum"
    SET = "set"
    TEXT = "text"
    """Characters, as UTF-8."""
    BYTES = "bytes"
    TIME = "time"
    """DATE, DATETIME, TIMESTAMP and TIME: text already."""
    JSON = "json"
    VECTOR = "vector"


_FORMS = {
    **dict.fromkeys(
        ("tinyint", "smallint", "mediumint", "int", "bigint", "integer", "bool", "boolean"), TextForm.INTEGER
    ),
    "float": TextForm.FLOAT,
    "double": TextForm.DOUBLE,
    "decimal": TextForm.DECIMAL,
    "bit": TextForm.BIT,
    "year": TextForm.YEAR,
    "enum": TextForm.ENUM,
    "set": TextForm.SET,
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "var_string"), TextForm.TEXT),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), TextForm.BYTES),
    **dict.fromkeys(("date", "datetime", "timestamp", "time"), TextForm.TIME),
    "json": TextForm.JSON,
    **dict.fromkeys(("vector", "tidbvectorfloat32"), TextForm.VECTOR),  # Avro's name of it is the second
}
_ELEMENT = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """What is needed of a type."""

    form: TextForm
    bits: int | None = None
    """Of a BIT; None: the type's text does not say."""
    elems: tuple[str, ...] | None = None
    """Names of an ENUM or SET; None: the type's text does not say."""
    zerofill: bool = False
    """Another database than TiDB shows leading zeros."""


@lru_cache(maxsize=4_096)
def column_kind(column_type: str) -> ColumnKind:
    """Read a type's text.

    >>> column_kind("enum('a','b''c')").elems
    ('a', "b'c")
    >>> column_kind("int(5) unsigned zerofill").form
    <TextForm.INTEGER: 'integer'>

    Raises:
        ConfigError: a type that has no text form.
    """
    match = re.match(r"\s*(\w+)", column_type)
    form = _FORMS.get(match[1].lower()) if match else None
    if form is None:
        raise ConfigError("this type has no text form for a state proof", type=column_type)
    bracket = column_type.find("(")
    if form in {TextForm.ENUM, TextForm.SET}:
        elems = None if bracket < 0 else tuple(_elements(column_type[bracket:]))
        return ColumnKind(form, elems=elems)
    if form is TextForm.BIT:
        length = re.search(r"\((\d+)\)", column_type)
        return ColumnKind(form, bits=int(length[1]) if length else None)
    return ColumnKind(form, zerofill="zerofill" in column_type.lower())


def _elements(text: str) -> list[str]:
    return [element.replace("''", "'") for element in _ELEMENT.findall(text)]
