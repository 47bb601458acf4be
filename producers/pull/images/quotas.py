"""The quotas of all stores, shared by the scans of one capture."""

import threading
import time
from collections.abc import Callable

from producers.pull.core.images.pace import Bucket, StorePace, spend
from producers.pull.images.settings import ImageScanSettings
from schemas.ids import StoreId


class StoreQuotas:
    """Safe from any thread."""

    def __init__(self, settings: ImageScanSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._fresh = StorePace(Bucket(settings.rows_per_s), Bucket(settings.bytes_per_s))
        self._clock = clock
        self._lock = threading.Lock()
        self._stores: dict[StoreId, StorePace] = {}

    def spend(self, store_id: StoreId, rows: int, size: int) -> float:
        """Count a page; return for how many seconds the store is to be left alone."""
        with self._lock:
            pace = self._stores.get(store_id, self._fresh)
            self._stores[store_id], wait_s = spend(pace, rows, size, self._clock())
        return wait_s
