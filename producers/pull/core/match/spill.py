"""Rows of open transactions that went to disk: columnar blocks in key order, found again without an index of the rows.

A transaction of 2 GiB has ten million keys, and an index of them would be as large as the memory that the spill is to
save. So a part of a transaction goes to disk as one **run**: its rows sorted by key and cut into **blocks** of some
64 KiB, of which only the first and last key stay in memory. TiDB prewrites and commits the keys of a region nearly in
order, so looking keys up walks through each run from block to block: sequential reads, each block decoded once.

* A row that was committed or rolled back leaves the block that is loaded; a block that must make room before it is used
  up remembers its rows left as one bit each. The bytes on disk never change.
* The same key may stand in several runs of a transaction (a pipelined flush, a prewrite that was repeated): the runs
  are kept from old to new, and :func:`later` says which prewrite stands.
* This module is pure; the store behind :class:`SpillStore` keeps the bytes and vouches for them by checksum.

Block: ``<II`` rows, flags; key ends, value ends, old value ends (uint32 each); generations (uint64) if flag 1; the
joined keys, values, old values. Little-endian.
"""

import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from schemas.errors import Action, BusError

Prewrite = tuple[bytes, bytes, int]
"""``(value, old_value, generation)``."""

BLOCK_BYTES: Final = 64 << 10
"""A block is cut once it has so many bytes; a larger row makes a block of its own."""
ROW_BYTES_FIXED: Final = 240
"""What CPython takes for a row besides its bytes: three objects, a tuple, and a dict entry at the mean load."""
_HEAD: Final = struct.Struct("<II")
_GENERATIONS: Final = 1


class SpillCorruptError(BusError):
    """What is read back from the spill is not what was written. Only a new scan of the region brings its rows back."""

    code, action = "producer.spill_corrupt", Action.RETRY


class SpillRefusedError(BusError):
    """Rows must leave memory and cannot: the disk is full, the folder is not writable, or the spill's bound is reached.

    The region whose transaction holds most in memory is read again half a minute later; no other one stops.
    ``fields`` name the folder, the bytes used and allowed, and the system's reason.
    """

    code, action = "producer.spill_refused", Action.RETRY


Address = Hashable
"""Where a store has a blob; only the store looks into it."""


class SpillStore(Protocol):
    """Keeps blobs until they are dropped, or the process ends."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of blobs that are kept."""

    def put(self, blob: bytes) -> Address:
        """Keep a blob.

        Raises:
            SpillRefusedError: there is no room.
        """

    def get(self, address: Address) -> bytes:
        """Return a blob.

        Raises:
            SpillCorruptError: it is not what was put.
        """

    def drop(self, address: Address) -> None:
        """Forget a blob."""


def row_bytes(key: bytes, row: Prewrite) -> int:
    """Return about what a row takes in memory."""
    return len(key) + len(row[0]) + len(row[1]) + ROW_BYTES_FIXED


def later(before: Prewrite | None, row: Prewrite) -> Prewrite:
    """Return which of two prewrites of one key and transaction stands (docs/formats/cdcpb.md §4.2).

    A fake prewrite (empty value) overwrites neither value nor old_value; an older flush has lost already.
    """
    return row if before is None or (row[0] and before[2] <= row[2]) else before


class SpilledBlock:
    """Rows of one run that are next to each other; ``rows`` is None while they are on disk only."""

    __slots__ = ("address", "first", "keys", "last", "left", "live", "loaded_bytes", "rows")

    def __init__(self, address: Address, first: bytes, last: bytes, count: int) -> None:
        self.address = address
        self.first = first
        self.last = last
        self.live = count
        """Rows that still wait; 0: the block is used up, and dropped from the store."""
        self.left: bytes | None = None
        """Bits of the rows that wait, where some have gone; None: all."""
        self.keys: Sequence[bytes] = ()
        self.rows: dict[bytes, Prewrite] | None = None
        self.loaded_bytes = 0


class BlockCache:
    """The blocks that are loaded, the least recently used one first, at most ``bytes_max`` (one block always fits)."""

    def __init__(self, store: SpillStore, bytes_max: int) -> None:
        self.store = store
        self.loaded_bytes = 0
        self._bytes_max = bytes_max
        self._loaded: OrderedDict[SpilledBlock, None] = OrderedDict()

    def load(self, block: SpilledBlock) -> dict[bytes, Prewrite]:
        """Return the rows of a block that still wait."""
        if block.rows is not None:
            self._loaded.move_to_end(block)
            return block.rows
        blob = self.store.get(block.address)
        try:
            keys, rows = decode_block(blob)
        except (ValueError, struct.error) as error:
            raise SpillCorruptError("a spilled block does not decode", bytes=len(blob), reason=error) from error
        pairs: Iterator[tuple[bytes, Prewrite]] = zip(keys, rows, strict=True)
        if block.left is not None:
            bits = np.unpackbits(np.frombuffer(block.left, np.uint8), count=len(keys))
            pairs = (pair for pair, bit in zip(pairs, bits, strict=True) if bit)
        block.keys, block.rows = keys, dict(pairs)
        if len(block.rows) != block.live:
            raise SpillCorruptError("a spilled block lacks rows", rows=len(block.rows), wanted=block.live)
        block.loaded_bytes = len(blob) + ROW_BYTES_FIXED * len(keys)
        self._loaded[block] = None
        self.loaded_bytes += block.loaded_bytes
        while self.loaded_bytes > self._bytes_max and len(self._loaded) > 1:
            self._unload(next(iter(self._loaded)))
        return block.rows

    def gone(self, block: SpilledBlock, count: int) -> None:
        """Note that so many rows have left ``block.rows``."""
        block.live -= count
        if not block.live:
            self.drop(block)

    def drop(self, block: SpilledBlock) -> None:
        """Forget a block, here and in the store."""
        if block.rows is not None:
            self._forget(block)
        block.live = 0
        self.store.drop(block.address)

    def _unload(self, block: SpilledBlock) -> None:
        assert block.rows is not None, "only loaded blocks are listed"
        rows = block.rows
        if block.live < len(block.keys):
            block.left = np.packbits(np.fromiter((key in rows for key in block.keys), bool, len(block.keys))).tobytes()
        self._forget(block)

    def _forget(self, block: SpilledBlock) -> None:
        del self._loaded[block]
        self.loaded_bytes -= block.loaded_bytes
        block.keys, block.rows, block.loaded_bytes = (), None, 0


