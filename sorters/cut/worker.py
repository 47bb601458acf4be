"""What a cut's records are made with, on the driver or in a task: raw records in, output records out."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from edges.kafka.producer_meter import STATISTICS
from schemas.changes import RowChanges
from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError, CorruptDataError
from schemas.ids import TableId
from schemas.rawlog.region_batch import read_batch_head
from schemas.sink_figures import NO_FIGURES, SinkFigures
from sorters.core.columnar.row_changes import join_rows, rows_where
from sorters.core.cut.cut import Cut, overlaps
from sorters.core.feed.feed import CompiledFeed
from sorters.core.flow.ledger import CutFlow, FlowLedger
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.records.order import OutputRecords
from sorters.core.rows.lacking_rows import lacking_records
from sorters.core.rows.noted_forms import with_notes
from sorters.core.rows.settled_rows import SettledKey, SettledRows
from sorters.core.rows.shared_pass import KeptPasses, run_chunks
from sorters.core.rows.table_plans import TablePlans
from sorters.core.state_proof.deltas import StateDeltas
from sorters.cut.claim_store import claim_store
from sorters.cut.cut_books import CutBooks
from sorters.cut.damaged_records import DamagedRecord, DamagedRecords, naming_damage
from sorters.cut.image_chunks import RawChunk, chunk_changes
from sorters.cut.record_rows import rows_of_record
from sorters.cut.sink_writer import BATCH_BYTES

log = logging.getLogger(__name__)
ROWS_PER_CHUNK = 32_768
"""Rows of one table that go through the columnar steps at once: enough that their cost per call does not show."""
TOPICS_COUNTED_MAX = 200
"""Topics up to which producers keep statistics: a producer holds some 40 KB more of each that it has written to."""
BYTES_PER_CHUNK = 32 * 1024 * 1024
"""Raw bytes that a task holds in chunks that are not full yet, over all its tables."""


@dataclass(frozen=True, slots=True)
class FeedProgram:
    """What a worker needs to know of a changefeed; another one when a DDL or a topic changes it."""

    schemas: SchemaStore | LayeredSchemas
    feed: CompiledFeed
    plans: TablePlans = field(default_factory=TablePlans, compare=False, repr=False)
    """What was found out of tables so far."""

    def is_wanted(self, table: TableId) -> bool:
        """Tell whether the changefeed may want rows of a physical table, whatever their commit_ts."""
        return self.plans.is_wanted(table, self.schemas, self.feed)

    def name_of(self, table: TableId) -> str:
        """Return the last name that is known of a physical table, or its id."""
        names = [f"{each.schema}.{each.table}" for each in self.schemas.stored_of(table) if each is not None]
        return names[-1] if names else f"table id {table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutCounts:
    """What a cut that was written has come to."""

    rows: int
    """Row messages, repeats among them."""
    raw_bytes: int
    """The size of the raw records that were read."""
    corrupt: CorruptRows
    """Rows that were written although their checksum does not fit."""
    by_spark: bool = False
    """Whether Spark's tasks ran the cut, and not the driver."""
    flow: CutFlow = CutFlow()
    """What was read against what was written."""
    states: StateDeltas = StateDeltas()
    """What its rows change in the state proofs of their tables."""
    cpu_s: float = 0.0
    """CPU time that Spark's tasks took; what the driver takes is counted by its threads."""
    sent: SinkFigures = NO_FIGURES
    """How its messages went to Kafka."""
    damaged: frozenset[DamagedRecord] = frozenset()
    """Damaged raw records that were passed over."""


def writer_options(options: Mapping[str, Any], program: FeedProgram) -> Mapping[str, Any]:
    """Return a producer's options without statistics where there are too many topics for them."""
    if len(program.feed.topic_message_bytes) <= TOPICS_COUNTED_MAX:
        return options
    return {name: value for name, value in options.items() if name != STATISTICS}


def batch_bytes(program: FeedProgram) -> int:
    """Return how large a producer's batches may be: each topic takes only such as its largest message."""
    return min([BATCH_BYTES, *program.feed.topic_message_bytes.values()])


class SharedRows(KeptPasses, Protocol):
    """The rows of a cut that several changefeeds run, gathered for all of them, and what was made of them."""

    def settled(self, key: SettledKey, keeps: object, make: Callable[[], SettledRows | None]) -> SettledRows | None:
        """Return what ``make`` returned for this key, to whoever asked first. ``keeps`` lives as long as that is kept:
        a key may name objects by their identity.

        Raises:
            BusError: whatever ``make`` raises; it is not kept.
        """
        ...

    def tables(self) -> Set[TableId]:
        """Return the physical tables that there may be rows of."""
        ...

    def rows(
        self,
        is_wanted: Callable[[TableId], bool],
        on_rows: Callable[[int], None] | None = None,
        damaged: DamagedRecords | None = None,
    ) -> Iterator[RowChanges]:
        """Yield the same as :func:`gather_rows`, to each changefeed the same objects; ``on_rows`` counts."""
        ...


