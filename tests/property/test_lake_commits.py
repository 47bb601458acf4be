"""The law of lake tables: killed anywhere, a run writes no change twice, and a tag is on all tables or is completed."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import Ts
from sorters.core.lake.commits import (
    LakeProgress,
    expired_tags,
    may_tag,
    steps_of_cut,
    tag_name,
    tag_ts,
    unfinished_tag,
)

TABLES = ("a", "b", "c")
TAGS_KEPT = 3


class _KilledError(Exception):
    pass


@dataclass
class _Table:
    rows: list[int] = field(default_factory=list)
    watermark_ts: int = 0
    tags: dict[int, int] = field(default_factory=dict)
    """How many rows a watermark's tag shows."""


@dataclass
class _World:
    """Changes by table, and a lake of which each write may be the process's last."""

    changes: dict[str, list[int]]
    lake: dict[str, _Table] = field(default_factory=lambda: {name: _Table() for name in TABLES})
    writes_left: int = 0
    checkpoint_ts: int = 0

    def _write(self) -> None:
        if self.writes_left == 0:
            raise _KilledError
        self.writes_left -= 1

    def _progress(self) -> dict[str, LakeProgress]:
        return {name: LakeProgress(Ts(t.watermark_ts), frozenset(map(Ts, t.tags))) for name, t in self.lake.items()}

    def _tag(self, ts: int) -> None:
        if not may_tag(self._progress().values(), Ts(ts)):
            return
        for table in self.lake.values():
            self._write()
            table.tags.setdefault(ts, len(table.rows))
            for old in expired_tags(map(Ts, table.tags), TAGS_KEPT):
                del table.tags[old]

    def run(self, frontiers: list[int], ddl: set[int]) -> None:
        """Do what a run does, from the checkpoint on."""
        unfinished_ts = unfinished_tag(self._progress())
        if unfinished_ts is not None:
            self._tag(unfinished_ts)
        for upto_ts in (ts for ts in frontiers if ts > self.checkpoint_ts):
            for after, upto in steps_of_cut(Ts(self.checkpoint_ts), Ts(upto_ts), map(Ts, ddl)):
                for name, table in self.lake.items():
                    done = max(after, table.watermark_ts)
                    rows = [ts for ts in self.changes[name] if done < ts <= upto]
                    if rows:
                        self._write()
                        table.rows += rows
                        table.watermark_ts = upto
            self._tag(upto_ts)
            self._write()
            self.checkpoint_ts = upto_ts


@given(
    changes=st.fixed_dictionaries({name: st.sets(st.integers(1, 40)).map(sorted) for name in TABLES}),
    runs=st.lists(st.tuples(st.integers(0, 12), st.sets(st.integers(1, 39)), st.sets(st.integers(1, 39))), max_size=6),
)
def test_lake_killed_anywhere_has_each_change_once_and_each_tag_on_all_tables(
    changes: dict[str, list[int]], runs: list[tuple[int, set[int], set[int]]]
) -> None:
    world = _World(changes)
    for writes_left, frontiers, ddl in runs:
        world.writes_left = writes_left
        try:
            world.run(sorted(frontiers), ddl)
        except _KilledError:
            continue
    world.writes_left = 10_000
    world.run([41], set())
    for name, table in world.lake.items():
        assert table.rows == changes[name]
        assert set(table.tags) == set(world.lake["a"].tags), "a tag is on all tables"
        for ts, count in table.tags.items():
            assert table.rows[:count] == [change for change in changes[name] if change <= ts], "and shows its ts"


def test_tag_names_are_read_back_and_others_are_left_alone() -> None:
    assert tag_ts(tag_name(Ts(470615985604788224))) == 470615985604788224
    for name in ("wm_", "wm_x", "release", "wm_-1", "wm_1½"):
        assert tag_ts(name) is None
