"""The resolver of one observed range: which ts is safe to promise, given the locks that are open in it.

TiKV's rule in three lines: take a ts ``min_ts`` from PD; take the least of it and every open lock's start_ts; never go
back. A lock's transaction commits above its own start_ts, so nothing can still commit at or below what this returns.
Only locks that will become a version count (PUT, DELETE): pessimistic and LOCK-type locks change no data.
"""

import heapq

from schemas.ids import Ts


class Resolver:
    """Open locks by key and by transaction, the oldest transaction on a heap; ``resolved_ts`` never goes back."""

    __slots__ = ("_heap", "_keys", "_transactions", "resolved_ts")

    def __init__(self, resolved_ts: int = 0) -> None:
        self.resolved_ts = Ts(resolved_ts)
        self._keys: dict[bytes, Ts] = {}
        self._transactions: dict[Ts, int] = {}
        # One entry a transaction, however many keys it locks. One that has ended stays until it comes to the top; one
        # that locks again after all its locks were gone stands here twice, which does no harm.
        self._heap: list[Ts] = []

    def track(self, key: bytes, start_ts: Ts) -> None:
        """Note a lock. A key holds one lock at a time, so a second one replaces the first (as a flush does)."""
        if key in self._keys:
            self.untrack(key)
        self._keys[key] = start_ts
        held = self._transactions.get(start_ts, 0)
        if not held:
            heapq.heappush(self._heap, start_ts)
        self._transactions[start_ts] = held + 1

    def untrack(self, key: bytes) -> None:
        """Forget a lock that was committed or rolled back; an unknown key is fine (its lock never counted)."""
        start_ts = self._keys.pop(key, None)
        if start_ts is None:
            return
        left = self._transactions[start_ts] - 1
        if left:
            self._transactions[start_ts] = left
        else:
            del self._transactions[start_ts]

    def untrack_of(self, key: bytes, start_ts: Ts) -> None:
        """Forget a lock if that transaction holds it: a rollback can come for a key that another one has locked."""
        if self._keys.get(key) == start_ts:
            self.untrack(key)

    def resolve(self, min_ts: Ts) -> Ts:
        """Return the new resolved ts. ``min_ts`` must come from PD after every change seen so far was applied.

        It may equal an open lock's start_ts: that transaction's commit_ts is greater.
        """
        heap = self._heap
        while heap and heap[0] not in self._transactions:
            heapq.heappop(heap)
        if heap and heap[0] < min_ts:
            min_ts = heap[0]
        if min_ts > self.resolved_ts:
            self.resolved_ts = min_ts
        return self.resolved_ts

    @property
    def lock_count(self) -> int:
        """Open locks in the range."""
        return len(self._keys)
