"""Which DDL events go downstream, against what TiCDC did with every job of the recording."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from sorters.core.feed.ddl_filter import RenameIntoFilterError, TableBecameIneligibleError, events_to_send
from sorters.core.feed.feed import CompiledFeed, compile_feed
from tests.support.recording import committed_changes, oracle
from tests.support.schema_feed import ddl_records


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
