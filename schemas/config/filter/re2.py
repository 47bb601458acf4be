"""Regular expressions that users write, on RE2: Go's ``regexp`` syntax, and time that is linear in the text.

A changefeed's settings must not be able to stop its sorter, so no pattern of a user reaches Python's ``re``, which
backtracks (``docs/decisions/2026-11-22-patterns-on-re2.md``).

Source: https://github.com/google/re2/wiki/Syntax
"""

from typing import Any

import re2

MEMORY_BYTES_MAX = 8 << 20
"""Of one compiled expression: two thirds for its program, so that a larger one is refused, the rest for the states that
matching keeps. Without memory for states matching becomes slower, and stays linear.
"""


class Expression:
    """A compiled expression. Immutable; pickles as its source, for Spark's tasks."""

    __slots__ = ("_compiled", "_ignore_case", "_source")

    def __init__(self, source: str | bytes, *, ignore_case: bool = False) -> None:
        """Compile ``source``: a str is matched by characters (UTF-8), bytes are matched by byte.

        Raises:
            ValueError: RE2 refuses it; the text says why.
        """
        self._source, self._ignore_case = source, ignore_case
        options = re2.Options()
        options.max_mem = MEMORY_BYTES_MAX
        options.log_errors = False  # it would write the user's text to stderr
        options.never_capture = True
        options.case_sensitive = not ignore_case
        if isinstance(source, bytes):
            options.encoding = re2.Options.Encoding.LATIN1
        try:
            self._compiled: Any = re2.compile(_utf8(source), options)
        except re2.error as error:
            (reason,) = error.args
            text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
            shown = source if isinstance(source, str) else source.decode("utf-8", "replace")
            raise ValueError(f"regular expression `{shown}` is illegal: {text}{_hint(text)}") from None

    def search(self, text: str | bytes) -> bool:
        """Tell whether it matches anywhere in the text."""
        return self._compiled.search(_utf8(text)) is not None

    def fullmatch(self, text: str | bytes) -> bool:
        """Tell whether it matches the whole text."""
        return self._compiled.fullmatch(_utf8(text)) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[object, ...]:
        return _compile, self._key

    @property
    def _key(self) -> tuple[str | bytes, bool]:
        return self._source, self._ignore_case


def literal(text: str) -> str:
    """Return the expression of exactly this text; it may stand in a class as well."""
    return "".join(
        char if char == "_" or char.isalnum() or not char.isascii() else f"\\x{ord(char):02x}" for char in text
    )


def byte_literal(text: bytes) -> bytes:
    """Return the expression, over bytes, of exactly these bytes."""
    return b"".join(b"\\x%02x" % byte for byte in text)


def _compile(source: str | bytes, ignore_case: bool) -> Expression:
    return Expression(source, ignore_case=ignore_case)


def _utf8(text: str | bytes) -> bytes:
    # A lone surrogate, which stands for a byte that is no UTF-8, counts as one character, as Go counts that byte.
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _hint(reason: str) -> str:
    if reason.startswith("invalid perl operator"):
        return " (look-around, atomic and conditional groups are not RE2)"
    if reason.startswith("invalid escape sequence") and reason[-1:].isdigit():
        return " (back-references are not RE2)"
    return ""
