"""Row checksums of many rows at once: what rows carry, whether it fits, and what is passed on of it.

The columnar twin of :mod:`schemas.tidb.row_checksum`, which says what the rules are. All bytes that are summed up are
laid out in Arrow, a few calls a column; ``zlib`` then runs over each row from within ``map``
(docs/decisions/2026-11-22-columnar-mount-and-encode.md).
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.row_checksum import VERSION_COLUMNS, VERSION_HANDLE, VERSION_KEY, MountedChecksum
from sorters.core.columnar.spans import BoolArray, IntArray, Spans, gather, matrix_spans, spans_of, words_ending
from sorters.core.columnar.times import fixed_text
from sorters.core.mount.column import NUMBER_TYPES, Column
from sorters.core.mount.keys import HANDLE_AT
from sorters.core.mount.row_v2 import FLAG_LARGE, HEAD_BYTES, V2_MARK

_FLAG_CHECKSUM, _VERSION_MASK, _FLAG_EXTRA = 0x02, 0x07, 0x08
_SUM_BYTES = 4
Sums = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowChecksums:
    """:class:`MountedChecksum` of ``n`` rows; the fields of a row that has none are 0."""

    present: BoolArray
    current: Sums
    previous: Sums
    version: npt.NDArray[np.int8]
    corrupted: BoolArray

    def take(self, rows: npt.NDArray[np.int64], *, current: bool = True, previous: bool = True) -> "RowChecksums":
        """Return some rows; a half of an update that was split keeps only the checksum of its own side."""
        nothing = np.zeros(len(rows), np.uint32)
        return RowChecksums(
            present=self.present[rows],
            current=self.current[rows] if current else nothing,
            previous=self.previous[rows] if previous else nothing,
            version=self.version[rows],
            corrupted=self.corrupted[rows],
        )

    def patch(self, rows: IntArray, checksums: Sequence[MountedChecksum | None]) -> None:
        """Put in what the scalar path has found for some rows; only while they are mounted."""
        values = row_checksums(checksums)
        self.present[rows], self.corrupted[rows] = values.present, values.corrupted
        self.current[rows], self.previous[rows], self.version[rows] = values.current, values.previous, values.version


def row_checksums(checksums: Sequence[MountedChecksum | None]) -> RowChecksums:
    """Return what the scalar path has found, as arrays."""
    none = MountedChecksum(current=0, previous=0, version=0)
    shown = [checksum or none for checksum in checksums]
    return RowChecksums(
        present=np.array([checksum is not None for checksum in checksums], np.bool_),
        current=np.array([checksum.current for checksum in shown], np.uint32),
        previous=np.array([checksum.previous for checksum in shown], np.uint32),
        version=np.array([checksum.version for checksum in shown], np.int8),
        corrupted=np.array([checksum.corrupted for checksum in shown], np.bool_),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """The checksum parts of one side's rows; junk where ``there`` is false."""

    there: BoolArray
    version: npt.NDArray[np.int8]
    first: Sums
    extra: Sums
    """Equal to ``first`` where a row has no second one."""
    covered_end: IntArray
    """Place in the buffer up to which a checksum over bytes reaches."""


@dataclass(frozen=True, slots=True, eq=False)
class Verified:
    """What is passed on of one side's rows, and whether it fits."""

    checksum: Sums
    version: npt.NDArray[np.int8]
    matched: BoolArray


def locate_checksums(rows: Spans) -> tuple[Carried, BoolArray]:
    """Read the checksum parts; also return which rows have one that is cut off or of a version that nobody knows.

    Rows that are no sound rows of format v2 have none here; :func:`sorters.core.mount.row_v2.locate` tells them.
    """
    count = len(rows)
    there, broken = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    version, sums = np.zeros(count, np.int8), np.zeros((2, count), np.uint32)
    covered_end = rows.start.copy()
    carried = Carried(there, version, sums[0], sums[1], covered_end)
    long = np.flatnonzero(rows.length >= HEAD_BYTES)
    head = gather(rows.buffer, rows.start[long], HEAD_BYTES)
    chosen = (head[:, 0] == V2_MARK) & (head[:, 1] & _FLAG_CHECKSUM != 0)
    row, head = long[chosen], head[chosen]
    if not len(row):
        return carried, broken
    at = _data_end(rows.take(row), head)
    inside = at < rows.end[row]  # the part's header byte
    broken[row[~inside]] = True
    row, at = row[inside], at[inside]
    marks = rows.buffer[at]
    has_extra = marks & _FLAG_EXTRA != 0
    end = at + 1 + _SUM_BYTES * (1 + has_extra)
    good = (end <= rows.end[row]) & (marks & _VERSION_MASK <= VERSION_HANDLE)
    broken[row[~good]] = True
    row, at, end, marks, has_extra = row[good], at[good], end[good], marks[good], has_extra[good]
    there[row] = True
    version[row] = marks & _VERSION_MASK
    covered_end[row] = at + 1
    sums[0, row] = words_ending(rows.buffer, at + 1 + _SUM_BYTES) >> np.uint64(32)
    sums[1, row] = np.where(has_extra, words_ending(rows.buffer, end) >> np.uint64(32), sums[0, row])
    return carried, broken


