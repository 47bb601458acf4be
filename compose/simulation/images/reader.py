"""A changefeed that reads frontier records as the sorter does, and what must hold of what it emits."""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from compose.simulation.images.tables import KEYS, SimTable
from compose.simulation.law import BrokenPromiseError
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.images import ImageChunk, is_opening
from schemas.sink.image_note import NOTHING_TO_COME, TableName
from sorters.core.cut import cut as cuts
from sorters.core.cut.cut import ChangefeedFrontier, Cut, frontier_for
from sorters.core.cut.cut_plan import plan_cuts
from sorters.core.feed import image_notes

if TYPE_CHECKING:
    from compose.simulation.images.world import ImageWorld

IMAGE, CHANGE, LACKING, EMPTIED = "image", "change", "lacking", "emptied"
STALE = -1
"""What a destination has of each key when a resync begins: a value that the source never had."""
Emitted = tuple[Ts, TableId, int, int | None, str]
"""ts, table, key number, value, and what it is: a change, an image's row, or what a resync deletes (-1: all keys)."""


@dataclass(slots=True)
class SimReader:
    """``emitted`` is what one that was never disturbed has written; others must write the same."""

    world: "ImageWorld"
    name: str
    is_initial: bool
    contains_laggard: bool
    start_ts: Ts
    is_topic: bool = False
    """A resync empties its tables; else it is a database, and each chunk deletes what it lacks."""
    at: int = 0
    """Records that have been read."""
    checkpoint_ts: Ts = Ts(0)
    emitted: list[Emitted] = field(default_factory=list)
    chunk_keys: dict[tuple[TableId, int], list[Ts]] = field(default_factory=dict)
    """Of keys: at which ts a chunk of it went out, with or without a row."""
    first_chunk_ts: dict[TableId, Ts] = field(default_factory=dict)
    noted: list[tuple[Ts, int, frozenset[int]]] = field(default_factory=list)
    """What watermarks said of images: ts, physical tables left, logical tables that became whole."""

    def __post_init__(self) -> None:
        self.checkpoint_ts = self.start_ts

    def frontier_of(self, record: FrontierRecord) -> ChangefeedFrontier:
        """Return what a record says for this changefeed."""
        frontier = frontier_for(record, lambda _: self.contains_laggard)
        waits_at = self.start_ts if self.is_initial else None
        frontier = cuts.with_images(frontier, record.images, self.name, waits_at=waits_at)
        base = self._base(0)
        if frontier.images is not None or waits_at is None or base is None:
            return frontier
        # As in the sorter: where it waits, rows above start_ts may stand below the low of a later record.
        return replace(
            frontier, low=frontier_for(self.world.broker.followed[base], lambda _: self.contains_laggard).low
        )

    def read(self, upto: int) -> None:
        """Read the records before number ``upto``, in one epoch."""
        followed = self.world.broker.followed
        base = self._base(self.at)
        if base is None or upto <= self.at:
            self.at = max(self.at, 0)
            return
        for cut in self._plan(base, followed[base + 1 : upto]):
            if cut.upto_ts > self.checkpoint_ts:
                emitted, keys = self._run(cut)
                self.emitted += emitted
                for key in keys:
                    self.chunk_keys.setdefault(key, []).append(cut.upto_ts)
                self.checkpoint_ts = cut.upto_ts
                self._note(cut)
        self.at = upto

    def read_again(self) -> None:
        """Start anew from some checkpoint that it had, as another process: it must write the same.

        Raises:
            BrokenPromiseError: it does not.
        """
        followed, random = self.world.broker.followed, self.world.random
        if self.checkpoint_ts <= self.start_ts:
            return
        from_ts = random.choice([self.start_ts, *(item[0] for item in self.emitted)])
        base = bisect_right(followed[: self.at], from_ts, key=lambda record: record.resolved_ts) - 1
        if base < 0:
            return
        emitted: list[Emitted] = []
        for cut in self._plan(base, followed[base + 1 : self.at], after_ts=from_ts):
            emitted += self._run(cut)[0]
        before = sorted(self.emitted[self._after(from_ts) :], key=_order)
        if sorted(emitted, key=_order) != before:
            raise BrokenPromiseError(
                f"{self.name} read again from {from_ts} writes {_differing(before, emitted)} otherwise"
            )

    def _note(self, cut: Cut) -> None:
        covered: dict[TableName, list[TableId]] = {}
        for table in self.world.tables.tables.values():
            if table.covered(self.name, cut.upto_ts):
                covered.setdefault(("", str(table.logical)), []).append(table.table_id)
        note = image_notes.note_of(cut, image_notes.NotedTables(covered)) or NOTHING_TO_COME
        if note.left or not self.noted or self.noted[-1][1]:
            self.noted.append((cut.upto_ts, note.left, frozenset(int(table) for _, table in note.whole)))

    def _after(self, ts: Ts) -> int:
        return bisect_right(self.emitted, ts, key=lambda item: item[0])

    def _base(self, at: int) -> int | None:
        """Return the number of the record to stand at: the last one read, or for a new one one below its start."""
        if at:
            return at - 1
        followed = self.world.broker.followed
        base = bisect_right(followed, self.start_ts, key=lambda record: record.resolved_ts) - 1
        return base if base >= 0 else None

    def _plan(self, base: int, records: list[FrontierRecord], after_ts: Ts | None = None) -> tuple[Cut, ...]:
        first = self.frontier_of(self.world.broker.followed[base])
        frontiers = [self.frontier_of(record) for record in records]
        after_ts = max(self.start_ts, first.resolved_ts) if after_ts is None else after_ts
        return plan_cuts(first, frontiers, after_ts, offsets_max=self.world.random.choice((1, 20, 4096)))

    def _run(self, cut: Cut) -> tuple[list[Emitted], list[tuple[TableId, int]]]:
        tables = self.world.tables.tables
        emitted: list[Emitted] = []
        for change in self.world.tables.between(cut.after_ts, cut.upto_ts, cut.start[0]):
            if not tables[change.table_id].covered(self.name, change.commit_ts):
                continue
            key = pa.array([change.key], pa.binary())
            if cut.left_out is None or cut.left_out.kept(change.table_id, key) is None:
                emitted.append((change.commit_ts, change.table_id, change.number, change.value, CHANGE))
        keys: list[tuple[TableId, int]] = []
        for chunk in cut.chunks:
            if chunk.ts != cut.upto_ts:
                raise BrokenPromiseError(f"{self.name} emits {chunk} in a cut that ends at {cut.upto_ts}")
            if not tables[chunk.table_id].covered(self.name, Ts(chunk.ts - 1)):
                continue
            self.first_chunk_ts.setdefault(chunk.table_id, chunk.ts)
            rows = self._rows(chunk)
            emitted += rows
            if chunk.table_id in cut.resynced:
                emitted += self._deleted(chunk, {number for _, _, number, _, _ in rows})
            keys += [(chunk.table_id, number) for number in range(KEYS) if self._is_within(chunk, number)]
        return emitted, keys

    def _deleted(self, chunk: ImageChunk, present: set[int]) -> list[Emitted]:
        if self.is_topic:
            return [(chunk.ts, chunk.table_id, -1, None, EMPTIED)] if is_opening(chunk) else []
        return [
            (chunk.ts, chunk.table_id, number, None, LACKING)
            for number in range(KEYS)
            if number not in present and self._is_within(chunk, number)
        ]

    def _is_within(self, chunk: ImageChunk, number: int) -> bool:
        return chunk.keys.start <= self.world.key(chunk.table_id, number) < chunk.keys.end

    def _rows(self, chunk: ImageChunk) -> list[Emitted]:
        rows: list[Emitted] = []
        for record in self.world.topic[slice(*chunk.offsets)]:
            if self.world.is_of(chunk, record):
                for raw, value in record.rows:
                    number = next(number for number in range(KEYS) if self.world.key(record.table_id, number) == raw)
                    rows.append((chunk.ts, record.table_id, number, value, IMAGE))
        return rows

    # -- what must hold at the end

    def check(self) -> None:
        """Check all that was emitted, once the changefeed has got everything.

        Raises:
            BrokenPromiseError: something is missing, was emitted twice or too early, or the destination differs.
        """
        upto_ts, tables = self.checkpoint_ts, self.world.tables.tables
        # Where its rows move to another id, what is to be deleted there is deleted all the same.
        resynced = {tables[table].logical for name, table in self.world.resynced if name == self.name}
        for table in self.world.tables.tables.values():
            if self.world.settled_waits.get((self.name, table.table_id)):
                self._check_keys(table.table_id)
            is_whole = self.is_initial or table.logical in resynced
            if is_whole and table.covered(self.name, upto_ts):
                self._check_shown(table, upto_ts)
        self._check_all()
        if self.is_initial and not resynced:
            self._check_notes()

    def _check_notes(self) -> None:
        """Check that a table which a watermark calls whole is shown then as the source has it, and so with all tables
        where nothing is left.
        """
        tables = self.world.tables.tables.values()
        for ts, left, whole in self.noted:
            for table in tables:
                if table.covered(self.name, ts) and (left == 0 or table.logical in whole):
                    self._check_shown(table, ts)
        if self.noted and self.noted[-1][1]:
            raise BrokenPromiseError(f"{self.name} says that {self.noted[-1][1]} images are left")

    def _check_shown(self, table: SimTable, ts: Ts) -> None:
        shown, true = self._shown(table.logical, ts), table.rows(ts)
        if not self.is_initial and (part := self.world.asked_part.get(self.name)) is not None:
            # What lies outside was there before the changefeed.
            shown, true = ({key: rows[key] for key in rows.keys() & set(part)} for rows in (shown, true))
        if shown != true:
            raise BrokenPromiseError(f"{self.name} shows {shown} of table {table.table_id} at {ts}, which is {true}")

    def _check_all(self) -> None:
        """Check that rows of images are what TiKV had, and that nothing is left out where no image is initial."""
        tables = self.world.tables
        for ts, table_id, number, value, kind in self.emitted:
            if kind == IMAGE and tables.tables[table_id].read(number, ts) != value:
                raise BrokenPromiseError(f"{self.name} got {value} of key {number} of table {table_id} at {ts}")
        if self.is_initial:
            return
        got = [item[:4] for item in self.emitted if item[4] == CHANGE]
        true = [
            (change.commit_ts, change.table_id, change.number, change.value)
            for change in tables.between(self.start_ts, self.checkpoint_ts)
            if tables.tables[change.table_id].covered(self.name, change.commit_ts)
        ]
        if got != true:
            raise BrokenPromiseError(f"{self.name} got {got}, not {true}")
        for table_id, _ in self.world.backfilled(self.name):
            for number in range(KEYS):
                at = self.chunk_keys.get((table_id, number), [])
                is_asked = number in self.world.asked_part.get(self.name, range(KEYS))
                if tables.tables[table_id].covered(self.name, self.checkpoint_ts) and len(at) != is_asked:
                    raise BrokenPromiseError(f"{self.name} got key {number} of table {table_id} at {at}")

    def _shown(self, logical: int, upto_ts: Ts) -> dict[int, int]:
        """Return what the destination had of a logical table, of which all was lost when a resync began."""
        shown: dict[int, int] = {}
        tables = self.world.tables
        cleared = [(ts, True) for ts, truncated in tables.truncations if truncated == logical and ts <= upto_ts]
        damaged = [
            (ts, False)
            for table_id, ts in self.first_chunk_ts.items()
            if ts <= upto_ts
            and tables.tables[table_id].logical == logical
            and (self.name, table_id) in self.world.resynced
        ]
        # At one ts rows stand before a DDL.
        wholly = sorted([*cleared, *damaged])
        for ts, table_id, number, value, kind in [
            *sorted(self.emitted[: self._after(upto_ts)], key=_order),
            (upto_ts + 1, None, 0, 0, ""),  # behind the DDL of upto_ts
        ]:
            while wholly and (wholly[0][0] < ts or wholly[0] == (ts, False)):
                _, is_cleared = wholly.pop(0)
                shown = {} if is_cleared else dict.fromkeys(range(KEYS), STALE)
            if table_id is None or tables.tables[table_id].logical != logical:
                continue
            if kind == EMPTIED:
                shown.clear()
            elif value is None:
                shown.pop(number, None)
            else:
                shown[number] = value
        return shown

    def _check_keys(self, table_id: TableId) -> None:
        """Check the keys of a table that this changefeed waited for from its first change on."""
        table = self.world.tables.tables[table_id]
        lost_ts = next((ts for ts, feeds in table.covers if ts > table.covers[0][0] and self.name not in feeds), None)
        for number in range(KEYS):
            own = [item for item in self.emitted if item[1:3] == (table_id, number)]
            at = self.chunk_keys.get((table_id, number), [])
            if len(at) > 1:
                raise BrokenPromiseError(f"{self.name} got key {number} of table {table_id} at {at}")
            if not at:
                if own or table.covered(self.name, self.checkpoint_ts):
                    raise BrokenPromiseError(f"{self.name} got no image of key {number} of table {table_id}, but {own}")
                continue
            value = table.read(number, at[0])
            expected: list[Emitted] = [] if value is None else [(at[0], table_id, number, value, IMAGE)]
            expected += [
                (change.commit_ts, table_id, number, change.value, CHANGE)
                for change in self.world.tables.between(at[0], self.checkpoint_ts)
                if (change.table_id, change.number) == (table_id, number) and table.covered(self.name, change.commit_ts)
            ]
            if own != expected:
                raise BrokenPromiseError(
                    f"{self.name} got {own} of key {number} of table {table_id} (lost {lost_ts}), not {expected}"
                )


def _order(item: Emitted) -> tuple[Ts, TableId, int, str]:
    return item[0], item[1], item[2], item[4]


def _differing(left: list[Emitted], right: list[Emitted]) -> list[Emitted]:
    return sorted(set(left) ^ set(right), key=_order)[:5]
