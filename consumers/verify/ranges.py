"""Two sides of one table, range by range: their proofs, and where these differ the keys."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from consumers.verify.at_once import at_once
from consumers.verify.core.columns import Compared
from consumers.verify.core.differences import (
    HashedRow,
    KeyDifference,
    bucket_shift,
    differing_buckets,
    key_differences,
)
from consumers.verify.core.outcome import TableOutcome, Verdict
from consumers.verify.reader import ColumnRange, Name, SideReader
from schemas.state_proof.row_text import TableProof

READ_ROWS_MAX = 20_000
"""Of one side and range, when keys are named."""


class Side(Protocol):
    """What is asked of the side that is compared with the source; see :class:`~consumers.verify.reader.SideReader`."""

    def proof(self, table: Name, compared: Compared, keys: ColumnRange) -> TableProof: ...

    def buckets(self, table: Name, compared: Compared, keys: ColumnRange, shift: int) -> dict[int, TableProof]: ...

    def rows(
        self, table: Name, compared: Compared, keys: ColumnRange, shift: int, buckets: Sequence[int], rows_max: int
    ) -> list[HashedRow]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeCheck:
    """Compares a table on both sides."""

    source: SideReader
    source_table: Name
    other: Side
    other_table: Name
    what: Compared
    range_rows: int
    keys_max: int

    def compare(self, outcome: TableOutcome) -> TableOutcome:
        """Return an outcome with both proofs and the keys that differ."""
        mine = theirs = self.what.nothing
        differences: list[KeyDifference] = []
        is_all = True
        for keys in self._ranges():
            here, there = at_once(
                partial(self.source.proof, self.source_table, self.what, keys),
                partial(self.other.proof, self.other_table, self.what, keys),
            )
            mine, theirs = mine.with_rows_of(here), theirs.with_rows_of(there)
            if here == there:
                continue
            if len(differences) >= self.keys_max:
                is_all = False
                continue
            named, all_named = self._name(keys, max(here.rows, there.rows))
            differences += named
            is_all = is_all and all_named
        is_same = mine == theirs and not differences and outcome.verdict is Verdict.SAME
        return replace(
            outcome,
            verdict=Verdict.SAME if is_same else Verdict.DIFFERENT,
            source_proof=mine,
            destination_proof=theirs,
            differences=tuple(differences[: self.keys_max]),
            is_all=is_all and len(differences) <= self.keys_max,
        )

    def _ranges(self) -> Iterator[ColumnRange]:
        """Yield ranges that cover all keys, the other side's too; the source says where they end."""
        column, after = self.what.range_column, None
        if column is None:
            yield ColumnRange()
            return
        while (upto := self.source.border(self.source_table, column, after, self.range_rows)) is not None:
            yield ColumnRange(column, after, upto)
            after = upto
        yield ColumnRange(column, after, None)

    def _name(self, keys: ColumnRange, rows: int) -> tuple[list[KeyDifference], bool]:
        """Return the keys of a range at which the sides differ, and whether these are all."""
        shift = bucket_shift(rows)
        ours, theirs = at_once(
            partial(self.source.buckets, self.source_table, self.what, keys, shift),
            partial(self.other.buckets, self.other_table, self.what, keys, shift),
        )
        buckets, is_all = differing_buckets(ours, theirs, READ_ROWS_MAX)
        if not buckets:
            return [], is_all
        here, there = at_once(
            partial(self.source.rows, self.source_table, self.what, keys, shift, buckets, READ_ROWS_MAX + 1),
            partial(self.other.rows, self.other_table, self.what, keys, shift, buckets, READ_ROWS_MAX + 1),
        )
        is_read = len(here) <= READ_ROWS_MAX and len(there) <= READ_ROWS_MAX
        return key_differences(here, there), is_all and is_read