def output_records(
    raw: Iterator[bytes],
    cut: Cut,
    program: FeedProgram,
    encoded_at_ms: int,
    books: CutBooks | None = None,
    *,
    shared: SharedRows | None = None,
    chunks: Iterable[RawChunk] = (),
) -> Iterator[OutputRecords]:
    """Yield the records that the rows of a cut become, in no particular order. They count only once all have come.

    Args:
        encoded_at_ms: what messages say about when they were made.
        books: take down what becomes of the rows; None: nobody reads them.
        shared: has the rows of ``raw``, which is not read then.
        chunks: of table images, whose rows go out with the cut.

    Raises:
        RecordDamagedError: one of a table that is wanted is not passed over.
    """
    store, books = claim_store(program.feed), books or CutBooks.of(cut, program.feed)
    if shared is None:
        changes = gather_rows(raw, cut, program.is_wanted, books.flow, books.damaged)
    else:
        changes = shared.rows(program.is_wanted, books.flow.gather, books.damaged)
    lacking: list[OutputRecords] = []
    if cut.resynced:
        chunks = _noting_what_lacks(chunks, cut, program, books.flow, lacking)
    made = run_chunks(
        chain(changes, chunk_changes(chunks, program.is_wanted, books.flow.gather)),
        program.schemas,
        program.feed,
        encoded_at_ms=encoded_at_ms,
        store_claim=store,
        on_corrupt=books.corrupt.append,
        on_refused=log_refused,
        plans=program.plans,
        kept=shared,
        ledger=books.flow,
        states=books.states,
    )
    with naming_damage(program.name_of):
        yield from (with_notes(records, cut.noted) for records in made) if cut.noted else made
    yield from lacking


def _noting_what_lacks(
    chunks: Iterable[RawChunk],
    cut: Cut,
    program: FeedProgram,
    ledger: FlowLedger,
    lacking: list[OutputRecords],
) -> Iterator[RawChunk]:
    """Yield the chunks, and add to ``lacking`` what says which rows they lack."""
    for raw in chunks:
        yield raw
        if raw.chunk.table_id in cut.resynced and program.is_wanted(raw.chunk.table_id):
            records = lacking_records(raw.chunk, raw.keys, program.schemas, program.feed, ledger)
            if records.num_rows:
                lacking.append(records)


def log_refused(error: BusError, count: int) -> None:
    """Say that a pass of several tables was refused."""
    log.info(
        "rows of several tables at once were refused, each table is run alone",
        extra={"code": error.code, "error": str(error), "refused_in_cut": count},
    )


def gather_rows(
    records: Iterator[bytes],
    cut: Cut,
    is_wanted: Callable[[TableId], bool] = lambda _: True,
    ledger: FlowLedger | None = None,
    damaged: DamagedRecords | None = None,
) -> Iterator[RowChanges]:
    """Yield the rows of the cut, those of one table joined to chunks; records outside it, and of tables that are not
    wanted, are skipped by their head. What the cut leaves out for images to come is not among them; ``ledger`` counts.

    Raises:
        RecordDamagedError: a record of a table that is wanted, which ``damaged`` does not pass over.
    """
    damaged = damaged or DamagedRecords()
    chunks = _TableChunks()
    for record in records:
        head = read_batch_head(record)
        if not overlaps(head, cut.after_ts, cut.upto_ts) or damaged.passes(record, is_wanted=is_wanted(head.table_id)):
            continue
        try:
            rows = rows_of_record(record, head, cut)
        except CorruptDataError:
            if not damaged.passes_undecoded(record, head):
                raise
            continue
        if cut.left_out is not None and (kept := cut.left_out.kept(head.table_id, rows.key)) is not None:
            if ledger is not None:
                ledger.put_off("image_to_come", rows, ~kept)
            rows = rows_where(rows, kept)
        if not len(rows):
            continue
        if ledger is not None:
            ledger.gather(len(rows))
        if chunks.add(head.table_id, rows, len(record)) >= ROWS_PER_CHUNK:
            yield chunks.take(head.table_id)
        elif chunks.held_bytes >= BYTES_PER_CHUNK:
            yield from chunks.take_all()
    yield from chunks.take_all()


class _TableChunks:
    """Rows that wait for others of their table."""

    __slots__ = ("_counts", "_waiting", "held_bytes")

    def __init__(self) -> None:
        self.held_bytes = 0
        """Of raw records, since all were taken last."""
        self._waiting: dict[TableId, list[RowChanges]] = {}
        self._counts: dict[TableId, int] = {}

    def add(self, table_id: TableId, rows: RowChanges, record_bytes: int) -> int:
        """Take the rows of one raw record; return how many of their table wait now."""
        self._waiting.setdefault(table_id, []).append(rows)
        self._counts[table_id] = count = self._counts.get(table_id, 0) + len(rows)
        self.held_bytes += record_bytes
        return count

    def take(self, table_id: TableId) -> RowChanges:
        """Return a table's rows as one chunk."""
        self._counts[table_id] = 0
        return join_rows(self._waiting.pop(table_id))

    def take_all(self) -> Iterator[RowChanges]:
        """Yield the rows of each table as a chunk."""
        yield from (join_rows(parts) for parts in self._waiting.values())
        self._waiting.clear()
        self._counts.clear()
        self.held_bytes = 0
