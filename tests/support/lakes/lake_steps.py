"""Lake tables of one run after another in this process, by the steps that a run takes: rows, DDL, tags; by a catalog of
files, or of a REST server.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.table import TableVersion
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.lake.changes import POSITION
from sorters.core.lake.columns import COMMIT_TIME, COMMIT_TS, OP, arrow_type, key_names, lake_columns
from sorters.run.lake.catalog import LakeCatalog
from sorters.run.lake.held_changes import HeldChanges
from sorters.run.lake.rows import LakeRows
from sorters.run.lake.step_writes import write_step
from sorters.run.lake.table import LakeOwner
from sorters.run.lake.tables import LakeTables
from tests.support.lakes.lake import Lake, Row
from tests.support.lakes.lake_catalogs import RestLake

Put = tuple[str, list[tuple[str, int, Row]]]
"""A table of the schema ``d``, and its changes: I, U or D, the ts, and the row."""


def cut(after: int, upto: int) -> Cut:
    """Return a step without images."""
    return Cut(after_ts=Ts(after), upto_ts=Ts(upto), start=(0,), end=(0,), may_repeat=False, ddl_end=0)


@dataclass
class LakeSteps:
    """A changefeed's warehouse and schema."""

    spark: Any
    folder: Path
    store: SchemaStore
    mode: str = "upsert"
    more: str = ""
    """Of the sink URI."""
    rules: dict[str, Any] = field(default_factory=dict)
    """Of the filter."""
    rest: RestLake | None = None
    """The REST catalog; None: a catalog of files."""
    _runs: Iterator[int] = field(default_factory=lambda: iter(range(1, 100)))

    @property
    def lake(self) -> Lake:
        return self.rest or Lake(self.folder / "lake")

    def run(self, *, check_lease: Callable[[], None] = lambda: None, door: str = "") -> "StepsOfRun":
        """Begin a run that knows of no table yet. ``door``: where it goes to the REST catalog by."""
        return StepsOfRun(self, next(self._runs), check_lease, door)

    def ddl(self, record: DdlRecord) -> SchemaChange:
        """Let the schema know a DDL."""
        change = self.store.apply(record)
        assert change is not None
        return change

    def version(self, table: str, ts: int) -> TableVersion:
        """Return a table of ``d`` as it is at a ts."""
        (version,) = (each for each in self.store.tables_at(Ts(ts)) if (each.schema, each.table) == ("d", table))
        return version

    def rows(self, table: str, ts: int | None = None) -> list[tuple[Any, ...]]:
        """Return a table's rows at a tag, or main's, in order, by their values."""
        held = [tuple(value for name, value in row.items() if name != COMMIT_TIME) for row in self.named(table, ts)]
        return sorted(held, key=str)

    def named(self, table: str, ts: int | None = None) -> list[Row]:
        """Return the same with names."""
        return self.lake.rows("d", table, ts)


class StepsOfRun:
    """One run."""

    def __init__(self, steps: LakeSteps, number: int, check_lease: Callable[[], None], door: str) -> None:
        catalog = {"type": "hadoop", "warehouse": str(steps.folder / "lake")}
        said = f"warehouse=file://{steps.folder}/lake"
        if steps.rest is not None:
            catalog = {"type": "rest", "uri": door or steps.rest.address}
            said = f"catalog=rest&catalog-uri={catalog['uri']}"
        uri = f"iceberg://?{said}&mode={steps.mode}{steps.more}"
        config = load_changefeed(uri, {"filter": steps.rules})
        owner = LakeOwner("default/f", "default/f/1", f"tidebus_{number}")
        self._steps, self._feed = steps, compile_feed(config, "default")
        self._rows = LakeRows(steps.spark, catalog, owner.branch)
        self.catalog = LakeCatalog(self._rows, owner)
        self.tables = LakeTables(self.catalog, self._rows, config.sink.iceberg, self._feed, check_lease)

    @property
    def session(self) -> Any:
        return self._rows.session

    def find(self, ts: int) -> tuple[Ts, frozenset[str]] | None:
        """Begin at a checkpoint."""
        store = self._steps.store
        return self.tables.find(Ts(ts), store, lambda _: store)

    def step(self, after: int, upto: int, *puts: Put, ddl: Sequence[SchemaChange] = (), tag: bool = False) -> None:
        """Write rows, which a table that has had them passes over; then follow DDL, then tag."""
        with closing(HeldChanges(self._steps.folder)) as held:
            for table, changes in puts:
                version = self._steps.version(table, after)
                done = self.tables.progress(version)
                new = [each for each in changes if done is None or each[1] > done.watermark_ts]
                if new:
                    keys = key_names(version) if self._steps.mode == "upsert" else ()
                    held.add(held.of(version, keys), arrow_changes(version, new))
            write_step(self.tables, list(held), cut(after, upto), lambda: False)
        self.tables.move(Ts(upto), tags=False)
        for change in ddl:
            self.tables.follow(change, self._steps.store)
        if tag:
            self.tables.tag(Ts(upto))


def arrow_changes(version: TableVersion, changes: list[tuple[str, int, Row]]) -> pa.Table:
    """Return changes as a sorter has them of a cut."""
    types = {column.name: arrow_type(column.type) for column in lake_columns(version, "upsert")}
    columns = {name: pa.array([row.get(name) for _, _, row in changes], kind) for name, kind in types.items()}
    ts = pa.array([each for _, each, _ in changes], pa.int64())
    said = {OP: pa.array([op for op, _, _ in changes]), COMMIT_TS: ts, COMMIT_TIME: ts.cast(arrow_type("timestamptz"))}
    positions = pa.array([b"%020d%05d" % (each[1], number) for number, each in enumerate(changes)])
    return pa.table({**columns, **said, POSITION: positions})
