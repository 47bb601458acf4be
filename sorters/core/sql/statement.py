"""DDL text as one statement that every server reads alike, or none: what a database destination gets.

A server reads text by its own rules: its sql_mode says what a quotation mark and a backslash are, and what is a comment
to one server another runs (``/*! … */``, ``/*M! … */``, ``/*T! … */``). So text that a user wrote is never handed on.
:func:`plain_statement` writes it anew from the tokens that TiDB read: names in back quotes, strings with doubled quotes
and backslashes that mean themselves, no comment but TiDB's own special ones, of features that TiDB knows.
:func:`check_statement` reads what is to be sent, by other rules than those it was written with, and refuses all but one
statement.
"""

import re

from sorters.core.sql.features import is_run
from sorters.core.sql.tokens import (
    MODE_HIGH_NOT_PRECEDENCE,
    MODE_IGNORE_SPACE,
    MODE_NO_BACKSLASH_ESCAPES,
    MODE_PIPES_AS_CONCAT,
    MODE_REAL_AS_FLOAT,
    Lexeme,
    TokenKind,
    UnsupportedSqlError,
    lexemes,
    quote_name,
    quote_string,
    tokenize,
)

KEPT_MODES = MODE_REAL_AS_FLOAT | MODE_PIPES_AS_CONCAT | MODE_IGNORE_SPACE | MODE_HIGH_NOT_PRECEDENCE
"""Bits of the sql_mode that still matter to :func:`plain_statement`; ANSI_QUOTES and backslashes are resolved."""
_OUTSIDE = re.compile(
    r"""
    (?P<string>'(?:[^']|'')*+')
    |(?P<name>`(?:[^`]|``)*+`)
    |(?P<tidb>/\*T!(?:\[[\w,]*\])?)
    |(?P<bad>/\*|\*/|--(?=[\x00-\x20\x7f]|$)|[#;"\'`\\\x00])
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def plain_statement(sql: str, sql_mode: int) -> str:
    """Return a statement's tokens as text that is to be read in NO_BACKSLASH_ESCAPES and ``sql_mode & KEPT_MODES``.

    Raises:
        UnsupportedSqlError: not exactly one statement, text that is no token, or a comment that is open.
    """
    out, last = list[str](), ""
    opened, is_ended, is_empty = "", False, True
    for lexeme in lexemes(sql, sql_mode):
        if lexeme.group == "open":
            if opened:
                raise UnsupportedSqlError("a special comment within another")
            opened = lexeme.text
            text = f" {opened} " if opened.startswith("/*T!") else " "
        elif lexeme.group == "close":
            text, opened = (" */ " if opened.startswith("/*T!") else " "), ""
        elif lexeme.token is None:
            text = " "
        elif lexeme.text == ";":
            is_ended = True
            continue
        elif is_ended:
            raise UnsupportedSqlError("more than one statement")
        else:
            text, is_empty = _text(lexeme), False
        if _merge(last, text):
            text = f" {text}"
        out.append(text)
        last = text
    if opened or is_empty:
        raise UnsupportedSqlError("an open comment" if opened else "no statement")
    plain = "".join(out).strip(" ")
    if tokenize(plain, MODE_NO_BACKSLASH_ESCAPES) != [
        token for token in tokenize(sql, sql_mode) if token.text != ";" or token.kind is not TokenKind.SYMBOL
    ]:
        raise UnsupportedSqlError("a statement that does not read as it was written")
    return plain


def check_statement(sql: str) -> None:
    """Make sure that a text is at most one statement to TiDB, MySQL and MariaDB, in NO_BACKSLASH_ESCAPES.

    Raises:
        UnsupportedSqlError: it may be more, or holds a comment that one of them runs and another skips.
    """
    at, comment_end = 0, -1
    while at < len(sql):
        if at == comment_end:
            at, comment_end = at + 2, -1
            continue
        match = _OUTSIDE.match(sql, at)
        assert match is not None
        at = match.end()
        if comment_end >= 0 and at > comment_end:
            raise UnsupportedSqlError("an end of a comment within quotes")
        if match.lastgroup == "tidb":
            # Where others see its end; it must be where TiDB, which reads the tokens in it, sees it too.
            if comment_end >= 0:
                raise UnsupportedSqlError("a special comment within another")
            comment_end = sql.find("*/", at)
            if comment_end < 0:
                raise UnsupportedSqlError("an open comment")
            if not is_run(match.group(), sql[at:comment_end]):
                raise UnsupportedSqlError(f"{match.group()}, which not every TiDB reads alike")
        elif match.lastgroup == "bad":
            raise UnsupportedSqlError(f"{match.group()!r} outside of quotes")


def _text(lexeme: Lexeme) -> str:
    assert lexeme.token is not None
    if lexeme.token.kind is TokenKind.NAME:
        return quote_name(lexeme.token.text)
    if lexeme.token.kind is TokenKind.STRING:
        return quote_string(lexeme.token.text)
    return lexeme.text


def _merge(before: str, text: str) -> bool:
    """Tell whether two texts side by side would read as something else than one after the other."""
    return (before[-1:], text[:1]) in {("'", "'"), ("`", "`"), ("-", "-"), ("/", "*"), ("*", "/")}
