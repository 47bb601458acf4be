"""Spans of tables: what is pulled, landed and moved between captures as one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

from schemas.ids import TableId
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import table_span

Boundaries = Mapping[TableId, Sequence[bytes]]
"""Where the regions of large tables begin, inside their rows."""


@dataclass(frozen=True, slots=True, order=True)
class TableSpan:
    """The rows of one physical table, or a part of them: raw keys ``[start, end)``."""

    table_id: TableId
    start: bytes
    end: bytes
    whole: bool = field(init=False, compare=False, repr=False)
    """Whether it is all of the table's rows."""
    _hash: int = field(init=False, compare=False, repr=False)
    """Kept: an owner looks up each span of 100,000 tables many times a second."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", (self.start, self.end) == table_span(self.table_id))
        object.__setattr__(self, "_hash", hash((self.table_id, self.start, self.end)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Self], tuple[TableId, bytes, bytes]]:
        # Another process hashes bytes otherwise.
        return type(self), (self.table_id, self.start, self.end)

    @classmethod
    def of_table(cls, table_id: TableId) -> Self:
        """Return the span of all rows of a table; index keys are outside."""
        return cls(table_id, *table_span(table_id))

    @property
    def encoded(self) -> tuple[bytes, bytes]:
        """The same bounds among the keys of regions."""
        return encode_bytes(self.start), encode_bytes(self.end)

    def overlaps(self, other: "TableSpan") -> bool:
        """Say whether both have keys of one table in common."""
        return self.table_id == other.table_id and self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        """Return what people are shown.

        >>> str(TableSpan.of_table(TableId(45)))
        'table 45'
        """
        if self.whole:
            return f"table {self.table_id}"
        return f"table {self.table_id} [{self.start.hex()}, {self.end.hex()})"


def incomplete_tables(spans: Iterable[TableSpan]) -> list[TableId]:
    """Return the tables whose rows are not covered exactly once by those of ``spans`` that are theirs, ascending."""
    whole: set[TableId] = set()
    parts: dict[TableId, list[TableSpan]] = {}
    for span in spans:
        if span.whole:
            whole.add(span.table_id)
        else:
            parts.setdefault(span.table_id, []).append(span)
    return sorted(
        table for table, own_parts in parts.items() if table in whole or not _joined(table, sorted(own_parts))
    )


def _joined(table: TableId, parts: list[TableSpan]) -> bool:
    bounds = (parts[0].start, parts[-1].end)
    # A part that ends before it starts would let its neighbours overlap.
    return (
        bounds == table_span(table)
        and all(left.end == right.start for left, right in pairwise(parts))
        and all(part.start < part.end for part in parts)
    )
