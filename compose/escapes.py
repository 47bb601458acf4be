r"""Text from outside for a terminal or a log: control characters as escapes, as JSON has them."""

import re
from typing import Final

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What ends a line, drives a terminal, turns the direction of writing, or has no UTF-8."""
_CONTROL_IN_A_LINE: Final = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(text: str) -> str:
    r"""Return text as one line: ``\n``, ``\r``, ``\t``, other control characters as ``\u001b``.

    >>> print(escaped("t\x1b[2J\n"))
    t\u001b[2J\n
    """
    return _CONTROL.sub(_escape, text)


def escaped_lines(text: str) -> str:
    r"""Return text whose line breaks and tabs stay. JSON stays JSON of the same value.

    >>> print(escaped_lines("a\n\u009bb"))
    a
    \u009bb
    """
    return _CONTROL_IN_A_LINE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return _SHORT.get(match[0]) or f"\\u{ord(match[0]):04x}"
