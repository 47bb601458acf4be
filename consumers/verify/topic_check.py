"""A changefeed's topics against the TiDB that they come from, at one ts.

    topics from their beginning --> hash and key of each row, up to a watermark at which all images are whole
    the source as of that watermark --> range by range: proofs, buckets, keys, as for a database
    the sorter's state proof at that watermark --> which of the three is odd

A watermark says that everything up to its ts stands before it, so its ts is the border, and nothing stands still for
it.
"""

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from consumers.client.changes import Change, ChangeBatch, Ddl
from consumers.client.core.other_ddl import Call, calls_of, others_named
from consumers.client.errors import ProofLostError
from consumers.verify.core.columns import Compared, compared_in_messages
from consumers.verify.core.outcome import TableOutcome, Verdict
from consumers.verify.core.proof_at import ProofAnswer, odd_side
from consumers.verify.ranges import RangeCheck
from consumers.verify.reader import Name, SideReader
from consumers.verify.table_check import Proofs, SourceAt, TablePair
from consumers.verify.topic_side import TopicSide, TopicTable
from schemas.errors import ConfigError
from schemas.ids import Ts

RETRY_S = 0.2
T = TypeVar("T", bound=Hashable)
NameOf = Callable[[str], str]
Poll = Callable[[float], ChangeBatch | None]
"""Returns the next batch of the topics, or None after so many seconds."""

Keeps = Callable[[str, str, str], bool]
"""Tells of a schema, table and column, by their names upstream, whether messages hold the column."""


def keeps_all(schema: str, table: str, column: str) -> bool:
    """Where there are no column selectors."""
    return True


@dataclass(slots=True)
class TopicTables:
    """Tables of a changefeed as its topics have them. Mutable."""

    tables: dict[Name, TopicTable]
    """By their names at the destination."""
    watermark_ts: Ts = Ts(0)
    lost: dict[Name, str] = field(default_factory=dict)
    """Why a table cannot be read from its topic."""
    keeps: Keeps = keeps_all
    _by_call: dict[Call, list[Name]] = field(init=False, repr=False, default_factory=dict)
    """Tables, by their names in messages, by what a DDL of another table may call them."""

    def __post_init__(self) -> None:
        """Index the tables, so that a DDL is looked at once, and not once a table."""
        for table in self.tables.values():
            name = (table.schema, table.table)
            for call in calls_of(name):
                self._by_call.setdefault(call, []).append(name)

    def read(self, poll: Poll, upto_ts: Ts, wait_s: float) -> None:
        """Read until a watermark at or above ``upto_ts`` at which all images are whole; no longer than ``wait_s``
        without a new one, and beyond ``upto_ts``.
        """
        deadline = time.monotonic() + wait_s
        while self.watermark_ts < upto_ts or not all(table.is_whole for table in self.tables.values()):
            batch = poll(min(1.0, wait_s))
            if batch is not None:
                self.apply(batch)
                if self.watermark_ts < upto_ts:
                    deadline = time.monotonic() + wait_s
            if time.monotonic() >= deadline:
                return

    def apply(self, batch: ChangeBatch) -> None:
        """Take a batch in."""
        of_table: dict[Name, list[Change]] = {}
        for change in batch.changes:
            for name in self._concerned(change):
                of_table.setdefault(name, []).append(change)
        for name, table in self.tables.items():
            changes = tuple(of_table.get((table.schema, table.table), ()))
            try:
                table.apply(replace(batch, changes=changes))
            except ProofLostError as error:
                self.lost[name] = str(error)
        self.watermark_ts = max(self.watermark_ts, batch.watermark_ts)

    def _concerned(self, change: Change) -> Collection[Name]:
        """Return the tables that a change is for, by their names in messages, each once."""
        own = (change.schema, change.table)
        named = others_named(own, change.query) if isinstance(change, Ddl) else ()
        return {own}.union(*(self._by_call.get(call, ()) for call in named)) if named else (own,)


