"""The whole key space of the embedded cluster: regions, the write commands over them, and who watches.

Single-threaded by design: everything runs on the server's event loop, a command is applied and observed in one step,
so no lock is taken anywhere and "the exact point of the snapshot" is just a line of the program.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from producers.region_server.core.chaos import NO_STORE
from producers.region_server.core.store.commands import (
    Command,
    Commit,
    Mutation,
    PessimisticLock,
    PessimisticRollback,
    Prewrite,
    ResolveLock,
    Rollback,
    TxnHeartbeat,
)
from producers.region_server.core.store.mvcc import Change, RegionData
from producers.region_server.core.store.regions import ClusterRegions, Region
from producers.region_server.kv.observer import StoreObserver
from schemas.errors import InvariantBrokenError
from schemas.ids import RegionId, StoreId, Ts

_Keyed = TypeVar("_Keyed", bytes, Mutation)


class ClusterStore:
    """All data of the cluster. ``region_max_keys`` > 0 splits a region in the middle when it has more keys."""

    def __init__(self, store_ids: Sequence[StoreId], *, region_max_keys: int = 0) -> None:
        self.store_ids = tuple(store_ids)
        self.regions = ClusterRegions(store_ids)
        self._region_max_keys = region_max_keys
        self._observers: list[StoreObserver] = []

    def watch(self, observer: StoreObserver) -> None:
        """Call ``observer`` for every further applied write and region change."""
        self._observers.append(observer)

    # Writes --------------------------------------------------------------------------------------------------------

    def apply(self, command: Command) -> None:
        """Apply one command; observers have seen it when this returns.

        Raises:
            InvariantBrokenError: the command breaks the transaction protocol (see :mod:`core.mvcc`).
        """
        match command:
            case Prewrite(txn=txn, mutations=mutations, one_pc_commit_ts=commit_ts):
                for region, part in self._by_region(mutations, lambda mutation: mutation.key):
                    if commit_ts:
                        self.applied(region, region.data.commit_at_once(txn, part, commit_ts))
                    else:
                        self.applied(region, region.data.prewrite(txn, part))
            case Commit(start_ts=start_ts, commit_ts=commit_ts, keys=keys):
                for region, own in self._by_region(keys, lambda key: key):
                    self.applied(region, region.data.commit(start_ts, commit_ts, own))
            case Rollback(start_ts=start_ts, keys=keys):
                for region, own in self._by_region(keys, lambda key: key):
                    self.applied(region, region.data.rollback(start_ts, own))
            case ResolveLock():
                self._resolve(command)
            case TxnHeartbeat(start_ts=start_ts, primary=primary, ttl_ms=ttl_ms):
                region = self.regions.of_key(primary)
                self.applied(region, region.data.refresh(start_ts, primary, ttl_ms=ttl_ms))
            case PessimisticLock(txn=txn, keys=keys):
                for region, own in self._by_region(keys, lambda key: key):
                    region.data.pessimistic_lock(txn, own)
            case PessimisticRollback(start_ts=start_ts, keys=keys):
                for region, own in self._by_region(keys, lambda key: key):
                    region.data.pessimistic_rollback(start_ts, own)

    def data_of(self, key: bytes) -> RegionData:
        """The data of the region that holds a raw key."""
        return self.regions.of_key(key).data

    def open_transactions(self) -> dict[Ts, bytes]:
        """Primary key of every transaction that holds a lock which would become a version, by start_ts."""
        locks = (lock for region in self.regions for lock in region.data.locks.values())
        return {lock.txn.start_ts: lock.txn.primary for lock in locks if lock.writes_data}

    def _resolve(self, command: ResolveLock) -> None:
        # Unlike a rollback, resolving touches only locks that exist and leaves no mark elsewhere.
        for region in list(self.regions):
            locks = region.data.locks
            wanted: Iterable[bytes] = command.keys or list(locks)
            own = [key for key in wanted if (held := locks.get(key)) and held.txn.start_ts == command.start_ts]
            if own and command.commit_ts:
                self.applied(region, region.data.commit(command.start_ts, command.commit_ts, own))
            elif own:
                self.applied(region, region.data.rollback(command.start_ts, own))

    def _by_region(
        self, items: Iterable[_Keyed], key_of: Callable[[_Keyed], bytes]
    ) -> list[tuple[Region, list[_Keyed]]]:
        groups: dict[RegionId, tuple[Region, list[_Keyed]]] = {}
        region, own = None, list[_Keyed]()
        for item in items:
            key = key_of(item)
            if region is None or not region.covers(key):
                region = self.regions.of_key(key)
                own = groups.setdefault(region.region_id, (region, []))[1]
            own.append(item)
        return list(groups.values())

    def applied(self, region: Region, changes: Sequence[Change]) -> None:
        """Tell observers what was written to a region: for writers that work on its data themselves."""
        if not changes:
            return
        for observer in self._observers:
            observer.on_applied(region, changes)
        if self._region_max_keys and len(region.data) > self._region_max_keys:
            keys = region.data.keys_between(b"", b"")
            self.split(keys[len(keys) // 2])

    # Regions -------------------------------------------------------------------------------------------------------

    def split(self, key: bytes) -> None:
        """Split the region of ``key`` there; nothing happens if a region starts there already."""
        parts = self.regions.split(key)
        if parts is not None:
            self._epoch_changed([parts[1].region_id], parts)

    def merge(self, region_id: RegionId) -> None:
        """Merge a region into its right neighbour.

        Raises:
            InvariantBrokenError: no such region, or it is the last one.
        """
        region = self.regions.get(region_id)
        merged = self.regions.merge(region) if region is not None else None
        if merged is None:
            raise InvariantBrokenError("region cannot be merged into its right neighbour", region_id=region_id)
        # TiKV lists no regions in the errors of a merge.
        self._epoch_changed([region_id, merged.region_id], ())

    def transfer_leader(self, region_id: RegionId, to: StoreId, *, hint: bool = True) -> None:
        """Let another store lead a region, or none (NO_STORE); nothing happens if it does already.

        With ``hint`` the other stores' not_leader errors name the new leader.

        Raises:
            InvariantBrokenError: no such region, or no such store that runs.
        """
        region = self.regions.get(region_id)
        if region is None or to not in (*self.regions.up, NO_STORE):
            raise InvariantBrokenError("no such region or store", region_id=region_id, store_id=to)
        if region.leader == to:
            return
        before, region.leader, region.leader_known = region.leader, to, hint
        for observer in self._observers:
            observer.on_leader_changed(region, before)

    def stop_store(self, store_id: StoreId) -> None:
        """Let the other stores lead what this one led; without another, nobody does. End its streams first."""
        self.regions.up = tuple(store for store in self.regions.up if store != store_id)
        for region in self.regions:
            if region.leader == store_id:
                up = self.regions.up
                self.transfer_leader(
                    region.region_id, up[region.region_id // 2 % len(up)] if up else NO_STORE, hint=False
                )

    def start_store(self, store_id: StoreId) -> None:
        """Let a stopped store lead again: at first only the regions that nobody leads."""
        self.regions.up = tuple(store for store in self.store_ids if store in self.regions.up or store == store_id)
        for region in self.regions:
            if region.leader == NO_STORE:
                self.transfer_leader(region.region_id, store_id, hint=False)

    def _epoch_changed(self, region_ids: Sequence[RegionId], current: Sequence[Region]) -> None:
        for observer in self._observers:
            observer.on_epoch_changed(region_ids, current)

    def gc(self, safe_point: Ts) -> int:
        """Drop versions that no reader at or above ``safe_point`` can see; return the number of vanished keys."""
        return sum(region.data.gc(safe_point) for region in self.regions)