class SpilledRun:
    """Rows of one transaction that went to disk together."""

    __slots__ = ("_at", "_blocks", "_firsts", "block_rows", "first", "last", "live")

    def __init__(self, blocks: Sequence[SpilledBlock]) -> None:
        self._blocks = blocks
        self._firsts = [block.first for block in blocks]
        self._at = 0
        self.first = blocks[0].first
        self.last = blocks[-1].last
        self.live = sum(block.live for block in blocks)
        self.block_rows = max(1, self.live // len(blocks))
        """Rows of a block, in the mean, when the run was written."""

    def get(self, key: bytes, cache: BlockCache) -> Prewrite | None:
        """Return the row of ``key``, and leave it."""
        block = self._block(key)
        return None if block is None else cache.load(block).get(key)

    def pop_all(self, keys: Sequence[bytes], prewrites: list[Prewrite | None], cache: BlockCache) -> None:
        """Take the rows of ``keys`` out of the run, and put each where its key stands in ``prewrites``, unless a later
        one is there.

        Args:
            keys: in any order; while they stay in one block, its rows are at hand.
            prewrites: as long as ``keys``: their rows of older runs, None where there is none.
            cache: of the run's store.
        """
        block: SpilledBlock | None = None
        rows: dict[bytes, Prewrite] | None = None
        taken = 0
        for at, key in enumerate(keys):
            if block is None or not block.first <= key <= block.last:
                if block is not None and taken:
                    cache.gone(block, taken)
                block, taken = self._block(key), 0
                if block is None:
                    continue
                rows = cache.load(block)
            assert rows is not None, "set with the block"
            row = rows.pop(key, None)
            if row is not None:
                taken += 1
                self.live -= 1
                before = prewrites[at]
                prewrites[at] = row if before is None else later(before, row)
        if block is not None and taken:
            cache.gone(block, taken)

    def drop(self, cache: BlockCache) -> None:
        """Forget all of it."""
        for block in self._blocks:
            if block.live:
                cache.drop(block)

    def _block(self, key: bytes) -> SpilledBlock | None:
        block = self._blocks[self._at]
        if not block.first <= key <= block.last:
            at = bisect_right(self._firsts, key) - 1
            if at < 0 or key > self._blocks[at].last:
                return None
            self._at, block = at, self._blocks[at]
        return block if block.live else None


def write_run(rows: dict[bytes, Prewrite], store: SpillStore) -> SpilledRun:
    """Move rows (at least one) to disk; ``rows`` is empty afterwards.

    Raises:
        SpillRefusedError: there is no room, and nothing of it is on disk; ``rows`` lacks some, so its transaction must
            be dropped.
    """
    blocks, keys, size = list[SpilledBlock](), list[bytes](), 0
    try:
        for key in sorted(rows):
            value, old_value, _ = rows[key]
            keys.append(key)
            size += len(key) + len(value) + len(old_value)
            if size >= BLOCK_BYTES:
                blocks.append(_write_block(keys, rows, store))
                keys, size = [], 0
        if keys:
            blocks.append(_write_block(keys, rows, store))
    except SpillRefusedError:
        for block in blocks:
            store.drop(block.address)
        raise
    return SpilledRun(blocks)


def _write_block(keys: Sequence[bytes], rows: dict[bytes, Prewrite], store: SpillStore) -> SpilledBlock:
    address = store.put(encode_block({key: rows.pop(key) for key in keys}))
    return SpilledBlock(address, keys[0], keys[-1], len(keys))


def encode_block(rows: Mapping[bytes, Prewrite]) -> bytes:
    """Return rows (at least one) as a block; see the module's text."""
    values, old_values, generations = zip(*rows.values(), strict=True)
    flags = _GENERATIONS if any(generations) else 0
    return b"".join(
        (
            _HEAD.pack(len(rows), flags),
            *(_ends(column).tobytes() for column in (tuple(rows), values, old_values)),
            np.array(generations, "<u8").tobytes() if flags else b"",
            *rows,
            *values,
            *old_values,
        )
    )


def decode_block(blob: bytes) -> tuple[list[bytes], list[Prewrite]]:
    """Return keys and rows of a block.

    Raises:
        ValueError, struct.error: it is none.
    """
    count, flags = _HEAD.unpack_from(blob)
    ends = np.frombuffer(blob, "<u4", 3 * count, _HEAD.size).reshape(3, count)
    at = _HEAD.size + ends.nbytes
    generations = [0] * count
    if flags & _GENERATIONS:
        generations = np.frombuffer(blob, "<u8", count, at).tolist()
        at += 8 * count
    columns = []
    for column in ends:
        columns.append([blob[first:last] for first, last in pairwise([at, *(column.astype(np.int64) + at).tolist()])])
        at += int(column[-1])
    if at != len(blob):
        raise ValueError(f"block ends at {at}, not at {len(blob)}")
    keys, values, old_values = columns
    return keys, list(zip(values, old_values, generations, strict=True))


def _ends(column: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    return np.cumsum(np.fromiter(map(len, column), np.uint32, len(column)), dtype="<u4")
