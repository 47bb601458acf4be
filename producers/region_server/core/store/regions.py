"""Regions: ranges of the key space with an epoch, a leader and their data, in one map ordered by start key.

Ranges are kept as raw keys. On the wire region bounds are memcomparable-encoded, which keeps their order.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from producers.region_server.core.chaos import NO_STORE
from producers.region_server.core.store.mvcc import RegionData
from schemas.ids import RegionId, StoreId


@dataclass(slots=True, eq=False)
class Region:
    """One region and its data. ``end`` empty means without bound; CDC looks only at ``version`` of the epoch."""

    region_id: RegionId
    start: bytes
    end: bytes
    version: int
    conf_ver: int
    leader: StoreId
    """NO_STORE while none leads it."""
    leader_known: bool = True
    """Whether stores that do not lead it know who does; in a real feed they seldom do."""
    pd_leader: StoreId | None = None
    """The leader that PD still names after a change; None: the present one."""
    hidden: bool = False
    """Whether PD leaves it out of scans."""
    data: RegionData = field(default_factory=RegionData)

    def covers(self, key: bytes) -> bool:
        """Whether the raw key lies in the region."""
        return self.start <= key and (not self.end or key < self.end)


class ClusterRegions:
    """All regions of the cluster; they always cover the whole key space without a gap or an overlap."""

    def __init__(self, stores: Iterable[StoreId]) -> None:
        self._stores = tuple(stores)
        self.up: tuple[StoreId, ...] = self._stores
        """Stores that can lead."""
        self._starts: list[bytes] = []
        self._by_start: dict[bytes, Region] = {}
        self._by_id: dict[RegionId, Region] = {}
        self._last_id = 0
        self._add(b"", b"", version=1)

    def __iter__(self) -> Iterator[Region]:
        return (self._by_start[start] for start in self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def get(self, region_id: int) -> Region | None:
        """The region of that id, if it exists (a merge ends ids, a split never does)."""
        return self._by_id.get(RegionId(region_id))

    def of_key(self, key: bytes) -> Region:
        """The region that holds a raw key."""
        return self._by_start[self._starts[bisect_right(self._starts, key) - 1]]

    def before(self, key: bytes) -> Region | None:
        """The region that stands just before the one of ``key``."""
        index = bisect_right(self._starts, key) - 2
        return self._by_start[self._starts[index]] if index >= 0 else None

    def between(self, start: bytes, end: bytes, limit: int = 0) -> list[Region]:
        """Regions that touch ``[start, end)``, in key order; ``limit`` 0 means all."""
        low = bisect_right(self._starts, start) - 1
        high = bisect_left(self._starts, end) if end else len(self._starts)
        chosen = self._starts[low:high]
        return [self._by_start[start] for start in (chosen[:limit] if limit > 0 else chosen)]

    def split(self, key: bytes) -> tuple[Region, Region] | None:
        """Split at ``key``; return (new left region, old region, now the right part), or None if the border exists.

        As TiKV does by default (right-derive), the old id keeps the right part, and both get the next version.
        The left part's leader moves on to the next store, as PD's balancing would do soon.
        """
        old = self.of_key(key)
        if old.start == key:
            return None
        del self._by_start[old.start]
        del self._starts[bisect_left(self._starts, old.start)]
        left = self._add(old.start, key, version=old.version + 1)
        left.data = old.data.split_off(key)
        old.start, old.version = key, old.version + 1
        self._by_start[key] = old
        insort(self._starts, key)
        return left, old

    def merge(self, left: Region) -> Region | None:
        """Merge a region into its right neighbour, which survives; None if it is the last one."""
        if not left.end:
            return None
        right = self._by_start[left.end]
        del self._by_start[right.start], self._by_id[left.region_id]
        del self._starts[bisect_left(self._starts, right.start)]
        right.data.absorb(left.data)
        right.start, right.version = left.start, max(left.version, right.version) + 1
        self._by_start[right.start] = right
        return right

    def _add(self, start: bytes, end: bytes, *, version: int) -> Region:
        self._last_id += 2  # odd ids are left to peers, so that no test confuses the two
        leader = self.up[(self._last_id // 2) % len(self.up)] if self.up else NO_STORE
        region = Region(RegionId(self._last_id), start, end, version, len(self._stores), leader)
        self._by_start[start] = region
        self._by_id[region.region_id] = region
        insort(self._starts, start)
        return region
