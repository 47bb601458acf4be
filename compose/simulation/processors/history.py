"""What the simulated upstream does to its tables, and what they hold at any ts: the truth for a destination.

Tables hold numbered rows. A transaction inserts, updates and deletes rows of one or two tables. A chunk of an image
brings a range of a table's rows: some were there before the changefeed and come to the destination now, others are
there already. It is a transaction that began when it committed. A DDL changes one table (or two), and every row says
under which version of its table it was written: a row that reaches the destination on the wrong side of a DDL has
another version than the table there.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

from schemas.ids import Ts
from schemas.sink.position import RowOp

START_TS = Ts(1_000)
KEYS = 6
"""Rows that a table may have."""
IMAGE_SHARE = 0.15
"""Of what commits."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row of a transaction; ``value`` 0: it is deleted."""

    table: str
    version: int
    op: RowOp
    key: int
    value: int
    is_read: bool = False
    """Of an image: it is written over whatever there is."""


@dataclass(frozen=True, slots=True)
class SimTxn:
    """A transaction."""

    commit_ts: Ts
    start_ts: Ts
    rows: tuple[RowChange, ...]


@dataclass(frozen=True, slots=True)
class SimDdl:
    """``kind``: alter (a column more), truncate, rename (to ``other``) or swap (rows with ``other``: EXCHANGE)."""

    commit_ts: Ts
    start_ts: Ts
    kind: str
    table: str
    other: str = ""


Event = SimTxn | SimDdl


@dataclass(slots=True)
class Table:
    """What a table holds."""

    version: int = 1
    rows: dict[int, int] = field(default_factory=dict)


class WrongError(AssertionError):
    """An event does not fit the tables: it came twice, too early or too late."""


@dataclass(slots=True)
class Tables:
    """Tables by name: the upstream's at some ts, or the destination's."""

    tables: dict[str, Table] = field(default_factory=dict)

    def row(self, change: RowChange) -> None:
        """Write one row.

        Raises:
            WrongError: the table is not there or of another version, or the row is (not) there.
        """
        table = self.tables.get(change.table)
        if table is None or table.version != change.version:
            raise WrongError(f"{change} meets {table}")
        if not change.is_read and (change.key in table.rows) is (change.op is RowOp.INSERT):
            raise WrongError(f"{change} meets rows {sorted(table.rows)}")
        if change.op is RowOp.DELETE:
            del table.rows[change.key]
        else:
            table.rows[change.key] = change.value

    def ddl(self, ddl: SimDdl) -> None:
        """Run a DDL.

        Raises:
            WrongError: its table is not there.
        """
        table = self.tables.get(ddl.table)
        if table is None:
            raise WrongError(f"{ddl} meets {sorted(self.tables)}")
        match ddl.kind:
            case "alter":
                table.version += 1
            case "truncate":
                table.rows.clear()
            case "rename":
                self.tables[ddl.other] = self.tables.pop(ddl.table)
            case _:
                other = self.tables[ddl.other]
                table.rows, other.rows = other.rows, table.rows

    def fingerprint(self, ddl: SimDdl) -> str:
        """Return what a DDL changes about its tables, as far as a server shows it; an emptied table looks as before."""
        names = sorted({ddl.table, ddl.other} - {""})
        shown = [f"{name}:{self.tables[name].version if name in self.tables else None}" for name in names]
        if ddl.kind == "swap":
            shown.append(str(sorted(self.tables[ddl.other].rows.items())))
        return " ".join(shown)

    def copy(self) -> "Tables":
        """Return these tables as they are now."""
        return Tables({name: Table(table.version, dict(table.rows)) for name, table in self.tables.items()})


