"""How many heaps the C library may have in a process of many threads."""

import ctypes
import sys
from typing import Final

_M_ARENA_MAX: Final = -8
"""Of glibc's ``mallopt``."""
ARENAS_MIN: Final = 2


def share_arenas(cores: int) -> bool:
    """Let threads share as many heaps as there are cores, not eight times as many: what one has freed another may use.

    Called before there are threads.

    Returns:
        False: the C library has no such setting, and all stays as it is.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, max(ARENAS_MIN, cores)))
