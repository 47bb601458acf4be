"""The law of lake tables: killed anywhere, a run writes no change twice, and a tag is on all tables, is completed, or
was never on all of them and is taken back. Where a catalog moves all tables at once, they agree at every moment.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.ids import TableId, Ts
from schemas.rawlog.images import IdRange
from sorters.core.cut.images import LeftOut
from sorters.core.lake.commits import (
    LakeProgress,
    expired_tags,
    is_torn,
    may_tag,
    shows_all,
    steps_of_cut,
    tag_name,
    tag_ts,
    unfinished_tag,
)

TABLES = ("a", "b", "c")
IMAGED = "c"
TAGS_KEPT = 3
_SOMETHING = LeftOut((IdRange(TableId(1), TableId(1)),))
_Row = tuple[int, bool]
"""Its ts, and whether it is of an image."""


class _KilledError(Exception):
    pass


@dataclass
class _Table:
    rows: list[_Row] = field(default_factory=list)
    watermark_ts: int | None = None
    """None: the table is not there yet."""
    noted_ts: int = 0
    made_behind_ts: int = 0
    image_to_come: bool = False
    tags: dict[int, int] = field(default_factory=dict)
    """How many rows a watermark's tag shows."""


@dataclass
class _World:
    """Changes by table, and a lake of which each write may be the process's last.

    One table comes to the changefeed at ``images_after``, in two chunks: a change at ts is of the key ts % 2.
    """

    changes: dict[str, list[int]]
    images_after: int
    chunks: tuple[int, int]
    """At which ts the image of each key goes out."""
    lake: dict[str, _Table] = field(default_factory=lambda: {name: _Table() for name in TABLES})
    writes_left: int = 0
    checkpoint_ts: int = 0
    catalog: str = "one by one"
    """How tables move: so, "at once", or "torn": by one transaction, which the server may die in."""
    order: Sequence[str] = TABLES
    """In which those of a step are made, and then move, which some threads do."""

    def upstream(self, name: str, after: int, upto: int) -> list[_Row]:
        """Return what a changefeed gets of a table: of the one with an image, what the image law says."""
        rows = [(ts, False) for ts in self.changes[name] if after < ts <= upto]
        if name != IMAGED:
            return rows
        rows = [row for row in rows if row[0] > self.chunks[row[0] % 2]]
        return sorted(rows + [(ts, True) for ts in self.chunks if after < ts <= upto])

    def is_at_one_ts(self) -> bool:
        """Tell whether main of all tables shows the upstream as of one ts."""
        return any(
            all(table.rows == self.upstream(name, 0, ts) for name, table in self.lake.items()) for ts in range(42)
        )

    def _write(self) -> None:
        if self.writes_left == 0:
            raise _KilledError
        self.writes_left -= 1

    def _progress(self) -> dict[str, LakeProgress]:
        return {
            name: LakeProgress(
                Ts(table.watermark_ts),
                frozenset(map(Ts, table.tags)),
                table.image_to_come,
                Ts(table.noted_ts),
                Ts(table.made_behind_ts),
            )
            for name, table in self.lake.items()
            if table.watermark_ts is not None
        }

    def _tag(self, ts: int, names: Collection[str]) -> None:
        if not may_tag(self._progress().values(), Ts(ts)):
            return
        for table in map(self.lake.__getitem__, names):
            if table.image_to_come:
                self._write()
                table.image_to_come = False
        self._transact([(name, [], ts, True) for name in names if ts not in self.lake[name].tags])

    def _transact(self, moves: list[tuple[str, list[_Row], int, bool]]) -> None:
        """Move tables: each gets rows, stands at a ts then if it got some, and is tagged."""
        for number, (name, rows, ts, is_tagged) in enumerate(moves):
            if self.catalog != "at once" or not number:
                self._write()
            table = self.lake[name]
            if rows:
                table.rows += rows
                table.watermark_ts = ts
            if rows or self.catalog != "one by one":
                table.noted_ts = ts
            if is_tagged:
                table.tags.setdefault(ts, len(table.rows))
                for old in expired_tags(map(Ts, table.tags), TAGS_KEPT):
                    del table.tags[old]

    def _begin(self) -> None:
        """Complete the tag that a run had begun, or take it back."""
        progress = self._progress()
        unfinished = unfinished_tag(progress)
        if unfinished is None:
            return
        if self.catalog == "one by one" or not is_torn(progress, unfinished):
            self._tag(*unfinished)
            return
        assert self.catalog == "torn", "a whole tag stays, also where a table was made since"
        for table in self.lake.values():
            if unfinished[0] in table.tags:
                self._write()
                del table.tags[unfinished[0]]

    def _commit(self, after: int, upto: int, left_out: LeftOut | None, *, tags: bool) -> None:
        """Commit a step; with the tag of its end, where it may go with the rows."""
        gathered = {
            name: self.upstream(name, max(after, table.watermark_ts or 0), upto) for name, table in self.lake.items()
        }
        for name in self.order:
            table = self.lake[name]
            if gathered[name] and table.watermark_ts is None:
                self._write()
                newest = max((ts for each in self.lake.values() for ts in each.tags), default=0)
                table.watermark_ts = table.noted_ts = after
                table.made_behind_ts = newest if newest > after else 0
                table.image_to_come = name == IMAGED and left_out is not None
        moves = [(name, gathered[name], upto, False) for name in self.order if gathered[name]]
        there = self._progress()
        tags = tags and may_tag(there.values(), Ts(upto)) and not any(table.image_to_come for table in there.values())
        if moves and tags and self.catalog != "one by one":
            moved = {name for name, *_ in moves}
            moves = [(name, rows, ts, True) for name, rows, ts, _ in moves]
            moves += [(name, [], upto, True) for name in there if name not in moved]
        self._transact(moves)

    def run(self, frontiers: Collection[int], ddl: set[int]) -> None:
        """Do what a run does, from the checkpoint on. Cuts end where an image begins, and where a chunk goes out."""
        self._begin()
        borders = {ts for ts in (self.images_after, *self.chunks) if ts <= max(frontiers, default=0)}
        for upto_ts in sorted(ts for ts in borders | set(frontiers) if ts > self.checkpoint_ts):
            left_out = _SOMETHING if self.images_after <= self.checkpoint_ts < max(self.chunks) else None
            for after, upto in steps_of_cut(Ts(self.checkpoint_ts), Ts(upto_ts), map(Ts, ddl)):
                is_last = upto == upto_ts and upto not in ddl
                self._commit(after, upto, left_out, tags=is_last and shows_all(left_out))
            if shows_all(left_out):
                self._tag(upto_ts, self._progress())
            self._write()
            self.checkpoint_ts = upto_ts