def _data_end(rows: Spans, head: npt.NDArray[np.uint8]) -> IntArray:
    """Return where the data ends by the last offset; the end of the row where the header does not fit into it."""
    large = head[:, 1] & FLAG_LARGE != 0
    counts = np.ascontiguousarray(head[:, 2:HEAD_BYTES]).view("<u2").astype(np.int64)
    id_bytes, offset_bytes = np.where(large, 4, 1), np.where(large, 4, 2)
    data = rows.start + HEAD_BYTES + counts.sum(axis=1) * id_bytes + counts[:, 0] * offset_bytes
    fits = data <= rows.end
    end = np.where(fits, data, rows.end)
    values = np.flatnonzero(fits & (counts[:, 0] > 0))
    shift = (64 - 8 * offset_bytes[values]).astype(np.uint64)
    end[values] += (words_ending(rows.buffer, data[values]) >> shift).astype(np.int64)
    return np.minimum(end, rows.end)


def verify_side(
    columns: Sequence[Column], rows: Spans, keys: Spans, carried: Carried, *, ignored: BoolArray, is_old: bool
) -> Verified:
    """Verify one side. ``columns`` are in UTC; rows that are ``ignored`` count as such that carry nothing.

    Raises:
        CorruptRowError: a value does not decode.
    """
    verified = Verified(np.zeros(len(rows), np.uint32), carried.version.copy(), np.ones(len(rows), np.bool_))
    summed = np.flatnonzero(carried.there & ~ignored)
    if not len(summed):
        return verified
    whole = len(summed) == len(rows)
    own = column_checksums(columns if whole else [column.take(summed) for column in columns])
    verified.checksum[summed] = own
    first, version = carried.first[summed], carried.version[summed]
    if not is_old:
        misfit = (version == VERSION_COLUMNS) & (own != first) & (own != carried.extra[summed])
        verified.matched[summed[misfit]] = False
    for wanted, head in ((VERSION_KEY, 0), (VERSION_HANDLE, HANDLE_AT)):
        of_bytes = summed[version == wanted]
        if not len(of_bytes):
            continue
        covered = Spans(rows.buffer, rows.start[of_bytes], carried.covered_end[of_bytes])
        encoded_keys = Spans(keys.buffer, keys.start[of_bytes] + head, keys.end[of_bytes])
        misfits = of_bytes[_crc32(encoded_keys, _crc32(covered)) != carried.first[of_bytes]]
        verified.matched[misfits] = False
        verified.checksum[misfits] = carried.first[misfits]
    return verified


def both_sides(new: Verified | None, old: Verified | None) -> RowChecksums:
    """Put the sides of rows together; one of them may be None, where no row has it."""
    given = new or old
    assert given is not None
    nothing, sound = np.zeros(len(given.checksum), np.uint32), np.ones(len(given.checksum), np.bool_)
    current, previous = (side.checksum if side else nothing for side in (new, old))
    corrupted = ~((new.matched if new else sound) & (old.matched if old else sound))
    present = (current != 0) | (previous != 0) | corrupted
    return RowChecksums(
        present=present,
        current=current,
        previous=previous,
        version=np.where(present, given.version, np.int8(0)),
        corrupted=corrupted,
    )


def column_checksums(columns: Sequence[Column]) -> Sums:
    """Return the CRC32 over mounted columns, at least one row and one column, with TIMESTAMPs in UTC."""
    parts = [part for column in sorted(columns, key=lambda column: column.spec.id) for part in _column_parts(column)]
    return _crc32(spans_of(pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))))


def _column_parts(column: Column) -> list[pa.Array]:
    """Return what a column adds to the bytes of each row, nothing for NULL."""
    if column.spec.tp in NUMBER_TYPES:
        matrix = np.ascontiguousarray(column.numbers).view(np.uint8).reshape(len(column), 8)
        valid = column.valid
        if valid is None:
            return [fixed_text(matrix, None)]
        return [matrix_spans(matrix, np.zeros(len(column), np.int64), 8 * valid.astype(np.int64)).to_arrow()]
    is_vector = column.spec.tp is MysqlType.VECTOR
    text = column.vectors if is_vector else column.text
    sizes = [] if is_vector else [_sizes(text)]
    if not text.null_count:
        return [*sizes, text]
    joined = pc.binary_join_element_wise(*sizes, text, pa.scalar(b"", pa.binary()))
    return [pc.fill_null(joined, pa.scalar(b"", pa.binary()))]


def _sizes(text: pa.Array) -> pa.Array:
    lengths = np.ascontiguousarray(spans_of(text).length.astype("<u4"))
    return fixed_text(lengths.view(np.uint8).reshape(len(text), _SUM_BYTES), None)


def _crc32(spans: Spans, before: Sums | None = None) -> Sums:
    """Return the CRC32 of each range, or go on from the one before."""
    view = memoryview(spans.buffer)  # type: ignore[arg-type]  # numpy says so from 3.12 on only
    ranges = map(view.__getitem__, map(slice, spans.start.tolist(), spans.end.tolist()))
    sums = map(zlib.crc32, ranges) if before is None else map(zlib.crc32, ranges, before.tolist())
    return np.fromiter(sums, np.uint32, len(spans))
