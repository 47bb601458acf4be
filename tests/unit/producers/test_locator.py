"""How often PD is asked where ranges are."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

from producers.pull.core.regions.region_map import Peer, RegionInfo
from producers.pull.core.regions.request_ids import RequestIds
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.core.regions.subscription import Retry, Subscription
from producers.pull.feed.locator import READ_AHEAD_FROM, LocatedRange, Locator, UnlocatedRange
from producers.pull.pd.client import SCAN_REGIONS_LIMIT, PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.tls import Channels, TlsSettings
from schemas.ids import RegionId, StoreId, TableId, Ts
from schemas.proto import metapb_pb2
from schemas.tidb.spans import TableSpan

FIRST, TABLES = 100, 3_000


@dataclass
class CountingPd:
    """PD with a region for each table, and what it was asked for."""

    asked: list[EncodedRange] = field(default_factory=list)
    regions: list[RegionInfo] = field(default_factory=list)
    channels: Channels = field(default_factory=lambda: Channels(TlsSettings()))

    def __post_init__(self) -> None:
        borders = [_range(table).start for table in range(FIRST, FIRST + TABLES + 1)]
        for number, (start, end) in enumerate(pairwise(borders), 1):
            peer = Peer(number, StoreId(1))
            self.regions.append(
                RegionInfo(
                    region_id=RegionId(number),
                    range=EncodedRange(start, end),
                    version=1,
                    conf_ver=1,
                    leader=peer,
                    peers=(peer,),
                )
            )

    def scan_regions(self, wanted: EncodedRange, limit: int = SCAN_REGIONS_LIMIT) -> list[RegionInfo]:
        self.asked.append(wanted)
        overlapping = [
            region for region in self.regions if region.range.end > wanted.start and region.range.start < wanted.end
        ]
        return overlapping[:limit]

    def stores(self) -> list[metapb_pb2.Store]:
        return [metapb_pb2.Store(id=1, address="127.0.0.1:20160")]


def _range(table: int) -> EncodedRange:
    return EncodedRange(*TableSpan.of_table(TableId(table)).encoded)


def _locate(pd: CountingPd, tables: list[int], *, attempt: int = 0) -> list[LocatedRange | UnlocatedRange]:
    located: list[LocatedRange | UnlocatedRange] = []
    locator = Locator(RegionCache(cast(PdClient, pd)), located.append, clock=lambda: 1e9)
    for table in tables:
        subscription = Subscription(TableSpan.of_table(TableId(table)), Ts(1), RequestIds())
        locator.submit(subscription, Retry(_range(table), attempt), wait_ms=-(10**9))
    while locator.step():
        pass
    assert [answer.retry.range for answer in located if isinstance(answer, LocatedRange)] == [
        _range(table) for table in tables
    ]
    return located


def test_locator_with_very_many_tables_asks_pd_for_pages_of_them() -> None:
    pd = CountingPd()
    located = _locate(pd, list(range(FIRST, FIRST + TABLES)))
    assert len(pd.asked) <= TABLES // SCAN_REGIONS_LIMIT + 1 + READ_AHEAD_FROM
    assert all(isinstance(answer, LocatedRange) and len(answer.regions) == 1 for answer in located)


def test_locator_with_one_table_asks_pd_for_no_more() -> None:
    pd = CountingPd()
    _locate(pd, [FIRST + 5])
    assert pd.asked == [_range(FIRST + 5)]
