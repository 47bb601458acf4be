"""A writer of the region server that knows what its tables hold at any ts: the truth of a comparison, by columns.

It runs on the server's loop; what is read of it is read there too (:meth:`RegionServer.act`), so no transaction is half
noted. A transaction that a reader has rolled back is one that never was.
"""

import asyncio
import logging
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from producers.region_server.core.store import ddl_writes
from producers.region_server.core.store.commands import Mutation
from producers.region_server.core.store.refusals import CommandRefusedError
from producers.region_server.core.store.transactions import ServerTransaction
from producers.region_server.generator import TICK_S, Generator, GeneratorOptions
from producers.region_server.server import RegionServer
from schemas.ids import TableId, Ts
from tests.support.database.state_tables import (
    EXTRA,
    EXTRA_DEFAULT,
    KINDS,
    Numbers,
    TableKind,
    add_extra,
    extra_of,
    hashed,
)

log = logging.getLogger(__name__)
SCHEMA = "state"
GONE = -1
"""Stands for a sequence number where a row was deleted."""
LOADED_AT_ONCE = 500
_ADD_COLUMN, _TRUNCATE = 5, 11


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of a table at a ts, in the order of their numbers."""

    numbers: Numbers
    sequences: Numbers
    hashes: npt.NDArray[np.uint64]
    """Of the columns that the table was made with."""
    hashes_with_extra: npt.NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class WrittenTable:
    """A table, and all that was ever written to it."""

    name: str
    kind: TableKind
    info: dict[str, Any]
    created_ts: Ts = Ts(0)
    extended_ts: Ts | None = None
    """When a column was added."""
    emptied_ts: list[Ts] = field(default_factory=list)
    next_number: int = 1
    alive: "array[int]" = field(default_factory=lambda: array("q"))
    """Rows that no open transaction touches."""
    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    commits: "array[int]" = field(default_factory=lambda: array("q"))
    sequences: "array[int]" = field(default_factory=lambda: array("q"))
    hashes: "array[int]" = field(default_factory=lambda: array("Q"))
    hashes_with_extra: "array[int]" = field(default_factory=lambda: array("Q"))

    @property
    def extra_id(self) -> int | None:
        return None if self.extended_ts is None else int(self.info["max_col_id"])

    def physical_id(self, number: int) -> TableId:
        at = self.kind.physical(number)
        return TableId(self.info["partition"]["definitions"][at - 1]["id"] if at else self.info["id"])

    def note(self, number: int, sequence: int, commit_ts: Ts, pool: bytes) -> None:
        """Remember a version; ``sequence`` GONE: a row's end."""
        base = full = 0
        if sequence != GONE:
            texts = self.kind.texts(number, sequence, pool)
            added = extra_of(sequence) if self.extended_ts is not None else EXTRA_DEFAULT
            base, full = hashed(texts), hashed((*texts, b"%d" % added))
        for column, value in zip(
            (self.numbers, self.commits, self.sequences, self.hashes, self.hashes_with_extra),
            (number, commit_ts, sequence, base, full),
            strict=True,
        ):
            column.append(value)

    def at(self, ts: Ts) -> Held:
        """Return the rows at ``ts``; call it on the server's loop."""
        numbers, commits, sequences = (_copied(each) for each in (self.numbers, self.commits, self.sequences))
        after_ts = max((emptied for emptied in self.emptied_ts if emptied <= ts), default=0)
        known = np.flatnonzero((commits <= ts) & (commits > after_ts))
        # Versions were noted in the order of their commits, so a stable sort by number keeps it.
        order = known[np.lexsort((commits[known], numbers[known]))]
        newest = np.ones(len(order), np.bool_)
        newest[:-1] = numbers[order][1:] != numbers[order][:-1]
        rows = order[newest]
        rows = rows[sequences[rows] != GONE]
        both = (np.frombuffer(bytes(each), np.uint64)[rows] for each in (self.hashes, self.hashes_with_extra))
        return Held(numbers[rows], sequences[rows], *both)

    def earlier_sequence(self, number: int) -> int:
        """Return the sequence number of the first version of a row."""
        return self.sequences[self.numbers.index(number)]


def _copied(column: "array[int]") -> Numbers:
    return np.frombuffer(bytes(column), np.int64)


@dataclass(frozen=True, slots=True)
class _Open:
    transaction: ServerTransaction
    table: WrittenTable
    rows: list[tuple[int, int]]
    """Number, and sequence or GONE."""
    before: list[int]
    """Numbers of the rows that were there."""


