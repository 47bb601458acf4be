"""Stores of the region server behind channels that call them directly: no socket, no thread, no clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from producers.pull.core.regions.region_map import Peer, RegionInfo
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.pd.client import PdClient
from producers.region_server.core.chaos import CALL_ERRORS
from producers.region_server.kv.call_gate import CallFaults, CallGate
from producers.region_server.kv.service import TikvService
from producers.region_server.kv.store import ClusterStore
from producers.region_server.rpc.wire import peer, region_bound
from schemas.ids import RegionId, StoreId, Ts, compose_ts
from schemas.proto import metapb_pb2

STORES = tuple(map(StoreId, (1, 2, 3)))
NOW_MS = 1_000_000


class DirectCluster:
    """Stores behind channels that call them directly; before each call something may happen to the regions."""

    def __init__(self, events: Sequence[tuple[str, int]] = ()) -> None:
        self.store = ClusterStore(STORES)
        self.faults = {store_id: CallFaults() for store_id in STORES}
        self.resolved_ts = Ts(0)
        """Of followers."""
        self.split_keys: Sequence[bytes] = (b"m",)
        """Where an event may split."""
        self.calls: list[tuple[str, str, Any]] = []
        """Store, call and request, in their order."""
        self._services = {f"store-{store_id}": TikvService(self.store, self._gate(store_id)) for store_id in STORES}
        self._events = list(events)

    def _gate(self, store_id: StoreId) -> CallGate:
        return CallGate(
            store_id,
            self.store,
            delay_s=lambda: 0.0,
            faults=self.faults[store_id],
            resolved_ts=lambda: self.resolved_ts,
        )

    def channel(self, address: str, options: object) -> Any:
        """Return what looks like a channel to a store."""
        return _Channel(lambda path, request: self._call(address, path, request))

    def _call(self, address: str, path: str, request: Any) -> Any:
        if self._events:
            self._happen(*self._events.pop())
        self.calls.append((address, path.rpartition("/")[2], request))
        work = getattr(self._services[address], path.rpartition("/")[2])(request, None)
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("a KV call is one step")

    def _happen(self, kind: str, number: int) -> None:
        regions = list(self.store.regions)
        region = regions[number % len(regions)]
        if kind == "split":
            self.store.split(self.split_keys[number % len(self.split_keys)])
        elif kind == "merge" and region is not regions[-1]:
            self.store.merge(region.region_id)
        elif kind == "move":
            self.store.transfer_leader(region.region_id, STORES[number % 3], hint=bool(number % 2))
        elif kind in CALL_ERRORS:
            self.faults[STORES[number % 3]].plant(kind, 1, 0)


@dataclass
class _Channel:
    ask: Callable[[str, Any], Any]

    def unary_unary(self, path: str, *_: object, **__: object) -> Callable[..., Any]:
        """Return a method's call."""
        return lambda request, timeout: self.ask(path, request)

    def close(self) -> None:
        """Nothing is open."""


class DirectPd(PdClient):
    """PD's view is the truth; its clock stands still, as waits cost nothing here."""

    def __init__(self, cluster: DirectCluster) -> None:
        super().__init__("nowhere:1")
        self._cluster = cluster
        self.safe_point = Ts(0)
        self.known_stores: Sequence[StoreId] = STORES
        self.channels.open = cluster.channel  # type: ignore[method-assign]

    def now(self) -> Ts:
        return compose_ts(NOW_MS)

    def gc_safe_point(self) -> Ts:
        return self.safe_point

    def stores(self) -> list[metapb_pb2.Store]:
        return [metapb_pb2.Store(id=store_id, address=f"store-{store_id}") for store_id in self.known_stores]

    def scan_regions(self, wanted: EncodedRange, limit: int = 0) -> list[RegionInfo]:
        overlapping = [
            RegionInfo(
                region_id=RegionId(region.region_id),
                range=EncodedRange(region_bound(region.start), region_bound(region.end) or b"\xff" * 5),
                version=region.version,
                conf_ver=region.conf_ver,
                leader=Peer(peer(region, region.leader).id, region.leader),
                peers=tuple(Peer(peer(region, store_id).id, store_id) for store_id in STORES),
            )
            for region in self._cluster.store.regions
        ]
        return [info for info in overlapping if info.range.intersect(wanted)]
