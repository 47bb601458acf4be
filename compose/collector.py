"""How often Python's collector of cycles looks at the objects of a server.

A look at all objects stops every thread of the process: with 100,000 tables for so long that leases end
(docs/decisions/2026-11-22-very-many-tables.md), with 100 changefeeds in a sorter service for so long that all of them
lag (docs/decisions/2026-11-24-looks-for-cycles.md). Python's own thresholds are for programs of few objects.
"""

import gc
from typing import Final

OF_CAPTURE: Final = (50_000, 5, 200)
"""New objects before the young ones are looked at, and so on: all of them once 50 million have come on top."""
OF_SORTERS: Final = (10_000, 3, 300)
"""Sooner than a capture, all of them after ten million: what a cut leaves in cycles may hold its rows."""

OF_UPSTREAM: Final = (50_000, 5, 1000)
"""A region server's rows refer to nothing that refers to them: all of them, some millions, in one look is too long."""


def spare_old_objects(thresholds: tuple[int, int, int]) -> None:
    """Look at young objects only, but for once in a long time. What references count is freed at once as ever."""
    gc.set_threshold(*thresholds)
