"""Python's collector of cycles where there are very many tables.

100,000 tables are five million objects that stay. A look at all of them stops every thread of the process, for a second
on an idle machine and for five on a busy one, and with Python's own thresholds there are fifteen such looks while the
tables come: leases ended meanwhile.
"""

import gc
from typing import Final

THRESHOLDS: Final = (50_000, 5, 200)
"""New objects before the young ones are looked at, and so on: all of them once 50 million have come on top."""


def spare_old_objects() -> None:
    """Look at young objects only, but for once in a long time. What references count is freed at once as ever."""
    gc.set_threshold(*THRESHOLDS)
