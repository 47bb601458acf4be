"""Event filters: ignore-event and ignore-sql."""

from typing import Any

import pytest

from schemas.config.filter.event_names import ALTER_TABLE_EVENTS, DDL_EVENT_OF_TYPE, EVENT_NAMES
from schemas.config.sink.sink import EventFilterRule
from schemas.ddl.job import DDL_TYPE_NAMES
from schemas.sink.position import RowOp
from sorters.core.filter.event_filter import EventFilter
from tests.support.recorded.recording import oracle


def event_filter(**rule: Any) -> EventFilter:
    return EventFilter([EventFilterRule(**{"matcher": ("test.*",), **rule})])


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((), set()),
        (("insert",), {RowOp.INSERT}),
        (("Delete", "UPDATE"), {RowOp.DELETE, RowOp.UPDATE}),
        (("all dml",), {RowOp.INSERT, RowOp.UPDATE, RowOp.DELETE}),
        (("all ddl", "drop table"), set()),
    ],
)
def test_event_filter_row_events_are_ignored_by_name(events: tuple[str, ...], expected: set[RowOp]) -> None:
    assert event_filter(ignore_event=events).ignored_ops("test", "t") == expected
    assert not event_filter(ignore_event=events).ignored_ops("other", "t")


def test_event_filter_matcher_follows_case_sensitive_and_empty_matches_nothing() -> None:
    rule = EventFilterRule(matcher=("test.*",), ignore_event=("insert",), ignore_sql=("^drop",))
    assert not EventFilter([rule], case_sensitive=True).ignored_ops("TEST", "t")
    assert not EventFilter([rule], case_sensitive=True).ignores_ddl("drop table", "drop table t", "Test", "t")
    assert EventFilter([rule]).ignored_ops("TEST", "t") == {RowOp.INSERT}
    assert EventFilter([rule]).ignores_ddl("drop table", "drop table t", "Test", "t")
    assert not event_filter(matcher=(), ignore_event=("insert",)).ignored_ops("test", "t")


def test_event_filter_value_expressions_have_case_sensitive_matchers_as_in_ticdc() -> None:
    rule = EventFilterRule(matcher=("test.*",), ignore_insert_value_expr="id = 1")
    assert EventFilter([rule]).has_conditions("test", "t")
    assert not EventFilter([rule]).has_conditions("TEST", "t")


def test_event_filter_two_rules_match_either_ignores() -> None:
    both = EventFilter(
        [
            EventFilterRule(matcher=("test.*",), ignore_event=("insert",)),
            EventFilterRule(matcher=("*.t",), ignore_event=("delete",), ignore_sql=("^drop",)),
        ]
    )
    assert both.ignored_ops("test", "t") == {RowOp.INSERT, RowOp.DELETE}
    assert both.ignored_ops("test", "x") == {RowOp.INSERT}
    assert both.ignores_ddl("drop table", "DROP TABLE t", "test", "t")


@pytest.mark.parametrize(
    ("events", "ddl_type", "expected"),
    [
        (("drop table",), "drop table", True),
        (("drop table",), "create table", False),
        (("all ddl",), "truncate table", True),
        (("all dml",), "truncate table", False),
        (("alter table",), "add column", True),
        (("alter table",), "add index", True),
        (("create index",), "add index", True),
        (("alter table",), "drop table", False),
        (("alter table",), "rename table", True),
        (("alter table",), "add foreign key", False),
        (("rename table",), "rename tables", True),
        (("create database",), "create schema", True),
        (("drop database",), "drop schema", True),
        (("all ddl",), "create sequence", False),  # a type without an event name is never ignored
    ],
)
def test_event_filter_ddl_is_ignored_by_type(events: tuple[str, ...], ddl_type: str, expected: bool) -> None:
    assert event_filter(ignore_event=events).ignores_ddl(ddl_type, "…", "test", "t") is expected


@pytest.mark.parametrize(
    ("expressions", "query", "expected"),
    [
        (("^drop",), "DROP TABLE t", True),
        (("^drop",), "ALTER TABLE t DROP COLUMN a", False),
        (("column",), "alter table t add COLUMN a int", True),
        (("^x", "y$"), "ends in y", True),
        (("a|b", "^c"), "xb", True),
        (("^drop",), "drop \n table", True),
    ],
)
def test_event_filter_ddl_is_ignored_by_text_in_any_case(
    expressions: tuple[str, ...], query: str, expected: bool
) -> None:
    events = event_filter(ignore_sql=expressions)
    assert events.ignores_ddl("drop table", query, "test", "t") is expected
    assert not events.ignored_ops("test", "t")


def test_event_filter_ddl_on_a_schema_is_matched_by_schema_alone() -> None:
    events = event_filter(matcher=("test.t1",), ignore_sql=("^drop",))
    assert events.ignores_ddl("drop schema", "DROP DATABASE test", "test", "")
    assert not events.ignores_ddl("drop schema", "DROP DATABASE other", "other", "")


def test_event_names_cover_every_recorded_ddl_type() -> None:
    types = {event["type"] for line in oracle("ddl_events") for event in line.get("events", [])}
    assert types <= set(DDL_EVENT_OF_TYPE)
    assert len(types) == 29


def test_event_names_cover_every_replicated_ddl_type() -> None:
    assert set(DDL_TYPE_NAMES.values()) <= set(DDL_EVENT_OF_TYPE)


def test_event_names_alter_table_covers_only_names() -> None:
    assert set(EVENT_NAMES) > ALTER_TABLE_EVENTS
    assert {"create index", "drop index", "add column", "multi schema change"} <= ALTER_TABLE_EVENTS
    assert not {"create table", "drop schema", "truncate table"} & ALTER_TABLE_EVENTS
