"""The upstream as the simulation has it: committed rows, DDL jobs as TiDB writes them, and tables that get stuck.

It is the oracle at the same time: :attr:`Upstream.rows` with :meth:`Upstream.is_promised` is what every changefeed must
get. Physical tables live, go and come back under their ids; what a reorganisation writes into a partition before its
job is done is no change of the table.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from schemas.ddl.job import DdlType
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.keys import table_span
from schemas.tidb.spans import TableSpan

FOREVER = Ts(1 << 62)
KEY_INDEXES = 8
"""Where in its table a row's key may lie; spans are cut between them."""
TABLES_MAX = 5
SCHEMA_ID = 1


def key_at(table: TableId, index: int) -> bytes:
    """Return the raw key at ``index``; index 0 is where the table begins, KEY_INDEXES where it ends."""
    start, end = table_span(table)
    return start if index == 0 else end if index == KEY_INDEXES else start + bytes([index])


@dataclass(frozen=True, slots=True)
class SimRow:
    """A committed change; ``number`` names it, and is its index in :attr:`Upstream.rows`."""

    number: int
    commit_ts: Ts
    table: TableId
    key_index: int


@dataclass(slots=True)
class Life:
    """Rows with ``created_ts < commit_ts <= dropped_ts`` are changes of the table."""

    created_ts: Ts
    dropped_ts: Ts = FOREVER


@dataclass(frozen=True, slots=True)
class Logical:
    """A table as its schema has it."""

    table_id: TableId
    name: str
    partitions: tuple[TableId, ...] = ()

    @property
    def physical(self) -> tuple[TableId, ...]:
        """The ids that row keys carry."""
        return self.partitions or (self.table_id,)

    def info(self) -> dict[str, object]:
        """Return as much of TiDB's TableInfo as a schema store reads."""
        info: dict[str, object] = {"id": self.table_id, "name": {"O": self.name, "L": self.name}}
        info |= {"cols": [], "pk_is_handle": True}
        if self.partitions:
            parts = [
                {"id": partition, "name": {"O": f"p{partition}", "L": f"p{partition}"}} for partition in self.partitions
            ]
            info["partition"] = {"enable": True, "definitions": parts}
        return info


