"""The records of a cut that one process holds whole, in their order, and the books of how they came about."""

from collections.abc import Callable
from dataclasses import dataclass

from sorters.core.cut.cut import Cut
from sorters.core.flow.flow_marks import FlowMarker
from sorters.core.flow.ledger import CutFlow, check_flow
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.records.order import OutputRecords, in_order
from sorters.core.state_proof.deltas import StateDeltas
from sorters.cut.cut_books import CutBooks
from sorters.cut.damaged_records import DamagedRecord
from sorters.cut.raw_cut import RawCut
from sorters.cut.worker import CutCounts, FeedProgram, output_records


@dataclass(frozen=True, slots=True)
class WholeCut:
    """All records of one cut in their order, and what they were made of."""

    records: OutputRecords
    rows: int
    corrupt: CorruptRows
    flow: CutFlow
    states: StateDeltas
    damaged: frozenset[DamagedRecord] = frozenset()

    def counts(self, raw_bytes: int) -> CutCounts:
        """Return what is told of the cut once it is written; ``raw_bytes`` were read."""
        return CutCounts(
            rows=self.rows,
            raw_bytes=raw_bytes,
            corrupt=self.corrupt,
            flow=self.flow,
            states=self.states,
            damaged=self.damaged,
        )


def whole_cut(
    cut: Cut,
    raw: RawCut,
    program: FeedProgram,
    extras: OutputRecords,
    encoded_at_ms: int,
    output_bytes_max: int,
    between: Callable[[], None] = lambda: None,
) -> WholeCut | None:
    """Return the records of ``cut`` and ``extras``; None: they are more than ``output_bytes_max``.

    ``between`` is called between two pieces of the work.

    Raises:
        FlowBrokenError: the records are not what was read.
        RecordDamagedError: a raw record of a table that is wanted is not what its capture sent.
        BusError: a row cannot be sent.
    """
    rows, held, books = list[OutputRecords](), 0, CutBooks.of(cut, program.feed)
    tables = output_records(iter(raw.records), cut, program, encoded_at_ms, books, shared=raw.shared, chunks=raw.chunks)
    for table in tables:
        rows.append(table)
        held += table.nbytes
        if held > output_bytes_max:
            return None
        between()
    records = in_order([*rows, extras] if extras.num_rows else rows, cut.may_repeat, books.flow.write)
    flow = books.flow.close()
    check_flow(flow, cut.after_ts, cut.upto_ts, may_repeat=cut.may_repeat)
    writer = program.feed.flow_writer
    marker = FlowMarker(cut.after_ts, writer) if writer else None
    if marker is not None:
        marker.note(records)
    row_join = program.feed.row_join
    whole = records if row_join is None else row_join.whole(records)
    if marker is not None:
        whole = marker.marked(whole)
    count = sum(table.num_rows for table in rows)
    return WholeCut(whole, count, books.all_corrupt(), flow, books.close_states(), books.all_damaged())
