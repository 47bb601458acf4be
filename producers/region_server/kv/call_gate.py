"""What every KV call passes before it is answered: planted trouble, then TiKV's checks of what the client believes.

Checked in TiKV's order: store, region, leader, epoch, key. A follower serves reads that say so in their Context:
``replica_read`` once it has heard from a leader how far it must be, ``stale_read`` at or below its safe_ts.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from producers.region_server.core.chaos import CALL_ERRORS, NO_STORE
from producers.region_server.core.store.regions import Region
from producers.region_server.core.store.snapshot_read import safe_ts
from producers.region_server.kv.store import ClusterStore
from producers.region_server.rpc.wire import not_leader, peer, region_bound, region_meta
from schemas.errors import ConfigError
from schemas.ids import StoreId, Ts
from schemas.proto import errorpb_pb2, kvrpcpb_pb2


class CallFaults:
    """Refusals that wait for the next calls at a store, whatever region they ask for."""

    def __init__(self) -> None:
        self._waiting: deque[errorpb_pb2.Error] = deque()

    def plant(self, error: str, count: int, backoff_ms: int) -> None:
        """Refuse the next ``count`` calls, whatever was planted before.

        Raises:
            ConfigError: there is no such error.
        """
        if error not in CALL_ERRORS:
            raise ConfigError("no such region error", error=error, known=CALL_ERRORS)
        said = errorpb_pb2.Error(message=error)
        if error == "server_is_busy":
            said.server_is_busy.CopyFrom(errorpb_pb2.ServerIsBusy(reason="planted", backoff_ms=backoff_ms))
        elif error != "none":
            getattr(said, error).SetInParent()
        self._waiting = deque([said] * count)

    def take(self) -> errorpb_pb2.Error | None:
        """Return what the call at hand is refused with."""
        return self._waiting.popleft() if self._waiting else None


class CallGate:
    """One store's."""

    def __init__(
        self,
        store_id: StoreId,
        store: ClusterStore,
        *,
        delay_s: Callable[[], float],
        faults: CallFaults,
        resolved_ts: Callable[[], Ts],
    ) -> None:
        """``resolved_ts``: up to which versions a follower without open transactions has all."""
        self._store_id = store_id
        self._store = store
        self._delay_s = delay_s
        self._faults = faults
        self._resolved_ts = resolved_ts

    async def region(
        self, context: kvrpcpb_pb2.Context, *keys: bytes, version: Ts | None = None
    ) -> tuple[Region | None, errorpb_pb2.Error | None]:
        """The region that the request means, or the error that tells the client to look again.

        Whatever is slow about the store comes before the checks: from there on a call is one step. ``version`` is that
        of a read, which a follower may serve.
        """
        if delay_s := self._delay_s():
            await asyncio.sleep(delay_s)
        planted = self._faults.take()
        if planted is not None:
            return None, planted
        if context.peer.store_id != self._store_id:
            other = errorpb_pb2.StoreNotMatch(request_store_id=context.peer.store_id, actual_store_id=self._store_id)
            return None, errorpb_pb2.Error(message="store not match", store_not_match=other)
        region = self._store.regions.get(context.region_id)
        if region is None:
            missing = errorpb_pb2.RegionNotFound(region_id=context.region_id)
            return None, errorpb_pb2.Error(message="region not found", region_not_found=missing)
        error = self._not_served(region, context, version) or self._not_as_known(region, context, keys)
        return (None, error) if error is not None else (region, None)

    def _not_served(self, region: Region, context: kvrpcpb_pb2.Context, version: Ts | None) -> errorpb_pb2.Error | None:
        if version is not None and context.stale_read:
            safe = safe_ts(region.data, self._resolved_ts())
            if version <= safe:
                return None
            late = errorpb_pb2.DataIsNotReady(
                region_id=region.region_id, peer_id=peer(region, self._store_id).id, safe_ts=safe
            )
            return errorpb_pb2.Error(message="data is not ready", data_is_not_ready=late)
        asks_leader = version is not None and context.replica_read and region.leader != NO_STORE
        if region.leader == self._store_id or asks_leader:
            return None
        return errorpb_pb2.Error(message="not leader", not_leader=not_leader(region))

    def _not_as_known(
        self, region: Region, context: kvrpcpb_pb2.Context, keys: tuple[bytes, ...]
    ) -> errorpb_pb2.Error | None:
        if context.region_epoch.version != region.version:
            moved = errorpb_pb2.EpochNotMatch(current_regions=[region_meta(region, self._store.store_ids)])
            return errorpb_pb2.Error(message="epoch not match", epoch_not_match=moved)
        for key in keys:
            if not region.covers(key):
                outside = errorpb_pb2.KeyNotInRegion(
                    key=region_bound(key), region_id=region.region_id,
                    start_key=region_bound(region.start), end_key=region_bound(region.end),
                )  # fmt: skip
                return errorpb_pb2.Error(message="key not in region", key_not_in_region=outside)
        return None
