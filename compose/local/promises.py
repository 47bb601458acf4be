"""The promises of output topics as streaming checks, for millions of records, with none of the sorter's code.

A record is known by its position header. Rows are compared as sets of 64-bit hashes of (commit_ts, start_ts, key,
delete or put): 8 MB a million rows, and two of two million different rows hash alike once in ten million runs.
"""

import struct
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Hashes = npt.NDArray[np.uint64]
HISTORY_MAX = 2_000_000
"""Positions kept of a partition to know repeats by; a sorter repeats its last batches, which are far smaller."""
VIOLATIONS_MAX = 5
"""Kept of one kind and partition; the first one tells most."""

_HEAD = struct.Struct(">QBQB")
_OP_AT = _HEAD.size - 1
_ROW, _DDL, _WATERMARK = 0, 1, 2
_DELETE = 1
_DELETED = np.uint64(0x9E3779B97F4A7C15)
"""Turns the hash of a put into that of a delete of the same change."""


@dataclass
class PartitionCheck:
    """One output partition, fed with its records in offset order.

    Order: (commit_ts, rows before DDL before watermark, start_ts, delete first). A record that stood before is a repeat
    if those after it are the ones that followed it then. Watermark: nothing new at or below one that stood before.
    """

    name: str
    rows: int = 0
    ddls: int = 0
    watermarks: int = 0
    repeats: int = 0
    watermark_ts: int = 0
    violations: list[str] = field(default_factory=list)
    _history: list[bytes] = field(default_factory=list)
    _at: int = 0
    """The index in the history where the next record belongs, when it is a repeat."""
    _last: bytes = b""
    _last_group: set[bytes] = field(default_factory=set)
    _commit_ts: "array[int]" = field(default_factory=lambda: array("q"))
    _start_ts: "array[int]" = field(default_factory=lambda: array("q"))
    _deleted: bytearray = field(default_factory=bytearray)
    _keys: list[bytes] = field(default_factory=list)

    def note(self, offset: int, position: bytes | None) -> None:
        """Take the next record."""
        if position is None or len(position) < _HEAD.size:
            self._broken(offset, "record has no position header")
            return
        history, order = self._history, self._order(position)
        if self._at == len(history):
            # Equal orders are rows of one transaction; which of them stood here already, only a set can tell.
            if order > self._last or (order == self._last and position not in self._last_group):
                if order != self._last:
                    self._last, self._last_group = order, set()
                self._last_group.add(position)
                self._new(offset, position)
                return
        elif history[self._at] == position:
            self.repeats += 1
            self._at += 1
            return
        self.repeats += 1
        before = bisect_left(history, order, key=self._order)
        while before < len(history) and history[before] != position and self._order(history[before]) == order:
            before += 1
        if before == len(history) or history[before] != position:
            self._broken(offset, f"out of order, and no repeat: {describe(position)} after {describe(history[-1])}")
        elif before > self._at:
            self._broken(offset, f"a repeat leaves out {before - self._at} records before {describe(position)}")
            self._at = before + 1
        else:
            self._at = before + 1

    def row_hashes(self) -> Hashes:
        """Return the hashes of all distinct rows so far, unsorted."""
        commit_ts, start_ts = np.array(self._commit_ts, np.int64), np.array(self._start_ts, np.int64)
        return row_hashes(commit_ts, start_ts, self._keys, np.array(self._deleted, bool))

    def _new(self, offset: int, position: bytes) -> None:
        commit_ts, kind, start_ts, op = _HEAD.unpack_from(position)
        if commit_ts <= self.watermark_ts:
            self._broken(offset, f"new, but at or below the watermark {self.watermark_ts}: {describe(position)}")
        self._history.append(position)
        if len(self._history) > HISTORY_MAX:
            del self._history[: HISTORY_MAX // 2]
        self._at = len(self._history)
        if kind == _ROW:
            self.rows += 1
            self._commit_ts.append(commit_ts)
            self._start_ts.append(start_ts)
            self._deleted.append(op == _DELETE)
            self._keys.append(position[_HEAD.size :])
        elif kind == _DDL:
            self.ddls += 1
        elif kind == _WATERMARK:
            self.watermarks += 1
            self.watermark_ts = commit_ts
        else:
            self._broken(offset, f"record of an unknown kind {kind}")

    @staticmethod
    def _order(position: bytes) -> bytes:
        # commit_ts, kind and start_ts stand first and big-endian; of the op only delete-first is promised.
        return position[:_OP_AT] + (b"\0" if position[_OP_AT] == _DELETE else b"\1")

    def _broken(self, offset: int, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"{self.name} offset {offset}: {text}")


def row_hashes(
    commit_ts: npt.NDArray[np.int64],
    start_ts: npt.NDArray[np.int64],
    keys: Sequence[bytes],
    deleted: npt.NDArray[np.bool_],
) -> Hashes:
    """Return one hash a row; all arguments have one item a row."""
    if not len(keys):
        return np.zeros(0, np.uint64)
    key_hashes = pd.util.hash_array(np.array(keys, dtype=object), categorize=False)
    mixed: Any = key_hashes
    with np.errstate(over="ignore"):
        for column in (commit_ts, start_ts):
            mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0xFF51AFD7ED558CCD)
            mixed ^= mixed >> np.uint64(32)
    hashes: Hashes = np.where(deleted, mixed ^ _DELETED, mixed)
    return hashes


@dataclass(frozen=True, slots=True)
class SetDifference:
    """What is missing and what was invented, as hashes."""

    missing: Hashes
    invented: Hashes


def compare_rows(expected: Hashes, must: Hashes, seen: Hashes) -> SetDifference:
    """Compare the rows of the topics with those of the raw log.

    ``expected`` may be there, ``must`` (a part of it) has to be. An update that was split stands as a delete and an
    insert of the same change: its delete is no invention.
    """
    seen, expected = np.unique(seen), np.unique(expected)
    invented = np.setdiff1d(seen, expected, assume_unique=True)
    invented = invented[~np.isin(invented ^ _DELETED, expected)]
    return SetDifference(np.setdiff1d(np.unique(must), seen, assume_unique=True), invented)


def describe(position: bytes) -> str:
    """Return a position as people read it."""
    commit_ts, kind, start_ts, op = _HEAD.unpack_from(position)
    names = {_ROW: "row", _DDL: "DDL", _WATERMARK: "watermark"}
    what = f"{names.get(kind, kind)} commit_ts {commit_ts}"
    return what if kind == _WATERMARK else f"{what} start_ts {start_ts} op {op} key {position[_HEAD.size :].hex()}"


def total(checks: Sequence[PartitionCheck]) -> Counter[str]:
    """Add up the counts of all partitions."""
    counts: Counter[str] = Counter()
    for check in checks:
        counts.update(rows=check.rows, ddls=check.ddls, watermarks=check.watermarks, repeats=check.repeats)
    return counts
