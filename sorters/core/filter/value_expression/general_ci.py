"""``utf8mb4_general_ci`` and ``utf8_general_ci``: each character has one weight, and texts compare by them.

A letter with marks weighs as its first letter, a small one as its large one, by Unicode 3.0, which the collation was
made of; what Unicode has said since is none of it, nor are scripts beyond :data:`_PLANES`. Python's own tables are of a
later Unicode, so mappings count where both sides were assigned in 3.2, but for those that 3.0 did not have.

Source: pingcap/tidb ``pkg/util/collate/general_ci.go``, whose table is MySQL's.
"""

import unicodedata
from functools import cache
from typing import Final

_UNICODE: Final = unicodedata.ucd_3_2_0
_PLANES: Final = frozenset({*range(0x06), 0x1E, 0x1F, 0x21, 0x24, 0xFF})
"""High bytes of characters that weigh otherwise than they count."""
_SPECIAL: Final = {0x00DF: 0x0053, 0x03F2: 0x03A3, 0x0419: 0x0419, 0x0439: 0x0419}
"""ß weighs as S, lunate sigma as sigma, and the Cyrillic short I as itself."""
_LATER: Final = frozenset(
    {0x019E, 0x03D9, 0x03F5, 0x048B, 0x04C6, 0x04CA, 0x04CE, 0x04CF, 0x214E, 0x2184, *range(0x0501, 0x0510, 2)}
)
"""Small letters whose large ones came after Unicode 3.0."""
_BEYOND: Final = 0xFFFD
"""Of each character outside the basic plane."""


class _Weights(dict[int, int]):
    """Made as characters are met: ``str.translate`` asks for each."""

    def __missing__(self, char: int) -> int:
        weight = self[char] = _weight(char)
        return weight


_WEIGHTS: Final = _Weights()


def weights(text: str) -> str:
    """Return a text whose characters are the weights of another's: these compare by their numbers.

    >>> weights("Straße") == weights("STRASE")
    True
    """
    return text.translate(_WEIGHTS)


def _weight(char: int) -> int:
    if char > 0xFFFF:
        return _BEYOND
    if char >> 8 not in _PLANES:
        return char
    return _weight_of_plane(char)


@cache
def _weight_of_plane(char: int) -> int:
    if char in _SPECIAL:
        return _SPECIAL[char]
    base, *marks = _UNICODE.decomposition(chr(char)).split() or [""]
    if marks and not base.startswith("<") and _UNICODE.category(chr(int(base, 16))).startswith("L"):
        return _weight_of_plane(int(base, 16))
    large = chr(char).upper()
    is_known = len(large) == 1 and _UNICODE.category(large) != "Cn" and _UNICODE.category(chr(char)) != "Cn"
    return ord(large) if is_known and char not in _LATER else char
