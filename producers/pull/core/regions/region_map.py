"""Regions as a client knows them: a map from key to region that may be old, and never claims more than it knows.

All keys are memcomparable-encoded. PD writes "no upper bound" as an empty end; here it is :data:`KEY_END`, as in TiCDC.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from producers.pull.core.regions.span_frontier import EncodedRange
from schemas.ids import RegionId, StoreId

KEY_END: Final = b"\xff" * 5
"""Above every encoded TiDB key, which starts with `t` or `m`."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One replica of a region."""

    peer_id: int
    store_id: StoreId


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionInfo:
    """One region at one epoch."""

    region_id: RegionId
    range: EncodedRange
    version: int
    """Grows with every split and merge."""
    conf_ver: int
    leader: Peer | None
    """None: PD knows none at the moment."""
    peers: tuple[Peer, ...] = ()


def covering_prefix(regions: Iterable[RegionInfo], start: bytes) -> list[RegionInfo]:
    """Return the regions that cover keys from ``start`` on without a gap.

    PD's scan may have holes (a region in the middle of a split has not reported yet); what lies behind a hole is not
    used, and the caller asks for the rest again.
    """
    covered: list[RegionInfo] = []
    cursor = start
    for region in sorted(regions, key=lambda region: region.range.start):
        if region.range.end <= cursor:
            continue
        if region.range.start > cursor:
            break
        covered.append(region)
        cursor = region.range.end
    return covered


class KnownRegions:
    """The newest known region of each key. Not thread-safe."""

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._regions: list[RegionInfo] = []

    def __len__(self) -> int:
        return len(self._regions)

    def put(self, regions: Iterable[RegionInfo]) -> None:
        """Take what PD said; older regions that overlap a newer one go."""
        for region in regions:
            first, last = self._overlap(region.range)
            if any(known.version > region.version for known in self._regions[first:last]):
                continue
            self._regions[first:last] = [region]
            self._starts[first:last] = [region.range.start]

    def find(self, wanted: EncodedRange, limit: int | None = None) -> list[RegionInfo]:
        """Return the known regions that cover ``wanted`` from its start without a gap: maybe all, maybe none."""
        first, last = self._overlap(wanted)
        if limit is not None:
            last = min(last, first + limit)
        return covering_prefix(self._regions[first:last], wanted.start)

    def drop(self, wanted: EncodedRange) -> None:
        """Forget what overlaps ``wanted``."""
        first, last = self._overlap(wanted)
        del self._regions[first:last], self._starts[first:last]

    def set_leader(self, region_id: RegionId, wanted: EncodedRange, store_id: StoreId) -> bool:
        """Believe a hint about a region's leader; False when the region or its peer on that store is not known."""
        first, last = self._overlap(wanted)
        for at in range(first, last):
            region = self._regions[at]
            if region.region_id == region_id:
                peer = _peer_on(region.peers, store_id)
                if peer is not None:
                    self._regions[at] = replace(region, leader=peer)
                return peer is not None
        return False

    def _overlap(self, wanted: EncodedRange) -> tuple[int, int]:
        """Return the slice of regions that overlap ``wanted``; known regions never overlap each other."""
        first = max(0, bisect_right(self._starts, wanted.start) - 1)
        if first < len(self._regions) and self._regions[first].range.end <= wanted.start:
            first += 1
        return first, max(first, bisect_left(self._starts, wanted.end))


def _peer_on(peers: Sequence[Peer], store_id: StoreId) -> Peer | None:
    return next((peer for peer in peers if peer.store_id == store_id), None)
