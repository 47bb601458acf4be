"""The table-filter grammar of TiDB's tools: one rule of ``[filter] rules``, of a ``matcher``, or of a column filter.

::

    rule     = ["!"] pattern "." pattern            (nothing may follow)
    pattern  = "/" regex "/"                        regex: any text, "/" only as "\\/"
             | '"' name '"'                         "" inside = one "
             | "`" name "`"                         `` inside = one `
             | wild
    wild     = { letter | digit | "$" | "_" | byte >= 0x80 | "*" | "?" | class | "\\" nonalnum }
    class    = "[" ["!"] chars "]"                  "\\" escapes a non-alphanumeric inside
    column   = ["!"] pattern                        (nothing may follow)

Source: pingcap/tidb ``pkg/util/table-filter``. It also reads ``@path``, rules from a file on the server; we refuse it.
"""

from dataclasses import dataclass
from enum import Enum

from schemas.config.filter.re2 import Expression, literal


class PatternKind(Enum):
    """How a pattern is held against a name."""

    NAME = "name"
    """Equal."""
    WILD = "wild"
    """A regular expression that must match the whole name."""
    REGEX = "regex"
    """A regular expression that may match anywhere in the name."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One half of a rule. ``text``: the name, or the regular expression in RE2's syntax."""

    kind: PatternKind
    text: str

    @property
    def matches_all(self) -> bool:
        """It is a plain ``*``."""
        return self.kind is PatternKind.WILD and self.text == _ANY_RUN


@dataclass(frozen=True, slots=True)
class FilterRule:
    """A parsed rule."""

    positive: bool
    schema: Pattern
    table: Pattern


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """A parsed rule of a column filter."""

    positive: bool
    column: Pattern


_ANY_RUN = "(?s:.*)"
_ANY_CHAR = "(?s:.)"


def parse_rule(text: str) -> FilterRule | None:
    """Parse one rule; None for an empty one or a comment.

    Raises:
        ValueError: what is wrong, and where in the rule.
    """
    parser = _started(text)
    if parser is None:
        return None
    schema = parser.pattern("schema")
    parser.separator()
    table = parser.pattern("table")
    parser.end()
    return FilterRule(parser.positive, schema, table)


def parse_column_rule(text: str) -> ColumnRule | None:
    """Parse one rule of a column filter; None for an empty one or a comment.

    Raises:
        ValueError: what is wrong, and where in the rule.
    """
    parser = _started(text)
    if parser is None:
        return None
    column = parser.pattern("column")
    parser.end()
    return ColumnRule(parser.positive, column)


def _started(text: str) -> "_RuleParser | None":
    """Return a parser behind what may stand before the first pattern; None: there is no rule."""
    text = text.strip(" \t")
    if not text or text.startswith("#"):
        return None
    if text.startswith("@"):
        raise ValueError("rules from a file (@path) are refused; write the rules here")
    return _RuleParser(text)


class _RuleParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.positive = not text.startswith("!")
        self.at = 0 if self.positive else 1

    def pattern(self, part: str) -> Pattern:
        match self.text[self.at : self.at + 1]:
            case "/":
                return self._regex()
            case ('"' | "`") as quote:
                return self._quoted(quote)
            case _:
                return self._wild(part)

    def separator(self) -> None:
        if self.at == len(self.text):
            raise ValueError("the rule has no table part; write schema.table")
        if self.text[self.at] != ".":
            raise self._unexpected()
        self.at += 1

    def end(self) -> None:
        if self.at < len(self.text):
            raise self._unexpected()

    def _unexpected(self) -> ValueError:
        char = self.text[self.at]
        return ValueError(f"unexpected `{char}` at character {self.at + 1}; quote names with special characters")

    def _regex(self) -> Pattern:
        start = self.at = self.at + 1
        while self.text[self.at : self.at + 1] != "/":
            if self.at >= len(self.text):
                raise ValueError(f"the regular expression at character {start} has no closing /")
            self.at += 2 if self.text[self.at] == "\\" else 1
        source = self.text[start : self.at].replace("\\/", "/")
        self.at += 1
        Expression(source)
        return Pattern(PatternKind.REGEX, source)

    def _quoted(self, quote: str) -> Pattern:
        start, name = self.at + 1, ""
        self.at += 1
        while True:
            end = self.text.find(quote, self.at)
            if end < 0:
                raise ValueError(f"the name at character {start} has no closing {quote}")
            name += self.text[self.at : end]
            self.at = end + 1
            if self.text[self.at : self.at + 1] != quote:
                break
            name += quote
            self.at += 1
        if not name:
            raise ValueError(f"the name at character {start} is empty")
        return Pattern(PatternKind.NAME, name)

    def _wild(self, part: str) -> Pattern:
        start, name, expressions, plain = self.at, "", list[str](), True
        while self.at < len(self.text):
            char = self.text[self.at]
            if not (is_bare(char) or char in "*?[\\"):
                break
            self.at += 1
            match char:
                case "*":
                    expression, plain = _ANY_RUN, False
                case "?":
                    expression, plain = _ANY_CHAR, False
                case "[":
                    expression, plain = self._class(), False
                case _:
                    itself = self._escaped() if char == "\\" else char
                    name += itself
                    expression = literal(itself)
            expressions.append(expression)
        if self.at == start:
            raise (
                ValueError(f"the {part} part is empty at character {start + 1}")
                if start == len(self.text)
                else self._unexpected()
            )
        if plain:
            return Pattern(PatternKind.NAME, name)
        source = "".join(expressions)
        try:
            Expression(source)
        except ValueError as error:
            raise ValueError(f"the pattern at character {start + 1} is illegal: {error}") from None
        return Pattern(PatternKind.WILD, source)

    def _escaped(self) -> str:
        """Read what stands behind a backslash: anything but a letter or digit, as itself."""
        char = self.text[self.at : self.at + 1]
        if not char:
            raise ValueError("the rule ends in a backslash")
        if char.isascii() and char.isalnum():
            raise ValueError(f"a backslash before the letter or digit `{char}` means nothing outside /regex/")
        self.at += 1
        return char

    def _class(self) -> str:
        """Read ``[…]`` behind its bracket, and return RE2's form."""
        start = self.at
        negated = self.text[self.at : self.at + 1] == "!"
        self.at += negated
        members = ""
        while True:
            char = self.text[self.at : self.at + 1]
            if not char:
                raise ValueError(f"the class at character {start} has no closing ]")
            self.at += 1
            if char == "]":
                break
            if char == "\\":
                members += literal(self._escaped())
            else:
                members += char if char == "-" else literal(char)
        if not members:
            raise ValueError(f"the class at character {start} is empty")
        source = f"[{'^' if negated else ''}{members}]"
        try:
            Expression(source)
        except ValueError as error:
            raise ValueError(f"the class at character {start} is illegal: {error}") from None
        return source


def is_bare(char: str) -> bool:
    """Tell whether a character may stand unquoted in a wild pattern."""
    return (char.isascii() and char.isalnum()) or char in "$_" or not char.isascii()
