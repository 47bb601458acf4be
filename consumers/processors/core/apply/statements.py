"""Rows to statements: what a batch of whole transactions comes to, table by table, as few statements as it takes.

A batch begins and ends between upstream transactions, and is applied in one transaction, so that what lies between its
ends is nobody's business: of each key only its last state counts. Within a table the order of statements is then

    DELETE of keys that went (and, outside safe mode, of those that went and came back)
    REPLACE of keys that a table image has
    INSERT … ON DUPLICATE KEY UPDATE of keys that were there and stay     } safe mode: REPLACE
    INSERT of keys that came                                              } of both

No unique key can be in the way of a row that is new in the final state: who held it has been deleted, or has a row of
its own in the batch. The sorter splits updates that change a key into a delete and an insert, and of a table with a
unique key over what rows do not hold all updates, so an UPDATE leaves every unique key as it was. Outside safe mode a
key that came although it was there is an error of the destination, and shall be: something else has written there. Safe
mode takes any state of the destination for what was there: it is for a destination that has some of the rows already.
One that goes on where another left off, from a checkpoint that this had passed, has them up to some ts: what holds rows
at or below it is written as in safe mode, as TiCDC does it.

A row of a table image (:attr:`~schemas.sink.sql_rows.SqlRows.is_read`) may be there in any state, and so may others
that hold its unique keys: what upstream had at that ts goes over all of them, in or out of safe mode.

What an image lacks (:attr:`~schemas.sink.sql_rows.TableForm.is_range`) is deleted by conditions, where it stands in the
order: behind all that came before the image's ts, before the image's rows and all that came later.

A table that is resynced (:attr:`~schemas.sink.sql_rows.TableForm.notes`) has rows that the source has no more, so its
rows go as in safe mode. Where its keys are noted (:mod:`consumers.processors.core.apply.noted_keys`), those of the
batch are struck off.

So do those of a table of which an event filter leaves out what frees a key (``overwrites``): what upstream deleted may
be there for ever.

Rows of a table without a key (:attr:`~schemas.sink.sql_rows.TableForm.is_keyless`) may hold the same, so none stands
for others: all are written, in their order, and a DELETE takes one row. Its updates come as deletes and inserts.

All this is done for the columns of a batch at once; a statement is put together from slices of the messages.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from consumers.processors.core.apply.waiting import RowBatch, RowSlice
from schemas.ids import TableId
from schemas.sink.position import RowOp
from schemas.sink.sql_rows import CONDITION_END, LOOSE, ROW_END, IntArray, SqlRow, SqlRows, TableForm

FORMS_MAX = 10_000
"""Tables whose words are kept."""
STATEMENT_BYTES_MAX = 1024 * 1024
"""Of one statement, about: well below the least max_allowed_packet that is common (4 MiB), and long enough."""
_DELETE, _INSERT = int(RowOp.DELETE), int(RowOp.INSERT)
_OPS = LOOSE - 1
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """One statement, and the rows it is made of, to name one if it fails."""

    form: TableForm
    sql: bytes
    table: "_TableRows"
    rows: IntArray
    """Their numbers in ``table``."""
    loose: bool = False
    """To be run outside strict mode: its rows hold an ENUM's error value, and nothing else that does not fit."""

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, number: int) -> SqlRow:
        """Return one of its rows."""
        return self.table.row(int(self.rows[number]))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedTable:
    """A table of noted keys."""

    name: bytes
    """Quoted, with its schema."""
    key: frozenset[str]
    """Its columns, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementSettings:
    """How statements are made."""

    safe_mode: bool = False
    safe_until_ts: int = 0
    """Rows at or below it may be there already; a table's rows of a batch go as in safe mode if one of them is."""
    rows_max: int = 1024
    """Rows of one statement."""
    bytes_max: int = STATEMENT_BYTES_MAX
    """Of the literals of one statement with several rows."""
    noted: Mapping[TableId, NotedTable] = field(default_factory=dict)
    """Of tables that are resynced."""


def statements(rows: RowBatch, settings: StatementSettings) -> Iterator[Statement]:
    """Yield the statements of a batch; ``rows`` are in upstream's order.

    Rows of one table under two forms (a DDL that changes no column) stay apart only if the columns differ, and then in
    their order.
    """
    for table in _tables(rows):
        yield from _of_table(table, settings)


