"""Rows that wait for INITIALIZED, in their order: COMMITs whose prewrite the scan may yet bring, and ROLLBACKs.

A region whose great transaction commits while it is scanned can bring millions of them, so they are counted and spilled
like prewrites. They are only ever read once, from first to last, so a spilled part is simply a blob.
"""

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from producers.pull.core.match.matcher_quota import MatcherQuota, Part
from producers.pull.core.match.spill import Address, SpillCorruptError, SpillStore

CachedRow = tuple[int, int, bytes, int, int]
"""``(commit_ts, start_ts, key, op, txn_source)``; a ROLLBACK has only start_ts and key."""

CACHED_ROW_BYTES: Final = 260
"""What CPython takes for one besides the key's bytes: a tuple, the key object and three integers."""
BLOB_ROWS_MAX: Final = 8_192
_HEAD: Final = struct.Struct("<II")


class CachedRows:
    """A queue of rows; its end is in memory, what came before may be on disk."""

    __slots__ = ("_blobs", "_quota", "_rows", "bytes")

    def __init__(self, quota: MatcherQuota) -> None:
        self._quota = quota
        self._rows: list[CachedRow] = []
        self._blobs: list[Address] = []
        self.bytes = 0
        """About what is in memory."""

    def append(self, row: CachedRow) -> None:
        """Take a row."""
        if not self._rows:
            self._quota.holders[self] = None
        self._rows.append(row)
        size = len(row[2]) + CACHED_ROW_BYTES
        self.bytes += size
        self._quota.held_bytes += size

    def parts(self) -> Iterator[Part]:
        """Yield what is in memory as one part."""
        yield self.bytes, self._spill

    def drain(self) -> Iterator[CachedRow]:
        """Yield and forget all rows, the oldest first.

        Raises:
            SpillCorruptError: what was spilled is not what comes back.
        """
        while self._blobs:
            blob = self._store().get(self._blobs[0])
            self._store().drop(self._blobs.pop(0))
            yield from _decode(blob)
        yield from self._empty()

    def close(self) -> None:
        """Forget all rows."""
        for address in self._blobs:
            self._store().drop(address)
        self._blobs = []
        self._empty()

    def _spill(self) -> None:
        rows, store = self._empty(), self._store()
        for at in range(0, len(rows), BLOB_ROWS_MAX):
            self._blobs.append(store.put(_encode(rows[at : at + BLOB_ROWS_MAX])))

    def _empty(self) -> list[CachedRow]:
        rows, self._rows = self._rows, []
        self._quota.held_bytes -= self.bytes
        self.bytes = 0
        self._quota.holders.pop(self, None)
        return rows

    def _store(self) -> SpillStore:
        assert self._quota.cache is not None, "only a store has blobs"
        return self._quota.cache.store


def _encode(rows: list[CachedRow]) -> bytes:
    commit_ts, start_ts, keys, ops, sources = zip(*rows, strict=True)
    key_bytes = b"".join(keys)
    lengths = tuple(map(len, keys))
    return b"".join(
        (
            _HEAD.pack(len(rows), len(key_bytes)),
            *(np.array(column, "<u8").tobytes() for column in (commit_ts, start_ts, ops, sources, lengths)),
            key_bytes,
        )
    )


def _decode(blob: bytes) -> Iterator[CachedRow]:
    try:
        count, key_bytes = _HEAD.unpack_from(blob)
        columns = np.frombuffer(blob, "<u8", 5 * count, _HEAD.size).reshape(5, count)
        at = _HEAD.size + columns.nbytes
        ends = np.cumsum(columns[4]).astype(np.int64) + at
        if len(blob) != at + key_bytes or ends[-1] != len(blob):
            raise ValueError("its keys end elsewhere")
    except (ValueError, struct.error) as error:
        raise SpillCorruptError("spilled commits do not decode", bytes=len(blob), reason=error) from error
    commit_ts, start_ts, ops, sources = columns[:4].tolist()
    keys = (blob[first:last] for first, last in zip([at, *ends[:-1].tolist()], ends.tolist(), strict=True))
    yield from zip(commit_ts, start_ts, keys, ops, sources, strict=True)
