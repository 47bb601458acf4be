"""The resolver of one observed range: which ts is safe to promise, given the locks that are open in it.

TiKV's rule in three lines: take a ts ``min_ts`` from PD; take the least of it and every open lock's start_ts; never go
back. A lock's transaction commits above its own start_ts, so nothing can still commit at or below what this returns.
Only locks that will become a version count (PUT, DELETE): pessimistic and LOCK-type locks change no data.
"""

from schemas.ids import Ts


class Resolver:
    """Open locks by key and by transaction; ``resolved_ts`` never goes back."""

    __slots__ = ("_keys", "_transactions", "resolved_ts")

    def __init__(self, resolved_ts: int = 0) -> None:
        self.resolved_ts = Ts(resolved_ts)
        self._keys: dict[bytes, Ts] = {}
        self._transactions: dict[Ts, int] = {}

    def track(self, key: bytes, start_ts: Ts) -> None:
        """Note a lock. A key holds one lock at a time, so a second one replaces the first (as a flush does)."""
        if key in self._keys:
            self.untrack(key)
        self._keys[key] = start_ts
        self._transactions[start_ts] = self._transactions.get(start_ts, 0) + 1

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
        # One entry a transaction, so this stays cheap under a transaction of a million keys.
        oldest = min(self._transactions, default=min_ts)
        self.resolved_ts = max(self.resolved_ts, min(min_ts, oldest))
        return self.resolved_ts

    @property
    def lock_count(self) -> int:
        """Open locks in the range."""
        return len(self._keys)
