"""Tables to pull: hand-made DDLs, and the recording's own DDL jobs against an independent list of what had rows."""

import pytest

from consumers.control.core.frontier.table_set import TableSet
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import InvariantBrokenError
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from tests.support.recorded.recording import committed_changes, row_table_id
from tests.support.recorded.schema_feed import ddl_records


def ids(*numbers: int) -> list[TableId]:
    return [TableId(number) for number in numbers]


START = TableSet(known_ts=Ts(10), starts={TableId(1): Ts(10), TableId(2): Ts(10)})


def test_table_set_created_table_starts_at_its_ddl() -> None:
    assert START.with_change(Ts(20), gone=[], come=ids(3)).starts[TableId(3)] == 20


def test_table_set_dropped_table_stays_until_frontier_reaches_the_ddl() -> None:
    dropped = START.with_change(Ts(20), gone=ids(1), come=[])
    assert TableId(1) in dropped.published(Ts(19)).starts
    assert dropped.published(Ts(20)).starts == {TableId(2): 10}
    assert dropped.published(Ts(20)).dropped == {}


def test_table_set_truncated_table_has_both_ids_until_frontier_passes() -> None:
    truncated = START.with_change(Ts(20), gone=ids(1), come=ids(7))
    assert dict(truncated.starts) == {1: 10, 2: 10, 7: 20}
    assert dict(truncated.published(Ts(25)).starts) == {2: 10, 7: 20}


def test_table_set_recovered_while_still_pulled_goes_on_unbroken() -> None:
    back = START.with_change(Ts(20), gone=ids(1), come=[]).with_change(Ts(30), gone=[], come=ids(1))
    assert back.published(Ts(40)).starts[TableId(1)] == 10


def test_table_set_recovered_after_it_went_starts_at_its_recovery() -> None:
    gone = START.with_change(Ts(20), gone=ids(1), come=[]).published(Ts(25))
    assert gone.with_change(Ts(30), gone=[], come=ids(1)).starts[TableId(1)] == 30


def test_table_set_older_ddl_is_refused() -> None:
    with pytest.raises(InvariantBrokenError, match="out of order"):
        START.with_change(Ts(9), gone=[], come=[])


def test_table_set_over_recording_covers_every_row_of_user_tables() -> None:
    """Every row that the store gives a schema to lies at or above the start of a table that is to be pulled then."""
    changes = list(committed_changes())
    store, timeline = SchemaStore.empty(), [TableSet(known_ts=Ts(0))]
    for record in ddl_records(changes):
        change = store.apply(record)
        if change is not None:
            timeline.append(timeline[-1].with_ddl(change))
    covered = 0
    for row in changes:
        table = row_table_id(row.key)
        if table is None or store.table_at(TableId(table), Ts(row.commit_ts)) is None:
            continue
        known = [tables for tables in timeline if tables.known_ts < row.commit_ts]
        assert known[-1].published(known[-1].known_ts).starts[TableId(table)] < row.commit_ts
        covered += 1
    assert covered > 17_000
    assert len(timeline) > 90


def test_table_set_at_snapshot_takes_all_tables_from_its_ts() -> None:
    store = SchemaStore.empty()
    store.apply(DdlRecord(kind="snapshot_end", ts=Ts(5), payload={}))
    assert TableSet.at_snapshot(store, Ts(5)) == TableSet(known_ts=Ts(5), starts={})
