"""The columns of raw records that several readers share: those that were decoded last, in a bounded memory."""

import threading

from schemas.rawlog.region_batch import SharedRecord


class DecodedRecords:
    """Hears of each record that is decoded, and lets the first ones' columns go. From any thread."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max`` is what columns may hold together; the newest record's stay, whatever they hold."""
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._held: dict[int, tuple[SharedRecord, int]] = {}
        """By the record's identity, for its hash is of all its bytes; the first decoded first."""
        self.held_bytes = 0

    def add(self, record: SharedRecord) -> None:
        """Take a record whose columns have just come."""
        size = record.columns_bytes
        with self._lock:
            _, old_size = self._held.pop(id(record), (record, 0))  # two may have decoded it at once
            self._held[id(record)] = record, size
            self.held_bytes += size - old_size
            while self.held_bytes > self._bytes_max and len(self._held) > 1:
                self._forget(next(iter(self._held)))

    def discard(self, record: SharedRecord) -> None:
        """Forget a record that is kept no more; whoever reads it still keeps its columns by itself."""
        with self._lock:
            record.on_decoded = None
            if id(record) in self._held:
                self._forget(id(record))

    def _forget(self, key: int) -> None:
        record, size = self._held.pop(key)
        self.held_bytes -= size
        record.forget()
