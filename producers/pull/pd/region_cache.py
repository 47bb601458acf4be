"""The region cache: which regions cover a range, who leads them, where that store is; asks PD only for what it lacks.

Safe from any thread; a call may block on PD.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc

from producers.channels import ChannelOptions
from producers.errors import RegionsUnknownError, StoreUnavailableError, TlsFileError
from producers.pull.core.regions.region_map import KnownRegions, RegionInfo, covering_prefix
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.pd.client import SCAN_REGIONS_LIMIT, PdClient
from schemas.ids import RegionId, StoreId
from schemas.proto import metapb_pb2

STORE_REFRESH_S = 30.0
"""A store may come back under another address; a failed one is asked for at once."""
_SPARED_TIMES: Final = 3
"""A store whose TLS fails is left alone for so many times what it took to find out, some ten seconds where nobody
answers: whoever locates does so in one thread, and the regions of all other stores wait meanwhile."""


@dataclass(frozen=True, slots=True)
class _Distrust:
    """Why there is no TLS with an address, and until when that is believed."""

    message: str
    reason: Exception
    until_s: float


class RegionCache:
    """Cache over one :class:`PdClient`."""

    def __init__(self, pd: PdClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet; stores are talked to with the same TLS as PD. ``clock``: in seconds, never goes back."""
        self.pd = pd
        self._clock = clock
        self._lock = threading.Lock()
        self._map = KnownRegions()
        self._stores: dict[StoreId, metapb_pb2.Store] = {}
        self._stores_at = float("-inf")
        self._trusted: set[str] = set()
        """Addresses whose certificates have been looked at since the stores were last asked for."""
        self._distrusted: dict[str, _Distrust] = {}

    def open_channel(self, address: str, options: ChannelOptions) -> grpc.Channel:
        """Return a channel to a store that is known here; connecting goes on in the background.

        Raises:
            StoreUnavailableError: our TLS files have become unusable since the start. That is tried again: files that
                are being renewed may be away for a moment.
        """
        try:
            return self.pd.channels.open(address, options)
        except TlsFileError as error:
            raise StoreUnavailableError("store is not reached", address=address, reason=error) from error

    def locate(self, wanted: EncodedRange) -> list[RegionInfo]:
        """Return regions that cover ``wanted`` from its start without a gap, as far as PD knows; at least one.

        Raises:
            RegionsUnknownError: nothing covers the start of ``wanted``.
            PdUnreachableError: PD does not answer.
        """
        with self._lock:
            known = self._map.find(wanted)
        end = known[-1].range.end if known else wanted.start
        while end < wanted.end:
            page = covering_prefix(self.pd.scan_regions(EncodedRange(end, wanted.end)), end)
            if not page:
                break
            with self._lock:
                self._map.put(page)
            known += page
            end = page[-1].range.end
        if not known:
            raise RegionsUnknownError("PD knows no region for the range", start=wanted.start.hex())
        return known

    def locate_page(self, wanted: EncodedRange, read_to: bytes = b"") -> list[RegionInfo]:
        """Return the first regions that cover ``wanted`` from its start, a page of PD's at most; at least one.

        Args:
            wanted: encoded keys.
            read_to: where PD is asked, it is asked up to here, for those who come next.

        Raises:
            RegionsUnknownError: nothing covers the start of ``wanted``.
            PdUnreachableError: PD does not answer.
        """
        with self._lock:
            known = self._map.find(wanted, SCAN_REGIONS_LIMIT)
        if not known:
            asked = EncodedRange(wanted.start, max(wanted.end, read_to))
            page = covering_prefix(self.pd.scan_regions(asked, SCAN_REGIONS_LIMIT), wanted.start)
            with self._lock:
                self._map.put(page)
            known = [region for region in page if region.range.start < wanted.end]
        if not known:
            raise RegionsUnknownError("PD knows no region for the range", start=wanted.start.hex())
        return known

    def drop(self, wanted: EncodedRange) -> None:
        """Forget the regions of a range: the next locate asks PD."""
        with self._lock:
            self._map.drop(wanted)

    def set_leader(self, region_id: RegionId, wanted: EncodedRange, store_id: StoreId) -> None:
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
            StoreUnavailableError: PD does not know it, it is TiFlash, or there is no TLS with it (which is tried again:
                one store's certificate must not stop what the others serve).
        """
        with self._lock:
            fresh = self._clock() - self._stores_at < STORE_REFRESH_S
            store = self._stores.get(store_id)
        if store is None or not fresh:
            stores = {StoreId(item.id): item for item in self.pd.stores()}
            with self._lock:
                self._stores, self._stores_at = stores, self._clock()
                self._trusted.clear()
            store = stores.get(store_id)
        if store is None:
            raise StoreUnavailableError("PD does not know the store", store_id=store_id)
        if any(label.key == "engine" and label.value == "tiflash" for label in store.labels):
            raise StoreUnavailableError("store is TiFlash, which has no change feed", store_id=store_id)
        self._trust(store_id, store.address)
        return store.address

    def _trust(self, store_id: StoreId, address: str) -> None:
        if not self.pd.channels.tls.enabled or address in self._trusted:
            return
        with self._lock:
            known = self._distrusted.get(address)
        if known is None or self._clock() >= known.until_s:
            known = self._look(address)
        if known is not None:
            raise StoreUnavailableError(
                known.message, store_id=store_id, address=address, reason=known.reason
            ) from known.reason

    def _look(self, address: str) -> _Distrust | None:
        """Look at an address's certificates; return what is wrong, which is remembered, or None."""
        began_s = self._clock()
        reason: Exception | None
        try:
            message, reason = "store cannot be trusted", self.pd.channels.probe(address)
        except (OSError, TlsFileError) as error:
            message, reason = "store is not reached", error
        now_s = self._clock()
        with self._lock:
            self._distrusted.pop(address, None)
            if reason is None:
                self._trusted.add(address)
                return None
            distrust = _Distrust(message, reason, now_s + _SPARED_TIMES * (now_s - began_s))
            self._distrusted[address] = distrust
        return distrust
