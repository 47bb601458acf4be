"""What a capture's puller is doing, as it tells the owner: for status and metrics, nothing is decided by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from schemas.tidb.spans import TableSpan

STALL_WARN_S: Final = 20.0
"""A span whose resolved ts has not moved for so long is logged once, and shown with its reason; TiCDC's bound is the
same."""
_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StalledSpan:
    """A span that something holds back, with the reason for people."""

    span: TableSpan
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFigures:
    """Since the capture's start where they are counters."""

    rows: int = 0
    """That the broker has acknowledged."""
    regions: int = 0
    regions_initialized: int = 0
    scans_running: int = 0
    """Incremental scans asked of the stores and not yet complete."""
    scans_waiting: int = 0
    """Regions that wait for their turn to be scanned."""
    held_bytes: int = 0
    """Open transactions in memory."""
    spilled_bytes: int = 0
    """Open transactions on disk."""
    locks_committed: int = 0
    locks_rolled_back: int = 0
    locks_left_alive: int = 0
    troubles: Mapping[str, int] = field(default_factory=lambda: _NONE)
    """How often each kind of error, broken stream or bad data was met."""
    stalls: tuple[StalledSpan, ...] = ()
    """The slowest of the spans that something holds back."""
    broker_reason: str = ""
    """Why landing waits for Kafka; '' if it does not."""


COUNTS: Final = (
    "rows", "regions", "regions_initialized", "scans_running", "scans_waiting", "held_bytes", "spilled_bytes",
    "locks_committed", "locks_rolled_back", "locks_left_alive",
)  # fmt: skip
"""The fields that are numbers."""


def total(figures: list[PullFigures]) -> PullFigures:
    """Return the sum over captures; spans that stall and reasons stay apart, for a capture belongs to each."""
    troubles: dict[str, int] = {}
    for capture in figures:
        for kind, count in capture.troubles.items():
            troubles[kind] = troubles.get(kind, 0) + count
    counts: dict[str, Any] = {name: sum(getattr(capture, name) for capture in figures) for name in COUNTS}
    return PullFigures(**counts, troubles=troubles)
