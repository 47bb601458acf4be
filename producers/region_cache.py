"""The region cache: which regions cover a range, who leads them, where that store is; asks PD only for what it lacks.

Safe from any thread; a call may block on PD.
"""

import threading
import time

from producers.channels import OpenChannel, open_plain
from producers.core.region_map import RegionInfo, RegionMap, covering_prefix
from producers.core.span_frontier import KeyRange
from producers.errors import RegionsUnknownError, StoreUnavailableError
from producers.pd_client import PdClient
from schemas.ids import RegionId, StoreId
from schemas.proto import metapb_pb2

STORE_REFRESH_S = 30.0
"""A store may come back under another address; a failed one is asked for at once."""


class RegionCache:
    """Cache over one :class:`PdClient`."""

    def __init__(self, pd: PdClient, open_channel: OpenChannel = open_plain) -> None:
        """``open_channel`` is for whoever talks to the stores found here."""
        self.pd = pd
        self.open_channel = open_channel
        self._lock = threading.Lock()
        self._map = RegionMap()
        self._stores: dict[StoreId, metapb_pb2.Store] = {}
        self._stores_at = float("-inf")

    def locate(self, wanted: KeyRange) -> list[RegionInfo]:
        """Return regions that cover ``wanted`` from its start without a gap, as far as PD knows; at least one.

        Raises:
            RegionsUnknownError: nothing covers the start of ``wanted``.
            PdUnreachableError: PD does not answer.
        """
        with self._lock:
            known = self._map.find(wanted)
        end = known[-1].range.end if known else wanted.start
        while end < wanted.end:
            page = covering_prefix(self.pd.scan_regions(KeyRange(end, wanted.end)), end)
            if not page:
                break
            with self._lock:
                self._map.put(page)
            known += page
            end = page[-1].range.end
        if not known:
            raise RegionsUnknownError("PD knows no region for the range", start=wanted.start.hex())
        return known

    def drop(self, wanted: KeyRange) -> None:
        """Forget the regions of a range: the next locate asks PD."""
        with self._lock:
            self._map.drop(wanted)

    def set_leader(self, region_id: RegionId, wanted: KeyRange, store_id: StoreId) -> None:
        """Believe a store's hint; a hint that does not fit makes the next locate ask PD."""
        with self._lock:
            if not self._map.set_leader(region_id, wanted, store_id):
                self._map.drop(wanted)

    def forget_stores(self) -> None:
        """Ask PD for the stores at the next need: one of them failed."""
        with self._lock:
            self._stores_at = float("-inf")

    def address(self, store_id: StoreId) -> str:
        """Return where a TiKV store serves.

        Raises:
            StoreUnavailableError: PD does not know it, or it is TiFlash.
        """
        with self._lock:
            fresh = time.monotonic() - self._stores_at < STORE_REFRESH_S
            store = self._stores.get(store_id)
        if store is None or not fresh:
            stores = {StoreId(item.id): item for item in self.pd.stores()}
            with self._lock:
                self._stores, self._stores_at = stores, time.monotonic()
            store = stores.get(store_id)
        if store is None:
            raise StoreUnavailableError("PD does not know the store", store_id=store_id)
        if any(label.key == "engine" and label.value == "tiflash" for label in store.labels):
            raise StoreUnavailableError("store is TiFlash, which has no change feed", store_id=store_id)
        return store.address
