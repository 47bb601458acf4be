"""One table, source against destination, at one ts.

    snapshot of the destination --> its border: ts --> the source as of ts --> range by range: proofs
        equal: next range
        not:   buckets of both --> rows of those that differ, by key --> keys
    both --> the sorter's proof at ts, of its columns: which of the three is odd

What may yet mend itself is looked at again, in a new snapshot, until the time that is given is over: a DDL under way,
and a difference at a border that is not whole (:mod:`consumers.verify.border`).
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from consumers.processors.apply.connection import Connect
from consumers.verify.at_once import at_once
from consumers.verify.border import Border, Snapshot, snapshot
from consumers.verify.core.columns import compared
from consumers.verify.core.outcome import TableOutcome, Verdict
from consumers.verify.core.proof_at import NO_EVEN_REPEATS, ProofAnswer, odd_side
from consumers.verify.errors import RowTooLongError, TableInMotionError
from consumers.verify.ranges import RangeCheck
from consumers.verify.reader import ColumnRange, Name, SideReader
from schemas.errors import ConfigError
from schemas.ids import Ts

RETRY_S = 0.2
Side = Literal["source", "destination"]

Proofs = Callable[[str, Ts], ProofAnswer]
"""Returns what a changefeed's sorter says of a table, ``schema.table``, at a ts."""
SourceAt = Callable[[Ts], AbstractContextManager[SideReader]]
"""Opens the source as it was at a ts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """How tables are compared."""

    feed: str
    """The changefeed, as it is called in the destination's schema ``tidebus``."""
    needs_key: bool = False
    """Tables without a key are left out, as the changefeed leaves them out."""
    range_rows: int = 50_000
    """Rows of one statement, where a table's key begins with an integer."""
    keys_max: int = 100
    """Of a table, that are named."""
    wait_s: float = 60.0
    """For what may mend itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePair:
    """A table and its copy."""

    source: Name
    destination: Name
    partition_of: Callable[[int], int]
    """Returns the partition that has its rows, of so many."""


@dataclass(frozen=True, slots=True)
class _Found:
    outcome: TableOutcome
    border: Border
    lacks: Side | None = None
    """Which side alone has not the table."""


class TableCheck:
    """Compares tables one after the other, each in a snapshot of its own."""

    def __init__(
        self, source_at: SourceAt, destination: Connect, settings: CheckSettings, proofs: Proofs | None = None
    ) -> None:
        """``proofs`` says what the changefeed's sorter has told; None: nobody is asked."""
        self._source_at, self._destination, self._settings = source_at, destination, settings
        self._proofs = proofs

    def check(self, pair: TablePair) -> TableOutcome:
        """Compare a table.

        Raises:
            NothingAppliedError: no processor has begun at the destination.
            DestinationUnreachableError, DestinationRefusedError: a server does not answer, or refuses.
        """
        deadline = time.monotonic() + self._settings.wait_s
        lacks: Side | None = None
        while True:
            try:
                seen = self._once(pair, deadline)
            except TableInMotionError as error:
                if time.monotonic() >= deadline:
                    return _not_compared(pair, error)
            except (ConfigError, RowTooLongError) as error:
                return _not_compared(pair, error)
            else:
                # Which tables there are stands in no snapshot: a DDL that has run since it was opened shows already.
                before, lacks = lacks, None if seen is None else seen.lacks
                is_whole = seen is not None and seen.border.is_whole and lacks == before
                is_final = seen is not None and (seen.outcome.verdict is Verdict.SAME or is_whole)
                if seen is not None and (is_final or time.monotonic() >= deadline):
                    return seen.outcome if is_final else _said_doubt(seen)
            time.sleep(RETRY_S)

    def _once(self, pair: TablePair, deadline: float) -> _Found | None:
        """Compare in a new snapshot; None: its ts has no proof, and another one may."""
        with snapshot(self._destination, self._settings.feed) as seen:
            border = seen.borders[pair.partition_of(len(seen.borders))]
            answer = self._told(pair, border.ts, deadline)
            if answer is not None and answer.is_between and time.monotonic() < deadline:
                return None
            with self._source_at(border.ts) as source:
                outcome, lacks = self._compare(pair, source, seen, border.ts)
                if answer is not None and outcome.key:
                    outcome = self._with_proof(outcome, answer, pair, source, seen)
                return _Found(outcome, border, lacks)

    def _told(self, pair: TablePair, ts: Ts, deadline: float) -> ProofAnswer | None:
        """Return what the sorter says of a table at ``ts``; what it has not told yet is waited for."""
        if self._proofs is None:
            return None
        while (answer := self._proofs(".".join(pair.source), ts)).is_early and time.monotonic() < deadline:
            time.sleep(RETRY_S)
        return answer

    def _with_proof(
        self, outcome: TableOutcome, answer: ProofAnswer, pair: TablePair, source: SideReader, seen: Snapshot
    ) -> TableOutcome:
        """Hold the sorter's proof against what both sides hold of the same columns."""
        if answer.proof is None:
            return replace(outcome, proof_reason=answer.reason)
        destination = SideReader(seen.connection, "destination")
        there = {row.name.lower() for row in destination.columns(pair.destination)}
        what = compared(source.columns(pair.source), source.keys(pair.source), there, destination.dialect)
        mine, theirs = outcome.source_proof, outcome.destination_proof
        if tuple(column.name for column in what.columns) != answer.columns:
            by_name = {column.name: column for column in what.columns}
            if not by_name.keys() >= set(answer.columns):
                return replace(outcome, proof_reason="it has columns that cannot be compared")
            of_proof = replace(what, columns=tuple(by_name[name] for name in answer.columns))
            mine, theirs = at_once(
                partial(source.proof, pair.source, of_proof, ColumnRange()),
                partial(destination.proof, pair.destination, of_proof, ColumnRange()),
            )
        odd = odd_side(mine, answer.proof, theirs)
        verdict = Verdict.DIFFERENT if odd else outcome.verdict
        unseen = "" if what.has_key else NO_EVEN_REPEATS
        return replace(outcome, proof=answer.proof, odd=odd, verdict=verdict, proof_reason=unseen)

    def _compare(self, pair: TablePair, source: SideReader, seen: Snapshot, ts: Ts) -> tuple[TableOutcome, Side | None]:
        """Return what is found, and which side alone has not the table."""
        destination = SideReader(seen.connection, "destination")
        there = [row.name for row in destination.columns(pair.destination)]
        columns = source.columns(pair.source)
        outcome = TableOutcome(
            source=".".join(pair.source), destination=".".join(pair.destination), verdict=Verdict.SAME, ts=ts
        )
        if not columns or not there:
            if not columns and not there:
                return replace(outcome, reason="neither side has the table"), None
            lacks: Side = "destination" if columns else "source"
            return replace(outcome, verdict=Verdict.DIFFERENT, reason=f"the table is not at the {lacks}"), lacks
        what = compared(columns, source.keys(pair.source), there, destination.dialect)
        if not what.columns:
            return replace(outcome, verdict=Verdict.NOT_COMPARED, reason="no column can be compared"), None
        if self._settings.needs_key and not what.has_key:
            reason = "the changefeed leaves tables without a key out (force-replicate is off)"
            return replace(outcome, verdict=Verdict.NOT_COMPARED, reason=reason), None
        outcome = replace(
            outcome,
            key=tuple(column.name for column in what.key),
            left_out=what.left_out,
            missing_columns=what.missing,
            verdict=Verdict.DIFFERENT if what.missing else Verdict.SAME,
        )
        checked = RangeCheck(
            source=source,
            source_table=pair.source,
            other=destination,
            other_table=pair.destination,
            what=what,
            range_rows=self._settings.range_rows,
            keys_max=self._settings.keys_max,
        ).compare(outcome)
        return checked, None


def _said_doubt(seen: _Found) -> TableOutcome:
    reason = "another transaction of this very ts may still be under way; ask again"
    return replace(seen.outcome, reason=seen.outcome.reason or reason)


def _not_compared(pair: TablePair, error: Exception) -> TableOutcome:
    return TableOutcome(
        source=".".join(pair.source),
        destination=".".join(pair.destination),
        verdict=Verdict.NOT_COMPARED,
        reason=str(error),
    )
