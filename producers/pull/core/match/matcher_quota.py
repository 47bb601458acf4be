"""The memory of all matchers of one puller: counted at every row, bounded by sending the largest parts to disk.

Who owns what: a matcher adds the bytes of a row when it keeps it and takes them when the row leaves, whichever way
(commit, rollback, spill, the end of its registration). Bytes are what CPython takes, not only the values' own.

Not guaranteed: parts below :data:`PART_BYTES_MIN` stay in memory, as a block's keys on the heap would cost about as
much. A hundred thousand regions, each with open transactions of some rows, can so exceed the quota; ``memory_bytes``
shows it.
"""

from collections.abc import Callable, Iterator
from math import inf
from typing import Final, Protocol

from producers.pull.core.match.spill import BlockCache, SpillRefusedError, SpillStore

PART_BYTES_MIN: Final = 4 << 10
_SETTLE_TO: Final = 0.75
"""Spill down to this share of the quota, so that each time is worth its search."""
_LOADED_SHARE: Final = 1 / 8
"""The share of the quota that blocks have which were read back."""

Part = tuple[int, Callable[[], None]]
"""Bytes in memory, and what moves them to disk."""


class QuotaHolder(Protocol):
    """A matcher, as the quota sees it."""

    def parts(self) -> Iterator[Part]:
        """Yield what could be spilled."""


class MatcherQuota:
    """The bytes of all matchers of a puller. Not thread-safe: its feed's thread calls it."""

    def __init__(self, bytes_max: int = 0, store: SpillStore | None = None) -> None:
        """Start empty.

        Args:
            bytes_max: in memory; counts only where there is a store.
            store: where the rest goes; None: all stays in memory.
        """
        loaded_max = int(bytes_max * _LOADED_SHARE)
        self.bytes_max: float = bytes_max - loaded_max if store is not None else inf
        """Whoever has brought :attr:`held_bytes` above it calls :meth:`settle`."""
        self._stuck_at: int | None = None
        """The least that was held since a search could not bring it below the quota."""
        self.cache = BlockCache(store, loaded_max) if store is not None else None
        self.held_bytes = 0
        """Bytes in memory, without loaded blocks."""
        self.holders: dict[QuotaHolder, None] = {}
        """Matchers that hold something: theirs to keep up."""
        self.refused: QuotaHolder | None = None
        """Whose part the last refused spill was; it lacks rows since, and its registration must end."""

    @property
    def memory_bytes(self) -> int:
        """Return what all matchers hold in memory."""
        return self.held_bytes + (self.cache.loaded_bytes if self.cache is not None else 0)

    @property
    def spilled_bytes(self) -> int:
        """Return what all matchers hold on disk."""
        return self.cache.store.stored_bytes if self.cache is not None else 0

    def settle(self) -> None:
        """Spill if there is too much, the largest parts first.

        Raises:
            SpillRefusedError: there is no room on disk for the part of :attr:`refused`.
        """
        if self.held_bytes <= self.bytes_max:
            return
        if self._stuck_at is not None:
            # Where even all parts did not do, the next search waits until there is something new to find.
            self._stuck_at = min(self._stuck_at, self.held_bytes)
            if self.held_bytes < self._stuck_at + self.bytes_max / 8:
                return
        parts = [(part, holder) for holder in self.holders for part in holder.parts() if part[0] >= PART_BYTES_MIN]
        parts.sort(key=lambda held: held[0][0], reverse=True)
        for (_, spill), holder in parts:
            if self.held_bytes <= self.bytes_max * _SETTLE_TO:
                break
            try:
                spill()
            except SpillRefusedError:
                self.refused = holder
                raise
        self._stuck_at = self.held_bytes if self.held_bytes > self.bytes_max else None
