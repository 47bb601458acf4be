"""The words of an event filter's condition: MySQL's lexer in the default sql_mode, with their positions."""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from schemas.errors import shortened

_MESSAGE_CHARS_MAX: Final = 300
"""It may quote a word of the text, which may be as long as the text."""


class ExpressionTextError(ValueError):
    """The text is no expression, or one with a part that we do not evaluate; ``at`` is its character, from 1."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(f"{shortened(message, _MESSAGE_CHARS_MAX)} at character {at}")
        self.at = at


_UINT64_MAX: Final = (1 << 64) - 1
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_SCANNER = re.compile(
    r"""
    (?P<space>\s+)
    |(?P<bits>0x[0-9a-fA-F]+\b|0b[01]+\b|[xX]'(?:[0-9a-fA-F]{2})*'|[bB]'[01]*')
    |(?P<no_bits>[xXbB]'|0X)
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w$]))
    |(?P<name>`(?:[^`]|``)+`)
    |(?P<quote>['"])
    |(?P<word>[\w$\x80-\U0010ffff]+)
    |(?P<symbol><=>|<<|>>|->>|->|<=|>=|<>|!=|:=|&&|\|\||[-+*/%&|^~!=<>().,;@:?])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class ExpressionToken:
    """A word, name, string, number, symbol, or bits as hexadecimal digits, without its quotes; ``at``: its character,
    from 1.
    """

    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """The keyword or symbol for comparison; '' for what can be neither."""
        return self.text.upper() if self.kind in {"word", "symbol"} else ""


def expression_tokens(text: str) -> list[ExpressionToken]:
    """Split the text of a condition.

    Raises:
        ExpressionTextError: text that is no token, an open quote, or a hexadecimal or bit literal that is none.
    """
    tokens, at = list[ExpressionToken](), 0
    while at < len(text):
        match = _SCANNER.match(text, at)
        if match is None:
            raise ExpressionTextError(f"unexpected `{text[at]}`", at + 1)
        kind, token_text, start = match.lastgroup or "", match.group(), at
        at = match.end()
        if kind == "no_bits":
            raise ExpressionTextError("the hexadecimal or bit literal is none", start + 1)
        if kind == "bits":
            token_text = _bytes_of(token_text).hex()
        if kind == "quote":
            token_text, at = _string(text, start)
            kind = "string"
        elif kind == "name":
            token_text = token_text[1:-1].replace("``", "`")
        if kind != "space":
            tokens.append(ExpressionToken(kind, token_text, start + 1))
    return tokens


def _bytes_of(literal: str) -> bytes:
    digits = literal[2:].rstrip("'")
    if literal[:2].lower() in {"0x", "x'"}:
        return bytes.fromhex(digits.rjust(len(digits) + len(digits) % 2, "0"))
    return int(digits or "0", 2).to_bytes((len(digits) + 7) // 8, "big")


def _string(text: str, start: int) -> tuple[str, int]:
    quote, out, at = text[start], list[str](), start + 1
    while at < len(text):
        char = text[at]
        if char == quote:
            if text[at + 1 : at + 2] != quote:
                return "".join(out), at + 1
            at += 1
        elif char == "\\" and at + 1 < len(text):
            at += 1
            # \% and \_ keep their backslash: LIKE reads them
            char = "\\" + text[at] if text[at] in "%_" else _ESCAPES.get(text[at], text[at])
        out.append(char)
        at += 1
    raise ExpressionTextError(f"the string has no closing {quote}", start + 1)


def number_of(text: str) -> int | Decimal | float:
    """Return a number token's value: an integer of 64 bits, a decimal, or, with an exponent, a double."""
    if text.isdecimal():
        value = Decimal(text)  # int() refuses thousands of digits
        return int(value) if value <= _UINT64_MAX else value
    return float(text) if "e" in text.lower() else Decimal(text)
