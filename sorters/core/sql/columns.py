"""The columns that a DDL statement defines, as far as it says more of them than the table afterwards.

The table holds ``DATETIME(0)`` where the statement may say ``DATETIME``, and it holds defaults in TiDB's form.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sorters.core.sql.column import TYPE_NAMES
from sorters.core.sql.tokens import SqlToken, TokenKind, UnsupportedSqlError, tokenize

_NAMES = frozenset({TokenKind.NAME, TokenKind.WORD})
_ENDS = frozenset({",", ")"})
_NULL = "NULL"
_CLOCKS = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})


@dataclass(frozen=True, slots=True)
class DefinedColumn:
    """A column as a statement defines it."""

    type_name: str
    """In capitals; '' where only the default changes."""
    length: int
    """The first number in parentheses; -1: there are none."""
    has_default: bool = False
    default: str | None = None
    """The literal's text, or ``CURRENT_TIMESTAMP``; None: NULL."""


def defined_columns(query: str) -> dict[str, DefinedColumn]:
    """Return the columns that CREATE TABLE or ALTER TABLE defines, by name in lower case; none if it cannot be read."""
    try:
        tokens = tokenize(query)
    except UnsupportedSqlError:
        return {}
    defined = {}
    for at in range(len(tokens) - 1):
        name, word = tokens[at], tokens[at + 1]
        if name.kind not in _NAMES:
            continue
        if _changes_default(tokens, at):
            defined[name.text.lower()] = DefinedColumn("", -1)
        elif word.upper in TYPE_NAMES and not _is_charset(tokens, at + 1):
            defined[name.text.lower()] = _definition(tokens, at + 1)
    return defined


def _changes_default(tokens: Sequence[SqlToken], at: int) -> bool:
    """``name SET DEFAULT``, ``name DROP DEFAULT``."""
    words = [token.upper for token in tokens[at + 1 : at + 3]]
    return words in (["SET", "DEFAULT"], ["DROP", "DEFAULT"])


def _is_charset(tokens: Sequence[SqlToken], at: int) -> bool:
    """``CHARACTER SET``, and ``SET`` without its elements, are no types."""
    word = tokens[at].upper
    follows = tokens[at + 1] if at + 1 < len(tokens) else None
    if word == "CHARACTER":
        return follows is not None and follows.upper == "SET"
    return word in {"SET", "ENUM"} and (follows is None or follows.text != "(")


def _definition(tokens: Sequence[SqlToken], start: int) -> DefinedColumn:
    type_name, length, depth = tokens[start].upper, -1, 0
    if start + 2 < len(tokens) and tokens[start + 1].text == "(" and tokens[start + 2].kind is TokenKind.NUMBER:
        length = int(tokens[start + 2].text) if tokens[start + 2].text.isdecimal() else -1
    for at in range(start + 1, len(tokens)):
        token = tokens[at]
        is_symbol = token.kind is TokenKind.SYMBOL
        if is_symbol and depth == 0 and token.text in _ENDS:
            break
        depth += (token.text == "(") - (token.text == ")") if is_symbol else 0
        if depth == 0 and token.upper == "DEFAULT" and at + 1 < len(tokens):
            return DefinedColumn(type_name, length, *_default(tokens[at + 1 : at + 3]))
    return DefinedColumn(type_name, length)


def _default(tokens: Sequence[SqlToken]) -> tuple[bool, str | None]:
    """Return whether there is a literal or a clock, and its text."""
    token = tokens[0]
    has_introducer = token.kind is TokenKind.WORD and token.text.startswith("_") and len(tokens) > 1
    if has_introducer:
        token = tokens[1]
    if token.upper == _NULL:
        return True, None
    if token.upper in _CLOCKS:
        return True, "CURRENT_TIMESTAMP"
    return token.kind in {TokenKind.STRING, TokenKind.NUMBER}, token.text