@dataclass(slots=True, eq=False)
class _TableRows:
    """A batch's rows of one table, in their order."""

    form: TableForm
    slices: list[RowSlice] = field(default_factory=list)

    @property
    def starts(self) -> IntArray:
        """Number of each slice's first row, and behind them how many rows there are."""
        return np.cumsum([0, *(len(part) for part in self.slices)])

    @property
    def size(self) -> int:
        """Bytes of all literals."""
        return sum(part.bytes for part in self.slices)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one of the columns of :class:`schemas.sink.sql_rows.SqlRows`."""
        return np.concatenate([getattr(part.rows, name)[part.first : part.end] for part in self.slices])

    def keys(self) -> Any:
        """Return the key literals: ``pyarrow.BinaryArray``."""
        return pa.concat_arrays([_literals(p.rows.value, p.rows.key_at[p.first : p.end + 1]) for p in self.slices])

    def lengths(self, of_keys: bool) -> IntArray:
        """Return how long the literals are."""
        starts = (part.rows.literal_starts(of_keys)[part.first : part.end + 1] for part in self.slices)
        return np.concatenate([np.diff(at) for at in starts])

    def text(self, rows: IntArray, of_keys: bool) -> list[bytes | memoryview]:
        """Return the literals of these rows (ascending) side by side, in slices."""
        if len(self.slices) == 1:
            return [_slice(self.slices[0].rows, rows + self.slices[0].first, of_keys)]
        starts = self.starts
        cuts = np.searchsorted(rows, starts)
        texts: list[bytes | memoryview] = []
        for number, part in enumerate(self.slices):
            mine = rows[cuts[number] : cuts[number + 1]]
            if len(mine):
                texts.append(_slice(part.rows, mine - starts[number] + part.first, of_keys))
        return texts

    def row(self, number: int) -> SqlRow:
        """Return one row."""
        starts = self.starts
        at = int(np.searchsorted(starts, number, "right")) - 1
        part = self.slices[at]
        return part.rows.row(number - int(starts[at]) + part.first, self.form)


def _literals(value: bytes, starts: IntArray) -> Any:
    """View literals that lie side by side in a message as ``pyarrow.BinaryArray``."""
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(value)]
    return pa.Array.from_buffers(pa.binary(), len(starts) - 1, buffers)


def _slice(message: SqlRows, rows: IntArray, of_keys: bool) -> bytes | memoryview:
    """Return literals of a message side by side: where they are neighbours as they stand there."""
    starts, first, last = message.literal_starts(of_keys), rows[0], rows[-1]
    if last - first + 1 == len(rows):
        return memoryview(message.value)[starts[first] : starts[last + 1]]
    taken = _literals(message.value, starts).take(pa.array(rows))
    _, offsets, data = taken.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return memoryview(data)[ends[taken.offset] : ends[taken.offset + len(taken)]]


def _tables(rows: RowBatch) -> list[_TableRows]:
    tables: list[_TableRows] = []
    open_tables: dict[str, _TableRows] = {}
    for part in rows.slices:
        form = part.form
        table = open_tables.get(form.name)
        if table is None or _kind(table.form) != _kind(form):
            table = open_tables[form.name] = _TableRows(form)
            tables.append(table)
        table.slices.append(part)
    return tables


def _kind(form: TableForm) -> tuple[object, ...]:
    return form.columns, form.key, form.notes, form.overwrites


def _of_table(table: _TableRows, settings: StatementSettings) -> Iterator[Statement]:
    form = table.form
    flags = table.column("op")
    op = flags & np.uint8(_OPS)
    if form.is_keyless:
        yield from _in_order(table, op, flags & np.uint8(LOOSE) != 0, settings)
        return
    last, before, went, read = _net(table, op)
    gone = op[last] == _DELETE
    is_safe = settings.safe_mode or bool(form.notes) or form.overwrites
    if is_safe or int(table.column("commit_ts").min()) <= settings.safe_until_ts:
        deletes, upserts, inserts, replaced = gone, np.zeros_like(gone), np.zeros_like(gone), ~gone
    else:
        deletes = (before | read) & (gone | went)
        inserts = ~gone & ~read & (~before | went)
        upserts = ~gone & ~read & before & ~went
        replaced = ~gone & read
    # A condition is a range of the key already: of several in one statement no server makes the best.
    chunks = _Chunks(table, flags & np.uint8(LOOSE) != 0, 1 if form.is_range else settings.rows_max, settings.bytes_max)
    words = _words(form)
    yield from chunks.statements(words.delete, last[deletes], form.key_end, words.delete_end, of_keys=True)
    yield from chunks.statements(b"REPLACE" + words.into, last[replaced], ROW_END, b"")
    yield from chunks.statements(b"INSERT" + words.into, last[upserts], ROW_END, words.on_duplicate)
    yield from chunks.statements(b"INSERT" + words.into, last[inserts], ROW_END, b"")
    noted = settings.noted.get(form.notes)
    if noted is not None and noted.key == {column.lower() for column in form.key}:
        struck = _Chunks(table, np.zeros(len(op), np.bool_), settings.rows_max, settings.bytes_max)
        head = b"DELETE FROM " + noted.name + words.where
        yield from struck.statements(head, last, form.key_end, words.delete_end, of_keys=True)


def _in_order(
    table: _TableRows, op: npt.NDArray[np.uint8], is_loose: BoolArray, settings: StatementSettings
) -> Iterator[Statement]:
    """Yield the statements of a table without a key: of neighbours that come, one, and one for each row that goes."""
    is_delete = op == _DELETE
    words = _words(table.form)
    single = _Chunks(table, is_loose, 1, settings.bytes_max)
    several = _Chunks(table, is_loose, settings.rows_max, settings.bytes_max)
    into = (b"REPLACE" if settings.safe_mode or table.form.overwrites else b"INSERT") + words.into
    for rows in np.split(np.arange(len(op)), np.flatnonzero(is_delete[1:] != is_delete[:-1]) + 1):
        if is_delete[rows[0]]:
            yield from single.statements(words.delete, rows, CONDITION_END, b" LIMIT 1", of_keys=True)
        else:
            yield from several.statements(into, rows, ROW_END, b"")


def _net(table: _TableRows, op: npt.NDArray[np.uint8]) -> tuple[IntArray, BoolArray, BoolArray, BoolArray]:
    """Return for each key its last row (ascending), whether the key was there before, whether it was deleted, and
    whether an image has it.
    """
    codes = table.keys().dictionary_encode() if len(op) > 1 else None
    read = table.column("is_read")
    if codes is None or len(codes.dictionary) == len(op):
        return np.arange(len(op)), op != _INSERT, op == _DELETE, read
    # Rows of one key side by side, in their order.
    order = np.argsort(codes.indices.to_numpy(), kind="stable")
    key = codes.indices.to_numpy()[order]
    starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    last = order[np.append(starts[1:], len(order)) - 1]
    before, went = op[order[starts]] != _INSERT, np.logical_or.reduceat(op[order] == _DELETE, starts)
    read = np.logical_or.reduceat(read[order], starts)
    ascending = np.argsort(last)
    return last[ascending], before[ascending], went[ascending], read[ascending]


@dataclass(frozen=True, slots=True, eq=False)
class _Chunks:
    """Divides rows into statements."""

    table: _TableRows
    is_loose: BoolArray
    rows_max: int
    bytes_max: int

    def statements(
        self, head: bytes, rows: IntArray, separator: bytes, tail: bytes, *, of_keys: bool = False
    ) -> Iterator[Statement]:
        """Yield statements over rows (ascending), each with the literals of some between ``head`` and ``tail``."""
        if not len(rows):
            return
        is_loose = self.is_loose[rows]
        if is_loose.any():
            for at in np.flatnonzero(is_loose):
                yield replace(self._joined(head, rows[at : at + 1], separator, tail, of_keys), loose=True)
            rows = rows[~is_loose]
        if len(rows) <= self.rows_max and self.table.size <= self.bytes_max:
            if len(rows):
                yield self._joined(head, rows, separator, tail, of_keys)
            return
        size_to = np.concatenate(([0], np.cumsum(self.table.lengths(of_keys)[rows])))
        start = 0
        while start < len(rows):
            fitting = int(np.searchsorted(size_to, size_to[start] + self.bytes_max, "right")) - 1
            end = max(start + 1, min(start + self.rows_max, fitting))
            yield self._joined(head, rows[start:end], separator, tail, of_keys)
            start = end

    def _joined(self, head: bytes, rows: IntArray, separator: bytes, tail: bytes, of_keys: bool) -> Statement:
        text = self.table.text(rows, of_keys)
        text[-1] = text[-1][: -len(separator)]
        return Statement(self.table.form, b"".join([head, *text, tail]), self.table, rows)


def quoted(name: str) -> bytes:
    """Return an identifier in back quotes."""
    return b"`" + name.replace("`", "``").encode("utf-8", "surrogateescape") + b"`"


@dataclass(frozen=True, slots=True)
class _Words:
    """What statements of a table are made of beside literals."""

    into: bytes
    on_duplicate: bytes
    delete: bytes
    where: bytes
    """What ``delete`` ends with."""
    delete_end: bytes


@lru_cache(FORMS_MAX)
def _words(form: TableForm) -> _Words:
    name = quoted(form.schema) + b"." + quoted(form.table)
    columns = [quoted(column) for column in form.columns]
    is_single = len(form.key) == 1 and not form.is_range  # else each key literal is a whole condition
    where = b" WHERE " + (quoted(form.key[0]) + b" IN (" if is_single else b"")
    return _Words(
        into=b" INTO " + name + b" (" + b",".join(columns) + b") VALUES ",
        on_duplicate=b" ON DUPLICATE KEY UPDATE "
        + b",".join(b"%s=VALUES(%s)" % (column, column) for column in columns),
        delete=b"DELETE FROM " + name + where,
        where=where,
        delete_end=b")" if is_single else b"",
    )
