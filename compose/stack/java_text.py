"""Settings as Java's ``Properties.load`` reads them: Latin-1, with escapes for all else.

Source: the documentation of java.util.Properties.
"""

from pathlib import Path
from typing import Final

_LAST_ASCII: Final = "\x7f"


def write_properties(file: Path, text: str) -> None:
    """Write lines of ``key=value``; a value is a path or a word, with whatever letters."""
    file.write_text(escaped(text), encoding="ascii")


def escaped(text: str) -> str:
    r"""Return a text by ASCII alone.

    >>> print(escaped("dataDir=/home/jürgen/a\\b"))
    dataDir=/home/j\u00fcrgen/a\\b
    """
    return "".join(map(_escaped_char, text))


def _escaped_char(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if char <= _LAST_ASCII:
        return char
    units = char.encode("utf-16-be", "surrogateescape")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
