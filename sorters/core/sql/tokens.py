"""SQL text to tokens, and a cursor over them: as much of MySQL's lexer as DDL statements need.

Executable comments (``/*! … */``, ``/*T! … */``, ``/*T![feature] … */`` of features that TiDB knows) are read as the
SQL in them; all others are skipped, also MariaDB's (``/*M! … */``), as TiDB does (``pkg/parser/lexer.go``,
``startWithSlash``). Whatever is read here and was skipped there would run at the destination, and nobody was asked.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from sorters.core.sql.features import is_run

_DEPTH_MAX = 40
MODE_REAL_AS_FLOAT = 1 << 0
MODE_PIPES_AS_CONCAT = 1 << 1
MODE_ANSI_QUOTES = 1 << 2
MODE_IGNORE_SPACE = 1 << 3
MODE_NO_BACKSLASH_ESCAPES = 1 << 20
MODE_HIGH_NOT_PRECEDENCE = 1 << 29
"""Bits of a sql_mode, as TiDB stores it with a job (``pkg/parser/mysql/const.go``): those that say how text is read."""


class UnsupportedSqlError(ValueError):
    """A statement, or a part of one, that the restorer does not know. The caller keeps the original text."""


class TokenKind(Enum):
    """Kinds of tokens."""

    WORD = "word"
    """A keyword or a bare identifier: only the words around it tell."""
    NAME = "name"
    """A quoted identifier, unquoted here."""
    STRING = "string"
    """A string literal, unquoted and unescaped here."""
    NUMBER = "number"
    BITS = "bits"
    """``0x1f``, ``x'1f'`` or ``b'01'``; the text is normalised to ``x'1f'`` and ``b'01'``."""
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True)
class SqlToken:
    """A token; ``text`` is the content without quotes."""

    kind: TokenKind
    text: str

    @property
    def upper(self) -> str:
        """The word for comparison; '' for anything that can be no keyword, as what another letter than A to Z is in:
        some have capitals of ours.
        """
        return self.text.upper() if self.kind is TokenKind.WORD and self.text.isascii() else ""


_END = SqlToken(TokenKind.END, "")
_SCANNER = re.compile(
    r"""
    (?P<space>\s+|--(?=\s|\Z)[^\n]*|\#[^\n]*)
    |(?P<open>/\*(?:!(?:\d{5})?|T!(?:\[[\w$\x80-\U0010ffff]+(?:,[\w$\x80-\U0010ffff]+)*\])?))
    |(?P<close>\*/)
    |(?P<comment>/\*.*?\*/)
    |(?P<unclosed>/\*)
    |(?P<bits>0x[0-9a-fA-F]+\b|[xX]'[0-9a-fA-F]*'|0b[01]+\b|[bB]'[01]*')
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w$\x80-\U0010ffff]))
    |(?P<name>`(?:[^`]|``)*+`)
    |(?P<quote>['"])
    |(?P<word>[\w$\x80-\U0010ffff]+)
    |(?P<symbol><=>|->>|->|<<|>>|<=|>=|<>|!=|:=|&&|\|\||[-+*/%&|^~!=<>().,;@:?])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,  # to TiDB a space or a digit beyond ASCII is part of a name
)
_PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_TOKENS = frozenset({"space", "open", "close", "comment"})
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


class Lexeme(NamedTuple):
    """A piece of a statement's text."""

    group: str
    """Which of the scanner's groups it is: ``space``, ``comment``, ``open`` and ``close`` are no tokens."""
    text: str
    token: SqlToken | None


def lexemes(sql: str, sql_mode: int = 0) -> Iterator[Lexeme]:
    """Yield all pieces of a text, in order.

    Raises:
        UnsupportedSqlError: text that is no token, an open quote, the end of no comment, or a comment of which nobody
            knows whether TiDB has run it.
    """
    at, is_open = 0, False
    while at < len(sql):
        match = _SCANNER.match(sql, at)
        if match is None or match.lastgroup == "unclosed":
            raise UnsupportedSqlError(f"no token at {sql[at : at + 20]!r}")
        start, at = at, match.end()
        text, group, token = match.group(), str(match.lastgroup), None
        if group == "open":
            at = _skipped(sql, text, at)
            if at == match.end():
                is_open = True
            else:
                group = "comment"
        elif group == "close" and not is_open:
            # No end of anything: a star, and behind it a comment.
            if not sql.startswith("/*", start + 1):
                raise UnsupportedSqlError("the end of no comment")
            text, group, at = "*", "symbol", start + 1
        elif group == "close":
            is_open = False
        if group == "quote":
            string, at = _string(sql, start, text, sql_mode)
            is_name = text == '"' and sql_mode & MODE_ANSI_QUOTES
            token = SqlToken(TokenKind.NAME if is_name else TokenKind.STRING, string)
        elif group == "name":
            token = SqlToken(TokenKind.NAME, text[1:-1].replace("``", "`"))
        elif group == "bits":
            token = SqlToken(TokenKind.BITS, _bits(text))
        elif group not in _NO_TOKENS:
            token = SqlToken(TokenKind(group), text)
        yield Lexeme(group, sql[start:at], token)


