"""The matcher of one region registration: PREWRITE and COMMIT rows in, committed row changes out.

Rules and order: reference/cdcpb.md §4.2 and §4.3 (the rules of both TiCDC engines). What must be known to change this:

* TiKV sends an ordinary transaction as PREWRITE (has the value) and COMMIT (has the commit_ts); a 1PC commit, and what
  the incremental scan finds committed, come whole, as COMMITTED.
* Until INITIALIZED, scan and live rows interleave: a COMMIT may come before its PREWRITE, and so may a ROLLBACK.
* A matcher belongs to one registration. When the region is registered again, it starts empty.

The matcher is the hot path, so it is a mutable object that takes rows by the event and appends plain tuples; it does no
I/O and knows no clock. It holds the values of open transactions: ``held_bytes`` says how many.
"""

from collections.abc import Iterable
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

_Place = tuple[int, bytes]
"""``(start_ts, key)``."""
_Prewrite = tuple[bytes, bytes, int]
"""``(value, old_value, generation)``."""
_Commit = tuple[int, _Place, int, int]
"""``(commit_ts, place, op, txn_source)``."""


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
        "held_bytes",
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
        self._prewrites: dict[_Place, _Prewrite] = {}
        self._commits: list[_Commit] = []
        self._rollbacks: list[_Place] = []
        self.initialized = False
        self.resolved_ts = checkpoint_ts
        self.held_bytes = 0

    @property
    def open_prewrites(self) -> int:
        """How many rows wait for their commit or rollback."""
        return len(self._prewrites)

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
        # Written out in one loop, as it runs for every row of every table: a call per row costs a sixth of the speed.
        out: list[Change] = []
        prewrites = self._prewrites
        after_ts, resolved_ts = self._start_ts, self.resolved_ts
        start, end = self._span_start, self._span_end
        held_bytes = 0
        for row in rows:
            kind = row.type
            if kind == PREWRITE:
                value, old_value = row.value, row.old_value
                entry = (value, old_value, row.generation)
                place = (row.start_ts, row.key)
                if prewrites.setdefault(place, entry) is entry:
                    held_bytes += len(value) + len(old_value)
                else:
                    self._prewrite_again(place, entry)
            elif kind == COMMIT:
                place = (row.start_ts, row.key)
                found = prewrites.get(place)
                if not self.initialized and (found is None or not found[0] or found[2]):
                    # An empty value may be a fake prewrite, and the real one yet to come by the scan; DELETE waits too.
                    self._commits.append((row.commit_ts, place, row.op_type, row.txn_source))
                    continue
                if found is None:
                    raise self._unmatched(row)
                del prewrites[place]
                value, old_value, _ = found
                held_bytes -= len(value) + len(old_value)
                commit_ts, op, key = row.commit_ts, row.op_type, place[1]
                if start <= key < end and commit_ts > after_ts:
                    if commit_ts <= resolved_ts or op not in _OPS:
                        raise self._illegal(row)
                    out.append((commit_ts, place[0], op, key, value, old_value, row.txn_source))
            elif kind == COMMITTED:
                commit_ts, op, key = row.commit_ts, row.op_type, row.key
                if start <= key < end:
                    if commit_ts <= resolved_ts or op not in _OPS:
                        raise self._illegal(row)
                    out.append((commit_ts, row.start_ts, op, key, row.value, row.old_value, row.txn_source))
            elif kind == ROLLBACK:
                self._rollback((row.start_ts, row.key))
            elif kind == INITIALIZED:
                out += self._initialize()
            else:
                raise InvariantBrokenError("row has an unknown type", region_id=self._region_id, type=kind)
        self.held_bytes += held_bytes
        return out

    def _prewrite_again(self, place: _Place, entry: _Prewrite) -> None:
        before = self._prewrites[place]
        if not entry[0] or before[2] > entry[2]:
            return  # a fake prewrite must overwrite neither value nor old_value; an older flush lost already
        self._prewrites[place] = entry
        self.held_bytes += len(entry[0]) + len(entry[1]) - len(before[0]) - len(before[1])

    def _rollback(self, place: _Place) -> None:
        if not self.initialized:
            self._rollbacks.append(place)
            return
        entry = self._prewrites.pop(place, None)
        if entry is not None:
            self.held_bytes -= len(entry[0]) + len(entry[1])

    def _initialize(self) -> list[Change]:
        """Run what was cached: commits, then rollbacks.

        The commits are not compared with start_ts or resolved ts, as in both engines; readers cut by commit_ts anyway.
        """
        self.initialized = True
        commits, self._commits = self._commits, []
        rollbacks, self._rollbacks = self._rollbacks, []
        out: list[Change] = []
        for commit_ts, place, op, txn_source in commits:
            entry = self._prewrites.pop(place, None)
            if entry is None:
                continue  # normal: a COMMITTED row of the scan stood for it
            value, old_value, _ = entry
            self.held_bytes -= len(value) + len(old_value)
            if self._span_start <= place[1] < self._span_end:
                out.append((commit_ts, place[0], op, place[1], value, old_value, txn_source))
        for place in rollbacks:
            self._rollback(place)
        return out

    def _unmatched(self, row: LogRow) -> PrewriteNotMatchError:
        return PrewriteNotMatchError(
            "a commit has no prewrite though the region is initialized",
            region_id=self._region_id,
            key=row.key.hex(),
            start_ts=row.start_ts,
            commit_ts=row.commit_ts,
        )

    def _illegal(self, row: LogRow) -> InvariantBrokenError:
        return InvariantBrokenError(
            "a change came at or below its region's resolved ts, or is neither PUT nor DELETE",
            region_id=self._region_id,
            key=row.key.hex(),
            op=row.op_type,
            commit_ts=row.commit_ts,
            resolved_ts=self.resolved_ts,
        )
