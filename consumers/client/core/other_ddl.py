"""What a DDL of another table, or of a schema, does to a table that its message does not name.

A message names one table. The other one of a RENAME or EXCHANGE PARTITION stands in the statement alone, and a DROP
DATABASE names no table. Whatever is not clear here changes the table: rows are given up sooner than kept by mistake.
"""

import re
from enum import Enum
from functools import lru_cache
from typing import Final

from schemas.avro_name import sanitize_name

_MOVES_ROWS: Final = re.compile(r"\b(EXCHANGE|FLASHBACK|RECOVER|RENAME(?!\s+(COLUMN|INDEX|KEY)\b))\b", re.IGNORECASE)
_KEEPS_OTHERS: Final = re.compile(r"\s*(CREATE|DROP|TRUNCATE)\b", re.IGNORECASE)
_NAME: Final = r"`(?:[^`]|``)*+(?:`|\Z)|[\w$]++"
_DROPS_SCHEMA: Final = re.compile(
    rf"\s*DROP\s+(?:DATABASE|SCHEMA)\b(?:\s*(?:IF\s+EXISTS\b\s*)?({_NAME}))?", re.IGNORECASE
)
_QUOTED: Final = re.compile(r"`(?:[^`]|``)*+`|'(?:[^'\\]|'')*+'|\"(?:[^\"\\]|\"\")*+\"")
_UNCLEAR: Final = re.compile(r"[`'\"#]|/\*|--")
"""What is left where it cannot be told what is quoted: a quotation mark that closes nowhere, or whose text has a
backslash, which escapes or not by the session's sql_mode; a comment, whose quotation marks are none.
"""
_NAMES: Final = re.compile(rf"(?:({_NAME})\s*+\.\s*+)?({_NAME})")


class Effect(Enum):
    """On the rows of a table."""

    NONE = "none"
    EMPTIED = "emptied"
    UNKNOWN = "unknown"


def effect_on(table: tuple[str, str], ddl: tuple[str, str], query: str) -> Effect:
    """Return what a DDL does to ``table``; ``ddl`` is the schema and table of its message, which is another one.

    >>> effect_on(("d", "a"), ("d", "b"), "RENAME TABLE `a` TO `b`")
    <Effect.UNKNOWN: 'unknown'>
    """
    schema, _ = table
    if not ddl[1] and (drop := _DROPS_SCHEMA.match(query)):
        # The statement has the schema's own name, where a message of Avro has one that several may share.
        if ddl[0] == schema and _unquoted(drop[1] or "").lower() == schema.lower():
            return Effect.EMPTIED
        return Effect.UNKNOWN if _is_name(ddl[0], schema) else Effect.NONE
    if _KEEPS_OTHERS.match(query) or not _moves_rows(query):
        return Effect.NONE
    names = _names(query)
    if not ddl[1]:
        return Effect.UNKNOWN if any(_is_name(name, schema) for _, name in names) else Effect.NONE
    # Where names have schemas, one without is of the session's, which nobody tells.
    has_schemas = any(qualifier for qualifier, _ in names)
    for qualifier, name in names:
        is_here = _is_name(qualifier, schema) if qualifier else has_schemas or _is_name(ddl[0], schema)
        if is_here and _is_name(name, table[1]):
            return Effect.UNKNOWN
    return Effect.NONE


def _moves_rows(query: str) -> bool:
    """Tell whether a statement has a keyword that moves rows; a column's name and a comment's text are none."""
    if not _MOVES_ROWS.search(query):
        return False
    bare = _QUOTED.sub(" ? ", query)
    return bool(_UNCLEAR.search(bare) or _MOVES_ROWS.search(bare))


@lru_cache(maxsize=256)
def _names(query: str) -> tuple[tuple[str, str], ...]:
    """Return all that may be a table's name, with its schema or ''; keywords are among them."""
    return tuple((_unquoted(qualifier), _unquoted(name)) for qualifier, name in _NAMES.findall(query))


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _is_name(name: str, known: str) -> bool:
    """Tell whether a statement's name may be one that messages have: TiDB's ignore case, and Avro changes them."""
    return known.casefold() in (name.casefold(), sanitize_name(name).casefold())