class SimHistory:
    """Everything that has happened upstream, in the order of commit_ts."""

    def __init__(self, random: Random, tables: int) -> None:
        """Begin with empty tables."""
        self._random = random
        self.events: list[Event] = []
        self.now_ts = START_TS
        self._names = 0
        self._tables = Tables({self._new_name(): Table() for _ in range(tables)})
        self._begin = self._tables.copy()
        self._known: list[tuple[int, Tables]] = [(0, self._begin)]
        """After so many events; every so often, so that no look goes far back."""

    def _new_name(self) -> str:
        self._names += 1
        return f"t{self._names}"

    def begin(self) -> Tables:
        """Return the tables of the start ts."""
        return self._begin.copy()

    def commit(self) -> None:
        """Let a transaction commit, or a chunk of an image be read."""
        random = self._random
        if random.random() < IMAGE_SHARE:
            self._image()
            return
        names = random.sample(sorted(self._tables.tables), random.choice((1, 1, 2)))
        start_ts, commit_ts = self._next_ts()
        rows = []
        for name in names:
            table = self._tables.tables[name]
            for key in random.sample(range(KEYS), random.randint(1, 3)):
                op = RowOp.INSERT if key not in table.rows else random.choice((RowOp.UPDATE, RowOp.DELETE))
                value = 0 if op is RowOp.DELETE else int(commit_ts)
                rows.append(RowChange(name, table.version, op, key, value))
        for row in rows:
            self._tables.row(row)
        self._note(SimTxn(commit_ts, start_ts, tuple(sorted(rows, key=lambda row: (row.op, row.table, row.key)))))

    def _image(self) -> None:
        random = self._random
        name = random.choice(sorted(self._tables.tables))
        table, (start, end) = self._tables.tables[name], sorted(random.sample(range(KEYS + 1), 2))
        self.now_ts = ts = Ts(self.now_ts + 2)
        rows = [
            RowChange(name, table.version, RowOp.UPDATE, key, table.rows.get(key, int(ts)), is_read=True)
            for key in range(start, end)
            if key in table.rows or random.random() < 0.5
        ]
        for row in rows:
            self._tables.row(row)
        if rows:
            self._note(SimTxn(ts, ts, tuple(rows)))

    def alter(self, kind: str = "") -> SimDdl:
        """Let a DDL finish; without a kind any."""
        random = self._random
        first, second = random.sample(sorted(self._tables.tables), 2)
        kind = kind or random.choice(("alter", "alter", "truncate", "rename", "swap"))
        other = {"rename": self._new_name(), "swap": second}.get(kind, "")
        if kind == "swap" and self._tables.tables[first].version != self._tables.tables[second].version:
            kind, other = "alter", ""  # TiDB refuses to exchange tables of different shape
        start_ts, commit_ts = self._next_ts()
        ddl = SimDdl(commit_ts, start_ts, kind, first, other)
        self._tables.ddl(ddl)
        self._note(ddl)
        return ddl

    def between(self, after_ts: Ts, upto_ts: Ts) -> Iterator[Event]:
        """Yield the events with ``after_ts < commit_ts <= upto_ts``."""
        at = bisect_right(self.events, after_ts, key=lambda event: event.commit_ts)
        for event in self.events[at:]:
            if event.commit_ts > upto_ts:
                return
            yield event

    def at(self, ts: Ts) -> Tables:
        """Return the tables with all up to ``ts``."""
        count = bisect_right(self.events, ts, key=lambda event: event.commit_ts)
        known, tables = next(pair for pair in reversed(self._known) if pair[0] <= count)
        tables_at = tables.copy()
        for event in self.events[known:count]:
            _happen(tables_at, event)
        return tables_at

    def _next_ts(self) -> tuple[Ts, Ts]:
        start_ts = Ts(self.now_ts + 1)
        self.now_ts = Ts(start_ts + 1)
        return start_ts, self.now_ts

    def _note(self, event: Event) -> None:
        self.events.append(event)
        if len(self.events) % 16 == 0:
            self._known.append((len(self.events), self._tables.copy()))


def _happen(tables: Tables, event: Event) -> None:
    if isinstance(event, SimDdl):
        tables.ddl(event)
    else:
        for row in event.rows:
            tables.row(row)


def partition_of(table: str, partitions: int) -> int:
    """Return where a table's rows stand: by its name, so a renamed table goes on in another partition."""
    return crc32(table.encode()) % partitions