def _skipped(sql: str, opening: str, at: int) -> int:
    """Return where to read on behind the opening of a special comment: behind its end, if TiDB skips it.

    Raises:
        UnsupportedSqlError: nobody knows whether TiDB does, or the end is missing.
    """
    end = sql.find("*/", at)
    runs = is_run(opening, sql[at:] if end < 0 else sql[at:end])
    if runs is None:
        raise UnsupportedSqlError(f"{opening} with what is not of that feature: versions of TiDB read it differently")
    if not runs and end < 0:
        raise UnsupportedSqlError("an open comment")
    return at if runs else end + 2


def tokenize(sql: str, sql_mode: int = 0) -> list[SqlToken]:
    """Split a statement, or several, into tokens.

    Raises:
        UnsupportedSqlError: text that is no token, or an open quote.
    """
    return [lexeme.token for lexeme in lexemes(sql, sql_mode) if lexeme.token is not None]


def split_statements(sql: str, sql_mode: int = 0) -> list[list[SqlToken]]:
    """Return the tokens of each statement of a text, split at semicolons.

    Raises:
        UnsupportedSqlError: text that is no token, or an open quote.
    """
    statements = list[list[SqlToken]]([[]])
    for token in tokenize(sql, sql_mode):
        if token == SqlToken(TokenKind.SYMBOL, ";"):
            statements.append([])
        else:
            statements[-1].append(token)
    return [statement for statement in statements if statement]


class TableNames(Protocol):
    """Other names for schemas and tables, while a statement is restored; parts come without quotes."""

    @property
    def view_select(self) -> str:
        """The SELECT of the view that is created, with the schema of each table; '' if nobody knows it."""
        ...

    def schema(self, name: str) -> str:
        """Return the name of a schema."""
        ...

    def table(self, parts: list[str]) -> list[str]:
        """Return the name of the statement's next table."""
        ...

    def without_alias(self) -> None:
        """Hear that columns are qualified by the name of the last table."""
        ...

    def column(self, parts: list[str]) -> list[str]:
        """Return the name of a column."""
        ...


