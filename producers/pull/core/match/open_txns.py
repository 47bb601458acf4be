"""The prewrites of one registration that wait for their commit or rollback: in memory, beyond the quota on disk.

A transaction of ten thousand rows is ordinary and never leaves memory: one dict. Most are smaller still: one event
brings all prewrites, one event commits the same keys, and nobody ever looks up a single one. So the first larger event
of a transaction stays as columns, and becomes a dict when anything else happens. What the quota sends to disk are
whole dicts, each of which becomes a run of its transaction (:mod:`producers.pull.core.match.spill`). What follows for
the same transaction goes into memory again, so a key may have several prewrites; which one stands is decided when it
is looked up, from the oldest to the newest, and that gives what deciding at once would have given:

    later(later(later(None, a), b), c)    with a on disk, b and c folded in memory

but for one case: b is empty (a fake prewrite), and c is of an older flush than b. There c must be compared with a, and
so :meth:`OpenTxns.put` looks a up.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final, NamedTuple, Self

from producers.pull.core.match.change_columns import JoinedBytes
from producers.pull.core.match.log_rows import COLUMNS_MIN
from producers.pull.core.match.matcher_quota import MatcherQuota, Part
from producers.pull.core.match.spill import ROW_BYTES_FIXED, Prewrite, SpilledRun, later, row_bytes, write_run

TAKE_BLOCKS: Final = 4
"""Blocks whose rows :meth:`OpenTxns.take_some` is asked for at once, if the keys come in order; see keys_at_once."""
_TAKE_KEYS_MAX: Final = 128


class PrewriteColumns(NamedTuple):
    """The prewrites of one event, no key twice, as columns of one length."""

    keys: JoinedBytes
    values: JoinedBytes
    old_values: JoinedBytes
    generations: Sequence[int] | None
    """None: all are 0."""

    @classmethod
    def of(
        cls,
        keys: Sequence[bytes],
        values: Sequence[bytes] | None,
        old_values: Sequence[bytes] | None,
        generations: Sequence[int] | None,
    ) -> Self:
        """Join columns; None is one without content."""
        none = JoinedBytes.empty(len(keys))
        return cls(
            JoinedBytes.of(keys),
            none if values is None else JoinedBytes.of(values),
            none if old_values is None else JoinedBytes.of(old_values),
            generations,
        )

    @property
    def held_bytes(self) -> int:
        """Return what :func:`row_bytes` counts for all of them."""
        joined = len(self.keys.data) + len(self.values.data) + len(self.old_values.data)
        return joined + ROW_BYTES_FIXED * len(self.keys.lengths)

    def rows(self) -> dict[bytes, Prewrite]:
        """Return them by key."""
        generations = repeat(0) if self.generations is None else self.generations
        return _by_key(self.keys.items(), self.values.items(), self.old_values.items(), generations)


class OpenTxn:
    """The rows of one transaction in one region."""

    __slots__ = ("_columns", "_rows", "bytes", "runs")

    def __init__(self, columns: PrewriteColumns | None = None) -> None:
        self._rows: dict[bytes, Prewrite] = {}
        self._columns = columns
        """What there is instead of rows."""
        self.bytes = 0
        """About what the rows in memory take."""
        self.runs: tuple[SpilledRun, ...] = ()
        """Runs on disk, from old to new."""

    @property
    def rows(self) -> dict[bytes, Prewrite]:
        """The rows in memory; whoever asks for them has no more use for columns."""
        if self._columns is not None:
            self._rows, self._columns = self._columns.rows(), None
        return self._rows

    @rows.setter
    def rows(self, rows: dict[bytes, Prewrite]) -> None:
        self._rows, self._columns = rows, None

    @property
    def row_count(self) -> int:
        """Return how many rows are in memory."""
        return len(self._rows) if self._columns is None else len(self._columns.keys.lengths)

    def columns_of(self, keys: JoinedBytes) -> PrewriteColumns | None:
        """Return all rows in memory as columns, if they are those of ``keys``, in that order; None: they are not."""
        columns = self._columns
        return columns if columns is not None and columns.keys.equals(keys) else None


class OpenTxns:
    """See the module's text."""

    __slots__ = ("_quota", "by_start_ts")

    def __init__(self, quota: MatcherQuota) -> None:
        self._quota = quota
        self.by_start_ts: dict[int, OpenTxn] = {}
        """Only transactions with rows."""

    def add_all(
        self,
        start_ts: int,
        keys: Sequence[bytes],
        values: Sequence[bytes] | None,
        old_values: Sequence[bytes] | None,
        generations: Sequence[int] | None,
    ) -> bool:
        """Take prewrites of one transaction; False (and nothing done) if one of them is in memory already.

        A column is None where it is empty, or 0, in all rows.
        """
        txn = self.by_start_ts.get(start_ts)
        if txn is None and len(keys) >= COLUMNS_MIN:
            if len(set(keys)) < len(keys):
                return False
            columns = PrewriteColumns.of(keys, values, old_values, generations)
            txn, size = OpenTxn(columns), columns.held_bytes
            self._keep(start_ts, txn)
        else:
            txn = OpenTxn() if txn is None else txn
            rows = _by_key(keys, values or repeat(b""), old_values or repeat(b""), generations or repeat(0))
            if len(rows) < len(keys) or (txn.rows and not txn.rows.keys().isdisjoint(keys)):
                return False
            if txn.rows:
                txn.rows.update(rows)
            else:
                txn.rows = rows
                self._keep(start_ts, txn)
            size = sum(map(row_bytes, keys, rows.values()))
        txn.bytes += size
        self._quota.held_bytes += size
        return True

    def take_columns(self, start_ts: int, keys: JoinedBytes, bytes_max: int) -> PrewriteColumns | None:
        """Take prewrites of a transaction out as columns; None (and nothing done) if they cannot be had so.

        They can if one event brought all that there is of the transaction, ``keys`` are its keys in its order, and what
        they take is at most about ``bytes_max``.
        """
        txn = self.by_start_ts.get(start_ts)
        if txn is None or txn.runs or txn.bytes > bytes_max:
            return None
        columns = txn.columns_of(keys)
        if columns is not None:
            self._quota.held_bytes -= txn.bytes
            self._forget(start_ts)
        return columns

    def take_all(self, start_ts: int, keys: Sequence[bytes]) -> tuple[list[Prewrite], int]:
        """Take prewrites of a transaction that has nothing on disk out; return them and about their bytes.

        Raises:
            KeyError: a key is not there.
        """
        txn = self.by_start_ts[start_ts]
        whole = len(keys) == len(txn.rows)
        prewrites = list(map(txn.rows.pop, keys))
        size = txn.bytes if whole else sum(map(row_bytes, keys, prewrites))
        txn.bytes -= size
        self._quota.held_bytes -= size
        if whole:
            self._forget(start_ts)
        return prewrites, size

    def put(self, start_ts: int, key: bytes, row: Prewrite) -> None:
        """Take one prewrite."""
        txn = self.by_start_ts.get(start_ts)
        if txn is None:
            txn = OpenTxn()
            self._keep(start_ts, txn)
        before = txn.rows.get(key)
        size = row_bytes(key, row)
        if before is not None:
            if later(before, row) is before:
                if not (txn.runs and row[0] and not before[0]):
                    return
                older = self._stored(txn, key)
                if older is None or later(older, row) is older:
                    return
            size -= row_bytes(key, before)
        txn.rows[key] = row
        txn.bytes += size
        self._quota.held_bytes += size

    def find(self, start_ts: int, key: bytes) -> Prewrite | None:
        """Return the prewrite that stands for a key."""
        txn = self.by_start_ts.get(start_ts)
        if txn is None:
            return None
        row = txn.rows.get(key)
        if not txn.runs:
            return row
        stored = self._stored(txn, key)
        return stored if row is None else later(stored, row)

    def take(self, start_ts: int, key: bytes) -> Prewrite | None:
        """Take the prewrite that stands for a key out, and all others of it."""
        txn = self.by_start_ts.get(start_ts)
        if txn is None:
            return None
        (prewrite,) = self._take(txn, (key,))
        self._tidy(start_ts, txn)
        return prewrite

    def take_some(self, start_ts: int, keys: Sequence[bytes]) -> list[Prewrite | None]:
        """Return what :meth:`take` returns for each key; for transactions with parts on disk.

        All that is returned is in memory, so whoever has many keys takes them by :meth:`keys_at_once`.
        """
        txn = self.by_start_ts.get(start_ts)
        if txn is None:
            return [None] * len(keys)
        prewrites = self._take(txn, keys)
        self._tidy(start_ts, txn)
        return prewrites

    def keys_at_once(self, start_ts: int) -> int:
        """Return how many rows of a transaction may be asked for together: few where rows are large."""
        txn = self.by_start_ts.get(start_ts)
        rows = min((run.block_rows for run in txn.runs), default=_TAKE_KEYS_MAX) if txn is not None else _TAKE_KEYS_MAX
        return min(_TAKE_KEYS_MAX, TAKE_BLOCKS * rows)

    def parts(self) -> Iterator[Part]:
        """Yield each transaction's part in memory."""
        for txn in self.by_start_ts.values():
            yield txn.bytes, lambda txn=txn: self._spill(txn)  # type: ignore[misc]

    def held_bytes(self) -> int:
        """Return about what is in memory."""
        return sum(txn.bytes for txn in self.by_start_ts.values())

    def __len__(self) -> int:
        """Return how many prewrites wait; one that is both in memory and on disk counts twice."""
        return sum(txn.row_count + sum(run.live for run in txn.runs) for txn in self.by_start_ts.values())

    def close(self) -> None:
        """Forget all."""
        for txn in self.by_start_ts.values():
            self._quota.held_bytes -= txn.bytes
            for run in txn.runs:
                assert self._quota.cache is not None, "only a store has runs"
                run.drop(self._quota.cache)
        self.by_start_ts = {}
        self._quota.holders.pop(self, None)

    def _keep(self, start_ts: int, txn: OpenTxn) -> None:
        self.by_start_ts[start_ts] = txn
        self._quota.holders[self] = None

    def _forget(self, start_ts: int) -> None:
        del self.by_start_ts[start_ts]
        if not self.by_start_ts:
            self._quota.holders.pop(self, None)

    def _stored(self, txn: OpenTxn, key: bytes) -> Prewrite | None:
        cache, newest = self._quota.cache, None
        assert cache is not None, "only a store has runs"
        for run in txn.runs:
            row = run.get(key, cache)
            if row is not None:
                newest = later(newest, row)
        return newest

    def _take(self, txn: OpenTxn, keys: Sequence[bytes]) -> list[Prewrite | None]:
        prewrites: list[Prewrite | None] = [None] * len(keys)
        if txn.runs:
            assert self._quota.cache is not None, "only a store has runs"
            first, last = min(keys), max(keys)
            for run in txn.runs:
                if run.first <= last and first <= run.last:
                    run.pop_all(keys, prewrites, self._quota.cache)
        if txn.rows:
            for at, key in enumerate(keys):
                row = txn.rows.pop(key, None)
                if row is not None:
                    size = row_bytes(key, row)
                    txn.bytes -= size
                    self._quota.held_bytes -= size
                    prewrites[at] = later(prewrites[at], row)
        return prewrites

    def _tidy(self, start_ts: int, txn: OpenTxn) -> None:
        if txn.runs:
            txn.runs = tuple(run for run in txn.runs if run.live)
        if not txn.rows and not txn.runs:
            self._forget(start_ts)

    def _spill(self, txn: OpenTxn) -> None:
        if not txn.rows:
            return
        assert self._quota.cache is not None, "only a store takes parts"
        txn.runs = (*txn.runs, write_run(txn.rows, self._quota.cache.store))
        txn.rows = {}
        self._quota.held_bytes -= txn.bytes
        txn.bytes = 0


def _by_key(
    keys: Sequence[bytes], values: Iterable[bytes], old_values: Iterable[bytes], generations: Iterable[int]
) -> dict[bytes, Prewrite]:
    """Return prewrites by key; what stands beside the keys may go on without end."""
    return dict(zip(keys, zip(values, old_values, generations, strict=False), strict=False))
