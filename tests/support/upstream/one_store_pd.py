"""PD of a cluster of one store, for benches whose store says what it was made for: no region ever moves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.ids import RegionId, Ts
from schemas.proto import metapb_pb2, pdpb_pb2, pdpb_pb2_grpc


@dataclass(frozen=True, slots=True)
class FixedRegion:
    """A region, with its keys in memcomparable form; an empty one is the end of all keys."""

    region_id: RegionId
    start_key: bytes
    end_key: bytes


class OneStorePd(pdpb_pb2_grpc.PDServicer):
    """What a puller asks PD for."""

    def __init__(self, address: str, now: Ts, regions: Sequence[FixedRegion]) -> None:
        """``address`` is the store's, and this PD's too; ``regions`` are in the order of their keys."""
        self._address, self._now, self._regions = address, now, regions
        self._ok = pdpb_pb2.ResponseHeader(cluster_id=1)

    def GetMembers(self, request: Any, context: Any) -> pdpb_pb2.GetMembersResponse:  # noqa: N802
        """One member, this one."""
        member = pdpb_pb2.Member(name="pd", member_id=1, client_urls=[f"http://{self._address}"])
        return pdpb_pb2.GetMembersResponse(header=self._ok, members=[member], leader=member)

    def Tso(self, requests: Any, context: Any) -> Iterator[pdpb_pb2.TsoResponse]:  # noqa: N802
        """Always the same: no lock ever is old."""
        for request in requests:
            stamp = pdpb_pb2.Timestamp(physical=self._now >> 18)
            yield pdpb_pb2.TsoResponse(header=self._ok, count=request.count, timestamp=stamp)

    def GetAllStores(self, request: Any, context: Any) -> pdpb_pb2.GetAllStoresResponse:  # noqa: N802
        """One store, at the same address."""
        store = metapb_pb2.Store(id=1, address=self._address)
        return pdpb_pb2.GetAllStoresResponse(header=self._ok, stores=[store])

    def ScanRegions(self, request: Any, context: Any) -> pdpb_pb2.ScanRegionsResponse:  # noqa: N802
        """All regions that meet the range."""
        regions = []
        for region in self._regions:
            if region.end_key and region.end_key <= request.start_key:
                continue
            if request.end_key and region.start_key >= request.end_key:
                break
            peer = metapb_pb2.Peer(id=region.region_id, store_id=1)
            epoch = metapb_pb2.RegionEpoch(conf_ver=1, version=1)
            meta = metapb_pb2.Region(
                id=region.region_id,
                start_key=region.start_key,
                end_key=region.end_key,
                region_epoch=epoch,
                peers=[peer],
            )
            regions.append(pdpb_pb2.Region(region=meta, leader=peer))
        return pdpb_pb2.ScanRegionsResponse(
            header=self._ok,
            region_metas=[it.region for it in regions],
            leaders=[it.leader for it in regions],
            regions=regions,
        )
