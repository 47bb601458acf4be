"""The books of one cut: which rows were read, which were left out and why, and which stand in the records to write.

The law, table by table and with repeats counted as often as they come::

    landed + split - left out = ordered                 every row that was read has its record, and no other has
    ordered - repeats = written                         only a row like the one before it is dropped
    repeats = 0, where the frontier says that no change stands twice

``split`` are the DELETE halves of updates, and records that say which rows an image lacks: they come of no row of their
own. Every sum is linear, so the books of tasks add up to those of their cut, and a task that Spark repeats hands in one
of its two answers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from schemas.changes import BinaryArray, RowChanges
from schemas.errors import Action, BusError
from schemas.flow.flow_sum import NOTHING, FlowSum, TableSums, add_sums, total_of
from schemas.flow.proof import ProofWindow
from schemas.ids import TableId, Ts
from sorters.core.flow.row_ids import RowIds, ids_of_changes, sums_of_changes
from sorters.core.records.order import OutputRecords, column_of

TABLES_NAMED_MAX = 5
"""Of those whose books do not agree, in an error."""
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 8_192, 8 * 1024 * 1024


class FlowBrokenError(BusError):
    """The sorter's output is not what the raw log holds: a row is lost, changed or repeated between the two."""

    code, action = "sorter.flow_broken", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFlow:
    """The books of a cut, or of what one task did of it."""

    gathered: int = 0
    """Rows that were taken out of raw records and chunks of images, by plain count."""
    landed: TableSums = field(default_factory=dict)
    left_out: Mapping[str, TableSums] = field(default_factory=dict)
    """By reason."""
    split: TableSums = field(default_factory=dict)
    ordered: TableSums = field(default_factory=dict)
    """Records of rows, in their order."""
    repeats: TableSums = field(default_factory=dict)
    """Rows among them that are the same as the one before."""
    written: TableSums = field(default_factory=dict)
    """Records of rows that were handed to the writer."""

    def __add__(self, other: "CutFlow") -> "CutFlow":
        reasons = sorted({*self.left_out, *other.left_out})
        return CutFlow(
            gathered=self.gathered + other.gathered,
            landed=add_sums(self.landed, other.landed),
            left_out={
                reason: add_sums(self.left_out.get(reason, {}), other.left_out.get(reason, {})) for reason in reasons
            },
            split=add_sums(self.split, other.split),
            ordered=add_sums(self.ordered, other.ordered),
            repeats=add_sums(self.repeats, other.repeats),
            written=add_sums(self.written, other.written),
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """What a table's books lack, or have too much."""

    stage: str
    table_id: TableId
    expected: FlowSum
    seen: FlowSum


def differences(flow: CutFlow, *, may_repeat: bool) -> Iterator[Difference]:
    """Yield where the law does not hold; see the module."""
    out = dict(flow.landed)
    for sums in flow.left_out.values():
        out = _less(out, sums)
    yield from _unequal("landed_to_ordered", add_sums(out, flow.split), flow.ordered)
    if not may_repeat:
        yield from _unequal("repeats", {}, flow.repeats)
    kept = _less(flow.ordered, flow.repeats) if may_repeat else flow.ordered
    yield from _unequal("ordered_to_written", kept, flow.written)
    landed = total_of(flow.landed).count
    if landed != flow.gathered:
        yield Difference("gathered_to_landed", TableId(0), FlowSum(flow.gathered), FlowSum(landed))


def check_flow(flow: CutFlow, after_ts: Ts, upto_ts: Ts, *, may_repeat: bool, is_written: bool = False) -> None:
    """Check the law for a whole cut.

    Raises:
        FlowBrokenError: it does not hold; ``is_written``: its records stand in the sink already.
    """
    broken = list(differences(flow, may_repeat=may_repeat))
    if not broken:
        return
    first = broken[0]
    named = sorted({each.table_id for each in broken})
    raise FlowBrokenError(
        f"rows of a cut {_what(first)} on their way from the raw log to the sink",
        stage=first.stage,
        table_id=first.table_id,
        tables=", ".join(map(str, named[:TABLES_NAMED_MAX])) + (", …" if len(named) > TABLES_NAMED_MAX else ""),
        after_ts=after_ts,
        upto_ts=upto_ts,
        expected=str(first.expected),
        seen=str(first.seen),
        is_written=is_written,
    )


class FlowLedger:
    """Keeps the books of what one task, or the driver, does of a cut: rows in, by chunk; records out, by window."""

    def __init__(self) -> None:
        self._gathered = 0
        self._waiting: list[RowChanges] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._landed: dict[TableId, FlowSum] = {}
        self._left_out: dict[str, dict[TableId, FlowSum]] = {}
        self._split: dict[TableId, FlowSum] = {}
        self._ordered: dict[TableId, FlowSum] = {}
        self._repeats: dict[TableId, FlowSum] = {}
        self._written: dict[TableId, FlowSum] = {}

    def gather(self, rows: int) -> None:
        """Count rows that were taken out of a raw record."""
        self._gathered += rows

    def land(self, rows: RowChanges, known: FlowSum | None = None) -> None:
        """Note rows of one table that are to become records, or to be left out. They are summed up many at once, unless
        it is ``known`` what they come to.
        """
        if not len(rows):
            return
        if known is not None:
            _add(self._landed, rows.table_id, known)
            return
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self._waiting_bytes += rows.held_bytes
        if self._waiting_rows >= _ROWS_AT_ONCE or self._waiting_bytes >= _BYTES_AT_ONCE:
            self._sum_up()

    def leave_out(self, reason: str, rows: RowChanges, left: npt.NDArray[np.bool_] | None = None) -> None:
        """Note rows that become no records; ``left`` says which of ``rows``, None: all."""
        each = _sum_of(rows, left)
        if each.count:
            _add(self._left_out.setdefault(reason, {}), rows.table_id, each)

    def put_off(self, reason: str, rows: RowChanges, left: npt.NDArray[np.bool_]) -> None:
        """Note rows that are left out before they are gathered."""
        each = _sum_of(rows, left)
        if each.count:
            self._gathered += each.count
            _add(self._landed, rows.table_id, each)
            _add(self._left_out.setdefault(reason, {}), rows.table_id, each)

    def split(self, positions: BinaryArray) -> None:
        """Note the positions of records beside those of the rows that were landed."""
        self._split = add_sums(self._split, RowIds(positions).sums())

    def write(self, ordered: OutputRecords, written: OutputRecords) -> None:
        """Note records in their order, and what is left of them when repeats are dropped."""
        before = RowIds(column_of(ordered, "position"))
        sums = before.sums()
        self._ordered = add_sums(self._ordered, sums)
        repeats = before.repeats()
        if repeats.any():
            self._repeats = add_sums(self._repeats, before.sums(repeats))
        if written is not ordered:
            sums = RowIds(column_of(written, "position")).sums()
        self._written = add_sums(self._written, sums)

    def close(self) -> CutFlow:
        """Return the books."""
        self._sum_up()
        return CutFlow(
            gathered=self._gathered,
            landed=self._landed,
            left_out=self._left_out,
            split=self._split,
            ordered=self._ordered,
            repeats=self._repeats,
            written=self._written,
        )

    def _sum_up(self) -> None:
        if self._waiting:
            for rows, each in zip(self._waiting, sums_of_changes(self._waiting), strict=True):
                _add(self._landed, rows.table_id, each)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def _sum_of(rows: RowChanges, chosen: npt.NDArray[np.bool_] | None) -> FlowSum:
    if not len(rows) or (chosen is not None and not chosen.any()):
        return NOTHING
    ids = ids_of_changes([rows])
    if chosen is not None:
        ids = ids[chosen]
    return FlowSum(len(ids), int(np.add.reduce(ids)))


def _add(sums: dict[TableId, FlowSum], table: TableId, more: FlowSum) -> None:
    sums[table] = sums.get(table, NOTHING) + more


def _less(first: TableSums, second: TableSums) -> dict[TableId, FlowSum]:
    left = dict(first)
    for table, each in second.items():
        left[table] = left.get(table, NOTHING) - each
    return left


def _unequal(stage: str, expected: TableSums, seen: TableSums) -> Iterator[Difference]:
    if total_of(expected) == total_of(seen):
        return
    for table in sorted({*expected, *seen}):
        first, second = expected.get(table, NOTHING), seen.get(table, NOTHING)
        if first != second:
            yield Difference(stage, table, first, second)


def _what(difference: Difference) -> str:
    lacking = difference.expected.count - difference.seen.count
    if difference.stage == "repeats":
        return f"come twice ({-lacking})"
    return f"are lost ({lacking})" if lacking > 0 else f"are added ({-lacking})" if lacking else "are not the same"


def window_of(flow: CutFlow, after_ts: Ts, upto_ts: Ts) -> ProofWindow:
    """Return the books of a cut as a window of the changefeed's proofs."""
    return ProofWindow(
        after_ts=after_ts,
        upto_ts=upto_ts,
        landed=total_of(flow.landed),
        left_out={reason: total_of(sums) for reason, sums in flow.left_out.items()},
        split=total_of(flow.split),
        repeats=total_of(flow.repeats),
        written=total_of(flow.written),
        tables=flow.written,
        tables_total=len(flow.written),
    )
