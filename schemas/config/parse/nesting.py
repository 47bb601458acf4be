"""How deep a parsed text nests: whoever walks it calls itself once a level."""

from collections.abc import Mapping
from typing import Final

LEVELS_MAX: Final = 64
"""No setting of TiCDC's is more than eight levels below the file; a JSON body wraps it in two."""


def nests_too_deep(value: object) -> bool:
    """Tell whether tables and lists stand within each other by more than :data:`LEVELS_MAX`."""
    level: list[object] = [value]
    for _ in range(LEVELS_MAX + 1):
        level = [item for outer in level for item in _items(outer)]
        if not level:
            return False
    return True


def _items(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
