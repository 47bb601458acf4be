"""What a DDL of another table, or of a schema, does to a table that its message does not name.

A message names one table. The other one of a RENAME or EXCHANGE PARTITION stands in the statement alone, and a DROP
DATABASE names no table. Whatever is not clear here changes the table: rows are given up sooner than kept by mistake.
"""

import re
from enum import Enum
from functools import lru_cache
from itertools import product
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

Call = tuple[str | None, str | None]
"""A schema and table in one case, as a statement calls them; None: whichever."""


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
    named = others_named(ddl, query)
    if not named or named.isdisjoint(calls_of(table)):
        return Effect.NONE
    drop = None if ddl[1] else _DROPS_SCHEMA.match(query)
    # The statement has the schema's own name, where a message of Avro has one that several may share.
    is_own = drop is not None and ddl[0] == table[0] and _unquoted(drop[1] or "").lower() == table[0].lower()
    return Effect.EMPTIED if is_own else Effect.UNKNOWN


def calls_of(table: tuple[str, str]) -> tuple[Call, ...]:
    """Return all by which :func:`others_named` may mean a table: its whole name, and either part."""
    schema, name = table[0].casefold(), table[1].casefold()
    return (schema, name), (None, name), (schema, None)


@lru_cache(maxsize=256)
def others_named(ddl: tuple[str, str], query: str) -> frozenset[Call]:
    """Return what a DDL calls the tables that it may change beside ``ddl``, its message's; most have none.

    >>> others_named(("d", "b"), "ALTER TABLE `b` ADD COLUMN `a` INT")
    frozenset()
    """
    schema, table = ddl
    if not table and _DROPS_SCHEMA.match(query):
        return frozenset((spelling, None) for spelling in _spellings(schema))
    if _KEEPS_OTHERS.match(query) or not _moves_rows(query):
        return frozenset()
    names = _names(query)
    if not table:
        return frozenset((spelling, None) for _, name in names for spelling in _spellings(name))
    # Where names have schemas, one without is of the session's, which nobody tells.
    of_session = {None} if any(qualifier for qualifier, _ in names) else _spellings(schema)
    return frozenset(
        call
        for qualifier, name in names
        for call in product(_spellings(qualifier) if qualifier else of_session, _spellings(name))
    )


def _moves_rows(query: str) -> bool:
    """Tell whether a statement has a keyword that moves rows; a column's name and a comment's text are none."""
    if not _MOVES_ROWS.search(query):
        return False
    bare = _QUOTED.sub(" ? ", query)
    return bool(_UNCLEAR.search(bare) or _MOVES_ROWS.search(bare))


def _names(query: str) -> tuple[tuple[str, str], ...]:
    """Return all that may be a table's name, with its schema or ''; keywords are among them."""
    return tuple((_unquoted(qualifier), _unquoted(name)) for qualifier, name in _NAMES.findall(query))


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _spellings(name: str) -> set[str]:
    """Return what a statement's name may be in messages, in one case: TiDB's ignore it, and Avro changes names."""
    return {name.casefold(), sanitize_name(name).casefold()}
