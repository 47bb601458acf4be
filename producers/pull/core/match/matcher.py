"""The matcher of one region registration: PREWRITE and COMMIT rows in, committed row changes out.

Rules and order: docs/formats/cdcpb.md §4.2 and §4.3 (of both TiCDC engines). What must be known to change this:

* TiKV sends an ordinary transaction as PREWRITE (has the value) and COMMIT (has the commit_ts); a 1PC commit, and what
  the incremental scan finds committed, come whole, as COMMITTED.
* Until INITIALIZED, scan and live rows interleave: a COMMIT may come before its PREWRITE, and so may a ROLLBACK.
* A matcher belongs to one registration. When the region is registered again, it starts empty.

* The values that a COMMIT event matches may be a thousand times larger than the event. So what comes out comes in
  bounded **parts**, and whoever takes them may take a breath in between.

The matcher is the hot path, so it is a mutable object that takes rows by the event and returns tuples or columns; it
does no I/O (what its quota sends to disk goes through a store that it is given) and knows no clock. Larger events
mostly hold rows of one transaction and one type, and those go column-wise; where columns would not do as the rules say
(a prewrite that is there already, a region still scanned) they go row by row.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress, repeat
from typing import Final

from producers.pull.core.match.cached_rows import CachedRows
from producers.pull.core.match.change_columns import Change, ChangeColumns, JoinedBytes
from producers.pull.core.match.log_rows import COLUMNS_MIN, LogRow, LogRows
from producers.pull.core.match.matcher_quota import MatcherQuota, QuotaHolder
from producers.pull.core.match.open_txns import OpenTxns
from producers.pull.core.match.spill import Prewrite
from schemas.errors import BusError, InvariantBrokenError
from schemas.ids import RegionId, Ts

PREWRITE: Final = 1
COMMIT: Final = 2
ROLLBACK: Final = 3
COMMITTED: Final = 4
INITIALIZED: Final = 5
"""cdcpb ``Event.LogType``; UNKNOWN is 0."""

PUT: Final = 1
DELETE: Final = 2
"""cdcpb ``Event.OpType``."""

_OPS: Final = frozenset((PUT, DELETE))
_GROUP_MIN: Final = 8
"""Rows of an event from which on rows of one kind go together."""
PART_ROWS_MAX: Final = 4_096
PART_BYTES_MAX: Final = 2 << 20
"""Of keys and values of the changes that come out at once; one larger change makes a part of its own."""


class PrewriteNotMatchError(BusError):
    """A COMMIT came without its PREWRITE after the scan was complete: only a new scan can bring the value back.

    The classic engine's ``ErrPrewriteNotMatch``.
    """

    code = "producer.prewrite_not_match"


INT64_MAX: Final = (1 << 63) - 1
"""The protocol's numbers are unsigned; no clock gives more, and the raw log's are signed."""


class BadRowError(InvariantBrokenError):
    """A row's type or op is none that the protocol has, or a number none that TiKV gives; a new scan may mend it."""

    code = "producer.bad_row"


