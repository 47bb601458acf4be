"""What the event feed is given and what it gives: its sink, its bounds, its counters."""

from dataclasses import dataclass
from typing import Protocol

from producers.core.matcher import Change
from schemas.ids import RegionId, TableId, Ts


class FeedSink(Protocol):
    """Where the feed's output goes; called by the feed's thread, under its lock."""

    def rows(self, table_id: TableId, region_id: RegionId, changes: list[Change], *, may_repeat: bool) -> None:
        """Take committed changes of one region; ``may_repeat``: of an incremental scan."""

    def resolved(self, table_id: TableId, ts: Ts) -> None:
        """Every change of the table with commit_ts <= ``ts`` has been given to :meth:`rows`."""

    def turn(self, now_s: float) -> float:
        """Flush what is due; return in how many seconds the next turn is wanted."""

    def saturated(self) -> bool:
        """Say whether the feed must wait before it takes more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """Bounds of one feed."""

    inbox_bytes_max: int = 64 << 20
    """Unparsed messages; ten of the largest ordinary ones (6 MiB)."""
    multiplexing: bool = True
    """False forces the old EventFeed with one stream for each table and store."""


@dataclass(slots=True)
class FeedCounters:
    """What the feed has done since its start."""

    messages: int = 0
    message_bytes: int = 0
    events: int = 0
    changes: int = 0
    region_errors: int = 0
    stale_events: int = 0
    stream_failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanStatus:
    """How one span stands."""

    table_id: TableId
    resolved_ts: Ts
    regions: int
    initialized: int
    still_s: float
    """Since when its resolved ts has not moved."""
    reason: str
    """What holds it back at this moment; '' while all its regions are initialized and it moves."""
