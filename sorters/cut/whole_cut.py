"""The records of a cut that one process holds whole, in their order, and the books of how they came about."""

from collections.abc import Callable
from dataclasses import dataclass

from sorters.core.cut.cut import Cut
from sorters.core.flow.flow_marks import FlowMarker
from sorters.core.flow.ledger import CutFlow, FlowLedger, check_flow
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.records.order import OutputRecords, in_order, one_behind_other
from sorters.core.rows.pipeline import Settings
from sorters.core.rows.settled_rows import SettledRows, may_settle, settle, settled_key
from sorters.core.rows.shared_pass import run_rows, wanted_rows
from sorters.core.state_proof.deltas import StateDeltas
from sorters.cut.cut_books import CutBooks
from sorters.cut.damaged_records import DamagedRecord, naming_damage
from sorters.cut.raw_cut import RawCut
from sorters.cut.worker import CutCounts, FeedProgram, SharedRows, log_refused, output_records

TURN_ROWS = 8_192
"""Rows of a cut that are run without a pause, in some 50 ms: whoever lets others in between waits for all of them."""


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
    feed = program.feed
    if raw.shared is not None and may_settle(cut, feed, program.plans, extras):
        settled = _settled_cut(cut, raw.shared, program, extras, encoded_at_ms, output_bytes_max, between)
        if settled is not None:
            return settled
    rows, held, books = list[OutputRecords](), 0, CutBooks.of(cut, feed)
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
    writer = feed.flow_writer
    marker = FlowMarker(cut.after_ts, writer) if writer else None
    if marker is not None:
        marker.note(records)
    whole = records if feed.row_join is None else feed.row_join.whole(records)
    if marker is not None:
        whole = marker.marked(whole)
    count = sum(table.num_rows for table in rows)
    return WholeCut(whole, count, books.all_corrupt(), flow, books.close_states(), books.all_damaged())


def _settled_cut(
    cut: Cut,
    shared: SharedRows,
    program: FeedProgram,
    extras: OutputRecords,
    encoded_at_ms: int,
    output_bytes_max: int,
    between: Callable[[], None],
) -> WholeCut | None:
    """Return the same by what others have made of the cut, or make it for them; None: it has to be made alone.

    Raises:
        FlowBrokenError, RecordDamagedError, BusError: see :func:`whole_cut`.
    """
    feed, plans, books = program.feed, program.plans, CutBooks.of(cut, program.feed)
    flow, states = books.flow, books.states
    with naming_damage(program.name_of):
        rows = shared.rows(program.is_wanted, flow.gather, books.damaged)
        wanted = list(wanted_rows(rows, program.schemas, feed, plans=plans, kept=shared, ledger=flow, states=states))
    asked = settled_key(wanted, feed, plans, shared, encoded_at_ms=encoded_at_ms, may_repeat=cut.may_repeat)
    if asked is None:
        return None
    key, topics = asked

    def make() -> SettledRows | None:
        ledger = FlowLedger()
        settings = Settings(encoded_at_ms, None, None, ledger)
        made = run_rows(wanted, program.schemas, feed, settings, plans, on_refused=log_refused, kept=shared)
        return settle(made, topics, feed, ledger, may_repeat=cut.may_repeat, bytes_max=output_bytes_max)

    is_long = sum(len(of_table) for _, of_table in wanted) > TURN_ROWS
    if is_long:
        between()
    settled = shared.settled(key, wanted, make)
    if settled is None:
        return None
    if is_long:
        between()
    whole = flow.close() + settled.flow
    check_flow(whole, cut.after_ts, cut.upto_ts, may_repeat=cut.may_repeat)
    records = settled.under(topics)
    if extras.num_rows:
        records = one_behind_other([records, in_order([extras], cut.may_repeat)])
    return WholeCut(records, settled.rows, books.all_corrupt(), whole, books.close_states(), books.all_damaged())
