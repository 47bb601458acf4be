"""The range lock of one subscription: which part of the span belongs to which region, and how far the span is resolved.

Reference: docs/formats/ordering-and-watermarks.md §3.2. All keys are memcomparable-encoded, ends exclusive.

    unlocked --lock()--> locked (a registration of one region runs) --unlock()--> unlocked

At every moment locked ranges and unlocked ranges together tile the span; an unlocked range keeps the resolved ts that
its range had, which is the checkpoint_ts of whoever locks it next. The span's resolved ts is the least over both. So a
split, a merge or a leader change never loses a ts, and two registrations can never feed the same keys at once.

The resolved ts of all locks stand in one vector, by the lock's ``slot``: a round of resolved ts for 100,000 regions is
then one indexed maximum, and the span's own resolved ts one minimum.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas.errors import InvariantBrokenError
from schemas.ids import RegionId, Ts

Slots = npt.NDArray[np.intp]
TS_MAX: Final = Ts(int(np.iinfo(np.int64).max))
"""Above every TSO; a free slot has it."""
_SLOTS_FIRST: Final = 8
_BULK_MIN: Final = 32
"""Locks from which on it is cheaper to rebuild the lists than to cut each lock out of them."""


@dataclass(frozen=True, slots=True, order=True)
class EncodedRange:
    """``[start, end)`` of memcomparable-encoded keys, as regions have them."""

    start: bytes
    end: bytes

    def intersect(self, other: "EncodedRange") -> "EncodedRange | None":
        """Return the common part, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return EncodedRange(start, end) if start < end else None


@dataclass(slots=True, eq=False)
class LockedRange:
    """A range that one registration holds."""

    range: EncodedRange
    region_id: RegionId
    version: int
    slot: int
    """Its index in the frontier's vector; free slots are given again. -1 when it is not locked any more."""
    frontier: "SpanFrontier"

    @property
    def resolved_ts(self) -> Ts:
        """How far it is resolved, while it is locked; moves by :meth:`SpanFrontier.advance` only."""
        assert self.slot >= 0, "an unlocked range keeps its resolved ts in the frontier"
        return self.frontier.ts_at(self.slot)


@dataclass(frozen=True, slots=True)
class Granted:
    """The caller holds the range now and registers it from ``lock.resolved_ts``."""

    lock: LockedRange


@dataclass(frozen=True, slots=True)
class Stale:
    """A newer region holds a part, so the caller's view is old: it looks up ``retry`` (maybe nothing) again."""

    retry: tuple[EncodedRange, ...]


@dataclass(frozen=True, slots=True)
class WaitForRegions:
    """Older regions hold parts; the caller asks again after any :meth:`SpanFrontier.unlock`."""


