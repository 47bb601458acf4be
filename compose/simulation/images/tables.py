"""The upstream as table images meet it: tables with rows of every age, DDL that moves them, and who covers which."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key

KEYS: Final = 6
"""Keys of a table."""
TABLES_MAX: Final = 6
FEEDS: Final = ("default/a@1", "default/b@2", "default/c@3")


@dataclass(frozen=True, slots=True)
class Change:
    """A committed change of a key; ``value`` None: a delete."""

    commit_ts: Ts
    table_id: TableId
    number: int
    value: int | None

    @property
    def key(self) -> bytes:
        """The raw key."""
        return row_key(self.table_id, self.number)


@dataclass(slots=True)
class SimTable:
    """A physical table. ``logical`` stays the same where rows move to another id."""

    table_id: TableId
    logical: int
    covers: list[tuple[Ts, frozenset[str]]]
    """Since when which changefeeds contain it; ascending."""
    versions: dict[int, list[tuple[Ts, int | None]]] = field(default_factory=dict)
    """What TiKV has of each key, ascending."""
    brings_rows: bool = False
    """It came with rows that no change told of."""

    def covered(self, feed: str, ts: Ts) -> bool:
        """Tell whether a changefeed contains it after all DDL up to ``ts``."""
        at = bisect_right(self.covers, ts, key=lambda cover: cover[0])
        return at > 0 and feed in self.covers[at - 1][1]

    def read(self, number: int, ts: Ts) -> int | None:
        """Return what a read of a key at ``ts`` shows."""
        versions = self.versions.get(number, [])
        at = bisect_right(versions, ts, key=lambda version: version[0])
        return versions[at - 1][1] if at else None

    def rows(self, ts: Ts) -> dict[int, int]:
        """Return what a read of the table at ``ts`` shows."""
        return {number: value for number in range(KEYS) if (value := self.read(number, ts)) is not None}


@dataclass(frozen=True, slots=True)
class Job:
    """A DDL job that is done."""

    ts: Ts
    entered: tuple[tuple[str, TableId], ...] = ()
    """Changefeeds and tables with rows that came to them."""
    gone: frozenset[TableId] = frozenset()
    come: frozenset[TableId] = frozenset()
    """What has the rows of ``gone``, if that is not empty."""


class Tables:
    """Draws what writers do."""

    def __init__(self, random: Random, next_ts: Callable[[], Ts]) -> None:
        self.random, self.next_ts = random, next_ts
        self.tables: dict[TableId, SimTable] = {}
        self.changes: list[Change] = []
        self.jobs: list[Job] = []
        self.truncations: list[tuple[Ts, int]] = []
        """When which logical tables were emptied."""
        self._ids = self._values = 0
        for _ in range(random.randint(2, 5)):
            self._make(self._some_feeds(), rows=True)

    # -- what is asked

    def of_feed(self, feed: str, ts: Ts, since_ts: Ts) -> list[TableId]:
        """Return the tables that a changefeed has at ``ts``, and those that it lost above ``since_ts``, ascending."""
        return sorted(
            table.table_id
            for table in self.tables.values()
            if table.covered(feed, ts)
            or any(feed in feeds and end > since_ts for feeds, end in _covers_with_ends(table.covers))
        )

    def count_upto(self, ts: Ts) -> int:
        """Return how many changes there are up to ``ts``."""
        return bisect_right(self.changes, ts, key=lambda change: change.commit_ts)

    def between(self, after_ts: Ts, upto_ts: Ts, offset: int = 0) -> Iterator[Change]:
        """Yield the changes within ``(after_ts, upto_ts]`` from number ``offset`` on, in order."""
        for change in self.changes[max(offset, self.count_upto(after_ts)) :]:
            if change.commit_ts > upto_ts:
                return
            yield change

    def living(self, ts: Ts) -> list[SimTable]:
        """Return the tables that somebody contains, or may come to contain."""
        return [table for table in self.tables.values() if table.covers[-1][1] or table.brings_rows]

    # -- what happens

    def commit(self) -> None:
        """Commit a transaction."""
        tables = [table for table in self.tables.values() if not self._is_gone(table)]
        if not tables:
            return
        ts = self.next_ts()
        for table in self.random.sample(tables, min(len(tables), self.random.randint(1, 2))):
            for number in self.random.sample(range(KEYS), self.random.randint(1, 2)):
                self._write(table, number, ts)

    def alter(self) -> str:
        """Let a DDL job be done; return what it was."""
        living = [table for table in self.tables.values() if not self._is_gone(table)]
        kind = self.random.choice(("create", "create", "drop", "leave", "enter", "truncate", "reorganize"))
        outside = [table for table in living if table.brings_rows]
        if len(living) >= TABLES_MAX and kind in ("create", "enter"):
            kind = "drop"
        if kind == "create" or not living:
            return f"create {self._create()}"
        if kind == "enter":
            return f"enter {self._enter(self.random.choice(outside))}" if outside else f"outside {self._outside()}"
        table = self.random.choice(living)
        if table in outside:
            return "nothing"
        ts = self.next_ts()
        feeds = table.covers[-1][1]
        table.covers.append((ts, frozenset()))
        if kind == "truncate":
            self._make_at(feeds, ts, logical=table.logical)
            self.truncations.append((ts, table.logical))
            self.jobs.append(Job(ts))
        elif kind == "reorganize":
            new = self._make_at(feeds, ts, logical=table.logical)
            for number, value in table.rows(ts).items():
                new.versions[number] = [(ts, value)]
            self.jobs.append(Job(ts, gone=frozenset({table.table_id}), come=frozenset({new.table_id})))
        else:
            self.jobs.append(Job(ts))
        return f"{kind} {table.table_id}"

    def _create(self) -> TableId:
        ts = self.next_ts()
        self.jobs.append(Job(ts))
        return self._make_at(self._some_feeds(), ts).table_id

    def _outside(self) -> TableId:
        """Make a table that nobody contains yet, with rows that nobody is told of."""
        table = self._make(frozenset(), rows=True)
        table.brings_rows = True
        return table.table_id

    def _enter(self, table: SimTable) -> TableId:
        ts, feeds = self.next_ts(), self._some_feeds()
        table.brings_rows = False
        table.covers.append((ts, feeds))
        self.jobs.append(Job(ts, entered=tuple((feed, table.table_id) for feed in sorted(feeds))))
        return table.table_id

    # -- parts of the above

    def _some_feeds(self) -> frozenset[str]:
        return frozenset(feed for feed in FEEDS if self.random.random() < 0.7) or frozenset(FEEDS[:1])

    def _make(self, feeds: frozenset[str], *, rows: bool) -> SimTable:
        table = self._make_at(feeds, self.next_ts())
        if rows:
            for number in range(KEYS):
                if self.random.random() < 0.8:
                    self._write(table, number, self.next_ts())
        return table

    def _make_at(self, feeds: frozenset[str], ts: Ts, *, logical: int = 0) -> SimTable:
        self._ids += self.random.randint(1, 3)
        table_id = TableId(self._ids)
        table = self.tables[table_id] = SimTable(table_id, logical or self._ids, [(ts, feeds)])
        return table

    def _write(self, table: SimTable, number: int, ts: Ts) -> None:
        self._values += 1
        value = None if self.random.random() < 0.3 else self._values
        table.versions.setdefault(number, []).append((ts, value))
        self.changes.append(Change(ts, table.table_id, number, value))

    @staticmethod
    def _is_gone(table: SimTable) -> bool:
        return not table.covers[-1][1] and not table.brings_rows


def _covers_with_ends(covers: list[tuple[Ts, frozenset[str]]]) -> Iterator[tuple[frozenset[str], Ts]]:
    for at, (_, feeds) in enumerate(covers[:-1]):
        yield feeds, covers[at + 1][0]
