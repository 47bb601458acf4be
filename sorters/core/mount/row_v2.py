"""Locate columns in many rows of row format v2 at once.

Layout (pingcap/tidb ``pkg/util/rowcodec/row.go``): ``80 | flags | n u16 | m u16 | n not-null ids | m null ids | n end
offsets | data | checksum``; ids are 1 byte and offsets 2, or both 4 in the large form (flag 1).

Rows are grouped by their first six bytes. In a group nearly all rows share the whole header, because a table's writers
write the same columns: the first row's header is taken as a guess, compared with all (one gather, one compare), and the
rows that differ (another null pattern) are searched id by id with matrix compares. Neither way loops over rows.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sorters.core.columnar.spans import BoolArray, Bytes, IntArray, Spans, gather

V2_MARK = 0x80
FLAG_LARGE = 0x01
HEAD_BYTES = 6

ABSENT, NULL, VALUE = 0, 1, 2
"""What a row says about a column: nothing, NULL, or a value."""

State = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class LocatedColumn:
    """One column in ``n`` rows. ``spans`` counts only where the state is VALUE (elsewhere the ranges are empty)."""

    spans: Spans
    state: int | State
    """One state for all rows, or one each."""


@dataclass(frozen=True, slots=True, eq=False)
class _HeaderGroup:
    """Rows with the same first six bytes."""

    rows: IntArray | None
    """Row numbers; None: all rows of the batch."""
    large: bool
    not_null: int
    null: int

    @property
    def id_bytes(self) -> int:
        return 4 if self.large else 1

    @property
    def offset_bytes(self) -> int:
        return 4 if self.large else 2

    @property
    def ids_width(self) -> int:
        return (self.not_null + self.null) * self.id_bytes

    @property
    def prefix_width(self) -> int:
        """Bytes in front of the data."""
        return HEAD_BYTES + self.ids_width + self.not_null * self.offset_bytes


def locate(rows: Spans, column_ids: tuple[int, ...]) -> tuple[list[LocatedColumn], BoolArray]:
    """Locate the columns with these ids; also return which rows are no valid v2 rows (their columns read as ABSENT).

    Checked: the mark, that header and offsets lie inside the row, that offsets do not fall. Not checked: checksums.
    """
    count = len(rows)
    bad = rows.length < HEAD_BYTES
    whole = not bad.any()
    head = gather(rows.buffer, rows.start if whole else rows.start[~bad], HEAD_BYTES)
    if count and whole and (head == head[0]).all() and head[0, 0] == V2_MARK:
        columns, broken = _locate_group(rows, _group(None, head[0]), column_ids)
        return columns, broken
    v2_rows = np.flatnonzero(~bad)
    not_v2 = head[:, 0] != V2_MARK
    bad[v2_rows[not_v2]] = True
    columns = [
        LocatedColumn(
            Spans(rows.buffer, np.zeros(count, np.int64), np.zeros(count, np.int64)), np.zeros(count, np.int8)
        )
        for _ in column_ids
    ]
    words = np.zeros((len(v2_rows), 8), np.uint8)
    words[:, :HEAD_BYTES] = head
    keys = words.view("<u8")[:, 0]
    for key in np.unique(keys[~not_v2]):
        chosen = np.flatnonzero(keys == key)
        group = _group(v2_rows[chosen], head[chosen[0]])
        parts, broken = _locate_group(rows.take(v2_rows[chosen]), group, column_ids)
        bad[v2_rows[chosen]] |= broken
        for column, part in zip(columns, parts, strict=True):
            column.spans.start[v2_rows[chosen]] = part.spans.start
            column.spans.end[v2_rows[chosen]] = part.spans.end
            assert not isinstance(column.state, int)
            column.state[v2_rows[chosen]] = part.state
    return [_settled(column) for column in columns], bad


def _settled(column: LocatedColumn) -> LocatedColumn:
    """Say in one number what all rows agree on: later steps have a faster way for that."""
    assert not isinstance(column.state, int)
    if len(column.state) and (column.state == column.state[0]).all():
        return LocatedColumn(column.spans, int(column.state[0]))
    return column


def _absent(buffer: Bytes, count: int) -> LocatedColumn:
    return LocatedColumn(Spans(buffer, np.zeros(count, np.int64), np.zeros(count, np.int64)), np.zeros(count, np.int8))


def _group(rows: IntArray | None, head: Bytes) -> _HeaderGroup:
    return _HeaderGroup(
        rows, bool(head[1] & FLAG_LARGE), int(head[2]) | int(head[3]) << 8, int(head[4]) | int(head[5]) << 8
    )


def _locate_group(
    rows: Spans, group: _HeaderGroup, column_ids: tuple[int, ...]
) -> tuple[list[LocatedColumn], BoolArray]:
    short = rows.length < group.prefix_width
    if short.any():
        return _without(rows, short, group, column_ids)
    prefix = gather(rows.buffer, rows.start, group.prefix_width)
    ends = _end_offsets(prefix, group)
    data = rows.start + group.prefix_width
    broken = np.zeros(len(rows), np.bool_)
    if group.not_null:
        broken = data + ends[-1] > rows.end
        for earlier, later in pairwise(ends):
            broken |= later < earlier
        if broken.any():
            return _without(rows, broken, group, column_ids)
    ids = prefix[:, HEAD_BYTES : HEAD_BYTES + group.ids_width]
    if (ids == ids[0]).all():
        return [_by_index(rows, data, ends, *_state_and_index(ids[0], group, wanted)) for wanted in column_ids], broken
    table = np.ascontiguousarray(ids).view("<u4" if group.large else np.uint8)
    return [_by_search(rows, data, ends, table, group.not_null, wanted) for wanted in column_ids], broken


def _without(
    rows: Spans, broken: BoolArray, group: _HeaderGroup, column_ids: tuple[int, ...]
) -> tuple[list[LocatedColumn], BoolArray]:
    """Locate in the rows that are not broken; in the others everything is ABSENT."""
    good = np.flatnonzero(~broken)
    count = len(rows)
    columns = [
        LocatedColumn(
            Spans(rows.buffer, np.zeros(count, np.int64), np.zeros(count, np.int64)), np.zeros(count, np.int8)
        )
        for _ in column_ids
    ]
    if not len(good):
        return columns, broken
    parts, also_broken = _locate_group(rows.take(good), group, column_ids)
    broken = broken.copy()
    broken[good] |= also_broken
    for column, part in zip(columns, parts, strict=True):
        column.spans.start[good] = part.spans.start
        column.spans.end[good] = part.spans.end
        assert not isinstance(column.state, int)
        column.state[good] = part.state
    return columns, broken


def _end_offsets(prefix: Bytes, group: _HeaderGroup) -> IntArray:
    """Return the end offsets, one row of the matrix per not-null column."""
    raw = np.ascontiguousarray(prefix[:, HEAD_BYTES + group.ids_width :])
    return raw.view("<u4" if group.large else "<u2").reshape(len(prefix), group.not_null).T.astype(np.int64)


def _state_and_index(ids: Bytes, group: _HeaderGroup, wanted: int) -> tuple[int, int]:
    """Return state and index, among the not-null columns, of a column in a header."""
    known = np.ascontiguousarray(ids).view("<u4" if group.large else np.uint8).tolist()
    if wanted in known[group.not_null :]:
        return NULL, 0
    indexes = [index for index, column_id in enumerate(known) if column_id == wanted]
    return (VALUE, indexes[-1]) if indexes else (ABSENT, 0)


def _by_index(rows: Spans, data: IntArray, ends: IntArray, state: int, index: int) -> LocatedColumn:
    if state != VALUE:
        nothing = np.zeros(len(rows), np.int64)
        return LocatedColumn(Spans(rows.buffer, nothing, nothing), state)
    start = data + ends[index - 1] if index else data
    return LocatedColumn(Spans(rows.buffer, start, data + ends[index]), VALUE)


def _by_search(
    rows: Spans, data: IntArray, ends: IntArray, table: npt.NDArray[np.unsignedinteger], not_null: int, wanted: int
) -> LocatedColumn:
    is_wanted = table == wanted
    is_null = is_wanted[:, not_null:].any(axis=1)
    has_value = is_wanted[:, :not_null].any(axis=1) & ~is_null
    state = np.where(is_null, NULL, np.where(has_value, VALUE, ABSENT)).astype(np.int8)
    if not has_value.any():
        return _settled(LocatedColumn(Spans(rows.buffer, np.zeros_like(data), np.zeros_like(data)), state))
    # The last one, should a corrupt row repeat an id.
    index = not_null - 1 - is_wanted[:, not_null - 1 :: -1].argmax(axis=1)
    row = np.arange(len(rows))
    start = data + np.where(index > 0, ends[index - 1, row], 0)
    end = data + ends[index, row]
    spans = Spans(rows.buffer, np.where(has_value, start, 0), np.where(has_value, end, 0))
    return _settled(LocatedColumn(spans, state))
