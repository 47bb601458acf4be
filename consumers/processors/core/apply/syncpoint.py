"""Syncpoints: ts, a whole number of intervals each, at which the destination stands still and is exactly upstream.

    up to the next one     all partitions stand at it           it is written there
    APPLYING -----------------------------> WRITE --------------------------------> APPLYING (to the one after)

Source: tiflow ``cdc/owner/barrier.go`` and ``pkg/syncpointstore``; the first is the least multiple that is not below
the start ts.
"""

import math

from schemas.ids import Ts, compose_ts, physical_ms


def first_syncpoint(start_ts: Ts, interval_s: float) -> Ts:
    """Return the least multiple of the interval, as a ts without logical part, that is not below ``start_ts``.

    >>> first_syncpoint(compose_ts(30_000), 30) == compose_ts(30_000)
    True
    >>> physical_ms(first_syncpoint(compose_ts(30_000, 1), 30))
    60000
    """
    interval_ms = round(interval_s * 1000)
    number = math.ceil(physical_ms(start_ts) / interval_ms)
    ts = compose_ts(number * interval_ms)
    return ts if ts >= start_ts else compose_ts((number + 1) * interval_ms)


def next_syncpoint(last: Ts, start_ts: Ts, interval_s: float) -> Ts:
    """Return the syncpoint after ``last``, the last one written; 0: none was."""
    if not last:
        return first_syncpoint(start_ts, interval_s)
    return first_syncpoint(Ts(last + 1), interval_s)
