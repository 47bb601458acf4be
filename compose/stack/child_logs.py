"""The log of a child that runs for months stays within bounds, whoever of it writes: Python, a JVM, Python workers.

All of them share one file, opened to append, that none of them can be asked to open anew. So it is copied aside and cut
to nothing (logrotate's ``copytruncate``); what is written next goes to its beginning. A line that is written between
the two is lost.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from compose.log_files import opener

BYTES_MAX: Final = 64 << 20
KEPT: Final = 3
"""Older ones, ``sorter.log.1`` the youngest; some 256 MiB for each changefeed, if it says as much at all."""


def turn_over(log: Path, bytes_max: int = BYTES_MAX, kept: int = KEPT) -> bool:
    """Copy a log of more than ``bytes_max`` to ``….1``, those before one number on, and empty it; tell whether it was.

    A disk that is full or a folder that is gone is no reason to stop supervising; without room there is no copy.
    """
    with contextlib.suppress(OSError):
        if log.stat().st_size <= bytes_max:
            return False
        fresh = log.with_name(f"{log.name}.fresh")
        try:
            with log.open("rb") as now, open(fresh, "wb", opener=opener) as copy:  # pathlib's has no opener
                shutil.copyfileobj(now, copy)
            shutil.copymode(log, fresh)
            for number in range(kept - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    _older(log, number).replace(_older(log, number + 1))
            fresh.replace(_older(log, 1))
        finally:
            # Also where there was no room for a copy: the log is what fills the disk.
            fresh.unlink(missing_ok=True)
            os.truncate(log, 0)
        return True
    return False


def _older(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
