"""What a reign of an owner works with, and the times that it keeps."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.core.frontier.frontier import FrontierInputs
from consumers.control.core.frontier.span_split import SplitSettings
from consumers.control.core.scheduling.coordinator import Identity, Limits
from consumers.control.owner.images.imaged_tables import ImagedTables
from consumers.control.owner.owner import HELD_LAG_S
from consumers.control.peers.interface import FeedKey, Peers
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import DdlReport, FrontierRecord
from schemas.tidb.spans import Boundaries

PULLER_LIMITS = Limits(
    max_task_concurrency=100, add_table_batch_size=2000, heartbeat_spans_max=200, check_balance_interval_ticks=300
)
"""TiCDC's 10 and 50 spare the stores, each span being scanned at once; our pullers queue scans themselves
(``FeedSettings.scans_per_store_max``), so only the work of owner and agents in one tick is bounded here. How far spans
are stands in the landing reports: heartbeats need only find what a lost message has left. Shares are looked at every
15 s at 50 ms a tick: sooner where rows come, later with very many tables, whose ticks are longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReignOptions:
    """Times of the owner."""

    tick_s: float = 0.05
    """The longest rest between two ticks, but after one that took long (``rest_s`` in
    ``consumers/control/owner/pace.py``): half of the frontier's share of the latency budget
    (docs/decisions/2026-11-22-latency-budget.md)."""
    status_s: float = 1.0
    """Between two writes of the status node."""
    repeats_s: float = 60.0
    """How long after a takeover, or the end of a capture, somebody may be landing still who is gone, so that all
    records count as repeating. What is on its way arrives within Kafka's request timeout (30 s)."""
    held_lag_s: float = HELD_LAG_S
    """A table that is further behind the first one is held: only changefeeds that contain it wait for it."""
    split: SplitSettings = field(default_factory=SplitSettings)
    """Which tables are pulled in several spans."""
    split_look_s: float = 300.0
    """Between two counts of the tables' regions, each of which reads all of them from PD."""
    limits: Limits = PULLER_LIMITS
    """Of scheduling."""


class PublishesFrontier(Protocol):
    """What is asked of :class:`consumers.control.owner.owner.Owner`."""

    @property
    def published(self) -> FrontierRecord:
        """The newest published record."""

    @property
    def partitions(self) -> int:
        """Of region-events, as far as it knows."""

    def widen(self, partitions: int) -> None:
        """Take region-events for as wide."""

    def tick(self, inputs: FrontierInputs) -> FrontierRecord | None:
        """Publish what they allow."""


class LandsDdl(Protocol):
    """What is asked of :class:`producers.pull.ddl.ddl_feed.DdlFeed`."""

    def report(self) -> DdlReport:
        """Return how far it has landed."""

    def take(self) -> list[DdlRecord]:
        """Return what has landed since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReignParts:
    """What a reign works with. ``captures`` says who is registered; the first answer must be newer than the election.

    ``save_epoch`` keeps a new changefeed epoch for owners to come, before anybody hears of it.
    """

    me: Identity
    owner: PublishesFrontier
    ddl: LandsDdl
    peers: Peers
    feed: FeedKey
    captures: Callable[[], Mapping[CaptureId, CaptureInfo]]
    count_regions: Callable[[Collection[TableId], int], Boundaries]
    save_epoch: Callable[[int], None] = lambda epoch: None
    counter: Executor | None = None
    """Runs ``count_regions``; None: a thread of its own."""
    count_partitions: Callable[[], int] = lambda: 0
    """Asks Kafka how wide region-events is; 0: it does not answer."""
    is_past: Callable[[Ts], bool] = lambda _: True
    """Says whether PD has given out a ts already."""
    images: ImagedTables | None = None
    """The one that ``owner`` asks for what follows of table images; None: nothing does."""
