"""The names that ``ignore-event`` of an event filter may hold, and what each covers."""

ALL_DML = "all dml"
ALL_DDL = "all ddl"
DML_EVENTS = ("insert", "update", "delete")
ALTER_TABLE = "alter table"

DDL_EVENT_OF_TYPE: dict[str, str] = {
    "create schema": "create schema",
    "drop schema": "drop schema",
    "create table": "create table",
    "create tables": "create table",
    "drop table": "drop table",
    "rename table": "rename table",
    "rename tables": "rename table",
    "truncate table": "truncate table",
    "create view": "create view",
    "drop view": "drop view",
    "recover table": "recover table",
    "flashback schema": "recover database",
    "modify schema charset and collate": "modify schema charset and collate",
    "add partition": "add table partition",
    "drop partition": "drop table partition",
    "truncate partition": "truncate table partition",
    "exchange partition": "exchange table partition",
    "alter table reorganize partition": "reorganize table partition",
    "alter table partition by": "alter table partitioning",
    "alter table remove partitioning": "remove table partitioning",
    "add column": "add column",
    "add multi-columns": "add column",
    "drop column": "drop column",
    "drop multi-columns": "drop column",
    "modify column": "modify column",
    "set default value": "set default value",
    "add index": "create index",
    "drop index": "drop index",
    "add primary key": "add primary key",
    "drop primary key": "drop primary key",
    "rename index": "rename index",
    "alter index visibility": "alter index visibility",
    "rebase auto_increment ID": "rebase auto id",
    "modify table comment": "modify table comment",
    "modify table charset and collate": "modify table charset and collate",
    "alter table ttl": "alter ttl info",
    "alter table no_ttl": "alter ttl remove",
    "alter table multi-schema change": "multi schema change",
    "add foreign key": "add foreign key",
    "drop foreign key": "drop foreign key",
    "add fulltext index": "add fulltext index",
    "create hybrid index": "create hybrid index",
}
"""TiDB's name of a DDL job's type to the event name; jobs of many count as their single form. A type that is not
here is never ignored."""

ALIASES = {"create database": "create schema", "drop database": "drop schema"}

ALTER_TABLE_EVENTS = frozenset(DDL_EVENT_OF_TYPE.values()) - {
    *("create schema", "drop schema", "recover database", "modify schema charset and collate"),
    *("create table", "drop table", "truncate table", "recover table"),
    *("create view", "drop view", "add foreign key", "drop foreign key", "add fulltext index", "create hybrid index"),
}
"""What ``alter table`` covers. Source: pingcap/tiflow ``pkg/filter/utils.go``, ``alterTableSubType``."""

EVENT_NAMES = (
    ALL_DML,
    ALL_DDL,
    *DML_EVENTS,
    ALTER_TABLE,
    *sorted(set(DDL_EVENT_OF_TYPE.values()) | set(ALIASES)),
)
"""All that may stand in ``ignore-event``, in any case."""
