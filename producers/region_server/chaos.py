"""Lets happen to the embedded cluster what happens to real ones: on command, or at random by a seed.

An event that does not fit the cluster any more (its region was merged away meanwhile) does nothing: who commands from
outside cannot know better.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import grpc

from producers.region_server.core import chaos
from producers.region_server.core.store.regions import Region
from producers.region_server.kv.store import ClusterStore
from producers.region_server.nodes import PdNode, StoreNode
from producers.region_server.pd.cluster import PdCluster
from schemas.errors import ConfigError, InvariantBrokenError
from schemas.ids import RegionId, StoreId
from schemas.proto import metapb_pb2

log = logging.getLogger(__name__)

_SPLIT_KEYS_A_REGION = 4
_VIEW_REGIONS_MAX = 256
"""A view shows no more regions than this, a window of them at random: a planner needs no hundred thousand."""


class Chaos:
    """All methods run on the server's loop; from other threads see ``RegionServer.perform``."""

    def __init__(
        self,
        store: ClusterStore,
        pd: PdCluster,
        nodes: Mapping[StoreId, StoreNode],
        pd_nodes: Sequence[PdNode],
        background: Callable[[Awaitable[None]], None],
    ) -> None:
        """``nodes`` may still be empty. ``background`` runs something on the loop until the server stops."""
        self._store, self._pd, self._nodes, self._pd_nodes = store, pd, nodes, pd_nodes
        self._background = background
        self.performed: list[chaos.ClusterEvent] = []
        """Everything that has happened, in order."""

    # At random -----------------------------------------------------------------------------------------------------

    async def run(
        self, seed: int, every_s: float, limits: chaos.ChaosLimits = chaos.DEFAULT_LIMITS, events_max: int = 0
    ) -> None:
        """Perform an event now and again, for ever or ``events_max`` times. The same seed draws the same dice."""
        dice = random.Random(seed)  # noqa: S311  # reproducible trouble, no secret
        while not events_max or len(self.performed) < events_max:
            await asyncio.sleep(every_s * (0.5 + dice.random()))
            event = chaos.plan(dice, self.view(dice), limits)
            if event is not None:
                await self.perform(event)

    def view(self, dice: chaos.Dice | None = None) -> chaos.ClusterView:
        """The cluster as a planner sees it; of many regions a window of neighbours."""
        regions = list(self._store.regions)
        if dice is not None and len(regions) > _VIEW_REGIONS_MAX:
            low = dice.randrange(len(regions) - _VIEW_REGIONS_MAX)
            regions = regions[low : low + _VIEW_REGIONS_MAX]
        nodes, pd = self._nodes, self._pd
        return chaos.ClusterView(
            regions=[chaos.RegionView(region.region_id, region.leader, _split_keys(region)) for region in regions],
            up=[store_id for store_id, node in nodes.items() if node.running],
            down=[store_id for store_id, node in nodes.items() if not node.running and store_id not in pd.states],
            pd_members=len(pd.members),
            pd_leader=pd.leader,
        )

    # One event -----------------------------------------------------------------------------------------------------

    async def perform(self, event: chaos.ClusterEvent) -> None:
        """Let one event happen. What lasts a while is undone later, in the background.

        Raises:
            ConfigError: the event names a store, PD member, error or status that does not exist.
        """
        self.performed.append(event)
        log.info("cluster event", extra={"cluster_event": repr(event)})
        match event:
            case chaos.StopStore(store_id):
                await self._stop_store(store_id)
            case chaos.StartStore(store_id, new_address):
                await self._start_store(store_id, new_address)
            case chaos.SlowStore(store_id, delay_ms, for_ms):
                self._slow(store_id, delay_ms, for_ms)
            case chaos.DropStreams(store_id, status):
                self._node(store_id).endpoint.drop_streams(_status(status), "stream was dropped")
            case chaos.RefuseRegistrations(store_id, count, backoff_ms):
                self._node(store_id).endpoint.refuse(count, backoff_ms)
            case chaos.RefuseCalls(store_id, error, count, backoff_ms):
                self._node(store_id).call_faults.plant(error, count, backoff_ms)
            case chaos.HoldScans(store_id, for_ms):
                endpoint = self._node(store_id).endpoint
                endpoint.hold_scans(True)
                self._later(for_ms, lambda: endpoint.hold_scans(False))
            case chaos.MovePdLeader(to):
                self.move_pd_leader(to)
            case _:
                self._change_region(event)

    def _change_region(self, event: chaos.ClusterEvent) -> None:
        store = self._store
        match event:
            case chaos.Split(key):
                store.split(key)
            case chaos.Merge(region_id):
                left = store.regions.get(region_id)
                if left is not None and left.end:
                    store.merge(region_id)
            case chaos.TransferLeader(region_id, to, hint, pd_lag_ms):
                region = store.regions.get(region_id)
                if region is not None and to in store.regions.up:
                    self._lag_pd(region, pd_lag_ms)
                    store.transfer_leader(region_id, to, hint=hint)
            case chaos.LoseLeader(region_id, to, for_ms):
                if store.regions.get(region_id) is not None:
                    store.transfer_leader(region_id, chaos.NO_STORE)
                    self._later(for_ms, lambda: self._elect(region_id, to))
            case chaos.FailRegion(region_id, error):
                region = store.regions.get(region_id)
                if region is not None and region.leader != chaos.NO_STORE:
                    self._node(region.leader).endpoint.fail_region(region_id, error)
            case chaos.HideRegion(region_id, for_ms):
                region = store.regions.get(region_id)
                if region is not None:
                    region.hidden = True
                    self._later(for_ms, lambda: _show(region))
            case _:
                raise ConfigError("cluster event is unknown", cluster_event=repr(event))

    def move_pd_leader(self, to: int) -> None:
        """Let another PD member lead.

        Raises:
            ConfigError: no such member, or it does not run.
        """
        members = self._pd.members
        if not 0 <= to < len(members) or not members[to].running:
            raise ConfigError("PD has no such member that runs", member=to, members=len(members))
        self._pd.leader = to

    async def stop_pd_member(self, index: int) -> None:
        """Stop a member; if it led, the next one that runs leads."""
        await self._pd_nodes[index].stop()
        members = self._pd.members
        if self._pd.leader == index:
            others = [at for at, member in enumerate(members) if member.running]
            if others:
                self._pd.leader = others[0]

    async def start_pd_member(self, index: int) -> None:
        """Start a stopped member at its address."""
        await self._pd_nodes[index].start()

    async def remove_store(self, store_id: StoreId) -> None:
        """Take a store out of the cluster for good: PD calls it a Tombstone."""
        await self._stop_store(store_id)
        self._pd.states[store_id] = metapb_pb2.Tombstone

    # Parts ---------------------------------------------------------------------------------------------------------

    async def _stop_store(self, store_id: StoreId) -> None:
        # The streams first: a process that dies sends no region errors.
        await self._node(store_id).stop()
        self._store.stop_store(store_id)

    async def _start_store(self, store_id: StoreId, new_address: bool) -> None:
        node = self._node(store_id)
        if node.running:
            return
        try:
            await node.start(0 if new_address else await node.stop())
        except InvariantBrokenError:
            # Somebody else has the port now: then it is a new address after all.
            await node.start()
        self._store.start_store(store_id)

    def _slow(self, store_id: StoreId, delay_ms: int, for_ms: int) -> None:
        endpoint = self._node(store_id).endpoint
        endpoint.delay_s = delay_ms / 1000

        def recover() -> None:
            endpoint.delay_s = 0.0

        self._later(for_ms, recover)

    def _lag_pd(self, region: Region, lag_ms: int) -> None:
        if not lag_ms:
            region.pd_leader = None
            return
        region.pd_leader = region.leader

        def report() -> None:
            region.pd_leader = None

        self._later(lag_ms, report)

    def _elect(self, region_id: RegionId, to: StoreId) -> None:
        store = self._store
        region = store.regions.get(region_id)
        if region is None or region.leader != chaos.NO_STORE or not store.regions.up:
            return
        store.transfer_leader(region_id, to if to in store.regions.up else store.regions.up[0], hint=False)

    def _later(self, for_ms: int, undo: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(for_ms / 1000)
            undo()

        self._background(wait())

    def _node(self, store_id: StoreId) -> StoreNode:
        node = self._nodes.get(store_id)
        if node is None:
            raise ConfigError("cluster has no such store", store_id=store_id, stores=sorted(self._nodes))
        return node


def _show(region: Region) -> None:
    region.hidden = False


def _split_keys(region: Region) -> list[bytes]:
    keys = region.data.keys_between(region.start, region.end)
    inside = keys[1:] if keys and keys[0] == region.start else keys
    step = max(1, len(inside) // _SPLIT_KEYS_A_REGION)
    return inside[step // 2 :: step][:_SPLIT_KEYS_A_REGION]


def _status(name: str) -> grpc.StatusCode:
    try:
        return grpc.StatusCode[name]
    except KeyError:
        raise ConfigError("gRPC has no such status", status=name) from None
