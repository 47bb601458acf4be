"""The generator: writes TiDB-encoded rows into the embedded cluster by two-phase commit, at a rate or at full speed.

It creates its schema and tables the way TiDB does (:mod:`core.ddl_writes`), on top of whatever a recording left, so
that clients learn of them by DDL. Index entries are not written: nobody reads them here, and CDC clients never
subscribe to them. It must not run beside a replay, whose timestamps are not its to give out.
"""

import asyncio
import json
import logging
import random
import time
from array import array
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from producers.region_server.core.store import ddl_writes
from producers.region_server.core.store.commands import Mutation
from producers.region_server.core.store.refusals import CommandRefusedError
from producers.region_server.core.store.row_shapes import SHAPES, Shape, text_pool
from producers.region_server.core.store.transactions import ServerTransaction
from producers.region_server.server import RegionServer
from schemas.errors import ConfigError
from schemas.ids import TableId, Ts
from schemas.tidb.keys import table_span

log = logging.getLogger(__name__)

TICK_S = 0.005
"""At a given rate a transaction stays locked for about this long, so that clients see open locks now and then."""
IN_FLIGHT_MAX = 8
"""At full speed: transactions that are prewritten and not yet committed."""
TTL_MS = 600_000
"""Of open transactions. They wait with the generator for slow clients, who end those whose time is up; and there is
nobody here whom a lock could outlive.
"""
_ROWS_A_BREATH = 512
_ROWS_A_SHORT_BREATH = 128
"""At a given rate: a stream sends a message in each pause, and rows must not wait for one another there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorOptions:
    """What to write. The same options and seed give the same rows in the same order (not the same timestamps)."""

    schema: str = "gen"
    shapes: tuple[str, ...] = ("sbtest1",)
    """Tables take these shapes in turn: sbtest1, order_line, wide10."""
    tables: int = 4
    rows_per_s: float = 1000.0
    """0: as fast as clients read."""
    rows_max: int = 0
    """Stop after so many row changes; 0: never."""
    txn_rows: int = 5
    update_share: float = 0.3
    delete_share: float = 0.1
    one_pc_share: float = 0.1
    """Of transactions; as TiDB does where a transaction fits one region."""
    async_commit_share: float = 0.1
    pessimistic_share: float = 0.1
    """These lock their rows before they write them: TiDB's default for sessions; here a part, for variety."""
    rollback_share: float = 0.01
    """Of those that are neither 1PC nor async commit: these are committed with their prewrite."""
    split_tables: bool = True
    """Each table gets its own region when it is created, TiDB's ``split-table``."""
    seed: int = 1

    def __post_init__(self) -> None:
        unknown = set(self.shapes) - set(SHAPES)
        if unknown or not self.shapes:
            raise ConfigError("row shape is unknown", shapes=self.shapes, known=sorted(SHAPES))
        if self.tables < 1 or self.txn_rows < 1 or min(self.rows_per_s, self.rows_max) < 0:
            raise ConfigError("tables and txn_rows are at least 1, rates and limits not negative", given=self)
        kinds = self.one_pc_share + self.async_commit_share + self.pessimistic_share
        if max(self.update_share + self.delete_share, kinds, self.rollback_share) > 1:
            raise ConfigError("shares add up to more than 1", given=self)


@dataclass(slots=True, eq=False)
class _GeneratedTable:
    table_id: TableId
    shape: Shape
    next_row: int = 1
    alive: "array[int]" = field(default_factory=lambda: array("q"))
    """Rows that no open transaction touches; an array, because there may be millions."""


@dataclass(slots=True, eq=False)
class _OpenTransaction:
    transaction: ServerTransaction
    table: _GeneratedTable
    rows: int
    if_committed: list[int]
    if_rolled_back: list[int]
    async_commit: bool = False


