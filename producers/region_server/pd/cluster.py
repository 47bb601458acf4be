"""What PD knows, apart from regions: its members and who leads them, the stores, and which history is kept."""

import time
from dataclasses import dataclass, field
from typing import Literal

from producers.region_server.core.store.gc_state import GcState
from producers.region_server.core.store.oracle import TimestampOracle
from producers.region_server.core.store.safe_points import ServiceSafePoints
from producers.region_server.kv.store import ClusterStore
from schemas.ids import StoreId, Ts, compose_ts
from schemas.proto import metapb_pb2, pdpb_pb2

SERVER_VERSION = "8.5.0"
"""TiDB's version that the cluster claims: clients refuse what is too old or too new for them."""
GcApi = Literal["both", "service_safe_points", "barriers"]
"""What PD serves for keeping history: ``service_safe_points`` alone, as before PD 9; ``both``: barriers, and the old
call mapped to them; ``barriers`` alone."""


@dataclass(slots=True)
class PdMember:
    """One PD process. ``url`` is known once its port is bound."""

    name: str
    member_id: int
    url: str = ""
    running: bool = True


@dataclass(slots=True, eq=False)
class PdCluster:
    """Shared by all members' services."""

    store: ClusterStore
    oracle: TimestampOracle
    cluster_id: int
    gc_api: GcApi = "service_safe_points"
    replica_lag_ms: int = 0
    """How far a follower's resolved ts is behind."""
    members: list[PdMember] = field(default_factory=list)
    leader: int = 0
    """Index of the member that leads."""
    addresses: dict[StoreId, str] = field(default_factory=dict)
    states: "dict[StoreId, metapb_pb2.StoreState.ValueType]" = field(default_factory=dict)
    """States of stores that are not up."""
    global_config: dict[str, str] = field(default_factory=dict)
    """What stands below ``/global/config``, by name."""
    gc: GcState = field(default_factory=GcState)
    safe_points: ServiceSafePoints = field(default_factory=ServiceSafePoints)

    @property
    def client_url(self) -> str:
        """The leader's."""
        return self.members[self.leader].url

    def collect(self, wanted: Ts) -> Ts:
        """Let TiDB's collector go up to ``wanted`` as far as clients allow; return the GC safe point."""
        if self.gc_api == "service_safe_points":
            return self.safe_points.collect(wanted, time.monotonic())
        return self.gc.collect(wanted, time.monotonic())

    @property
    def gc_safe_point(self) -> Ts:
        """Below it history may be gone."""
        return self.safe_points.collected if self.gc_api == "service_safe_points" else self.gc.gc_safe_point

    def replica_resolved_ts(self) -> Ts:
        """Up to where followers have everything, as far as no open transaction holds them back."""
        return Ts(max(0, self.oracle.tso() - compose_ts(self.replica_lag_ms)))

    def member_metas(self) -> list[pdpb_pb2.Member]:
        """All members as GetMembers names them."""
        return [
            pdpb_pb2.Member(
                name=member.name, member_id=member.member_id, client_urls=[member.url], binary_version=SERVER_VERSION
            )
            for member in self.members
        ]

    def store_meta(self, store_id: StoreId) -> metapb_pb2.Store:
        """One store. A stopped store is Up here, as PD calls it for long; only a removed one is a Tombstone."""
        state = self.states.get(store_id, metapb_pb2.Up)
        node_state = {metapb_pb2.Up: metapb_pb2.Serving, metapb_pb2.Offline: metapb_pb2.Removing}.get(
            state, metapb_pb2.Removed
        )
        return metapb_pb2.Store(
            id=store_id, address=self.addresses[store_id], version=SERVER_VERSION, state=state, node_state=node_state
        )
