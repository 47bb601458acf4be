"""A partitioned table of TiDB with DDL of any kind, its images by the owner's own records, and what it held when."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from consumers.control.changefeeds.asked_images import AskedImages, AskedTable
from consumers.control.core.images.inputs import ImageLimits
from consumers.control.owner.images.imaged_tables import ImagedTables
from consumers.control.owner.owner import Owner
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.ids import TableId, Ts
from schemas.rawlog.images import ImageMode, ScanResult
from schemas.tidb.keys import row_key
from tests.support.control.imaged_owner import FEED, WISH, World, at
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

KEYS, FIRST_KEYS = range(8), range(6)
PLAIN, LOGICAL = TableId(9), TableId(5)
Rows = dict[int, int]
DISTURBS = frozenset({"drop", "empty", "exchange", "fill", "away", "back"})
"""After these a resync under way may leave rows that are too much; it never takes one that is there."""


@dataclass
class PartitionedSource(World):
    """A table of TiDB whose partitions hold keys, a plain one beside it, and what both held at each ts."""

    scans_max: int
    parts: dict[TableId, set[int]] = field(default_factory=dict)
    rows: dict[TableId, Rows] = field(default_factory=dict)
    logical: TableId = LOGICAL
    name: str = "a1"
    is_disturbed: bool = True
    changes: list[tuple[Ts, TableId, int, int | None]] = field(default_factory=list)
    filled: set[Ts] = field(default_factory=set)
    """When a column came whose default all rows of the lake get."""
    _history: list[tuple[Ts, dict[TableId, Rows]]] = field(default_factory=list)
    _events: int = 0
    _ids: int = 20
    _asked: frozenset[TableId] = frozenset()

    def __post_init__(self) -> None:
        super().__init__({})
        self.images = ImagedTables(
            8, self, self.new_ts, clock=lambda: self.seconds, limits=ImageLimits(scans_max=self.scans_max, retry_ms=100)
        )
        self.owner = Owner(self, self, 8, 1, images=self.images.next_images, clock=lambda: self.seconds)
        self.owner.start(lambda: at(1))
        self.parts = {self._new_id(): {0, 1}, self._new_id(): {2, 3}, self._new_id(): {4, 5}}
        self.rows = {table: {key: 1 for key in keys if key % 2} for table, keys in self.parts.items()} | {PLAIN: {}}
        self.store = snapshot(("d", 1, [self._info(), table_info(PLAIN, "b2")]), ts=at(0.5))
        self._remember(at(0.5))
        self.tick()

    # -- what is read of it

    def read(self, table: TableId, ts: Ts) -> Rows:
        """Return what a physical table held at a ts."""
        return next(rows for since, rows in reversed(self._history) if since <= ts).get(table, {})

    def table_at(self, ts: Ts) -> StoredTable | None:
        """Return the table as DDL up to a ts left it; None: the changefeed has it not."""
        return next((stored for stored in self.store.stored_at(ts) if stored.table == "a1"), None)

    def shown(self, ts: Ts) -> Rows:
        """Return what a SELECT of the table shows."""
        stored = self.table_at(ts)
        return (
            {} if stored is None else {k: v for table in stored.physical_ids for k, v in self.read(table, ts).items()}
        )

    # -- the owner's surroundings

    def answered(self, name: str, asked: Collection[AskedTable]) -> None:
        self._asked -= {each.table_id for each in asked}
        self._wish()

    def is_idle(self) -> bool:
        images = self.records[-1].images
        return not self._asked and not any(feed.waits for feed in images.feeds)

    def ask(self) -> None:
        if self.name != "a1" or self._asked:
            return
        if self.is_idle():
            self.is_disturbed = False
        self._asked = frozenset(self.parts or {self.logical})
        self._wish()

    def _wish(self) -> None:
        asked = AskedImages(requested={ImageMode.RESYNC: self._asked} if self._asked else {})
        self.wished = {FEED: replace(WISH, wants_initial=False, asked=asked)}

    def scan(self, number: int) -> None:
        """Let captures scan what they are told to: all of it, or up to a key."""
        border = number % 12
        results = []
        for barrier in self.records[-1].images.barriers:
            for scan in barrier.scans:
                key = row_key(scan.table_id, border)
                reached = key if scan.keys.start < key < scan.keys.end else scan.keys.end
                results.append(ScanResult(barrier_ts=barrier.ts, number=scan.number, reached=reached))
        self.results = tuple(results)
        self.tick()

    # -- what happens to it

    def happen(self, kind: str, number: int) -> None:
        chances = Random(number)
        # What is asked for are the partitions of then: those that come before the owner has taken it are not resynced.
        self.is_disturbed |= kind in DISTURBS or (kind != "change" and bool(self._asked))
        getattr(self, f"_{kind}")(chances)

    def _change(self, chances: Random) -> None:
        table = chances.choice(sorted({*(self.parts or {self.logical}), PLAIN}))
        key = chances.choice(sorted(self.parts.get(table, FIRST_KEYS)))
        value = None if chances.random() < 0.4 else chances.randrange(10, 99)
        ts = self._next_ts()
        held = self.rows.setdefault(table, {})
        if value is None:
            held.pop(key, None)
        else:
            held[key] = value
        self.changes.append((ts, table, key, value))
        self._remember(ts)

    def _add(self, chances: Random) -> None:
        free = set(KEYS) - set().union(*self.parts.values())
        if self.parts and free:
            self._repart(DdlType.ADD_PARTITION, {**self.parts, self._new_id(): free})

    def _reorganize(self, chances: Random) -> None:
        if not self.parts:
            return
        gone = chances.sample(sorted(self.parts), min(len(self.parts), chances.randint(1, 2)))
        keys = sorted(set().union(*(self.parts[each] for each in gone)))
        border = chances.randint(0, len(keys) - 1)
        come = {self._new_id(): set(part) for part in (keys[:border], keys[border:]) if part}
        self._repart(
            DdlType.REORGANIZE_PARTITION, {k: v for k, v in self.parts.items() if k not in gone} | come, moves=True
        )

    def _drop(self, chances: Random) -> None:
        if len(self.parts) > 1:
            gone = chances.choice(sorted(self.parts))
            self._repart(DdlType.DROP_PARTITION, {k: v for k, v in self.parts.items() if k != gone})

    def _empty(self, chances: Random) -> None:
        if self.parts:
            gone = chances.choice(sorted(self.parts))
            parts = {k: v for k, v in self.parts.items() if k != gone} | {self._new_id(): self.parts[gone]}
            self._repart(DdlType.TRUNCATE_PARTITION, parts)

    def _exchange(self, chances: Random) -> None:
        plain = next(stored.table_id for stored in self.store.stored_at(self._next_ts()) if stored.table == "b2")
        if not self.parts or plain != PLAIN:
            return  # the plain one's id is a partition's now
        went = chances.choice(sorted(self.parts))
        self.rows[PLAIN] = {key: value for key, value in self.rows[PLAIN].items() if key in self.parts[went]}
        keys = self.parts.pop(went)
        self.parts[PLAIN] = keys
        self._ddl(DdlType.EXCHANGE_PARTITION, PLAIN)

    def _truncate(self, chances: Random) -> None:
        before, self.logical = self.logical, self._new_id()
        self.parts = {self._new_id(): keys for keys in self.parts.values()}
        self._renew({})
        self._ddl(DdlType.TRUNCATE_TABLE, before)

    def _repartition(self, chances: Random) -> None:
        rows = {k: v for table in self.parts or {self.logical} for k, v in self.rows[table].items()}
        before, self.logical = self.logical, self._new_id()
        type_ = DdlType.REMOVE_PARTITIONING if self.parts else DdlType.ALTER_TABLE_PARTITIONING
        self.parts = {} if self.parts else {self._new_id(): {0, 1, 2, 6}, self._new_id(): {3, 4, 5, 7}}
        self._renew(rows)
        self._ddl(type_, before)

    def _fill(self, chances: Random) -> None:
        self._ddl(DdlType.ADD_COLUMN, self.logical)
        self.filled.add(self._history[-1][0])

    def _away(self, chances: Random) -> None:
        self.name = "b1"
        self._ddl(DdlType.RENAME_TABLE, self.logical)

    def _back(self, chances: Random) -> None:
        self.name = "a1"
        self._ddl(DdlType.RENAME_TABLE, self.logical)

    def _repart(self, type_: DdlType, parts: dict[TableId, set[int]], *, moves: bool = False) -> None:
        rows = {k: v for table in self.parts.keys() - parts.keys() for k, v in self.rows.pop(table).items()}
        for table in sorted(parts.keys() - self.parts.keys()):
            self.rows[table] = {key: rows[key] for key in parts[table] & rows.keys()} if moves else {}
        self.parts = parts
        self._ddl(type_, self.logical)

    def _renew(self, rows: Rows) -> None:
        self.rows = {PLAIN: self.rows.get(PLAIN, {})} | {
            table: {key: value for key, value in rows.items() if key in self.parts.get(table, KEYS)}
            for table in self.parts or {self.logical}
        }

    def _new_id(self) -> TableId:
        self._ids += 1
        return TableId(self._ids)

    def _next_ts(self) -> Ts:
        self._events += 1
        return Ts(at(self.seconds + 0.05) + self._events)

    def _remember(self, ts: Ts) -> None:
        self._history.append((ts, {table: dict(rows) for table, rows in self.rows.items()}))

    def _info(self) -> dict[str, Any]:
        info = table_info(self.logical, self.name)
        definitions = [{"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}} for each in sorted(self.parts)]
        return {**info, "partition": {"enable": True, "definitions": definitions}} if self.parts else info

    def _ddl(self, type_: DdlType, table: TableId) -> None:
        ts = self._next_ts()
        change = self.store.apply(job(ts, type_, schema_id=1, table_id=table, table_info=self._info()))
        assert change is not None
        self.images.take(change)
        self._remember(ts)