class Generator:
    """Writes on the server's loop: ``server.spawn(generator.run())``."""

    def __init__(self, server: RegionServer, options: GeneratorOptions) -> None:
        self._server = server
        self._options = options
        self._random = random.Random(options.seed)  # noqa: S311  # reproducible test data, no secret
        self._pool = text_pool(lambda n: "".join(self._random.choices("0123456789", k=n)))
        self._tables: list[_GeneratedTable] = []
        self._sequence = 0
        self.rows_committed = 0
        self.last_commit_ts = Ts(0)
        self._stopped = False

    @property
    def table_ids(self) -> list[TableId]:
        """The tables that it has created, in the order of their numbers."""
        return [table.table_id for table in self._tables]

    def stop(self) -> None:
        """Write nothing new; what is open is still committed, then :meth:`run` ends. From any thread."""
        self._stopped = True

    async def run(self) -> None:
        """Create the schema and write until ``rows_max`` or :meth:`stop`."""
        self._create_schema()
        options, began, written = self._options, time.monotonic(), 0
        open_ones: list[_OpenTransaction] = []
        while not self._stopped and (not options.rows_max or written < options.rows_max):
            if options.rows_per_s:
                due = int((time.monotonic() - began) * options.rows_per_s)
                left_over, open_ones = open_ones, []
                for opened in left_over:
                    self._finish(opened)
            else:
                due = written + _ROWS_A_BREATH
            due = min(due, options.rows_max or due)
            while written < due and not self._stopped:
                # Who is behind would write more and more in one go else, and no row of it went out before its end.
                breath = min(due, written + (_ROWS_A_SHORT_BREATH if options.rows_per_s else _ROWS_A_BREATH))
                while written < breath:
                    left = due - written if options.rows_max else options.txn_rows
                    opened = self._begin(min(options.txn_rows, left))
                    written += opened.rows
                    if self._write_rows(opened):
                        open_ones.append(opened)
                    if len(open_ones) > IN_FLIGHT_MAX:
                        self._finish(open_ones.pop(self._random.randrange(len(open_ones))))
                await self._server.let_streams_go_on()
            if options.rows_per_s:
                await asyncio.sleep(TICK_S)
        for opened in open_ones:
            self._finish(opened)
        log.info("generator finished", extra={"rows": self.rows_committed, "last_commit_ts": self.last_commit_ts})

    # Rows ----------------------------------------------------------------------------------------------------------

    def _begin(self, rows: int) -> _OpenTransaction:
        """Choose rows of one table. Rows that change are taken out of ``alive`` until their transaction has ended."""
        draw, options = self._random.random, self._options
        table = self._tables[int(draw() * len(self._tables))]
        key, value = table.shape.key, table.shape.value
        mutations, survive, revive = list[Mutation](), list[int](), list[int]()
        for _ in range(rows):
            self._sequence += 1
            dice = draw()
            if dice < options.update_share + options.delete_share and table.alive:
                at = int(draw() * len(table.alive))
                number, table.alive[at] = table.alive[at], table.alive[-1]
                table.alive.pop()
                revive.append(number)
                if dice < options.delete_share:
                    mutations.append(Mutation("delete", key(table.table_id, number)))
                    continue
            else:
                number = table.next_row
                table.next_row += 1
            survive.append(number)
            row = value(number, self._sequence, self._pool)
            mutations.append(Mutation("put", key(table.table_id, number), row))
        transaction = ServerTransaction(self._server.store, self._server.oracle.tso, mutations, ttl_ms=TTL_MS)
        return _OpenTransaction(transaction, table, len(mutations), survive, revive)

    def _write_rows(self, opened: _OpenTransaction) -> bool:
        """Prewrite, or commit at once; True if the transaction is still open."""
        options, transaction, dice = self._options, opened.transaction, self._random.random()
        dice -= options.one_pc_share
        if dice < 0:
            self._committed(opened, transaction.commit_at_once())
            return False
        dice -= options.pessimistic_share
        if dice < 0:
            transaction.lock(*transaction.keys)
        opened.async_commit = 0 <= dice < options.async_commit_share
        transaction.prewrite(async_commit=opened.async_commit)
        return True

    def _finish(self, opened: _OpenTransaction) -> None:
        """Commit a transaction or roll it back; where somebody who met its locks has ended it, take that as it is."""
        transaction, primary = opened.transaction, opened.transaction.primary
        # All keys of an async commit are locked: with them it is committed, and whoever meets them may act on it.
        gives_up = self._random.random() < self._options.rollback_share and not opened.async_commit
        ended = self._server.store.data_of(primary).record_of(primary, transaction.start_ts)
        if ended:
            transaction.commit_ts = ended
        if ended or not gives_up:
            try:
                self._committed(opened, transaction.commit())
                return
            except CommandRefusedError:
                log.info("a generated transaction was rolled back", extra={"start_ts": transaction.start_ts})
        transaction.rollback()
        opened.table.alive.extend(opened.if_rolled_back)

    def _committed(self, opened: _OpenTransaction, commit_ts: Ts) -> None:
        opened.table.alive.extend(opened.if_committed)
        self.rows_committed += opened.rows
        self.last_commit_ts = max(self.last_commit_ts, commit_ts)

    # Schema --------------------------------------------------------------------------------------------------------

    def _create_schema(self) -> None:
        """Create the schema and its tables by DDL jobs; on an empty cluster also what TiDB's bootstrap would have."""
        self._bootstrap()
        schema_id, name = self._next_id(), self._options.schema
        self._run_job(schema_id, f"CREATE DATABASE `{name}`", None)
        for number in range(1, self._options.tables + 1):
            shape = SHAPES[self._options.shapes[(number - 1) % len(self._options.shapes)]]
            template, table_name, table_id = _template(shape.name), f"{shape.name}_{number}", TableId(self._next_id())
            table = {**template["table_info"], "id": table_id, "name": {"O": table_name, "L": table_name.lower()}}
            self._run_job(schema_id, template["create"].format(name=table_name), table)
            self._tables.append(_GeneratedTable(table_id, shape))
            if self._options.split_tables:
                self._server.store.split(table_span(table_id)[0][: -len("_r")])

    def _bootstrap(self) -> None:
        """Make what TiDB's bootstrap would have made, on an empty cluster."""
        if self._number(ddl_writes.SCHEMA_VERSION_KEY) == 0:
            job_table = _template("tidb_ddl_job")["table_info"]
            self._write([ddl_writes.schema_mutation(ddl_writes.MYSQL_SCHEMA_ID, "mysql"),
                         ddl_writes.table_mutation(ddl_writes.MYSQL_SCHEMA_ID, job_table),
                         ddl_writes.number_mutation(ddl_writes.NEXT_GLOBAL_ID_KEY, 100)])  # fmt: skip

    def _run_job(self, schema_id: int, query: str, table: dict[str, Any] | None) -> None:
        plan = ddl_writes.DdlPlan(
            job_id=self._next_id(),
            schema_id=schema_id,
            schema_name=self._options.schema,
            schema_version=self._number(ddl_writes.SCHEMA_VERSION_KEY) + 1,
            query=query,
            table=table,
        )
        for step in (ddl_writes.queue_job, ddl_writes.finish_job, ddl_writes.archive_job):
            start_ts = self._server.oracle.tso()
            if table is not None:
                table["update_timestamp"] = start_ts
            self._write(step(plan, start_ts), start_ts)

    def _next_id(self) -> int:
        value = self._number(ddl_writes.NEXT_GLOBAL_ID_KEY) + 1
        self._write([ddl_writes.number_mutation(ddl_writes.NEXT_GLOBAL_ID_KEY, value)])
        return value

    def _number(self, key: bytes) -> int:
        """A number under a meta string key; 0 if it was never written."""
        raw = ddl_writes.meta_string_key(key)
        write = self._server.store.regions.of_key(raw).data.writes.get(raw)
        return int(write.value) if write is not None and write.value else 0

    def _write(self, mutations: list[Mutation], start_ts: Ts | None = None) -> None:
        transaction = ServerTransaction(self._server.store, self._server.oracle.tso, start_ts=start_ts)
        transaction.write(*mutations)
        transaction.prewrite()
        transaction.commit()


def _template(name: str) -> dict[str, Any]:
    """A CREATE TABLE and its TableInfo, as a real TiDB made it."""
    text = (files(__package__) / "templates" / f"{name}.json").read_text(encoding="utf-8")
    template: dict[str, Any] = json.loads(text)
    return template
