"""JSON that a browser reads without loss: its numbers are 64-bit floats, and a TSO has more digits than they hold."""

from collections.abc import Mapping
from typing import Any, Final

EXACT_MAX: Final = (1 << 53) - 1
"""ECMA-262, ``Number.MAX_SAFE_INTEGER``."""


def exact(value: object) -> Any:
    """Return a JSON value with each integer that a browser would round as its text.

    >>> exact({"ts": 462000000000000001, "tables": [3]})
    {'ts': '462000000000000001', 'tables': [3]}
    """
    if isinstance(value, Mapping):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT_MAX:
        return str(value)
    return value
