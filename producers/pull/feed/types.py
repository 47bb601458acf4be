"""What the event feed is given and what it gives: its sink, its bounds, its counters."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from producers.pull.core.match.change_columns import Change
from schemas.ids import RegionId, Ts
from schemas.tidb.spans import TableSpan


class FeedSink(Protocol):
    """Where the feed's output goes; called by the feed's thread, under its lock."""

    def rows(self, span: TableSpan, region_id: RegionId, changes: Collection[Change], *, may_repeat: bool) -> None:
        """Take committed changes of one region; ``may_repeat``: of an incremental scan."""

    def resolved(self, span: TableSpan, ts: Ts) -> None:
        """Every change of the span with commit_ts <= ``ts`` has been given to :meth:`rows`."""

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
    """False forces the old EventFeed with one stream for each span and store."""
    scans_per_store_max: int = 128
    """Incremental scans asked of one store at once. TiKV runs 6 and queues; more than that only keeps its queue filled
    while INITIALIZED is under way, and what waits here can still be located anew at no cost."""
    streams_per_store_max: int = 256
    """Only a store before EventFeedV2 needs more than one: one for each span. Each is a connection and a thread. Spans
    beyond it wait, and say so (``no_stream``)."""
    silence_s: float = 30.0
    """A stream with initialized regions that says nothing for so long is opened anew: 30 of TiKV's default rounds of
    resolved ts. Doubled each time in a row, up to 10 min: PD's outage silences stores that are well."""
    unanswered_s: float = 15.0
    """A stream of which nothing at all has come is opened anew so long after its store was asked: its call may be lost,
    as by a store that shuts down. Doubled each time in a row, up to 10 min: a scan may wait for its turn for long."""
    filter_loop: bool = False
    """True: TiKV leaves out what another TiCDC (or bus) has written, for `bdr-mode`. Never for the DDL feed."""


@dataclass(slots=True)
class FeedCounters:
    """What the feed has done since its start."""

    messages: int = 0
    message_bytes: int = 0
    events: int = 0
    changes: int = 0
    region_errors: int = 0
    stale_events: int = 0
    """Events of registrations that have ended; they are legal."""
    stranger_events: int = 0
    """Events of regions that were never registered: a store's mistake, passed over."""
    stream_failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanStatus:
    """How one span stands."""

    span: TableSpan
    resolved_ts: Ts
    regions: int
    initialized: int
    still_s: float
    """For how long its resolved ts has not moved."""
    reason: str
    """What holds it back at this moment; '' while all its regions are initialized and it moves."""
    kind: str
    """The reason as one of few words, for counting (producers.pull.feed.span_watch); '' with ''."""
