"""A source of ``tidebus verify`` that is what a writer has written: no statement, no decoder, columns alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from consumers.verify.core.columns import ColumnRow, Compared, KeyRow
from consumers.verify.core.differences import HashedRow
from consumers.verify.reader import ColumnRange, Name, SideReader
from producers.region_server.server import RegionServer
from schemas.ids import Ts
from schemas.state_proof.proof_sql import Dialect
from schemas.state_proof.row_text import TableProof
from tests.support.database.state_tables import EXTRA
from tests.support.database.state_writer import SCHEMA, Held, StateWriter, WrittenTable

Hashes = npt.NDArray[np.uint64]
NOW = Ts(1 << 62)


@dataclass
class WrittenSource:
    """Opens it as it was at a ts; 0: as it is now."""

    server: RegionServer
    writer: StateWriter
    asked: list[Ts] = field(default_factory=list)

    @contextmanager
    def __call__(self, ts: Ts) -> Iterator[SideReader]:
        self.asked.append(ts)
        yield WrittenReader(self.server, self.writer, ts or NOW)

    def proof(self, table: str, ts: Ts) -> TableProof:
        """Return the proof of a table at a ts, of the columns that it had when it was made."""
        held = self.server.act(lambda _: self.writer.tables[table].at(ts))
        return proof_of(held.hashes)


def proof_of(hashes: Hashes) -> TableProof:
    """Return what rows with these hashes come to."""
    return TableProof(len(hashes), int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0)


class WrittenReader(SideReader):
    """See the module."""

    def __init__(self, server: RegionServer, writer: StateWriter, ts: Ts) -> None:
        self._server, self._writer, self._ts = server, writer, ts
        self._held: dict[str, Held] = {}
        self.dialect = Dialect.TIDB

    def tables(self) -> list[Name]:
        return [(SCHEMA, name) for name, table in self._writer.tables.items() if table.created_ts <= self._ts]

    def columns(self, table: Name) -> list[ColumnRow]:
        written = self._table(table)
        if written.created_ts > self._ts:
            return []
        rows = [ColumnRow(name, kind, "") for name, kind in written.kind.columns]
        if written.extended_ts is not None and written.extended_ts <= self._ts:
            rows.append(ColumnRow(EXTRA, "int(11)", ""))
        return rows

    def keys(self, table: Name) -> list[KeyRow]:
        return [KeyRow("PRIMARY", name, nullable=False) for name in self._table(table).kind.key_columns]

    def border(self, table: Name, column: str, after: int | None, rows: int) -> int | None:
        keys = np.sort(self._table(table).kind.first_key(self._rows(table).numbers))
        first = 0 if after is None else int(np.searchsorted(keys, after, side="right"))
        return int(keys[first + rows - 1]) if first + rows <= len(keys) else None

    def proof(self, table: Name, compared: Compared, keys: ColumnRange) -> TableProof:
        return proof_of(self._hashes(table, compared)[self._within(table, keys)])

    def buckets(self, table: Name, compared: Compared, keys: ColumnRange, shift: int) -> dict[int, TableProof]:
        hashes = self._hashes(table, compared)[self._within(table, keys)]
        bucket = hashes >> np.uint64(shift)
        return {int(each): proof_of(hashes[bucket == each]) for each in np.unique(bucket)}

    def rows(
        self, table: Name, compared: Compared, keys: ColumnRange, shift: int, buckets: Sequence[int], rows_max: int
    ) -> list[HashedRow]:
        held, hashes = self._rows(table), self._hashes(table, compared)
        wanted = self._within(table, keys) & np.isin(hashes >> np.uint64(shift), np.array(buckets, np.uint64))
        return [
            HashedRow(int(hashes[row]), self.key_of(table[1], int(held.numbers[row]), int(held.sequences[row])))
            for row in np.flatnonzero(wanted)[:rows_max].tolist()
        ]

    def key_of(self, table: str, number: int, sequence: int = 1) -> tuple[str | None, ...]:
        """Return by what a row is named."""
        written = self._writer.tables[table]
        texts = written.kind.texts(number, sequence, self._writer.pool)
        by_name = dict(zip((name for name, _ in written.kind.columns), texts, strict=True))
        parts = [by_name[name] for name in written.kind.key_columns]
        return tuple(None if part is None else part.decode("utf-8", "backslashreplace") for part in parts)

    def _table(self, table: Name) -> WrittenTable:
        return self._writer.tables[table[1]]

    def _rows(self, table: Name) -> Held:
        held = self._held.get(table[1])
        if held is None:
            held = self._held[table[1]] = self._server.act(lambda _: self._table(table).at(self._ts))
        return held

    def _hashes(self, table: Name, compared: Compared) -> Hashes:
        names = {column.name for column in compared.columns}
        own = {name for name, _ in self._table(table).kind.columns}
        assert names - {EXTRA} == own, names
        held = self._rows(table)
        return held.hashes_with_extra if EXTRA in names else held.hashes

    def _within(self, table: Name, keys: ColumnRange) -> npt.NDArray[np.bool_]:
        first = self._table(table).kind.first_key(self._rows(table).numbers)
        within = np.ones(len(first), np.bool_)
        if keys.after is not None:
            within &= first > keys.after
        if keys.upto is not None:
            within &= first <= keys.upto
        return within
