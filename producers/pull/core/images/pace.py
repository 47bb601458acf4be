"""How fast a store may be read, and how large a page is asked for. Pure; times are seconds of any steady clock."""

from dataclasses import dataclass, replace
from typing import Final

BURST_S: Final = 1.0
"""What a quota makes up for: between two barriers nothing is read."""
CATCH_UP: Final = 2.0
"""Times its rate, at which it does: what is read at full speed takes the interpreter from all else in a capture."""
PAGE_BYTES: Final = 1 << 20
"""Of keys and values, wanted of a page: one record of the images topic."""
PAGE_ROWS_FIRST, PAGE_ROWS_MIN, PAGE_ROWS_MAX = 256, 16, 2_048
"""A page is bounded in rows only (kvrpcpb), so the size of rows is learnt from the page before."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket that may be overdrawn: what a page costs is known once it is here.

    >>> bucket, wait_s = take(Bucket(rate_per_s=100.0), 10.0, 0.0)
    >>> round(wait_s, 3), round(take(bucket, 190.0, 0.05)[1], 3)
    (0.05, 0.95)
    """

    rate_per_s: float
    """0: without bound."""
    tokens: float | None = None
    """None: nothing was ever taken, and it is full."""
    at_s: float = 0.0


def take(bucket: Bucket, amount: float, now_s: float) -> tuple[Bucket, float]:
    """Take ``amount``; return the bucket and for how many seconds nothing more may be taken."""
    if not bucket.rate_per_s:
        return bucket, 0.0
    full = bucket.rate_per_s * BURST_S
    if bucket.tokens is None:
        held = full
    else:
        held = min(full, bucket.tokens + max(0.0, now_s - bucket.at_s) * bucket.rate_per_s)
    left = held - amount
    wait_s = max(-left, amount / CATCH_UP) / bucket.rate_per_s
    return replace(bucket, tokens=left, at_s=max(now_s, bucket.at_s)), wait_s


@dataclass(frozen=True, slots=True)
class StorePace:
    """The quotas of one store."""

    rows: Bucket
    bytes: Bucket


def spend(pace: StorePace, rows: int, size: int, now_s: float) -> tuple[StorePace, float]:
    """Count a page that was read; return for how many seconds the store is left alone."""
    rows_left, rows_wait_s = take(pace.rows, rows, now_s)
    bytes_left, bytes_wait_s = take(pace.bytes, size, now_s)
    return StorePace(rows_left, bytes_left), max(rows_wait_s, bytes_wait_s)


def page_rows(rows: int, size: int, bytes_left: int | None = None) -> int:
    """Return how many rows to ask for, after a page of ``rows`` rows and ``size`` bytes; no more than ``bytes_left``
    of them are wanted.

    >>> page_rows(256, 256 * 200), page_rows(256, 256 << 20), page_rows(0, 0), page_rows(4, 4 << 20, 5 << 19)
    (2048, 16, 256, 3)
    """
    if not rows:
        return PAGE_ROWS_FIRST
    limit = max(PAGE_ROWS_MIN, min(PAGE_ROWS_MAX, PAGE_BYTES * rows // max(1, size)))
    return limit if bytes_left is None else min(limit, max(1, -(-bytes_left * rows // max(1, size))))
