"""What the next step of table images is made of: all that is known at one moment."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from schemas.ids import CaptureId, TableId, Ts, physical_ms
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.images import ImageMode, KeyRange, ScanResult

_NO_RANGES: Final[Mapping[tuple[ImageMode, TableId], tuple[KeyRange, ...]]] = MappingProxyType({})
_NO_RANKS: Final[Mapping[TableId, int]] = MappingProxyType({})
_NO_REQUESTS: Final[Mapping[ImageMode, Collection[TableId]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """How much at once, and for how long."""

    barrier_ms: int = 10_000
    """A barrier ends after so long, by PD's clock, with what has landed by then."""
    retry_ms: int = 1000
    """After a barrier of which a scan was left unfinished, the next one has a ts so much later."""
    barriers_max: int = 8
    """Open ones; each holds other changefeeds back."""
    scans_max: int = 4
    """Of one barrier, each of another table."""
    bytes_max: int = 16 * 1024 * 1024
    """Of one scan: keys and values. A chunk goes out as one transaction of its topic partition at most."""
    tables_max: int = 64
    """That are begun and not whole. Each costs a record its ranges done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantingFeed:
    """A changefeed as it is now."""

    tables: Sequence[TableId]
    """Physical ids of the tables that are its own, ascending, as the newest DDL says that is known; and of those that
    were until a DDL that is above ``needed_ts`` of the record before, for their rows are still to come."""
    wants_initial: bool = False
    """It has ``initial = "snapshot"`` for some table: it is registered, with the tables that it has."""
    unwanted: Collection[TableId] = ()
    """Of ``tables``, those that have none by the settings: it is not registered with them."""
    is_running: bool = True
    """Neither it nor all of its images are paused: it may be in a new barrier. What landed for it before it finds in
    the frontier topic."""
    paused: Collection[TableId] = frozenset()
    """Tables of which nothing is scanned for it now."""
    ranks: Mapping[TableId, int] = field(default_factory=lambda: _NO_RANKS)
    """Of tables that come before others: those of a lower rank first, then by id; then all that have none."""
    scans_max: int | None = None
    """Of a barrier that it is in; None: as the limits say."""
    checkpoint_ts: Ts | None = None
    """Where its destination stands; None: nobody knows."""
    lag_max_s: float = 0
    """While that is further behind PD's clock it is in no new barrier; 0: no bound."""
    entered: Collection[TableId] = ()
    """Tables that a DDL with R < finished_ts <= R' has brought into it with rows (renamed, recovered, exchanged), R
    being the one before and R' the next, or one that is held no more; empty without ``wants_initial``."""
    came_late: Collection[TableId] = ()
    """Tables that have come into it with rows though changes of theirs may have gone out: nothing is left out."""
    requested: Mapping[ImageMode, Collection[TableId]] = field(default_factory=lambda: _NO_REQUESTS)
    """Asked by hand and not accepted yet: tables are taken that it does not wait for already."""
    ranged: Mapping[tuple[ImageMode, TableId], tuple[KeyRange, ...]] = field(default_factory=lambda: _NO_RANGES)
    """Likewise, of parts of tables."""


def lag_s(checkpoint_ts: Ts | None, now_ts: Ts) -> float:
    """Return how far a destination is behind; 0 where nobody knows."""
    return 0.0 if checkpoint_ts is None else max(0, physical_ms(now_ts) - physical_ms(checkpoint_ts)) / 1000


def is_behind(lag_max_s: float, checkpoint_ts: Ts | None, now_ts: Ts) -> bool:
    """Tell whether a changefeed is so far behind that it gets no new chunk; with a bound of 0 none ever is."""
    return lag_max_s > 0 and lag_s(checkpoint_ts, now_ts) > lag_max_s


@dataclass(frozen=True, slots=True)
class Replaced:
    """A DDL with R < finished_ts <= R' that gave rows of tables other ids, as where partitions are reorganized; or one
    that was held, and is no more."""

    gone: frozenset[TableId]
    come: frozenset[TableId]
    is_empty: bool = False
    """``come`` are new partitions, and ``gone`` all that the table had: to who resyncs it they are one table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInputs:
    """All DDL up to ``resolved_ts`` must be known: a table that comes below it could miss its image."""

    owner_rev: int
    before: FrontierRecord
    """What is published."""
    resolved_ts: Ts
    """R of the record that is about to be."""
    low: tuple[int, ...]
    """Its low."""
    now_ts: Ts
    """PD's clock."""
    new_ts: Ts | None
    """Drawn from PD after all that is known was; for a barrier. None: none could be drawn, or should be."""
    feeds: Mapping[str, WantingFeed]
    """Every changefeed that exists and has ``initial = "snapshot"``, is registered, or has requests."""
    scanners: Mapping[CaptureId, tuple[ScanResult, ...]]
    """The live captures that know of images, with what they report."""
    replaced: Sequence[Replaced] = ()
    """Ascending, as they were."""
    replaced_before: Sequence[Replaced] = ()
    """Likewise, with ``needed_ts`` of the record before < finished_ts <= R: a table that is asked for may be gone by
    one of them already."""
    ddl_ts: Collection[Ts] = ()
    """finished_ts of DDL jobs, from the oldest open barrier on. No chunk is of such a ts."""
    all_know: bool = True
    """Every capture and sorter service knows of images: none would pass a barrier."""
    limits: ImageLimits = ImageLimits()