class Matcher:
    """Matches the rows of one registration of a region for the raw-key span ``[span_start, span_end)``."""

    __slots__ = (
        "_commits",
        "_open",
        "_quota",
        "_region_id",
        "_rollbacks",
        "_span_end",
        "_span_start",
        "_start_ts",
        "initialized",
        "resolved_ts",
    )

    def __init__(
        self,
        region_id: RegionId,
        span_start: bytes,
        span_end: bytes,
        *,
        start_ts: Ts,
        checkpoint_ts: Ts,
        quota: MatcherQuota | None = None,
    ) -> None:
        """Start empty.

        Args:
            region_id: for errors only.
            span_start: first raw key of the subscribed span.
            span_end: the raw key after it, never empty.
            start_ts: of the subscription; a live COMMIT at or below it is not wanted (§4.3, 2).
            checkpoint_ts: of this registration; no row at or below it may come (§4.3, 3).
            quota: shared by all matchers of a puller; without one all rows stay in memory.
        """
        self._region_id = region_id
        self._span_start = span_start
        self._span_end = span_end
        self._start_ts = start_ts
        self._quota = quota = quota or MatcherQuota()
        self._open = OpenTxns(quota)
        # Most registrations have long been initialized, and there are up to a hundred thousand of them.
        self._commits: CachedRows | None = None
        self._rollbacks: CachedRows | None = None
        self.initialized = False
        self.resolved_ts = checkpoint_ts

    @property
    def open_prewrites(self) -> int:
        """How many prewrites wait for their commit or rollback."""
        return len(self._open)

    def held_bytes(self) -> int:
        """Return about how many bytes of memory its rows take; those on disk do not count."""
        cached = sum(rows.bytes for rows in (self._commits, self._rollbacks) if rows is not None)
        return self._open.held_bytes() + cached

    def holds(self, holder: QuotaHolder) -> bool:
        """Say whether it is this one's rows that the quota calls so."""
        return holder in (self._open, self._commits, self._rollbacks)

    def close(self) -> None:
        """Forget all rows, in memory and on disk: the registration has ended. Idempotent."""
        self._open.close()
        for rows in (self._commits, self._rollbacks):
            if rows is not None:
                rows.close()

    def resolve(self, ts: Ts) -> bool:
        """Take a resolved ts; say whether it moved this region forward.

        Not before INITIALIZED; lower or equal is legal and ignored (§4.5: a group of slow regions is told its minimum).
        """
        if not self.initialized or ts <= self.resolved_ts:
            return False
        self.resolved_ts = ts
        return True

    def feed(self, rows: Iterable[LogRow]) -> list[Change]:
        """Take the rows of one event, as :meth:`parts` does, and return all changes at once."""
        return [change for part in self.parts(LogRows(tuple(rows))) for change in part]

    def parts(self, rows: LogRows) -> Iterator[Collection[Change]]:
        """Take the rows of one event; yield the changes that are complete with it, checked (§4.3), in bounded parts.

        It must be taken to its end before the next event's, or the matcher must be closed.

        Raises:
            PrewriteNotMatchError: a COMMIT without PREWRITE after INITIALIZED.
            InvariantBrokenError: a change at or below the region's resolved ts.
            BadRowError: an op that is neither PUT nor DELETE, a row type that the protocol does not have, or a number
                beyond the signed ones.
            SpillCorruptError: rows that were on disk are lost; the region must be registered again.
            SpillRefusedError: rows must go to disk and cannot; those of this event have all been taken. The quota says
                which matcher lacks rows now.
        """
        kind = rows.common("type") if len(rows) >= _GROUP_MIN else None
        start_ts = rows.common("start_ts") if kind in (PREWRITE, COMMIT) else None
        if kind == COMMIT and start_ts is not None and self.initialized:
            yield from self._commit_all(start_ts, rows)
        elif kind == COMMITTED and (part := self._committed_all(rows)) is not None:
            yield part
        elif kind != PREWRITE or start_ts is None or not self._prewrite_all(start_ts, rows):
            yield from _cut(self._changes(rows))
        if self._quota.held_bytes > self._quota.bytes_max:
            self._quota.settle()

    def _prewrite_all(self, start_ts: int, rows: LogRows) -> bool:
        """Take PREWRITE rows of one transaction; False (and nothing done) if one of them is there already."""
        return self._open.add_all(
            start_ts,
            rows.strings("key"),
            rows.some_strings("value"),
            rows.some_strings("old_value"),
            rows.some_numbers("generation"),
        )

    def _committed_all(self, rows: LogRows) -> ChangeColumns | None:
        """Return what COMMITTED rows tell; None: there is something to drop, to refuse or to cut, so go row by row."""
        if not COLUMNS_MIN <= len(rows) <= PART_ROWS_MAX:
            return None
        keys, commit_ts, ops = rows.strings("key"), rows.numbers("commit_ts"), rows.numbers("op_type")
        if min(commit_ts) <= self.resolved_ts or not _OPS.issuperset(ops):
            return None
        if min(keys) < self._span_start or max(keys) >= self._span_end:
            return None
        values, old_values = rows.strings("value"), rows.strings("old_value")
        sources = rows.numbers("txn_source")
        try:
            part = ChangeColumns.of(commit_ts, rows.numbers("start_ts"), ops, keys, values, old_values, sources)
        except OverflowError:  # looked for here alone: a look at each number would cost more than the columns do
            return None
        return part if len(part.key.data) + part.value_bytes <= PART_BYTES_MAX else None

    def _commit_all(self, start_ts: int, rows: LogRows) -> Iterator[Collection[Change]]:
        """Take COMMIT rows of one transaction, the region being initialized."""
        keys, commit_ts, ops = rows.strings("key"), rows.numbers("commit_ts"), rows.numbers("op_type")
        low, high, least_ts = min(keys), max(keys), min(commit_ts)
        wanted: list[bool] | None = None
        if least_ts <= self._start_ts or low < self._span_start or high >= self._span_end:
            wanted = list(map(self._wanted, keys, commit_ts))
        sources = rows.numbers("txn_source")
        if least_ts <= self.resolved_ts or not _OPS.issuperset(ops):
            for row in rows if wanted is None else compress(rows, wanted):
                self._check(row)
        if wanted is None and COLUMNS_MIN <= len(keys) <= PART_ROWS_MAX and DELETE not in ops:
            whole = self._open.take_columns(start_ts, JoinedBytes.of(keys), PART_BYTES_MAX)
            if whole is not None:
                some = rows.some_numbers("txn_source")
                try:
                    part = ChangeColumns.of_puts(commit_ts, start_ts, whole.keys, whole.values, whole.old_values, some)
                except OverflowError:
                    self._check_numbers(rows, start_ts, commit_ts, sources)
                    raise
                yield part
                return
        txn = self._open.by_start_ts.get(start_ts)
        if txn is not None and txn.runs:
            self._check_numbers(rows, start_ts, commit_ts, sources)
            yield from _cut(self._stored_changes(start_ts, keys, list(rows)))
            return
        try:
            prewrites, size = self._open.take_all(start_ts, keys)
        except KeyError as error:
            # start_ts, if nothing of the transaction is there; else the key that is missing, or comes twice.
            missing = error.args[0]
            raise self._unmatched(next(row for row in rows if missing in (row.key, start_ts))) from None
        values, old_values, _ = zip(*prewrites, strict=True)
        if DELETE in ops:
            values = tuple(map(_value, ops, values))
        columns = (commit_ts, [start_ts] * len(keys), ops, keys, values, old_values, sources)
        if wanted is None and COLUMNS_MIN <= len(keys) <= PART_ROWS_MAX and size <= PART_BYTES_MAX:
            try:
                part = ChangeColumns.of(*columns)
            except OverflowError:
                self._check_numbers(rows, start_ts, commit_ts, sources)
                raise
            yield part
            return
        self._check_numbers(rows, start_ts, commit_ts, sources)
        if size > PART_BYTES_MAX or len(keys) > PART_ROWS_MAX:
            yield from _cut(compress(zip(*columns, strict=True), wanted or repeat(True)))
        elif few := list(compress(zip(*columns, strict=True), wanted or repeat(True))):
            yield few

    def _stored_changes(self, start_ts: int, keys: Sequence[bytes], rows: Sequence[LogRow]) -> Iterator[Change]:
        """Take COMMIT rows, already checked, of a transaction that has parts on disk."""
        step = self._open.keys_at_once(start_ts)
        for at in range(0, len(keys), step):
            some = keys[at : at + step]
            for key, row, prewrite in zip(
                some, rows[at : at + step], self._open.take_some(start_ts, some), strict=True
            ):
                if prewrite is None:
                    raise self._unmatched(row)
                commit_ts, op = row.commit_ts, row.op_type
                if self._wanted(key, commit_ts):
                    yield (commit_ts, start_ts, op, key, _value(op, prewrite[0]), prewrite[1], row.txn_source)

    def _changes(self, rows: Iterable[LogRow]) -> Iterator[Change]:
        """Take rows of any kind, one by one."""
        opened = self._open
        for row in rows:
            kind = row.type
            if kind == PREWRITE:
                opened.put(row.start_ts, row.key, (row.value, row.old_value, row.generation))
            elif kind == COMMIT:
                start_ts, key = row.start_ts, row.key
                if not self.initialized and self._must_wait(opened.find(start_ts, key)):
                    if self._commits is None:
                        self._commits = CachedRows(self._quota)
                    self._check_form(row)
                    self._commits.append((row.commit_ts, start_ts, key, row.op_type, row.txn_source))
                    continue
                prewrite = opened.take(start_ts, key)
                if prewrite is None:
                    raise self._unmatched(row)
                if self._wanted(key, row.commit_ts):
                    self._check(row)
                    value = _value(row.op_type, prewrite[0])
                    yield (row.commit_ts, start_ts, row.op_type, key, value, prewrite[1], row.txn_source)
            elif kind == COMMITTED:
                if self._span_start <= row.key < self._span_end:
                    self._check(row)
                    yield (row.commit_ts, row.start_ts, row.op_type, row.key, row.value, row.old_value, row.txn_source)
            elif kind == ROLLBACK:
                self._rollback(row.start_ts, row.key)
            elif kind == INITIALIZED:
                yield from self._initialize()
            else:
                raise BadRowError("row has an unknown type", region_id=self._region_id, type=kind)

    @staticmethod
    def _must_wait(prewrite: Prewrite | None) -> bool:
        """Say whether a COMMIT before INITIALIZED may yet get another value.

        It waits where its PREWRITE is not there or has an empty value, which may be a fake one whose real one is still
        to come (a DELETE's is empty always), and where the key was flushed (generation above 0): a later flush may
        bring another value.
        """
        return prewrite is None or not prewrite[0] or prewrite[2] > 0

    def _rollback(self, start_ts: int, key: bytes) -> None:
        if self.initialized:
            self._open.take(start_ts, key)
        else:
            if self._rollbacks is None:
                self._rollbacks = CachedRows(self._quota)
            self._rollbacks.append((0, start_ts, key, 0, 0))

    def _initialize(self) -> Iterator[Change]:
        """Run what was cached: commits, then rollbacks.

        The commits are not compared with start_ts or resolved ts, as in both engines; readers cut by commit_ts anyway.
        """
        self.initialized = True
        # Both stay the matcher's until they are through: it may be closed between two parts.
        for commit_ts, start_ts, key, op, txn_source in self._commits.drain() if self._commits is not None else ():
            prewrite = self._open.take(start_ts, key)
            # No entry is normal here: a COMMITTED row of the scan stood for it.
            if prewrite is not None and self._span_start <= key < self._span_end:
                yield (commit_ts, start_ts, op, key, _value(op, prewrite[0]), prewrite[1], txn_source)
        for _, start_ts, key, _, _ in self._rollbacks.drain() if self._rollbacks is not None else ():
            self._open.take(start_ts, key)
        self._commits = self._rollbacks = None

    def _wanted(self, key: bytes, commit_ts: int) -> bool:
        """Say whether a matched COMMIT is asked for: inside the span, above the subscription's start."""
        return commit_ts > self._start_ts and self._span_start <= key < self._span_end

    def _check(self, row: LogRow) -> None:
        self._check_form(row)
        if row.commit_ts <= self.resolved_ts:
            raise InvariantBrokenError(
                "a change came at or below its region's resolved ts",
                region_id=self._region_id,
                key=row.key.hex(),
                commit_ts=row.commit_ts,
                resolved_ts=self.resolved_ts,
            )

    def _check_numbers(self, rows: LogRows, start_ts: int, commit_ts: Sequence[int], sources: Sequence[int]) -> None:
        if max(start_ts, max(commit_ts), max(sources)) > INT64_MAX:
            for row in rows:
                self._check_form(row)

    def _check_form(self, row: LogRow) -> None:
        is_change = row.op_type in _OPS
        if is_change and max(row.commit_ts, row.start_ts, row.txn_source) <= INT64_MAX:
            return
        raise BadRowError(
            "a change has a number that no TiKV gives" if is_change else "a change is neither PUT nor DELETE",
            region_id=self._region_id,
            key=row.key.hex(),
            op=row.op_type,
            start_ts=row.start_ts,
            commit_ts=row.commit_ts,
            txn_source=row.txn_source,
        )

    def _unmatched(self, row: LogRow) -> PrewriteNotMatchError:
        return PrewriteNotMatchError(
            "a commit has no prewrite though the region is initialized",
            region_id=self._region_id,
            key=row.key.hex(),
            start_ts=row.start_ts,
            commit_ts=row.commit_ts,
        )


def _value(op: int, value: bytes) -> bytes:
    """Return the row after a change: a DELETE has none.

    A transaction that flushes a key twice may have put it first. The DELETE's empty PREWRITE looks like a fake one, so
    the older value stands with the lock; the scan of the same change brings none, and both must be the same fact.
    """
    return b"" if op == DELETE else value


def _cut(changes: Iterable[Change]) -> Iterator[list[Change]]:
    part, size = list[Change](), 0
    for change in changes:
        part.append(change)
        size += len(change[3]) + len(change[4]) + len(change[5])
        if size >= PART_BYTES_MAX or len(part) >= PART_ROWS_MAX:
            yield part
            part, size = [], 0
    if part:
        yield part
