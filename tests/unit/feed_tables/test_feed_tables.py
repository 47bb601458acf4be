"""Which tables a changefeed has for its images, as DDL jobs come."""

from collections.abc import Callable

from consumers.control.core.images.feed_tables import FeedTables, replaced_by
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange, StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from tests.support.recorded.ddl_jobs import job, snapshot, table_info
from tests.support.recorded.recording import committed_changes
from tests.support.recorded.schema_feed import ddl_records


def mine(table: StoredTable) -> bool:
    return table.table.startswith("a")


def wanted(table: StoredTable) -> bool:
    return not table.table.endswith("_none")


def within(after_ts: int, upto_ts: int) -> Callable[[Ts], bool]:
    return lambda ts: after_ts < ts <= upto_ts


class Feed:
    def __init__(self, *tables: tuple[int, str]) -> None:
        self.store = snapshot(("d", 1, [table_info(table_id, name) for table_id, name in tables]))
        self.tables = FeedTables.at(self.store.stored_at(Ts(10)), mine, wanted)

    def does(self, ts: int, type_: DdlType, table_id: int, *after: tuple[int, str]) -> SchemaChange:
        info = table_info(*after[0]) if after else None
        change = self.store.apply(job(ts, type_, schema_id=1, table_id=table_id, table_info=info))
        assert change is not None
        self.tables = self.tables.with_ddl(change)
        return change


def test_a_table_that_is_renamed_into_the_changefeed_comes_with_rows_and_a_new_one_without() -> None:
    feed = Feed((5, "a1"), (6, "b1"))
    assert feed.tables.tables(Ts(10)) == [5]
    feed.does(20, DdlType.CREATE_TABLE, 7, (7, "a2"))
    feed.does(30, DdlType.RENAME_TABLE, 6, (6, "a3"))
    assert feed.tables.tables(Ts(30)) == [5, 6, 7]
    assert feed.tables.entered_by(within(10, 30)) == [6]
    assert feed.tables.entered_by(within(30, 99)) == []
    assert feed.tables.entered_by(within(10, 29)) == []


def test_a_table_that_entered_is_told_of_though_a_later_ddl_is_known_that_took_it_away() -> None:
    feed = Feed((6, "b1"))
    feed.does(30, DdlType.RENAME_TABLE, 6, (6, "a3"))
    feed.does(40, DdlType.DROP_TABLE, 6)
    assert feed.tables.entered_by(within(10, 30)) == [6]


def test_a_table_that_goes_is_kept_until_its_ddl_is_passed() -> None:
    feed = Feed((5, "a1"), (6, "a2"))
    feed.does(20, DdlType.DROP_TABLE, 5)
    feed.does(30, DdlType.RENAME_TABLE, 6, (6, "b2"))
    assert feed.tables.tables(Ts(19)) == [5, 6]
    assert feed.tables.tables(Ts(20)) == [6]
    assert feed.tables.tables(Ts(30)) == []
    assert feed.tables.forget_below(Ts(20)).tables(Ts(0)) == [6]


def test_a_truncated_table_goes_on_empty_under_its_new_id() -> None:
    feed = Feed((5, "a1"))
    change = feed.does(20, DdlType.TRUNCATE_TABLE, 5, (9, "a1"))
    assert (feed.tables.tables(Ts(20)), feed.tables.entered_by(within(0, 99))) == ([9], [])
    assert replaced_by(change) is None


def test_tables_whose_rule_says_none_come_without_an_image() -> None:
    feed = Feed((5, "a1"), (6, "a_none"), (7, "b1"))
    assert feed.tables.unwanted == {6}
    feed.does(20, DdlType.RENAME_TABLE, 7, (7, "a7_none"))
    assert feed.tables.entered_by(within(0, 99)) == []
    assert feed.tables.unwanted == {6, 7}
    feed.does(30, DdlType.RENAME_TABLE, 6, (6, "a6"))
    assert feed.tables.unwanted == {7}


def test_tables_that_one_rename_swaps_are_taken_for_what_they_are_at_its_end() -> None:
    store = snapshot(("a_shop", 1, [table_info(10, "t")]), ("other", 2, [table_info(11, "t")]))
    tables = FeedTables.at(store.stored_at(Ts(10)), lambda table: table.schema == "a_shop", wanted)
    # RENAME TABLE a_shop.t TO a_shop.tmp, other.t TO a_shop.t, a_shop.tmp TO other.t, and the same back.
    for ts, leaves, comes in ((20, 10, 11), (30, 11, 10)):
        steps = [_renamed(leaves, 1, "tmp"), _renamed(comes, 1, "t"), _renamed(leaves, 2, "t")]
        infos = [table_info(leaves, "t"), table_info(comes, "t")]
        swapped = job(ts, DdlType.RENAME_TABLES, schema_id=1, raw_args={"rename_table_infos": steps}, table_infos=infos)
        change = store.apply(swapped)
        assert change is not None
        tables = tables.with_ddl(change)
        assert tables.current == {comes}
        assert tables.entered_by(within(ts - 1, ts)) == [comes]
        assert tables.tables(Ts(ts - 1)) == [10, 11]


def _renamed(table_id: int, schema_id: int, name: str) -> dict[str, object]:
    """Return a step of a RENAME of several tables as TiDB writes it."""
    before, after = {"O": "before", "L": "before"}, {"O": name, "L": name}
    return {
        "table_id": table_id,
        "old_schema_name": before,
        "old_table_name": before,
        "new_schema_id": schema_id,
        "new_table_name": after,
    }


def test_tables_over_a_recording_are_those_of_the_schema_at_each_ddl() -> None:
    store, feed, moved = SchemaStore.empty(), None, 0

    def contains(table: StoredTable) -> bool:
        return table.table_id % 3 != 0

    for record in ddl_records(list(committed_changes())):
        change = store.apply(record)
        if record.kind == "snapshot_end":
            feed = FeedTables.at(store.stored_at(record.ts), contains, lambda _: True)
        if change is None or feed is None:
            continue
        feed = feed.with_ddl(change)
        at = store.pullable_tables_at(change.job.finished_ts)
        assert feed.current == {table for table, stored in at.items() if contains(stored)}
        replaced = replaced_by(change)
        if replaced is not None:
            moved += 1
            assert replaced.come <= at.keys()
            assert replaced.is_empty or not replaced.gone & at.keys()
    assert feed is not None
    assert moved > 0