@pytest.mark.parametrize("catalog", ["one by one", "at once", "torn"])
@given(
    changes=st.fixed_dictionaries({name: st.sets(st.integers(1, 40)).map(sorted) for name in TABLES}),
    runs=st.lists(st.tuples(st.integers(0, 12), st.sets(st.integers(1, 39)), st.sets(st.integers(1, 39))), max_size=6),
    images_after=st.integers(0, 20),
    chunks=st.tuples(st.integers(21, 40), st.integers(21, 40)),
    order=st.permutations(TABLES),
)
@example(  # killed between the making of a table for its image and its first rows, when others were tagged
    changes={"a": [1], "b": [], "c": []},
    runs=[(5, {5, 30}, set())],
    images_after=5,
    chunks=(30, 30),
    order=TABLES,
)
@example(  # a server that died between the tables of a transaction
    changes={"a": [1], "b": [2], "c": []},
    runs=[(3, {3}, set())],
    images_after=20,
    chunks=(30, 30),
    order=TABLES,
)
@example(  # killed when the second table was made, and the first not yet
    changes={"a": [1], "b": [2], "c": []},
    runs=[(1, {3}, set())],
    images_after=20,
    chunks=(30, 30),
    order=("b", "a", "c"),
)
@example(  # killed between a tag and its checkpoint, and again when another table was made
    changes={"a": [1], "b": [2], "c": []},
    runs=[(2, {1}, set()), (1, {2}, set())],
    images_after=2,
    chunks=(21, 21),
    order=TABLES,
)
def test_lake_killed_anywhere_has_each_change_once_and_each_tag_on_all_tables(
    catalog: str,
    changes: dict[str, list[int]],
    runs: list[tuple[int, set[int], set[int]]],
    images_after: int,
    chunks: tuple[int, int],
    order: Sequence[str],
) -> None:
    world = _World(changes, images_after, chunks, catalog=catalog, order=order)
    for writes_left, frontiers, ddl in runs:
        world.writes_left = writes_left
        with suppress(_KilledError):
            world.run(frontiers, ddl)
        assert catalog != "at once" or world.is_at_one_ts()
    world.writes_left = 10_000
    world.run({41}, set())
    tags = {ts for table in world.lake.values() for ts in table.tags}
    assert not {ts for ts in tags if images_after < ts <= max(chunks)}, "none while an image is to come"
    for name, table in world.lake.items():
        whole = world.upstream(name, 0, 41)
        assert table.rows == whole
        for ts in tags - set(table.tags):
            assert not world.upstream(name, 0, ts), "a tag is on all tables, but for one that is not there yet"
        for ts, count in table.tags.items():
            assert table.rows[:count] == [row for row in whole if row[0] <= ts], "and shows its ts"
            assert name != IMAGED or ts > images_after, "which has an image to come of no table that has the tag"


def test_tag_names_are_read_back_and_others_are_left_alone() -> None:
    assert tag_ts(tag_name(Ts(470615985604788224))) == 470615985604788224
    for name in ("wm_", "wm_x", "release", "wm_-1", "wm_1½"):
        assert tag_ts(name) is None
