"""When to look for locks: spans whose resolved ts stands still (docs/formats/cdcpb.md §7, the classic rule). Pure.

    Look(spans) --stands still for 4 s, and 4 s behind PD--> the span gets a target; its regions below it are resolved

A span keeps its target until its resolved ts has passed it, for a lock that is gone may uncover the next one. A region
is not resolved again within 10 s: what the last time did needs a resolved-ts round of the store to show.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from producers.pull.core.regions.span_frontier import EncodedRange
from schemas.ids import PHYSICAL_SHIFT_BITS, RegionId, Ts, physical_ms
from schemas.tidb.spans import TableSpan

LOOK_S: Final = 2.0
STILL_S: Final = 4.0
BEHIND_MS: Final = 4_000
REGION_PAUSE_S: Final = 10.0
REGIONS_FIRST: Final = 64
"""Under resolution at once while none has a lock: where all stand still, because a store or we ourselves are slow,
looking for their locks would make that worse. The others wait for a later look, the slowest come first."""
REGIONS_MAX: Final = 1024
"""At once when locks are found, as a client leaves them that dies in a large transaction."""


@dataclass(frozen=True, slots=True)
class StuckRegion:
    """A registered, initialized region of a span: a region that is being scanned has no locks to blame yet."""

    region_id: RegionId
    range: EncodedRange
    resolved_ts: Ts


@dataclass(frozen=True, slots=True)
class StillSpan:
    """A span that stands still, or has a target. ``regions``: those with resolved_ts below :func:`reach`."""

    span: TableSpan
    resolved_ts: Ts
    still_s: float
    regions: tuple[StuckRegion, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """In: how things stand. ``now`` is a TSO, ``now_s`` any steady clock."""

    now_s: float
    now: Ts
    spans: tuple[StillSpan, ...]
    room: int
    """How many regions can be taken on now: an outage makes all of them stand still at once."""


@dataclass(frozen=True, slots=True)
class ResolveRegion:
    """Out: end what can be ended of the locks of transactions up to ``max_version`` in ``range``."""

    span: TableSpan
    region_id: RegionId
    range: EncodedRange
    max_version: Ts


@dataclass(frozen=True, slots=True)
class Watch:
    """What is remembered between looks."""

    targets: Mapping[TableSpan, Ts] = field(default_factory=dict)
    resolved_at_s: Mapping[tuple[TableSpan, RegionId], float] = field(default_factory=dict)


def at_once(before: int, *, has_locks: bool) -> int:
    """Return how many regions may be under resolution until the next look.

    Args:
        before: how many it was until now.
        has_locks: locks were found meanwhile.
    """
    return min(4 * before, REGIONS_MAX) if has_locks else REGIONS_FIRST


def reach(resolved_ts: Ts) -> Ts:
    """Return up to which start_ts the locks of a span at ``resolved_ts`` are looked for at most.

    Not further: what lies there is younger, and its transaction likely still alive.
    """
    return Ts((physical_ms(resolved_ts) + BEHIND_MS) << PHYSICAL_SHIFT_BITS)


def step(state: Watch, look: Look) -> tuple[Watch, tuple[ResolveRegion, ...]]:
    """Choose the regions to resolve now."""
    targets: dict[TableSpan, Ts] = {}
    for still in look.spans:
        target = state.targets.get(still.span)
        behind_ms = physical_ms(look.now) - physical_ms(still.resolved_ts)
        if still.still_s >= STILL_S and behind_ms >= BEHIND_MS:
            targets[still.span] = min(look.now, reach(still.resolved_ts))
        elif target is not None and still.resolved_ts < target:
            targets[still.span] = target
    recent = {region: at_s for region, at_s in state.resolved_at_s.items() if look.now_s - at_s < REGION_PAUSE_S}
    due = [
        (region.resolved_ts, region, still.span, targets[still.span])
        for still in look.spans
        if still.span in targets
        for region in still.regions
        if region.resolved_ts < targets[still.span] and (still.span, region.region_id) not in recent
    ]
    due.sort(key=lambda due_span: due_span[0])
    orders: list[ResolveRegion] = []
    for _, region, span, target in due[: max(0, look.room)]:
        # A region of two ranges, after a merge, is resolved in both.
        recent[span, region.region_id] = look.now_s
        orders.append(ResolveRegion(span, region.region_id, region.range, target))
    return Watch(targets, recent), tuple(orders)
