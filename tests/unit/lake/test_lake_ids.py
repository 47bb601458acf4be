"""A lake table goes on under the id that its table has behind a DDL; rows that it has had under the former one are no
other table's.
"""

from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.lake.commits import LakeProgress
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.lake.evolution import Evolution, LakeField
from sorters.run.lake.held_changes import TableChanges
from sorters.run.lake.tables import LakeTables
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

URI = "iceberg://?warehouse=file:///w&mode={}"
CUT = cast("Cut", MagicMock())


@dataclass
class _Table:
    """A lake table ``(id int, v int)``."""

    name: str
    table_id: TableId
    schema_ts: Ts = Ts(10)
    evolved: list[tuple[TableId, Ts | None]] = field(default_factory=list)

    def fields(self) -> list[LakeField]:
        return [LakeField("id", "int", "tidebus column 1"), LakeField("v", "int", "tidebus column 2")]

    def laid_by(self) -> set[str]:
        return set()

    def progress(self) -> LakeProgress:
        return LakeProgress(Ts(20), frozenset())

    def resync(self) -> None:
        return None

    def look(self) -> None:
        pass

    def evolve(
        self, evolution: Evolution, table_id: TableId, schema_ts: Ts | None, emptied_at: Ts | None = None
    ) -> None:
        assert evolution.is_empty and emptied_at is None
        self.table_id = table_id
        self.evolved.append((table_id, schema_ts))


def _parted(*ids: int) -> dict[str, Any]:
    definitions = [{"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}} for each in ids]
    return {**table_info(11, "t"), "partition": {"enable": True, "definitions": definitions}}


def _tables(mode: str, rules: dict[str, Any], *tables: _Table) -> LakeTables:
    config = load_changefeed(URI.format(mode), {"filter": rules})
    catalog = MagicMock(load=lambda name: {each.name: each for each in tables}.get(name.table))
    return LakeTables(catalog, MagicMock(), config.sink.iceberg, compile_feed(config, "default"), lambda: None)


PASSED = {"ignore-txn-start-ts": [29]}
IGNORED = {"event-filters": [{"matcher": ["d.*"], "ignore-event": ["exchange table partition"]}]}


@pytest.mark.parametrize("rules", [PASSED, IGNORED])
def test_table_that_was_exchanged_goes_on_under_its_new_id_though_the_ddl_is_passed_by(rules: dict[str, Any]) -> None:
    store = snapshot(("d", 1, [_parted(21, 22), table_info(12, "u")]))
    parted, plain = _Table("t", TableId(11)), _Table("u", TableId(12))
    lake = _tables("upsert", rules, parted, plain)
    change = store.apply(job(30, DdlType.EXCHANGE_PARTITION, schema_id=1, table_id=12, table_info=_parted(21, 12)))
    assert change is not None
    for _ in range(2):  # a restart reads it again
        lake.follow(change, store)
    assert (parted.evolved, plain.evolved) == ([], [(TableId(22), None)])


def test_table_that_is_followed_by_another_one_of_its_name_is_not_taken_over_by_a_ddl_that_is_passed_by() -> None:
    store = snapshot(("d", 1, [_parted(21, 22), table_info(12, "u")]))
    parted, other = _Table("t", TableId(11)), _Table("u", TableId(99))
    lake = _tables("upsert", PASSED, parted, other)
    change = store.apply(job(30, DdlType.EXCHANGE_PARTITION, schema_id=1, table_id=12, table_info=_parted(21, 12)))
    assert change is not None
    lake.follow(change, store)
    assert not other.evolved


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_of_a_tables_former_id_are_another_tables_only_above_what_the_lake_table_has_had(mode: str) -> None:
    store = snapshot(("d", 1, [table_info(12, "u")]))
    (version,) = store.tables_at(Ts(10))
    lake = _tables(mode, {}, _Table("u", TableId(22), schema_ts=Ts(20)))
    done = lake.progress(version)
    assert done is not None and done.watermark_ts == 20, "by which those of before are passed over"
    with pytest.raises(LakeSchemaError, match="another table of TiDB is written to it"):
        lake.write(TableChanges(version, (), cast("Any", None)), CUT)


def _renamed(store: SchemaStore, ts: int, *steps: tuple[int, str], **tables: int) -> SchemaChange:
    """Rename tables one after the other; ``tables``: what the ids are called then."""
    home = {"old_schema_name": {"O": "d"}, "new_schema_id": 1}
    args = {"rename_table_infos": [{**home, "table_id": each, "new_table_name": {"O": name}} for each, name in steps]}
    infos = [table_info(each, name) for name, each in tables.items()]
    change = store.apply(job(ts, DdlType.RENAME_TABLES, schema_id=1, raw_args=args, table_infos=infos))
    assert change is not None
    return change


def test_renames_of_which_one_is_refused_touch_no_lake_table() -> None:
    store = snapshot(("d", 1, [table_info(11, "a"), table_info(12, "b")]))
    of_a_dropped_one, of_b = _Table("c", TableId(99)), _Table("b", TableId(12))
    change = _renamed(store, 30, (11, "c"), (12, "d"), c=11, d=12)
    with pytest.raises(LakeSchemaError, match="a catalog of files cannot rename a table"):
        _tables("append", {}, of_a_dropped_one, of_b).follow(change, store)
    assert (of_a_dropped_one.evolved, of_b.evolved) == ([], [])


def test_rename_that_a_restart_reads_again_is_none_of_a_lake_table_that_the_old_name_has_since() -> None:
    store = snapshot(("d", 1, [table_info(12, "b")]))
    renamed, created = _Table("c", TableId(12), schema_ts=Ts(30)), _Table("b", TableId(13), schema_ts=Ts(40))
    change = _renamed(store, 30, (12, "c"), c=12)
    _tables("upsert", {}, renamed, created).follow(change, store)
    assert (renamed.evolved, created.evolved) == ([], [])


def test_table_whose_name_cannot_be_a_folders_keeps_no_run_from_beginning() -> None:
    store = snapshot(("d", 1, [table_info(11, "x:y"), table_info(12, "u")]))
    lake = _tables("upsert", {}, _Table("u", TableId(12)))
    assert lake.find(Ts(10), store, lambda _: store) is None
    odd, plain = sorted(store.tables_at(Ts(10)), key=lambda version: version.table_id)
    assert lake.progress(plain) is not None
    with pytest.raises(LakeSchemaError, match="a name of a lake table has at most 200 characters"):
        lake.progress(odd)
