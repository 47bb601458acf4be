"""The matcher of one region registration: PREWRITE and COMMIT rows in, committed row changes out.

Rules and order: reference/cdcpb.md §4.2 and §4.3 (the rules of both TiCDC engines). What must be known to change this:

* TiKV sends an ordinary transaction as PREWRITE (has the value) and COMMIT (has the commit_ts); a 1PC commit, and what
  the incremental scan finds committed, come whole, as COMMITTED.
* Until INITIALIZED, scan and live rows interleave: a COMMIT may come before its PREWRITE, and so may a ROLLBACK.
* A matcher belongs to one registration. When the region is registered again, it starts empty.

The matcher is the hot path, so it is a mutable object that takes rows by the event and returns plain tuples; it does no
I/O and knows no clock. Larger events mostly hold rows of one transaction and one type, and those go column-wise; where
columns would not do as the rules say (a prewrite that is there already, a region still scanned) they go row by row.
"""

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from typing import Final, Protocol

from schemas.errors import BusError, InvariantBrokenError
from schemas.ids import RegionId, Ts

PREWRITE: Final = 1
COMMIT: Final = 2
ROLLBACK: Final = 3
COMMITTED: Final = 4
INITIALIZED: Final = 5
"""cdcpb ``Event.LogType``; UNKNOWN is 0."""

_OPS: Final = frozenset((1, 2))
_COLUMNWISE_MIN: Final = 8
"""Rows of an event from which on columns are worth their fixed cost."""
_SAMPLE: Final = 16


class LogRow(Protocol):
    """cdcpb ``Event.Row``, as far as it is read here; the protobuf object itself on the hot path."""

    @property
    def start_ts(self) -> int: ...
    @property
    def commit_ts(self) -> int: ...
    @property
    def type(self) -> int: ...
    @property
    def op_type(self) -> int: ...
    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...
    @property
    def old_value(self) -> bytes: ...
    @property
    def txn_source(self) -> int: ...
    @property
    def generation(self) -> int: ...


Change = tuple[int, int, int, bytes, bytes, bytes, int]
"""``(commit_ts, start_ts, op, key, value, old_value, txn_source)``: one committed row change, in RowChanges' order."""

_Prewrite = tuple[bytes, bytes, int]
"""``(value, old_value, generation)``."""
_Commit = tuple[int, int, bytes, int, int]
"""``(commit_ts, start_ts, key, op, txn_source)``."""


class PrewriteNotMatchError(BusError):
    """A COMMIT came without its PREWRITE after the scan was complete: only a new scan can bring the value back.

    The classic engine's ``ErrPrewriteNotMatch``.
    """

    code = "producer.prewrite_not_match"


