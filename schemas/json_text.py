"""JSON that anybody may have written: what a parser could not take is a ValueError like any other."""

import json
from typing import Any, NoReturn


def read_json(text: bytes | str) -> Any:
    """Return what a JSON text says.

    Raises:
        ValueError: it is no JSON, nests too deep, or holds a number that JSON has not.
    """
    try:
        return json.loads(text, parse_constant=_refused)
    except RecursionError:
        raise ValueError("nests too deep") from None


def read_int(value: object, *, bits: int = 64) -> int:
    """Return a whole number that is not negative and has at most ``bits`` bits.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise ValueError(f"{str(value)[:40]} is no whole number of {bits} bits")
    return value


def read_text(value: object, chars_max: int = 1 << 20) -> str:
    """Return a text.

    Raises:
        ValueError: it is none, holds half a character, or is too long.
    """
    if not isinstance(value, str) or len(value) > chars_max:
        raise ValueError(f"{str(value)[:40]!r} is no text of at most {chars_max} characters")
    value.encode()  # half of a pair, as JSON may spell it, could be written nowhere
    return value


def read_bool(value: object) -> bool:
    """Return true or false.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{str(value)[:40]!r} is neither true nor false")
    return value


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
