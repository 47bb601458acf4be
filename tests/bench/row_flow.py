"""Rows at a rate as TiKV's feed shows them, with no store behind: for benches whose rate would keep a store busy.

Transactions of five rows of one table, prewritten and some milliseconds later committed, as the generator's are: six
inserts of ten, three updates, one delete, in the shape sbtest1. What a row holds follows from its number, so nothing is
stored or looked up, and a region never splits; a region that is registered anew gets nothing of before.
"""

import asyncio
import time

from producers.region_server.core.store.commands import Txn
from producers.region_server.core.store.mvcc import Change, Committed, Lock, Locked, LockKind, Write
from producers.region_server.core.store.row_shapes import SHAPES, text_pool
from producers.region_server.generator import TICK_S, Generator, GeneratorOptions
from producers.region_server.server import RegionServer
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key

TXN_ROWS = 5
_SHAPE = SHAPES["sbtest1"]
_VALUES = 997
_INSERTS, _UPDATES = 6, 3
"""Of ten rows; the rest are deletes."""
_UPDATED_BEHIND, _DELETED_BEHIND = 10_000, 20_000
"""How many rows a row was inserted before the one that changes it."""
_TABLE_KEY_BYTES = 9


class RowFlow:
    """Writes on the server's loop: ``server.spawn(flow.run())``."""

    def __init__(self, server: RegionServer, schema: str, rows_per_s: float, tables: int) -> None:
        self._server, self._rows_per_s = server, rows_per_s
        # It makes the schema, and a region for each table.
        self._schema = Generator(server, GeneratorOptions(schema=schema, rows_per_s=0, rows_max=1, tables=tables))
        pool = text_pool(lambda digits: str(10 ** (digits - 1)))
        self._values = [_SHAPE.value(number, number, pool) for number in range(_VALUES)]
        self._numbers: dict[TableId, int] = {}
        """The next row of each table; the first ones are the generator's."""
        self._stopped = False

    def stop(self) -> None:
        """Write nothing new; what is open is still committed. From any thread."""
        self._stopped = True

    async def run(self) -> None:
        """Create the schema, and write until :meth:`stop`."""
        await self._schema.run()
        self._numbers = dict.fromkeys(self._tables(), 10)
        tables = list(self._numbers)
        began, written = time.monotonic(), 0
        while not self._stopped:
            due, open_txns = int((time.monotonic() - began) * self._rows_per_s), list[tuple[Ts, list[Locked]]]()
            while written + TXN_ROWS <= due:
                open_txns.append(self._prewrite(tables[written // TXN_ROWS % len(tables)]))
                written += TXN_ROWS
                if len(open_txns) % len(tables) == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(TICK_S)
            for start_ts, locked in open_txns:
                self._commit(start_ts, locked)

    def _tables(self) -> list[TableId]:
        starts = [region.start for region in self._server.store.regions]
        ids = [int.from_bytes(start[1:]) ^ 1 << 63 for start in starts if start[:1] == b"t"]
        assert all(len(start) == _TABLE_KEY_BYTES for start in starts if start[:1] == b"t"), starts
        return [TableId(table_id) for table_id in ids]

    def _prewrite(self, table: TableId) -> tuple[Ts, list[Locked]]:
        first = self._numbers[table]
        self._numbers[table] = first + TXN_ROWS
        start_ts = self._server.oracle.tso()
        txn = Txn(start_ts=start_ts, primary=row_key(table, first), size=TXN_ROWS)
        locked = [self._row(table, number, txn) for number in range(first, first + TXN_ROWS)]
        self._show(list(locked))
        return start_ts, locked

    def _row(self, table: TableId, number: int, txn: Txn) -> Locked:
        values, kind = self._values, number % 10
        if kind < _INSERTS or number < _DELETED_BEHIND + 10:
            return Locked(row_key(table, number), Lock(txn, LockKind.PUT, values[number % _VALUES]), b"")
        if kind < _INSERTS + _UPDATES:
            changed = number - _INSERTS - _UPDATED_BEHIND
            lock = Lock(txn, LockKind.PUT, values[number % _VALUES])
        else:
            changed = number - _INSERTS - _DELETED_BEHIND
            lock = Lock(txn, LockKind.DELETE, b"")
        return Locked(row_key(table, changed), lock, values[changed % _VALUES])

    def _commit(self, start_ts: Ts, locked: list[Locked]) -> None:
        commit_ts = self._server.oracle.tso()
        self._show(
            [
                Committed(key, Write(commit_ts, start_ts, lock.kind, lock.value, 0, None), one_pc=False)
                for key, lock, _ in locked
            ]
        )

    def _show(self, changes: list[Change]) -> None:
        region = self._server.store.regions.of_key(changes[0].key)
        self._server.endpoints[region.leader].on_applied(region, changes)