class Cursor:
    """Reads tokens from left to right."""

    def __init__(self, tokens: list[SqlToken], names: TableNames | None = None) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self.names = names
        """None: all names stay."""

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Hold one level of nesting.

        Raises:
            UnsupportedSqlError: too deep; an expression must not exhaust the stack.
        """
        if self._depth >= _DEPTH_MAX:
            raise self.unsupported(f"at most {_DEPTH_MAX} levels")
        self._depth += 1
        yield
        self._depth -= 1

    def peek(self, ahead: int = 0) -> SqlToken:
        """Return a token without taking it; END after the last."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def take(self) -> SqlToken:
        """Return the next token and go past it."""
        token = self.peek()
        self._at += 1
        return token

    def at_words(self, *words: str) -> bool:
        """Tell whether these words come next."""
        return all(self.peek(ahead).upper == word for ahead, word in enumerate(words))

    def accept(self, *words: str) -> bool:
        """Take these words if they come next."""
        accepted = self.at_words(*words)
        if accepted:
            self._at += len(words)
        return accepted

    def accept_any(self, *words: str) -> str:
        """Take one of these words if it comes next; '' if none does."""
        word = self.peek().upper
        if not word or word not in words:
            return ""
        self._at += 1
        return word

    def expect(self, *words: str) -> None:
        """Take these words.

        Raises:
            UnsupportedSqlError: something else comes.
        """
        if not self.accept(*words):
            raise self.unsupported(" ".join(words))

    def at_symbol(self, symbol: str) -> bool:
        """Tell whether this symbol comes next."""
        return self.peek() == SqlToken(TokenKind.SYMBOL, symbol)

    def accept_symbol(self, symbol: str) -> bool:
        """Take this symbol if it comes next."""
        accepted = self.at_symbol(symbol)
        self._at += accepted
        return accepted

    def expect_symbol(self, symbol: str) -> None:
        """Take this symbol.

        Raises:
            UnsupportedSqlError: something else comes.
        """
        if not self.accept_symbol(symbol):
            raise self.unsupported(symbol)

    def expect_kind(self, *kinds: TokenKind) -> SqlToken:
        """Take a token of one of these kinds.

        Raises:
            UnsupportedSqlError: something else comes.
        """
        if self.peek().kind not in kinds:
            raise self.unsupported(" or ".join(kind.value for kind in kinds))
        return self.take()

    def integer(self) -> int:
        """Take an integer.

        Raises:
            UnsupportedSqlError: something else comes.
        """
        token = self.expect_kind(TokenKind.NUMBER)
        if not token.text.isdecimal():
            raise UnsupportedSqlError(f"{token.text} is no integer")
        return int(token.text)

    def name(self) -> str:
        """Take an identifier and return it in back quotes.

        Raises:
            UnsupportedSqlError: something else comes.
        """
        return quote_name(self._part())

    def schema_name(self) -> str:
        """Take the name of a schema and return it, or its other name, in back quotes."""
        name = self._part()
        return quote_name(self.names.schema(name) if self.names else name)

    def table_name(self, *, aliased: bool = False) -> str:
        """Take ``table`` or ``schema.table`` and return it, or its other name, in back quotes.

        Args:
            aliased: it may have an alias behind it; :meth:`without_alias` says then that it has none.
        """
        parts = self._parts()
        text = _dotted(self.names.table(parts) if self.names else parts)
        if not aliased:
            self.without_alias()
        return text

    def without_alias(self) -> None:
        """Note that columns are qualified by the name of the last table."""
        if self.names:
            self.names.without_alias()

    def column_name(self) -> str:
        """Take ``column``, ``table.column`` or ``schema.table.column`` and return it in back quotes."""
        parts = self._parts()
        return _dotted(self.names.column(parts) if self.names else parts)

    def _parts(self) -> list[str]:
        parts = [self._part()]
        while self.accept_symbol("."):
            parts.append(self._part())
        return parts

    def _part(self) -> str:
        return self.expect_kind(TokenKind.WORD, TokenKind.NAME).text

    def plain_word(self, *kinds: TokenKind) -> str:
        """Take a token of one of these kinds and return its text, which may be written out without quotes.

        Raises:
            UnsupportedSqlError: something else comes, or a string that is more than one word.
        """
        text = self.expect_kind(*kinds).text
        if not _PLAIN_WORD.fullmatch(text):
            raise UnsupportedSqlError(f"{text!r} is no word")
        return text

    def at_end(self) -> bool:
        """Tell whether all tokens are taken."""
        return self._at >= len(self._tokens)

    def unsupported(self, wanted: str) -> UnsupportedSqlError:
        """Return the error for something unknown here."""
        return UnsupportedSqlError(f"found {self.peek().text!r} at token {self._at}, wanted {wanted}")


def quote_name(name: str) -> str:
    """Return an identifier in back quotes."""
    return "`" + name.replace("`", "``") + "`"


def _dotted(parts: list[str]) -> str:
    return ".".join(quote_name(part) for part in parts)


def quote_string(text: str) -> str:
    """Return a string literal as TiDB restores it: quotes doubled, backslashes as they are."""
    return "'" + text.replace("'", "''") + "'"


def _string(sql: str, start: int, quote: str, sql_mode: int) -> tuple[str, int]:
    out, at = list[str](), start + 1
    while at < len(sql):
        char = sql[at]
        if char == quote:
            if sql[at + 1 : at + 2] != quote:
                return "".join(out), at + 1
            at += 1
        elif char == "\\" and not sql_mode & MODE_NO_BACKSLASH_ESCAPES and at + 1 < len(sql):
            at += 1
            # \% and \_ keep their backslash: LIKE reads them
            char = "\\" + sql[at] if sql[at] in "%_" else _ESCAPES.get(sql[at], sql[at])
        out.append(char)
        at += 1
    raise UnsupportedSqlError("open quote")


def _bits(text: str) -> str:
    prefix, digits = text[:2].lower(), text[2:].rstrip("'").lower()
    if "b" in prefix:
        return f"b'{digits.lstrip('0') or '0'}'"
    return f"x'{digits.rjust(len(digits) + len(digits) % 2, '0')}'"
