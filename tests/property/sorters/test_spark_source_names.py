"""A query of the Spark source has the rows of its table's name, whichever physical tables DDLs give the name to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from sorters.core.source.change_rows import Program
from sorters.core.source.options import TableName
from sorters.core.source.row_shape import RowShape
from sorters.core.source.table_history import named_since, physical_ids
from tests.support.lakes.lake_bank import row
from tests.support.rawlog.raw_log import Change, row_changes, row_key
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

NAME, SCHEMA, START_TS, LAST_TS = TableName("D", "t"), 1, 10, 50
NAMES = ("T", "t", "u", "v")
Row = tuple[int, int]
"""commit_ts, physical id."""


@dataclass
class Table:
    """A table as it is now."""

    table_id: int
    name: str
    parts: list[int] = field(default_factory=list)
    """Ids of partitions; none: it has none."""

    @property
    def info(self) -> dict[str, Any]:
        definitions = [{"id": part, "name": {"O": f"p{n}", "L": f"p{n}"}} for n, part in enumerate(self.parts)]
        info = table_info(self.table_id, self.name)
        return {**info, "partition": {"enable": True, "definitions": definitions}} if self.parts else info


class History:
    """Some tables under random DDL. What each physical table was called after it is noted; nothing else is known."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.ts, self.next_id = draw, START_TS, 30
        self.tables = [Table(10, "t", [21, 22]), Table(11, "u"), Table(12, "v", [23])]
        self.store = snapshot(("d", SCHEMA, [each.info for each in self.tables]), ts=START_TS)
        self.called: list[tuple[int, dict[int, str]]] = []
        self._note()

    def step(self) -> None:
        """Run one DDL, if the one that is drawn can be."""
        self.ts += self.draw(st.integers(1, 4))
        kinds = (self.create, self.drop, self.truncate, self.rename, self.swap, self.exchange, self.reorganize)
        self.draw(st.sampled_from(kinds))()
        self._note()

    def create(self) -> None:
        if free := self._free():
            table = Table(self._id(), self.draw(st.sampled_from(free)), [self._id()] * self.draw(st.booleans()))
            self.tables.append(table)
            self._run(DdlType.CREATE_TABLE, table.table_id, table)

    def drop(self) -> None:
        if table := self._any(lambda _: True):
            self.tables.remove(table)
            self._run(DdlType.DROP_TABLE, table.table_id, None)

    def truncate(self) -> None:
        if table := self._any(lambda _: True):
            before, table.table_id = table.table_id, self._id()
            table.parts = [self._id() for _ in table.parts]
            self._run(DdlType.TRUNCATE_TABLE, before, table)

    def rename(self) -> None:
        if (table := self._any(lambda _: True)) and (free := self._free(table)):
            table.name = self.draw(st.sampled_from(free))
            self._run(DdlType.RENAME_TABLE, table.table_id, table)

    def swap(self) -> None:
        left = self._any(lambda _: True)
        right = self._any(lambda each: each is not left)
        if left and right:
            steps = (left.table_id, "tmp"), (right.table_id, left.name), (left.table_id, right.name)
            left.name, right.name = right.name, left.name
            home = {"old_schema_name": {"O": "d"}, "new_schema_id": SCHEMA}
            renames = [{**home, "table_id": table_id, "new_table_name": {"O": name}} for table_id, name in steps]
            args, infos = {"rename_table_infos": renames}, [left.info, right.info]
            self.store.apply(job(self.ts, DdlType.RENAME_TABLES, schema_id=SCHEMA, raw_args=args, table_infos=infos))

    def exchange(self) -> None:
        parted, plain = self._any(lambda each: bool(each.parts)), self._any(lambda each: not each.parts)
        if parted and plain:
            at, given = self.draw(st.integers(0, len(parted.parts) - 1)), plain.table_id
            parted.parts[at], plain.table_id = plain.table_id, parted.parts[at]
            self._run(DdlType.EXCHANGE_PARTITION, given, parted)

    def reorganize(self) -> None:
        if table := self._any(lambda each: bool(each.parts)):
            table.parts = [*table.parts[1:], self._id()]
            self._run(DdlType.REORGANIZE_PARTITION, table.table_id, table)

    def expected(self, after_ts: int, upto_ts: int) -> list[Row]:
        """Return the rows of the name, if each physical table has one at each ts."""
        rows = list[Row]()
        for ts in range(after_ts + 1, upto_ts + 1):
            before = next(names for at, names in reversed(self.called) if at < ts)
            after = next(names for at, names in reversed(self.called) if at <= ts)
            rows += [(ts, each) for each, name in before.items() if after.get(each, name).lower() == NAME.table]
        return sorted(rows)

    def _note(self) -> None:
        names = {physical: each.name for each in self.tables for physical in each.parts or [each.table_id]}
        self.called.append((self.ts, names))

    def _run(self, kind: DdlType, table_id: int, after: Table | None) -> None:
        info = None if after is None else after.info
        self.store.apply(job(self.ts, kind, schema_id=SCHEMA, table_id=table_id, table_info=info))

    def _id(self) -> int:
        self.next_id += 1
        return self.next_id

    def _any(self, fits: Callable[[Table], bool]) -> Table | None:
        fitting = [each for each in self.tables if fits(each)]
        return self.draw(st.sampled_from(fitting)) if fitting else None

    def _free(self, table: Table | None = None) -> list[str]:
        taken = {each.name.lower() for each in self.tables if each is not table}
        return [name for name in NAMES if name.lower() not in taken and (table is None or name != table.name)]


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History(draw)
    for _ in range(draw(st.integers(1, 8))):
        history.step()
    return history


def rows_of(store: SchemaStore, after_ts: int, upto_ts: int) -> list[Row]:
    """Return what a batch makes of a log in which each of its physical tables has a row at each ts."""
    ids = physical_ids(store, NAME, Ts(after_ts), Ts(upto_ts))
    shape = RowShape.of(store.decoded(next(store.stored_at(Ts(START_TS)))))
    program, rows = Program(store.part(ids), NAME, shape), list[Row]()
    for each in sorted(ids):
        changes = [Change(ts, row_key(each, ts), row(each)) for ts in range(after_ts + 1, upto_ts + 1)]
        for batch in program.batches(row_changes(each, changes)):
            rows += [(out["_commit_version"], out["v"]) for out in batch.to_pylist()]
    return sorted(rows)


@settings(max_examples=150, deadline=None)
@given(histories(), st.sets(st.integers(START_TS + 1, LAST_TS - 1), max_size=4))
def test_batches_over_any_ddl_have_the_rows_of_the_name_alone_wherever_they_end(
    history: History, borders: set[int]
) -> None:
    ends = [START_TS, *sorted(borders), LAST_TS]
    for after_ts, upto_ts in pairwise(ends):
        assert rows_of(history.store, after_ts, upto_ts) == history.expected(after_ts, upto_ts)


@settings(max_examples=100, deadline=None)
@given(histories())
def test_physical_table_any_ddl_is_of_the_name_since_a_ddl_took_another_from_it(history: History) -> None:
    for physical, name in sorted(history.called[-1][1].items()):
        if name.lower() == NAME.table:
            others = (at for at, (_, names) in enumerate(history.called) if names.get(physical, name).lower() != "t")
            last = max(others, default=None)
            since = 0 if last is None else history.called[last + 1][0]
            assert named_since(history.store, NAME, TableId(physical), Ts(LAST_TS)) == since
