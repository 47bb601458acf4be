"""The side of a comparison that is a changefeed's topics: of each row its hash and its key, in memory."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from consumers.client.changes import Row
from consumers.client.materialised import KeyedTable
from consumers.verify.core.columns import Compared
from consumers.verify.core.differences import HashedRow
from consumers.verify.reader import ColumnRange, Name
from schemas.state_proof.row_text import TableProof, row_hash, value_text


class TopicTable(KeyedTable[HashedRow]):
    """A table by its messages, each row hashed as the source hashes it; types are the source's."""

    def __init__(self, name: Name, compared: Compared, name_of: Callable[[str], str] = str) -> None:
        """``name`` is the table's at the destination; ``compared`` its columns at the source; ``name_of`` returns what
        messages call a schema, table or column.
        """
        super().__init__(*map(name_of, name), key=[name_of(column.name) for column in compared.key])
        self.compared = compared
        self._columns = [(column, name_of(column.name)) for column in compared.columns]
        self.missing: frozenset[str] = frozenset()
        """Columns of the source that some message lacks."""

    def kept(self, row: Row) -> HashedRow:
        """Return a row's hash, and its key as text.

        Raises:
            CorruptDataError: a value is none of its column's type.
        """
        lacking = {column.name for column, name in self._columns if name not in row.columns}
        if lacking:
            self.missing |= lacking
        texts = {column.name: value_text(column.kind, row.columns.get(name)) for column, name in self._columns}
        key = tuple(_shown(texts[column.name]) for column in self.compared.key)
        return HashedRow(row_hash(tuple(texts.values())), key)


class TopicSide:
    """A :class:`TopicTable` that has been read, as :class:`~consumers.verify.ranges.Side`."""

    def __init__(self, table: TopicTable) -> None:
        """Take it; it is not read further."""
        self._table = table

    def proof(self, table: Name, compared: Compared, keys: ColumnRange) -> TableProof:
        """Return the proof of a range."""
        proof = TableProof()
        for row in self._within(keys):
            proof = proof.changed(None, row.hash)
        return proof

    def buckets(self, table: Name, compared: Compared, keys: ColumnRange, shift: int) -> dict[int, TableProof]:
        """Return the proofs of a range's buckets."""
        buckets: dict[int, TableProof] = {}
        for row in self._within(keys):
            buckets[row.hash >> shift] = buckets.get(row.hash >> shift, TableProof()).changed(None, row.hash)
        return buckets

    def rows(
        self, table: Name, compared: Compared, keys: ColumnRange, shift: int, buckets: Sequence[int], rows_max: int
    ) -> list[HashedRow]:
        """Return the rows of some buckets, at most ``rows_max``, by hash."""
        wanted = frozenset(buckets)
        there = sorted((row for row in self._within(keys) if row.hash >> shift in wanted), key=lambda row: row.hash)
        return there[:rows_max]

    @cached_property
    def _ordered(self) -> tuple[list[int], list[HashedRow]]:
        """The first column of each key, ascending, and the rows in that order; of tables that are read by ranges."""
        rows = sorted(self._table.rows.values(), key=_first)
        return [_first(row) for row in rows], rows

    def _within(self, keys: ColumnRange) -> Iterator[HashedRow]:
        if keys.column is None:
            yield from self._table.rows.values()
            return
        firsts, rows = self._ordered
        start = 0 if keys.after is None else bisect_right(firsts, keys.after)
        end = len(rows) if keys.upto is None else bisect_right(firsts, keys.upto)
        for at in range(start, end):
            yield rows[at]


def _first(row: HashedRow) -> int:
    return int(row.key[0] or 0)


def _shown(text: bytes | None) -> str | None:
    return None if text is None else text.decode("utf-8", "backslashreplace")
