"""A resync of a partitioned lake table, by the owner's own records and the sorter's own cuts: rows go only where the
table shows the upstream then, whatever DDL, restarts and requests come between; and where none ends it, it ends so.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.control.changefeeds.asked_images import AskedImages, AskedTable
from consumers.control.core.images.inputs import ImageLimits
from consumers.control.owner.images.imaged_tables import ImagedTables
from consumers.control.owner.owner import Owner
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.ids import TableId, Ts
from schemas.rawlog.images import ImageMode, ScanResult
from schemas.tidb.keys import row_key
from sorters.core.cut.cut import ChangefeedFrontier, Cut, frontier_for, with_images
from sorters.core.cut.cut_plan import plan_cuts
from sorters.core.lake import commits, resync
from sorters.core.lake.commits import empties, steps_of_cut
from sorters.core.lake.resync import LakeResync, TableStep
from tests.support.control.imaged_owner import FEED, WISH, World, at
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

KEYS, FIRST_KEYS = range(8), range(6)
PLAIN, LOGICAL = TableId(9), TableId(5)
STALE = -1
Rows = dict[int, int]
Action = tuple[str, int]
_DISTURBS = frozenset({"drop", "empty", "exchange", "fill", "away", "back"})
"""After these a resync under way may leave rows that are too much; it never takes one that is there."""
_ACTIONS = (
    *("change", "tick", "tick", "read", "change", "tick", "tick", "ask", "read", "restart") * 3,
    *("add", "reorganize", "reorganize", "truncate", "repartition", *sorted(_DISTURBS)),
)


@dataclass
class _Source(World):
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
        self.is_disturbed |= kind in _DISTURBS or (kind != "change" and bool(self._asked))
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


@dataclass
class _Lake:
    """The lake table, and a sorter that is killed now and then; partition DDL is left out by a filter."""

    source: _Source
    files: dict[int, tuple[int, int]] = field(default_factory=lambda: dict.fromkeys(KEYS, (STALE, 1)))
    """Of keys: the value, and in which commit it was written."""
    commit: int = 1
    note: str | None = None
    watermark_ts: Ts = Ts(0)
    schema_ts: Ts = Ts(0)
    dropped: int = 0
    checkpoints: list[Ts] = field(default_factory=list)

    def read(self, upto: int, from_ts: Ts | None = None) -> None:
        """Commit what the records before number ``upto`` allow, from a checkpoint on."""
        records = self.source.records[:upto]
        checkpoint_ts = from_ts or (self.checkpoints[-1] if self.checkpoints else records[0].resolved_ts)
        base = max(n for n, record in enumerate(records) if not n or record.resolved_ts <= checkpoint_ts)
        frontiers = [self._frontier(record) for record in records[base:]]
        after_ts = max(checkpoint_ts, frontiers[0].resolved_ts)
        for cut in plan_cuts(frontiers[0], frontiers[1:], after_ts):
            self._run(cut)
            self.checkpoints.append(cut.upto_ts)

    def rows(self) -> Rows:
        return {key: value for key, (value, _) in self.files.items()}

    @staticmethod
    def _frontier(record: Any) -> ChangefeedFrontier:
        return with_images(frontier_for(record, lambda _: True), record.images, FEED)

    def _run(self, cut: Cut) -> None:
        ddl = [
            change
            for change in self.source.store.changes_between(cut.after_ts, cut.upto_ts)
            if any(side is not None and side.table == "a1" for each in change.tables for side in (each.pre, each.post))
        ]
        for after_ts, upto_ts in steps_of_cut(cut.after_ts, cut.upto_ts, (change.job.finished_ts for change in ddl)):
            chunks = cut.chunks if upto_ts == cut.upto_ts else ()
            self._step(replace(cut, after_ts=after_ts, upto_ts=upto_ts, chunks=chunks))
            for change in ddl:
                if change.job.finished_ts == upto_ts:
                    self._follow(change)

    def _step(self, step: Cut) -> None:
        stored = self.source.table_at(step.after_ts)
        if stored is None:
            return
        said = resync.table_step(step, stored.table_id, stored.physical_ids)
        after_ts = max(step.after_ts, self.watermark_ts)
        changes = [
            (key, value)
            for ts, table, key, value in self.source.changes
            if after_ts < ts <= step.upto_ts and table in stored.physical_ids
        ]
        if after_ts >= step.upto_ts or not (changes or said.chunks):
            return
        noted = None if self.note is None else LakeResync.decode(self.note)
        noted = resync.resync_after(noted, said, self.commit)
        self.commit += 1
        for key, value in changes:
            self.files.pop(key, None)
            if value is not None:
                self.files[key] = (value, self.commit)
        for chunk in said.chunks:
            image = self.source.read(chunk.table_id, chunk.ts)
            self.files |= {
                key: (value, self.commit)
                for key, value in image.items()
                if chunk.keys.start <= row_key(chunk.table_id, key) < chunk.keys.end
            }
        if noted is not None and noted.is_whole(said):
            self.files = {key: held for key, held in self.files.items() if held[1] > noted.files_upto}
            noted, self.dropped = None, self.dropped + 1
            assert self.rows() == self.source.shown(step.upto_ts), "rows go where the table is the upstream then"
        self.note = None if noted is None else noted.encode()
        self.watermark_ts = step.upto_ts

    def _follow(self, change: Any) -> None:
        ts = change.job.finished_ts
        stays = self.source.table_at(ts) is not None
        if self.source.table_at(Ts(ts - 1)) is not None and commits.ends_resync(change, stays):
            if self.watermark_ts <= ts:
                self.note = None
        elif stays and self.schema_ts < ts:
            self.schema_ts = ts
            if empties(change):
                self.files, self.note, self.watermark_ts = {}, None, ts
            if ts in self.source.filled:
                self.commit += 1
                self.files = {key: (value, self.commit) for key, (value, _) in self.files.items()}
                self.note = None


def _run(actions: list[Action], scans_max: int) -> _Lake:
    """Do all of it, then let images and the lake come to their end."""
    source = _Source(scans_max)
    lake = _Lake(source)
    for kind, number in actions:
        if kind == "ask":
            source.ask()
        elif kind == "tick":
            source.scan(number)
        elif kind == "read":
            lake.read(1 + number % len(source.records))
        elif kind == "restart":
            if lake.checkpoints:
                lake.read(len(source.records), lake.checkpoints[number % len(lake.checkpoints)])
        else:
            source.happen(kind, number)
    for _ in range(200):
        if source.is_idle() and not source.records[-1].images.chunks:
            break
        source.scan(11)
    assert source.is_idle(), "the owner gives all that was asked for"
    source.happen("change", 3)
    for _ in range(2):
        source.scan(11)
    lake.read(len(source.records))
    if not source.is_disturbed and source.name == "a1":
        assert lake.rows() == source.shown(lake.checkpoints[-1]), "a resync that nothing ended"
    return lake


_HALF: list[Action] = [("tick", 11)] * 6
"""The first of three partitions is whole, the others are not."""
_RARE: list[list[Action]] = [
    [*_HALF, ("reorganize", 310), ("read", 11)],  # of the whole one alone, so nothing of it is read again
    [*_HALF, ("away", 0), ("change", 582), ("change", 867), ("back", 0)],  # unseen by the owner
]


@example(actions=_RARE[0], scans_max=1)
@example(actions=_RARE[1], scans_max=1)
@given(
    actions=st.lists(st.tuples(st.sampled_from(_ACTIONS), st.integers(0, 999)), max_size=40),
    scans_max=st.integers(1, 4),
)
def test_partitioned_table_that_is_resynced_loses_only_what_the_upstream_has_not(
    actions: list[Action], scans_max: int
) -> None:
    _run([("ask", 0), *actions], scans_max)


# -- without any one of these rules some seed breaks it

_after, _ends = resync.resync_after, commits.ends_resync


def _marks_at_each_opening(before: LakeResync | None, step: TableStep, upto: int) -> LakeResync | None:
    after = _after(before, step, upto)
    return replace(after, files_upto=upto) if after is not None and step.opened else after


def _begins_anew_at_each_opening(before: LakeResync | None, step: TableStep, upto: int) -> LakeResync | None:
    return _after(before, replace(step, has_begun=False, waiting=step.partitions) if step.opened else step, upto)


def _begins_without_some(before: LakeResync | None, step: TableStep, upto: int) -> LakeResync | None:
    return _after(before, replace(step, partitions=step.waiting) if step.opened else step, upto)


def _takes_one_for_all(self: LakeResync, step: TableStep) -> bool:
    return bool(self.whole & step.partitions)


def _waits_for_no_newcomer(self: LakeResync, step: TableStep) -> bool:
    return all(each in self.whole for each in step.partitions & self.partitions)


def _waits_for_each_newcomer(self: LakeResync, step: TableStep) -> bool:
    return step.partitions <= self.whole


def _outlives_rows_that_no_change_tells(change: Any, stays: bool) -> bool:
    return not stays


def _outlives_its_absence(change: Any, stays: bool) -> bool:
    return stays and _ends(change, stays)


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (resync, "resync_after", _marks_at_each_opening),
        (resync, "resync_after", _begins_anew_at_each_opening),
        (resync, "resync_after", _begins_without_some),
        (LakeResync, "is_whole", _takes_one_for_all),
        (LakeResync, "is_whole", _waits_for_no_newcomer),
        (LakeResync, "is_whole", _waits_for_each_newcomer),
        (commits, "ends_resync", _outlives_rows_that_no_change_tells),
        (commits, "ends_resync", _outlives_its_absence),
    ],
    ids=lambda part: getattr(part, "__name__", "").strip("_") or "",
)
def test_partitioned_resync_without_a_rule_breaks_its_promise(
    where: Any, name: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    for actions, scans_max in _schedules():
        try:
            _run([("ask", 0), *actions], scans_max)
        except AssertionError:
            return
    raise AssertionError(f"all schedules keep the promise with {broken.__name__}")


def _schedules() -> Iterator[tuple[list[Action], int]]:
    """Yield schedules: by hand what is rare, and some hundred by chance."""
    yield from ((actions, 1) for actions in _RARE)
    for seed in range(1_000):
        chances = Random(seed)
        actions = [(chances.choice(_ACTIONS), chances.randrange(1_000)) for _ in range(chances.randrange(40))]
        yield actions, chances.randint(1, 4)