class Matcher:
    """Matches the rows of one registration of a region for the raw-key span ``[span_start, span_end)``."""

    __slots__ = (
        "_commits",
        "_prewrites",
        "_region_id",
        "_rollbacks",
        "_span_end",
        "_span_start",
        "_start_ts",
        "initialized",
        "resolved_ts",
    )

    def __init__(
        self, region_id: RegionId, span_start: bytes, span_end: bytes, *, start_ts: Ts, checkpoint_ts: Ts
    ) -> None:
        """Start empty.

        Args:
            region_id: for errors only.
            span_start: first raw key of the subscribed span.
            span_end: the raw key after it, never empty.
            start_ts: of the subscription; a live COMMIT at or below it is not wanted (§4.3, 2).
            checkpoint_ts: of this registration; no row at or below it may come (§4.3, 3).
        """
        self._region_id = region_id
        self._span_start = span_start
        self._span_end = span_end
        self._start_ts = start_ts
        self._prewrites: dict[int, dict[bytes, _Prewrite]] = {}
        self._commits: list[_Commit] = []
        self._rollbacks: list[tuple[int, bytes]] = []
        self.initialized = False
        self.resolved_ts = checkpoint_ts

    @property
    def open_prewrites(self) -> int:
        """How many rows wait for their commit or rollback."""
        return sum(map(len, self._prewrites.values()))

    def held_bytes(self) -> int:
        """Return about how many bytes of values wait: the rows of each transaction times its first rows' mean size."""
        total = 0
        for txn in self._prewrites.values():
            sample = [len(value) + len(old_value) for value, old_value, _ in islice(txn.values(), _SAMPLE)]
            total += sum(sample) * len(txn) // max(1, len(sample))
        return total

    def resolve(self, ts: Ts) -> bool:
        """Take a resolved ts; say whether it moved this region forward.

        Not before INITIALIZED; lower or equal is legal and ignored (§4.5: a group of slow regions is told its minimum).
        """
        if not self.initialized or ts <= self.resolved_ts:
            return False
        self.resolved_ts = ts
        return True

    def feed(self, rows: Iterable[LogRow]) -> list[Change]:
        """Take the rows of one event; return the changes that are complete with it, checked (§4.3).

        Raises:
            PrewriteNotMatchError: a COMMIT without PREWRITE after INITIALIZED.
            InvariantBrokenError: a change at or below the region's resolved ts, an op that is neither PUT nor DELETE,
                or a row type that the protocol does not have.
        """
        rows = list(rows)
        if len(rows) >= _COLUMNWISE_MIN:
            kind, start_ts = rows[0].type, rows[0].start_ts
            if {row.type for row in rows} == {kind} and {row.start_ts for row in rows} == {start_ts}:
                if kind == PREWRITE and self._prewrite_all(start_ts, rows):
                    return []
                if kind == COMMIT and self.initialized:
                    return self._commit_all(start_ts, rows)
        return self._feed_rows(rows)

    def _prewrite_all(self, start_ts: int, rows: Sequence[LogRow]) -> bool:
        """Take PREWRITE rows of one transaction; False (and nothing done) if one of them is there already."""
        keys = [row.key for row in rows]
        txn = self._prewrites.setdefault(start_ts, {})
        if not txn.keys().isdisjoint(keys) or len(set(keys)) < len(keys):
            return False
        entries = zip(
            [row.value for row in rows], [row.old_value for row in rows], [row.generation for row in rows], strict=True
        )
        txn.update(zip(keys, entries, strict=True))
        return True

    def _commit_all(self, start_ts: int, rows: Sequence[LogRow]) -> list[Change]:
        """Take COMMIT rows of one transaction, the region being initialized."""
        keys = [row.key for row in rows]
        txn = self._prewrites.get(start_ts, {})
        try:
            values, old_values, _ = zip(*map(txn.pop, keys), strict=True)
        except KeyError:
            raise self._unmatched(next(row for row in rows if row.key not in txn)) from None
        if not txn:
            self._prewrites.pop(start_ts, None)
        commit_ts, ops = [row.commit_ts for row in rows], [row.op_type for row in rows]
        sources = [row.txn_source for row in rows]
        out = list(zip(commit_ts, repeat(start_ts), ops, keys, values, old_values, sources, strict=False))
        low, high = min(keys), max(keys)
        if min(commit_ts) <= self._start_ts or low < self._span_start or high >= self._span_end:
            wanted = [self._wanted(row.key, row.commit_ts) for row in rows]
            out = [change for change, keep in zip(out, wanted, strict=True) if keep]
            rows = [row for row, keep in zip(rows, wanted, strict=True) if keep]
        if min(commit_ts) <= self.resolved_ts or not _OPS.issuperset(ops):
            for row in rows:
                self._check(row)
        return out

    def _feed_rows(self, rows: Sequence[LogRow]) -> list[Change]:
        out: list[Change] = []
        prewrites = self._prewrites
        for row in rows:
            kind = row.type
            if kind == PREWRITE:
                self._prewrite(row)
            elif kind == COMMIT:
                start_ts, key = row.start_ts, row.key
                txn = prewrites.get(start_ts)
                found = None if txn is None else txn.get(key)
                if not self.initialized and (found is None or not found[0] or found[2]):
                    # An empty value may be a fake prewrite, and the real one yet to come by the scan; DELETE waits too.
                    self._commits.append((row.commit_ts, start_ts, key, row.op_type, row.txn_source))
                    continue
                if txn is None or found is None:
                    raise self._unmatched(row)
                self._forget(start_ts, key)
                if self._wanted(key, row.commit_ts):
                    self._check(row)
                    out.append((row.commit_ts, start_ts, row.op_type, key, found[0], found[1], row.txn_source))
            elif kind == COMMITTED:
                if self._span_start <= row.key < self._span_end:
                    self._check(row)
                    out.append(
                        (row.commit_ts, row.start_ts, row.op_type, row.key, row.value, row.old_value, row.txn_source)
                    )
            elif kind == ROLLBACK:
                self._rollback(row.start_ts, row.key)
            elif kind == INITIALIZED:
                out += self._initialize()
            else:
                raise InvariantBrokenError("row has an unknown type", region_id=self._region_id, type=kind)
        return out

    def _prewrite(self, row: LogRow) -> None:
        entry = (row.value, row.old_value, row.generation)
        txn, key = self._prewrites.setdefault(row.start_ts, {}), row.key
        before = txn.setdefault(key, entry)
        # A fake prewrite must overwrite neither value nor old_value; an older flush has lost already.
        if before is not entry and entry[0] and before[2] <= entry[2]:
            txn[key] = entry

    def _rollback(self, start_ts: int, key: bytes) -> None:
        if self.initialized:
            self._forget(start_ts, key)
        else:
            self._rollbacks.append((start_ts, key))

    def _forget(self, start_ts: int, key: bytes) -> _Prewrite | None:
        txn = self._prewrites.get(start_ts)
        if txn is None:
            return None
        entry = txn.pop(key, None)
        if not txn:
            del self._prewrites[start_ts]
        return entry

    def _initialize(self) -> list[Change]:
        """Run what was cached: commits, then rollbacks.

        The commits are not compared with start_ts or resolved ts, as in both engines; readers cut by commit_ts anyway.
        """
        self.initialized = True
        commits, self._commits = self._commits, []
        rollbacks, self._rollbacks = self._rollbacks, []
        out: list[Change] = []
        for commit_ts, start_ts, key, op, txn_source in commits:
            entry = self._forget(start_ts, key)
            # No entry is normal here: a COMMITTED row of the scan stood for it.
            if entry is not None and self._span_start <= key < self._span_end:
                out.append((commit_ts, start_ts, op, key, entry[0], entry[1], txn_source))
        for start_ts, key in rollbacks:
            self._forget(start_ts, key)
        return out

    def _wanted(self, key: bytes, commit_ts: int) -> bool:
        """Say whether a matched COMMIT is asked for: inside the span, above the subscription's start."""
        return commit_ts > self._start_ts and self._span_start <= key < self._span_end

    def _check(self, row: LogRow) -> None:
        if row.commit_ts > self.resolved_ts and row.op_type in _OPS:
            return
        raise InvariantBrokenError(
            "a change came at or below its region's resolved ts, or is neither PUT nor DELETE",
            region_id=self._region_id,
            key=row.key.hex(),
            op=row.op_type,
            commit_ts=row.commit_ts,
            resolved_ts=self.resolved_ts,
        )

    def _unmatched(self, row: LogRow) -> PrewriteNotMatchError:
        return PrewriteNotMatchError(
            "a commit has no prewrite though the region is initialized",
            region_id=self._region_id,
            key=row.key.hex(),
            start_ts=row.start_ts,
            commit_ts=row.commit_ts,
        )