class SpanFrontier:
    """Range lock and resolved ts of one span; see the module's text."""

    def __init__(self, span: EncodedRange, start_ts: Ts) -> None:
        if not span.start < span.end:
            raise InvariantBrokenError("span is empty", start=span.start.hex(), end=span.end.hex())
        self.span = span
        self._starts: list[bytes] = []
        self._locked: list[LockedRange] = []
        self._unlocked_starts: list[bytes] = [span.start]
        self._unlocked: list[tuple[bytes, bytes, Ts]] = [(span.start, span.end, start_ts)]
        self._unlocked_ts: Ts | None = start_ts
        """The least ts of the unlocked ranges (TS_MAX: there are none); None: to be computed."""
        self._ts = np.full(_SLOTS_FIRST, TS_MAX, np.int64)
        self._by_slot: list[LockedRange | None] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._locked)

    def lock(self, wanted: EncodedRange, region_id: RegionId, version: int) -> Granted | Stale | WaitForRegions:
        """Take ``wanted`` (clipped to the span by the caller) for one region at one epoch version.

        A region may hold several ranges: after a merge its neighbour's range is added to the one that it has.
        """
        if not self.span.start <= wanted.start < wanted.end <= self.span.end:
            raise InvariantBrokenError("range is outside the span", region_id=region_id, start=wanted.start.hex())
        overlapping = self._overlapping(wanted)
        if not overlapping:
            slot = self._new_slot(self._take(wanted))
            lock = self._by_slot[slot] = LockedRange(wanted, region_id, version, slot, self)
            at = bisect_left(self._starts, wanted.start)
            self._starts.insert(at, wanted.start)
            self._locked.insert(at, lock)
            return Granted(lock)
        newer = [lock.range for lock in overlapping if lock.version >= version]
        if newer:
            return Stale(tuple(_subtract(wanted, newer)))
        return WaitForRegions()

    def unlock(self, lock: LockedRange) -> None:
        """Give the range back; its resolved ts stays with it."""
        at = bisect_left(self._starts, lock.range.start)
        if at == len(self._locked) or self._locked[at] is not lock:
            raise InvariantBrokenError("range is not locked", region_id=lock.region_id, start=lock.range.start.hex())
        del self._starts[at], self._locked[at]
        ts = self._release_slot(lock)
        self._put(lock.range.start, lock.range.end, ts)

    def unlock_all(self, locks: Sequence[LockedRange]) -> None:
        """Give many ranges back at once: those of a stream that ended."""
        if len(locks) < _BULK_MIN:
            for lock in locks:
                self.unlock(lock)
            return
        gone = set(locks)
        kept = [lock for lock in self._locked if lock not in gone]
        if len(kept) + len(gone) != len(self._locked):
            raise InvariantBrokenError("some of the ranges are not locked", locks=len(gone))
        self._locked, self._starts = kept, [lock.range.start for lock in kept]
        ranges = self._unlocked + [(lock.range.start, lock.range.end, self._release_slot(lock)) for lock in gone]
        self._unlocked, self._unlocked_starts = [], []
        for start, end, ts in sorted(ranges):
            if self._unlocked and self._unlocked[-1][1] == start and self._unlocked[-1][2] == ts:
                self._unlocked[-1] = (self._unlocked[-1][0], end, ts)
            else:
                self._unlocked.append((start, end, ts))
                self._unlocked_starts.append(start)
        self._unlocked_ts = None

    def advance(self, lock: LockedRange, ts: Ts) -> None:
        """Move a locked range's resolved ts forward; lower or equal is ignored."""
        if lock.slot < 0:
            raise InvariantBrokenError("range is not locked", region_id=lock.region_id, start=lock.range.start.hex())
        self.advance_slot(lock.slot, ts)

    def advance_slot(self, slot: int, ts: Ts) -> None:
        """The same by the lock's slot."""
        if ts > self._ts[slot]:
            self._ts[slot] = ts

    def advance_slots(self, slots: Slots, ts: Ts) -> None:
        """Move the resolved ts of many locked ranges forward, by their slots."""
        self._ts[slots] = np.maximum(self._ts[slots], ts)

    def ts_at(self, slot: int) -> Ts:
        """Return the resolved ts of the lock in ``slot``."""
        return Ts(int(self._ts[slot]))

    def resolved_ts(self) -> Ts:
        """Return the least resolved ts of the span's parts."""
        if self._unlocked_ts is None:
            self._unlocked_ts = min((ts for _, _, ts in self._unlocked), default=TS_MAX)
        used = len(self._by_slot)
        if used == 1:  # a small table's: numpy takes ten times as long
            return min(self._unlocked_ts, Ts(self._ts.item(0)))
        return min(self._unlocked_ts, Ts(int(self._ts[:used].min()))) if used else self._unlocked_ts

    def slowest(self) -> LockedRange | EncodedRange:
        """Return the part that holds the span back: a lock, or a range that nobody holds."""
        resolved_ts = self.resolved_ts()
        if resolved_ts == self._unlocked_ts:
            return next(EncodedRange(start, end) for start, end, ts in self._unlocked if ts == resolved_ts)
        lock = self._by_slot[int(self._ts[: len(self._by_slot)].argmin())]
        assert lock is not None, "a free slot never has the least ts"
        return lock

    def behind(self, ts: Ts) -> list[LockedRange]:
        """Return the locks whose resolved ts is below ``ts``."""
        locks = (self._by_slot[slot] for slot in np.flatnonzero(self._ts[: len(self._by_slot)] < ts).tolist())
        return [lock for lock in locks if lock is not None]

    def unlocked(self) -> list[EncodedRange]:
        """Return the ranges that nobody holds, ascending."""
        return [EncodedRange(start, end) for start, end, _ in self._unlocked]

    def locked(self) -> list[LockedRange]:
        """Return the locks, ascending."""
        return list(self._locked)

    def _new_slot(self, ts: Ts) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._by_slot)
            self._by_slot.append(None)
            if slot == len(self._ts):
                self._ts = np.concatenate([self._ts, np.full(slot, TS_MAX, np.int64)])
        self._ts[slot] = ts
        return slot

    def _release_slot(self, lock: LockedRange) -> Ts:
        ts = self.ts_at(lock.slot)
        self._ts[lock.slot] = TS_MAX
        self._by_slot[lock.slot] = None
        self._free.append(lock.slot)
        lock.slot = -1
        return ts

    def _overlapping(self, wanted: EncodedRange) -> list[LockedRange]:
        at = max(0, bisect_right(self._starts, wanted.start) - 1)
        overlapping = []
        while at < len(self._locked) and self._starts[at] < wanted.end:
            if self._locked[at].range.end > wanted.start:
                overlapping.append(self._locked[at])
            at += 1
        return overlapping

    def _take(self, wanted: EncodedRange) -> Ts:
        """Cut ``wanted`` out of the unlocked ranges; return the least ts over it."""
        first = max(0, bisect_right(self._unlocked_starts, wanted.start) - 1)
        last, least, cursor = first, None, wanted.start
        kept: list[tuple[bytes, bytes, Ts]] = []
        while last < len(self._unlocked) and self._unlocked[last][0] < wanted.end:
            start, end, ts = self._unlocked[last]
            last += 1
            if end <= wanted.start:
                kept.append((start, end, ts))
                continue
            if start > cursor:
                break
            least = ts if least is None else min(least, ts)
            cursor = end
            if start < wanted.start:
                kept.append((start, wanted.start, ts))
            if end > wanted.end:
                kept.append((wanted.end, end, ts))
        if least is None or cursor < wanted.end:
            raise InvariantBrokenError("span has a hole that is neither locked nor unlocked", at=cursor.hex())
        self._unlocked_ts = None
        self._unlocked[first:last] = kept
        self._unlocked_starts[first:last] = [start for start, _, _ in kept]
        return least

    def _put(self, start: bytes, end: bytes, ts: Ts) -> None:
        self._unlocked_ts = None
        at = bisect_left(self._unlocked_starts, start)
        # Join equal neighbours, or a region that flaps between two sizes would leave ever more ranges behind.
        if at < len(self._unlocked) and self._unlocked[at][0] == end and self._unlocked[at][2] == ts:
            end = self._unlocked[at][1]
            del self._unlocked[at], self._unlocked_starts[at]
        if at > 0 and self._unlocked[at - 1][1] == start and self._unlocked[at - 1][2] == ts:
            at -= 1
            start = self._unlocked[at][0]
            del self._unlocked[at], self._unlocked_starts[at]
        self._unlocked.insert(at, (start, end, ts))
        self._unlocked_starts.insert(at, start)


def _subtract(wanted: EncodedRange, taken: list[EncodedRange]) -> list[EncodedRange]:
    """Return the parts of ``wanted`` outside ``taken`` (ascending, without overlaps)."""
    rest, cursor = [], wanted.start
    for part in taken:
        if cursor < part.start:
            rest.append(EncodedRange(cursor, part.start))
        cursor = max(cursor, part.end)
    if cursor < wanted.end:
        rest.append(EncodedRange(cursor, wanted.end))
    return rest
