"""Regions and key bounds as PD and TiKV have them in messages."""

from collections.abc import Sequence

from producers.region_server.core.chaos import NO_STORE
from producers.region_server.core.store.regions import Region
from schemas.errors import CorruptDataError
from schemas.ids import StoreId
from schemas.proto import errorpb_pb2, metapb_pb2
from schemas.tidb.codec import decode_bytes, encode_bytes


def raw_bound(encoded: bytes) -> bytes:
    """The raw key of a region key or range bound; empty stays empty (no bound).

    Raises:
        CorruptDataError: it is not one memcomparable-encoded key.
    """
    if not encoded:
        return b""
    raw, end = decode_bytes(encoded)
    if end != len(encoded):
        raise CorruptDataError("key bound has bytes after its end", bound=encoded.hex())
    return raw


def region_bound(raw: bytes) -> bytes:
    """A raw key as regions are bounded by; empty stays empty (no bound)."""
    return encode_bytes(raw) if raw else b""


def peer(region: Region, store_id: StoreId) -> metapb_pb2.Peer:
    """The replica of a region on a store. Region ids are even, and a peer's id differs from all of them."""
    return metapb_pb2.Peer(id=region.region_id * 100 + store_id * 2 + 1, store_id=store_id)


def region_meta(region: Region, store_ids: Sequence[StoreId]) -> metapb_pb2.Region:
    """A region with memcomparable-encoded bounds, and a replica on every store."""
    return metapb_pb2.Region(
        id=region.region_id,
        start_key=region_bound(region.start),
        end_key=region_bound(region.end),
        region_epoch=metapb_pb2.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
        peers=[peer(region, store_id) for store_id in store_ids],
    )


def leader_peer(region: Region, leader: StoreId) -> metapb_pb2.Peer:
    """The leader as PD names it: an empty peer where there is none."""
    return peer(region, leader) if leader != NO_STORE else metapb_pb2.Peer()


def not_leader(region: Region) -> errorpb_pb2.NotLeader:
    """The region error, with the hint who leads where that is known."""
    if not region.leader_known or region.leader == NO_STORE:
        return errorpb_pb2.NotLeader(region_id=region.region_id)
    return errorpb_pb2.NotLeader(region_id=region.region_id, leader=peer(region, region.leader))
