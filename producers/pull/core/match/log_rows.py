"""The rows of one event of the feed: by row, and by column where the store's bytes are at hand by column too.

An item of a column costs a fraction of a field of a Python object (docs/decisions/2026-11-22-columnar-raw-log.md). So
larger events are read through :mod:`schemas.proto.rowcolumns_pb2`: the same bytes by another description. A column
that only some rows have (the old value, where inserts and updates meet) is read row by row after all, as its items do
not say whose they are.

Leaned upon: a store writes a row's field once. A row with a field twice makes its column too long, and is read by row;
only in an event where others lack the field as often would values change their rows. No protobuf encoder does that.
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, Protocol

COLUMNS_MIN: Final = 20
"""Rows of an event from which on arrays and a second parse are worth their fixed cost."""

NumberField = Literal["type", "start_ts", "commit_ts", "op_type", "txn_source", "generation"]
BytesField = Literal["key", "value", "old_value"]


class LogRow(Protocol):
    """cdcpb ``Event.Row``, as far as it is read here; the protobuf object itself on the hot path."""

    @property
    def start_ts(self) -> int: ...
    @property
    def commit_ts(self) -> int: ...
    @property
    def type(self) -> int: ...
    @property
    def op_type(self) -> int: ...
    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...
    @property
    def old_value(self) -> bytes: ...
    @property
    def txn_source(self) -> int: ...
    @property
    def generation(self) -> int: ...


class WireColumns(Protocol):
    """``rowcolumns_pb2.RowColumns``: of each field the items that rows have, in their order."""

    @property
    def type(self) -> Sequence[int]: ...


class LogRows:
    """See the module's text."""

    __slots__ = ("_columns", "_rows")

    def __init__(self, rows: Sequence[LogRow], columns: WireColumns | None = None) -> None:
        """Wrap ``rows``, and their columns if they are there."""
        self._rows = rows
        self._columns = columns

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[LogRow]:
        return iter(self._rows)

    def numbers(self, name: NumberField) -> list[int]:
        """Return one field of all rows."""
        return self._column(name) or [0] * len(self._rows)

    def strings(self, name: BytesField) -> list[bytes]:
        """Return one field of all rows."""
        return self._column(name) or [b""] * len(self._rows)

    def some_numbers(self, name: NumberField) -> list[int] | None:
        """Return one field of all rows; None, if no row has it: it is 0 in all of them."""
        return self._column(name) or None

    def some_strings(self, name: BytesField) -> list[bytes] | None:
        """Return one field of all rows; None, if no row has it: it is empty in all of them."""
        return self._column(name) or None

    def common(self, name: NumberField) -> int | None:
        """Return what a field is in every row; None: they differ, or there are none."""
        column = self.numbers(name)
        return column[0] if column and column.count(column[0]) == len(column) else None

    def _column(self, name: str) -> list[Any]:
        """Return one field of all rows, or nothing if none has it."""
        if self._columns is not None:
            column: list[Any] = getattr(self._columns, name)[:]
            if not column or len(column) == len(self._rows):
                return column
        if not isinstance(self._rows, list):
            self._rows = list(self._rows)  # protobuf makes the objects anew each time
        return list(map(attrgetter(name), self._rows))
