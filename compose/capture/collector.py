"""Python's collector of cycles where there are very many tables.

A look at all objects stops every thread of the process, with 100,000 tables for so long that leases end
(docs/decisions/2026-11-22-very-many-tables.md).
"""

import gc
from typing import Final

THRESHOLDS: Final = (50_000, 5, 200)
"""New objects before the young ones are looked at, and so on: all of them once 50 million have come on top."""


def spare_old_objects() -> None:
    """Look at young objects only, but for once in a long time. What references count is freed at once as ever."""
    gc.set_threshold(*THRESHOLDS)
