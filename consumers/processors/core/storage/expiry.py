"""Which files of a storage sink have had their time: those in a folder of a day that is long before the checkpoint.

As TiCDC does, and with ``date-separator = "day"`` alone: data files and the index files beside them, by the day in
their path. Schema files, the checkpoint and the states of partitions stay.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo

from schemas.ids import Ts, physical_ms

_OF_A_DAY = re.compile(r"(?:.*/)?\d+/(?:\d+/)?(\d{4}-\d{2}-\d{2})/(?:meta/CDC\.index|CDC\d+\.(?:csv|json))")


def first_kept_day(checkpoint_ts: Ts, days: int, zone: tzinfo | None = None) -> str:
    """Return the day, ``YYYY-MM-DD`` in the server's zone as folders are named, before which files go."""
    at = datetime.fromtimestamp(physical_ms(checkpoint_ts) / 1000, UTC) - timedelta(days=days)
    return at.astimezone(zone).strftime("%Y-%m-%d")


def has_expired(path: str, kept_from: str) -> bool:
    """Tell whether a path below the sink's root is of a day before ``kept_from``.

    >>> has_expired("d/t/44/2026-01-02/CDC000001.csv", "2026-01-03")
    True
    """
    match = _OF_A_DAY.fullmatch(path)
    return match is not None and match[1] < kept_from