def topic_tables(
    pairs: Sequence[TablePair],
    source: SourceAt,
    keeps: Keeps = keeps_all,
    *,
    name_of: NameOf = str,
    others: Iterable[Name] = (),
) -> TopicTables:
    """Return a changefeed's tables, none of which has been read, with the columns that the source has now.

    A column of a type without text makes its table one that is not compared; so do the lack of a key, and two tables or
    columns that messages call by one name.

    Args:
        pairs: what is to be read.
        source: opens the source.
        name_of: returns what messages call a schema, table or column.
        others: names at the destination of all tables of the changefeed; these may be among them.
    """
    tables, lost = dict[Name, TopicTable](), dict[Name, str]()
    names = {pair.destination: None for pair in pairs} | dict.fromkeys(others)
    alike = _alike(names, lambda name: (name_of(name[0]), name_of(name[1])))
    with source(Ts(0)) as now:
        for pair in pairs:
            try:
                what = compared_columns(now, pair.source, keeps)
            except ConfigError as error:
                lost[pair.destination] = str(error)
                continue
            columns = _alike([column.name for column in what.columns], name_of)
            if not what.has_key:
                left = f"; column-selectors leave out {', '.join(what.left_out)}" if what.left_out else ""
                lost[pair.destination] = f"rows of a table without a key cannot be told apart in a topic{left}"
            elif pair.destination in alike:
                several = ", ".join(sorted(".".join(name) for name in alike[pair.destination]))
                lost[pair.destination] = f"messages have one name for several tables: {several}"
            elif columns:
                lost[pair.destination] = f"messages have one name for several columns: {', '.join(columns)}"
            else:
                tables[pair.destination] = TopicTable(pair.destination, what, name_of)
    return TopicTables(tables, lost=lost, keeps=keeps)


def _alike(names: Iterable[T], name_of: Callable[[T], T]) -> dict[T, list[T]]:
    """Return the names that become one with another, each with all that do."""
    alike: dict[T, list[T]] = {}
    for name in names:
        alike.setdefault(name_of(name), []).append(name)
    return {name: several for several in alike.values() if len(several) > 1 for name in several}


def compared_columns(source: SideReader, table: Name, keeps: Keeps = keeps_all) -> Compared:
    """Return all columns of a table that a topic's messages bring.

    Raises:
        ConfigError: a type has no text form.
    """
    return compared_in_messages(source.columns(table), source.keys(table), partial(keeps, *table))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCheck:
    """Compares tables that have been read from topics."""

    source_at: SourceAt
    tables: TopicTables
    proofs: Proofs | None = None
    """What the changefeed's sorter has told; None: nobody is asked."""
    range_rows: int = 50_000
    keys_max: int = 100
    wait_s: float = 60.0
    """For the state proof."""

    def check(self, pair: TablePair) -> TableOutcome:
        """Compare a table.

        Raises:
            DestinationUnreachableError, DestinationRefusedError: the source does not answer, or refuses.
        """
        ts, name = self.tables.watermark_ts, pair.destination
        outcome = TableOutcome(source=".".join(pair.source), destination=".".join(name), verdict=Verdict.SAME, ts=ts)
        table = self.tables.tables.get(name)
        reason = self.tables.lost.get(name, "") or ("" if ts else "its topics have no watermark")
        if table is None or reason:
            return replace(outcome, verdict=Verdict.NOT_COMPARED, reason=reason)
        try:
            table.check_proven()
        except ProofLostError as error:
            return replace(outcome, verdict=Verdict.NOT_COMPARED, reason=str(error))
        with self.source_at(ts) as source:
            if compared_columns(source, pair.source, self.tables.keeps) != table.compared:
                reason = "its columns are others now than at the watermark; ask again"
                return replace(outcome, verdict=Verdict.NOT_COMPARED, reason=reason)
            outcome = replace(
                outcome,
                key=tuple(column.name for column in table.compared.key),
                missing_columns=tuple(sorted(table.missing)),
                left_out=table.compared.left_out,
            )
            outcome = RangeCheck(
                source=source,
                source_table=pair.source,
                other=TopicSide(table),
                other_table=name,
                what=table.compared,
                range_rows=self.range_rows,
                keys_max=self.keys_max,
            ).compare(outcome)
        answer = self._told(pair, ts)
        return outcome if answer is None else _with_proof(outcome, answer, table.compared)

    def _told(self, pair: TablePair, ts: Ts) -> ProofAnswer | None:
        if self.proofs is None:
            return None
        deadline = time.monotonic() + self.wait_s
        while (answer := self.proofs(".".join(pair.source), ts)).is_early and time.monotonic() < deadline:
            time.sleep(RETRY_S)
        return answer


def _with_proof(outcome: TableOutcome, answer: ProofAnswer, what: Compared) -> TableOutcome:
    if answer.proof is None:
        return replace(outcome, proof_reason=answer.reason)
    if tuple(column.name for column in what.columns) != answer.columns:
        return replace(outcome, proof_reason="it is of other columns than are compared")
    odd = odd_side(outcome.source_proof, answer.proof, outcome.destination_proof)
    return replace(outcome, proof=answer.proof, odd=odd, verdict=Verdict.DIFFERENT if odd else outcome.verdict)
