"""Which DDL events go downstream, against what TiCDC did with every job of the recording."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from sorters.core.encode.sql.create_table import create_table
from sorters.core.feed.ddl_filter import RenameIntoFilterError, TableBecameIneligibleError, events_to_send
from sorters.core.feed.ddl_route import routed_event
from sorters.core.feed.feed import CompiledFeed, compile_feed
from tests.support.recorded.ddl_jobs import job, snapshot, table_info
from tests.support.recorded.recording import committed_changes, oracle
from tests.support.recorded.schema_feed import ddl_records


@pytest.fixture(scope="module")
def changes() -> dict[int, SchemaChange]:
    """What each user DDL job changed, by its commit_ts."""
    store = SchemaStore.empty()
    applied = (store.apply(record) for record in ddl_records(committed_changes()))
    return {change.job.finished_ts: change for change in applied if change is not None}


def _feed(**config: object) -> CompiledFeed:
    return compile_feed(load_changefeed("kafka://h:1/t?protocol=canal-json", config), "default")


def _renames(changes: dict[int, SchemaChange]) -> SchemaChange:
    renames = (change for change in changes.values() if change.job.type is DdlType.RENAME_TABLE)
    return next(change for change in renames if change.tables[0].pre and change.tables[0].pre.eligible)


def test_events_to_send_for_every_recorded_job_is_what_ticdc_sent(changes: dict[int, SchemaChange]) -> None:
    seen = {"sent": 0, "not sent": 0, "error": 0}
    for line in oracle("ddl_events"):
        change = changes.get(line["commit_ts"])
        why = line.get("not_sent") or ""
        if why.startswith("error:"):
            assert change is not None
            with pytest.raises(TableBecameIneligibleError):
                events_to_send(change, _feed())
            seen["error"] += 1
        elif why:
            assert change is None or events_to_send(change, _feed()) == []
            seen["not sent"] += 1
        else:
            assert change is not None, line
            got = [(event.seq, event.schema, event.table, event.query) for event in events_to_send(change, _feed())]
            assert got == [(e["seq"], e["schema"], e["table"], e["restored_query"]) for e in line["events"]]
            seen["sent"] += 1
    assert seen["error"] == 1
    assert min(seen.values()) > 0


def test_events_to_send_when_its_transaction_is_ignored_sends_nothing(changes: dict[int, SchemaChange]) -> None:
    change = _renames(changes)
    assert events_to_send(change, _feed())
    assert events_to_send(change, _feed(filter={"ignore-txn-start-ts": [change.job.start_ts]})) == []


def test_events_to_send_on_rename_follows_the_old_name_and_refuses_one_into_the_filter(
    changes: dict[int, SchemaChange],
) -> None:
    change = _renames(changes)
    pre, post = change.tables[0].pre, change.tables[0].post
    assert pre is not None
    assert post is not None
    old, new = f"{pre.schema}.{pre.table}", f"{post.schema}.{post.table}"
    assert len(events_to_send(change, _feed(filter={"rules": [old]}))) == 1
    assert events_to_send(change, _feed(filter={"rules": ["other.*"]})) == []
    with pytest.raises(RenameIntoFilterError):
        events_to_send(change, _feed(filter={"rules": [new]}))


def test_events_to_send_with_event_filter_ignores_the_named_events(changes: dict[int, SchemaChange]) -> None:
    change = _renames(changes)
    ignoring = {"filter": {"event-filters": [{"matcher": ["*.*"], "ignore-event": ["rename table"]}]}}
    assert events_to_send(change, _feed(**ignoring)) == []


def _renamed(*renames: tuple[int, str], pk_is_handle: bool = True) -> SchemaChange:
    """Return what a job does that gives tables of schema d, called t11 and so on, other names."""
    store = snapshot(("d", 1, [table_info(table, f"t{table}", pk_is_handle=pk_is_handle) for table in (11, 12)]))
    infos = {table: table_info(table, name, pk_is_handle=pk_is_handle) for table, name in renames}
    if len(renames) == 1:
        ((table, info),) = infos.items()
        record = job(20, DdlType.RENAME_TABLE, schema_id=1, table_id=table, table_info=info)
    else:
        names = [{"O": name, "L": name} for _, name in renames]
        args = [
            [1] * len(renames),
            [1] * len(renames),
            names,
            [table for table, _ in renames],
            [{"O": "d", "L": "d"}] * 2,
        ]
        record = job(20, DdlType.RENAME_TABLES, schema_id=1, raw_args=args, table_infos=list(infos.values()))
    change = store.apply(record)
    assert change is not None
    return change


def _sent(change: SchemaChange, rule: str, **config: object) -> list[tuple[DdlType, str, str]]:
    feed = _feed(filter={"rules": [rule]}, **config)
    events = [routed_event(event, feed.routes) for event in events_to_send(change, feed)]
    return [(event.type, event.pre_table, event.table) for event in events]


IMAGED = {"initial": "snapshot"}


def test_rename_into_the_filter_of_a_table_that_gets_an_image_is_its_creation() -> None:
    change = _renamed((11, "a"))
    (event,) = events_to_send(change, _feed(filter={"rules": ["d.a"]}, **IMAGED))
    assert (event.type, event.schema, event.table, event.pre, event.pre_table) == (
        DdlType.CREATE_TABLE,
        "d",
        "a",
        None,
        "",
    )
    assert (event.commit_ts, event.start_ts, event.seq) == (20, change.job.start_ts, 0)
    assert change.tables[0].post is not None
    assert event.query == create_table(change.tables[0].post)
    rules = [{"matcher": ["d.a"], "initial": "snapshot"}]
    assert _sent(change, "d.a", **{"initial-rules": rules}) == [(DdlType.CREATE_TABLE, "", "a")]
    routes = [{"matcher": ["d.a"], "target-schema": "e", "target-table": "x_{table}"}]
    routed = _feed(filter={"rules": ["d.a"]}, sink={"dispatchers": routes}, **IMAGED)
    (event,) = (routed_event(event, routed.routes) for event in events_to_send(change, routed))
    assert event.query.startswith("CREATE TABLE IF NOT EXISTS `e`.`x_a` ")


def test_rename_into_the_filter_of_a_table_that_gets_no_image_is_refused() -> None:
    change = _renamed((11, "a"))
    others = [{"matcher": ["d.a"], "initial": "none"}]
    for config in ({}, {**IMAGED, "initial-rules": others}):
        with pytest.raises(RenameIntoFilterError):
            _sent(change, "d.a", **config)
    with pytest.raises(RenameIntoFilterError):
        _sent(_renamed((11, "a"), pk_is_handle=False), "d.a", **IMAGED)


def test_of_several_renames_each_into_the_filter_is_a_creation() -> None:
    change = _renamed((11, "gone"), (12, "t11"))
    assert _sent(change, "d.t11", **IMAGED) == [
        (DdlType.RENAME_TABLE, "t11", "gone"),
        (DdlType.CREATE_TABLE, "", "t11"),
    ]


def test_created_by_rename_is_left_out_where_an_event_filter_leaves_out_creations() -> None:
    ignoring = [{"matcher": ["d.a"], "ignore-event": ["create table"]}]
    filters = {"rules": ["d.a"], "event-filters": ignoring}
    assert events_to_send(_renamed((11, "a")), _feed(filter=filters, **IMAGED)) == []
