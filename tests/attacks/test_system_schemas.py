"""The bus's own schema, and every other system schema, is never replicated: not by the filter, not by the store."""

import pytest

from consumers.processors.apply.destination import SCHEMA
from schemas.ddl.schema_store import NoSchema
from schemas.errors import BusError
from schemas.ids import TableId, Ts
from sorters.core.filter.table_filter import TableFilter
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

NEVER = [SCHEMA, "TideBus", "mysql", "INFORMATION_SCHEMA", "performance_schema", "metrics_schema", "inspection_schema"]
NEVER += ["sys", "workload_schema", "tidb_cdc", "lightning_task_info", "DM_HEARTBEAT"]
CREATE_SCHEMA, CREATE_TABLE = 1, 3


@pytest.mark.parametrize("schema", NEVER)
def test_no_rule_covers_a_system_schema(schema: str) -> None:
    for rules in (["*.*"], [f"{schema}.*"], ["/.*/./.*/"], [f"{schema}.position", "*.*"]):
        assert not TableFilter(rules).matches(schema, "position")
        assert not TableFilter(rules).matches_schema(schema)


@pytest.mark.parametrize("schema", NEVER)
def test_tables_of_a_system_schema_are_never_pulled_and_their_rows_are_no_rows(schema: str) -> None:
    store = snapshot((schema, 2, [table_info(100, "position")]), ("d", 3, [table_info(101, "t")]))
    create = job(20, CREATE_TABLE, schema_id=2, schema=schema, table_id=102, table_info=table_info(102, "changefeed"))
    assert store.apply(create) is None
    assert {*store.pullable_tables_at(Ts(20))} == {101}
    for table_id in (100, 102):
        assert store.is_system(TableId(table_id))
        assert store.lookup(TableId(table_id), Ts(21)) is NoSchema.SYSTEM


def test_schema_that_the_bus_makes_at_a_destination_gives_no_event() -> None:
    store = snapshot(("d", 3, [table_info(101, "t")]))
    info = {"id": 9, "db_name": {"O": SCHEMA, "L": SCHEMA}}
    try:
        assert store.apply(job(20, CREATE_SCHEMA, schema_id=9, schema=SCHEMA, db_info=info)) is None
    except BusError as error:
        pytest.fail(str(error))