class StateWriter(Generator):
    """Writes to tables of all kinds; ``server.call(writer.load(...))``, then ``server.spawn(writer.run())``."""

    def __init__(self, server: RegionServer, *, rows_per_s: float, txn_rows: int = 5, seed: int = 3) -> None:
        super().__init__(server, GeneratorOptions(schema=SCHEMA, rows_per_s=rows_per_s, txn_rows=txn_rows, seed=seed))
        self.tables: dict[str, WrittenTable] = {}
        self.pool = self._pool
        self.rows_lost = 0
        """Of transactions that a reader has rolled back, or that were refused."""
        self._schema_id = 0
        self._open: list[_Open] = []

    async def load(self, tables: Sequence[tuple[str, str, int]]) -> None:
        """Create the schema and tables, name, kind and rows of each, and write the rows."""
        self._create_schema_alone()
        for name, kind, rows in tables:
            table = self.create(name, kind)
            while table.next_number <= rows:
                numbers = range(table.next_number, min(table.next_number + LOADED_AT_ONCE, rows + 1))
                self._committed_rows(self._begun(table, [(number, self._next_sequence()) for number in numbers], []))
                table.next_number = numbers.stop
                await self._server.let_streams_go_on()

    async def run(self) -> None:
        """Write at the rate until it is stopped."""
        began, written = time.monotonic(), 0
        while not self._stopped:
            due = int((time.monotonic() - began) * self._options.rows_per_s)
            self.finish_open()
            for _ in range(100):
                if written >= due or self._stopped:
                    break
                opened = self._any()
                written += len(opened.rows)
                try:
                    opened.transaction.prewrite(async_commit=self._random.random() < self._options.async_commit_share)
                except CommandRefusedError as refused:
                    log.info("transaction is refused", extra={"code": refused.code, "reason": str(refused)})
                    self._given_up(opened)
                    continue
                self._open.append(opened)
            await asyncio.sleep(TICK_S)
        self.finish_open()

    def finish_open(self) -> None:
        """Commit what is open."""
        opened, self._open = self._open, []
        for each in opened:
            self._committed_rows(each, is_prewritten=True)

    # DDL, each in one step of the server's loop -------------------------------------------------------------------

    def create(self, name: str, kind: str) -> WrittenTable:
        """Create an empty table."""
        shape = KINDS[kind]
        ids = [self._next_id() for _ in range(1 + shape.partitions)]
        table = WrittenTable(name, shape, shape.info(name, ids))
        table.created_ts = self._job(shape.create(name), table.info)
        self.tables[name] = table
        return table

    def add_column(self, name: str) -> None:
        """Add a column with a default."""
        self.finish_open()
        table = self.tables[name]
        after = add_extra(table.info)
        query = f"ALTER TABLE `{name}` ADD COLUMN `{EXTRA}` INT NOT NULL DEFAULT {EXTRA_DEFAULT}"
        table.extended_ts = self._job(query, after, kind=_ADD_COLUMN)
        table.info = after

    def truncate(self, name: str) -> None:
        """Empty a table that has no partitions."""
        self.finish_open()
        table = self.tables[name]
        before = int(table.info["id"])
        after = {**table.info, "id": self._next_id()}
        table.emptied_ts.append(self._job(f"TRUNCATE TABLE `{name}`", after, kind=_TRUNCATE, old_table_id=before))
        table.info, table.alive = after, array("q")

    def split(self, name: str) -> None:
        """Split a table's region at a row of it."""
        table = self.tables[name]
        number = self._random.randrange(1, table.next_number + 1)
        self._server.store.split(table.kind.key(table.physical_id(number), number))

    # -----------------------------------------------------------------------------------------------------------------

    def _any(self) -> _Open:
        """Begin a transaction on some rows of some table."""
        draw, options = self._random.random, self._options
        table = self._random.choice(list(self.tables.values()))
        rows: list[tuple[int, int]] = []
        before: list[int] = []
        for _ in range(options.txn_rows):
            dice = draw()
            if dice < options.update_share + options.delete_share and table.alive:
                at = int(draw() * len(table.alive))
                number, table.alive[at] = table.alive[at], table.alive[-1]
                table.alive.pop()
                before.append(number)
                rows.append((number, GONE if dice < options.delete_share else self._next_sequence()))
            else:
                rows.append((table.next_number, self._next_sequence()))
                table.next_number += 1
        return self._begun(table, rows, before)

    def _begun(self, table: WrittenTable, rows: list[tuple[int, int]], before: list[int]) -> _Open:
        mutations = [
            Mutation("delete", table.kind.key(table.physical_id(number), number))
            if sequence == GONE
            else Mutation(
                "put",
                table.kind.key(table.physical_id(number), number),
                table.kind.value(number, sequence, self.pool, table.extra_id),
            )
            for number, sequence in rows
        ]
        return _Open(ServerTransaction(self._server.store, self._server.oracle.tso, mutations), table, rows, before)

    def _committed_rows(self, opened: _Open, *, is_prewritten: bool = False) -> None:
        try:
            if not is_prewritten:
                opened.transaction.prewrite()
            commit_ts = opened.transaction.commit()
        except CommandRefusedError:
            self._given_up(opened)
            return
        for number, sequence in opened.rows:
            opened.table.note(number, sequence, commit_ts, self.pool)
            if sequence != GONE:
                opened.table.alive.append(number)
        self.rows_committed += len(opened.rows)
        self.last_commit_ts = max(self.last_commit_ts, commit_ts)

    def _given_up(self, opened: _Open) -> None:
        opened.transaction.rollback()
        opened.table.alive.extend(opened.before)
        self.rows_lost += len(opened.rows)

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def _create_schema_alone(self) -> None:
        self._bootstrap()
        self._schema_id = self._next_id()
        self._run_job(self._schema_id, f"CREATE DATABASE `{SCHEMA}`", None)

    def _job(
        self, query: str, table: dict[str, Any], *, kind: int | None = None, old_table_id: int | None = None
    ) -> Ts:
        """Run a DDL job; return its commit_ts."""
        plan = ddl_writes.DdlPlan(
            job_id=self._next_id(),
            schema_id=self._schema_id,
            schema_name=SCHEMA,
            schema_version=self._number(ddl_writes.SCHEMA_VERSION_KEY) + 1,
            query=query,
            table=table,
            kind=kind,
            old_table_id=old_table_id,
        )
        done_ts = Ts(0)
        for step in (ddl_writes.queue_job, ddl_writes.finish_job, ddl_writes.archive_job):
            start_ts = self._server.oracle.tso()
            table["update_timestamp"] = start_ts
            transaction = ServerTransaction(self._server.store, self._server.oracle.tso, start_ts=start_ts)
            transaction.write(*step(plan, start_ts))
            transaction.prewrite()
            commit_ts = transaction.commit()
            done_ts = commit_ts if step is ddl_writes.finish_job else done_ts
        return done_ts