@dataclass(slots=True)
class Upstream:
    """``next_ts`` gives a TSO that is greater than all before it."""

    random: Random
    next_ts: Callable[[], Ts]
    rows: list[SimRow] = field(default_factory=list)
    by_table: dict[TableId, list[SimRow]] = field(default_factory=dict)
    lives: dict[TableId, list[Life]] = field(default_factory=dict)
    jobs: list[DdlRecord] = field(default_factory=list)
    stuck: dict[TableId, int] = field(default_factory=dict)
    """Tables of which nothing comes, and the tick when it ends."""
    _tables: dict[TableId, Logical] = field(default_factory=dict)
    _bin: list[Logical] = field(default_factory=list)
    """Dropped tables that can be recovered."""
    _ids: int = 100

    def snapshot(self, tables: int) -> list[DdlRecord]:
        """Create the first tables and return the records that a schema snapshot makes of them."""
        made = [self._new_table() for _ in range(tables)]
        ts = self.next_ts()
        for table in made:
            self._come(table.physical, ts)
            self._tables[table.table_id] = table
        schema = {"id": SCHEMA_ID, "db_name": {"O": "db", "L": "db"}}
        return [
            DdlRecord(kind="schema", ts=ts, schema_id=SCHEMA_ID, payload=schema),
            *(DdlRecord(kind="table", ts=ts, schema_id=SCHEMA_ID, payload=table.info()) for table in made),
            DdlRecord(kind="snapshot_end", ts=ts, payload={}),
        ]

    def is_promised(self, row: SimRow) -> bool:
        """Tell whether a row is a change of its table."""
        return any(life.created_ts < row.commit_ts <= life.dropped_ts for life in self.lives[row.table])

    def living(self) -> list[TableId]:
        """Return the physical tables that are there now."""
        return [part for table in self._tables.values() for part in table.physical]

    def commit(self) -> None:
        """Commit a transaction over one or two tables."""
        living = self.living()
        if living:
            ts = self.next_ts()
            for table in self.random.sample(living, min(len(living), self.random.randint(1, 2))):
                for _ in range(self.random.randint(1, 2)):
                    self._write(table, ts)

    def alter(self) -> str:
        """Let one random DDL job be done; return what it was."""
        random = self.random
        doable: list[Callable[[], str]] = [self._truncate, self._truncate, self._rename, self._column]
        if len(self._tables) < TABLES_MAX:
            doable += [self._create] * 3
        if len(self._tables) > 1:
            doable += [self._drop] * 2
        if self._bin:
            doable += [self._recover] * 4
        if any(table.partitions for table in self._tables.values()):
            doable += [self._alter_partition] * 4
        if self._pair() is not None:
            doable += [self._exchange] * 2
        return random.choice(doable)()

    # -- jobs

    def _create(self) -> str:
        table = self._new_table()
        self._done(DdlType.CREATE_TABLE, table, come=table.physical)
        return f"create {table.physical}"

    def _drop(self) -> str:
        table = self._any()
        del self._tables[table.table_id]
        self._bin.append(table)
        self._done(DdlType.DROP_TABLE, table, gone=table.physical)
        return f"drop {table.physical}"

    def _recover(self) -> str:
        table = self._bin.pop(self.random.randrange(len(self._bin)))
        self._done(DdlType.RECOVER_TABLE, table, come=table.physical)
        return f"recover {table.physical}"

    def _truncate(self) -> str:
        table = self._any()
        del self._tables[table.table_id]
        new = Logical(self._id(), table.name, tuple(self._id() for _ in table.partitions))
        self._done(DdlType.TRUNCATE_TABLE, new, gone=table.physical, come=new.physical, table_id=table.table_id)
        return f"truncate {table.physical} {new.physical}"

    def _rename(self) -> str:
        table = self._any()
        self._done(DdlType.RENAME_TABLE, Logical(table.table_id, f"t{self._id()}", table.partitions))
        return f"rename {table.physical}"

    def _column(self) -> str:
        table = self._any()
        self._done(DdlType.ADD_COLUMN, table)
        return f"column {table.physical}"

    def _alter_partition(self) -> str:
        table = self.random.choice([table for table in self._tables.values() if table.partitions])
        kind = self.random.choice(["add", "drop", "truncate", "reorganize"])
        chosen, parts = self.random.choice(table.partitions), list(table.partitions)
        new: TableId | None = self._id()
        assert new is not None
        gone: tuple[TableId, ...] = (chosen,)
        if kind == "add":
            parts, gone, type_ = [*parts, new], (), DdlType.ADD_PARTITION
        elif kind == "drop" and len(parts) > 1:
            parts.remove(chosen)
            new, type_ = None, DdlType.DROP_PARTITION
        else:
            parts[parts.index(chosen)] = new
            type_ = DdlType.TRUNCATE_PARTITION
            if kind == "reorganize":
                type_ = DdlType.REORGANIZE_PARTITION
                ts = self.next_ts()  # rows are copied under their new id before the job is done
                for _ in range(2):
                    self._write(new, ts)
        altered = Logical(table.table_id, table.name, tuple(parts))
        self._done(type_, altered, gone=gone, come=() if new is None else (new,))
        return f"{kind} partition {gone} {new}"

    def _exchange(self) -> str:
        pair = self._pair()
        assert pair is not None
        plain, partitioned = pair
        partition = self.random.choice(partitioned.partitions)
        parts = tuple(plain.table_id if part == partition else part for part in partitioned.partitions)
        del self._tables[plain.table_id]
        self._tables[partition] = Logical(partition, plain.name)
        after = Logical(partitioned.table_id, partitioned.name, parts)
        self._done(DdlType.EXCHANGE_PARTITION, after, table_id=plain.table_id)
        return f"exchange {plain.table_id} {partition}"

    def _done(
        self,
        type_: DdlType,
        table: Logical,
        *,
        gone: tuple[TableId, ...] = (),
        come: tuple[TableId, ...] = (),
        table_id: TableId | None = None,
    ) -> None:
        start_ts, ts = self.next_ts(), self.next_ts()
        if type_ is not DdlType.DROP_TABLE:
            self._tables[table.table_id] = table
        for dropped in gone:
            self.lives[dropped][-1].dropped_ts = ts
        self._come(come, ts)
        payload = {
            "id": len(self.jobs) + 1,
            "type": int(type_),
            "schema_id": SCHEMA_ID,
            "schema_name": "db",
            "table_id": table.table_id if table_id is None else table_id,
            "table_name": table.name,
            "binlog": {"SchemaVersion": len(self.jobs) + 1, "TableInfo": table.info()},
        }
        self.jobs.append(DdlRecord(kind="job", ts=ts, start_ts=start_ts, payload=payload))

    # -- parts of the above

    def _new_table(self) -> Logical:
        table, parts = self._id(), 0 if self.random.random() < 0.7 else 2
        return Logical(table, f"t{table}", tuple(self._id() for _ in range(parts)))

    def _any(self) -> Logical:
        return self.random.choice(list(self._tables.values()))

    def _pair(self) -> tuple[Logical, Logical] | None:
        """Return a plain table and a partitioned one."""
        plain = [table for table in self._tables.values() if not table.partitions]
        partitioned = [table for table in self._tables.values() if table.partitions]
        return (plain[0], partitioned[0]) if plain and partitioned else None

    def _id(self) -> TableId:
        self._ids += 1
        return TableId(self._ids)

    def _come(self, tables: tuple[TableId, ...], ts: Ts) -> None:
        for table in tables:
            self.lives.setdefault(table, []).append(Life(ts))
            self.by_table.setdefault(table, [])

    def _write(self, table: TableId, ts: Ts) -> None:
        row = SimRow(len(self.rows), ts, table, self.random.randrange(KEY_INDEXES))
        self.rows.append(row)
        self.by_table.setdefault(table, []).append(row)


def within(row: SimRow, span: TableSpan) -> bool:
    """Tell whether a row of the span's table lies in it."""
    return span.whole or span.start <= key_at(row.table, row.key_index) < span.end
