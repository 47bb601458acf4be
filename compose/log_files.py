"""Files of logs. Errors quote keys of rows and what destinations say of them: nobody else on the machine reads them."""

import os
from typing import Final

_MODE: Final = 0o600
"""As TiCDC's log files have it."""


def opener(path: str, flags: int) -> int:
    """Open a log, for ``open``: a new one is its owner's alone, one that is there keeps its mode."""
    return os.open(path, flags, _MODE)
