"""Identifiers and timestamps: plain on the wire, distinct types here, so mypy sees a mix-up."""

from typing import NewType

Ts = NewType("Ts", int)
"""One TSO: ``physical_ms << 18 | logical``. Never seconds."""

TableId = NewType("TableId", int)
"""A *physical* table id: of a partition where the table has partitions (keys carry this one)."""

RegionId = NewType("RegionId", int)
StoreId = NewType("StoreId", int)
CaptureId = NewType("CaptureId", str)
UpstreamId = NewType("UpstreamId", str)

PHYSICAL_SHIFT_BITS = 18
"""Source: tikv/pd ``pkg/utils/tsoutil/tsoutil.go``, ``physicalShiftBits = 18``."""


def physical_ms(ts: Ts) -> int:
    """Return the clock half of a TSO: milliseconds since the Unix epoch, by PD's clock and not ours.

    >>> physical_ms(Ts(437_000_000_000_000_001))
    1667022705078
    """
    return ts >> PHYSICAL_SHIFT_BITS


def compose_ts(physical_ms: int, logical: int = 0) -> Ts:
    """Build a TSO from milliseconds since the Unix epoch and the counter within that millisecond.

    >>> compose_ts(1585040583740, 2)
    415508878783938562
    """
    return Ts((physical_ms << PHYSICAL_SHIFT_BITS) + logical)
