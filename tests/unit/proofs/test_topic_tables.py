"""Tables as ``tidebus verify`` reads them from topics, against hashes made here by hashlib alone."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, cast

from consumers.client.changes import ChangeBatch, Ddl, Row
from consumers.client.errors import ProofLostError
from consumers.verify.core.columns import ColumnRow, Compared, KeyRow, compared
from consumers.verify.table_check import SourceAt, TablePair
from consumers.verify.topic_check import TopicTables, topic_tables
from consumers.verify.topic_side import TopicTable
from schemas.ids import Ts
from schemas.state_proof.proof_sql import Dialect


def hashed(row: str) -> int:
    """Of a row's text: hexadecimal, by commas."""
    return int(hashlib.md5(row.encode()).hexdigest()[:16], 16)


def what_of(columns: Mapping[str, str], key: str) -> Compared:
    rows = [ColumnRow(name, kind, "") for name, kind in columns.items()]
    return compared(rows, [KeyRow("u", key, False)], list(columns), Dialect.TIDB)


def row(
    table: str,
    columns: Mapping[str, Any],
    *key_names: str,
    op: Literal["insert", "update", "delete"] = "insert",
    schema: str = "d",
) -> Row:
    return Row(schema=schema, table=table, op=op, commit_ts=Ts(2), start_ts=Ts(1), columns=columns, key_names=key_names)


def batch(*changes: Row | Ddl) -> ChangeBatch:
    return ChangeBatch(watermark_ts=Ts(9), changes=changes)


def hashes(table: TopicTable) -> list[int]:
    return sorted(row.hash for row in table.rows.values())


def test_topic_table_whose_messages_name_no_key_goes_by_the_sources_unique_key() -> None:
    table = TopicTable(("d", "t"), what_of({"code": "int", "s": "varchar(9)"}, "code"))
    tables = TopicTables({("d", "t"): table})
    tables.apply(batch(*(row("t", {"code": code, "s": "x"}) for code in (1, 2, 3))))
    tables.apply(batch(row("t", {"code": 2}, op="delete")))
    assert not tables.lost
    assert hashes(table) == sorted([hashed("31,78"), hashed("33,78")])
    assert sorted(row.key for row in table.rows.values()) == [("1",), ("3",)]


def sanitized(name: str) -> str:
    """As Avro's schemas have names, of those below."""
    return {"order-lines": "order_lines", "a-b": "a_b", "my-shop": "my_shop"}.get(name, name)


class Source:
    """Tables of a TiDB, each with its columns; the first is the key."""

    def __init__(self, tables: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        self._tables = tables

    def columns(self, table: tuple[str, str]) -> list[ColumnRow]:
        return [ColumnRow(name, kind, "") for name, kind in self._tables[table].items()]

    def keys(self, table: tuple[str, str]) -> list[KeyRow]:
        return [KeyRow("PRIMARY", next(iter(self._tables[table])), False)]

    @contextmanager
    def at(self, ts: Ts) -> Iterator["Source"]:
        yield self


def read_tables(tables: Mapping[tuple[str, str], Mapping[str, str]], *wanted: tuple[str, str]) -> TopicTables:
    pairs = [TablePair(source=name, destination=name, partition_of=lambda _: 0) for name in wanted or tables]
    return topic_tables(pairs, cast("SourceAt", Source(tables).at), name_of=sanitized, others=tables)


def test_topic_tables_of_messages_with_other_names_find_rows_ddl_and_images_by_these() -> None:
    name = ("my-shop", "order-lines")
    tables = read_tables({name: {"a-b": "int", "s": "varchar(9)"}})
    table = tables.tables[name]
    ddl = Ddl(schema="my_shop", table="order_lines", query="TRUNCATE TABLE `x`", commit_ts=Ts(2), start_ts=Ts(1))
    rows = [row("order_lines", {"a_b": number, "s": "x"}, "a_b", schema="my_shop") for number in (1, 2)]
    tables.apply(replace(batch(rows[0], ddl, rows[1]), images_left=1, waiting=(("my_shop", "order_lines"),)))
    assert (hashes(table), table.missing, table.is_whole) == ([hashed("32,78")], frozenset(), False)
    tables.apply(replace(batch(), whole=(("my_shop", "order_lines"),)))
    assert table.is_whole
    assert not tables.lost


def test_topic_tables_whose_messages_have_one_name_for_two_are_not_compared() -> None:
    both = {("d", "order-lines"): {"id": "int"}, ("d", "order_lines"): {"id": "int"}}
    said = "messages have one name for several tables: d.order-lines, d.order_lines"
    for wanted in ((), (("d", "order-lines"),)):
        tables = read_tables({**both, ("d", "t"): {"id": "int"}}, *wanted)
        assert tables.lost == dict.fromkeys(wanted or both, said)
    columns = read_tables({("d", "t"): {"id": "int", "a-b": "int", "a_b": "int"}})
    assert columns.lost == {("d", "t"): "messages have one name for several columns: a-b, a_b"}


def test_topic_tables_take_in_ddl_of_another_table_in_its_order() -> None:
    tables = read_tables({("d", name): {"id": "int"} for name in ("t", "u", "p")})
    stamps = {"commit_ts": Ts(2), "start_ts": Ts(1)}
    exchange = Ddl(schema="d", table="p", query="ALTER TABLE `p` EXCHANGE PARTITION `a` WITH TABLE `t`", **stamps)
    drop = Ddl(schema="d", table="", query="DROP DATABASE `d`", **stamps)
    tables.apply(batch(row("u", {"id": 1}, "id"), drop, row("u", {"id": 2}, "id"), exchange))
    reasons = {}
    for (_, name), table in tables.tables.items():
        try:
            table.check_proven()
        except ProofLostError as error:
            reasons[name] = error
    assert sorted(reasons) == ["p", "t"]
    assert hashes(tables.tables["d", "u"]) == [hashed("32")]


class Asked(TopicTable):
    """A table that notes the queries and rows that it was given."""

    def apply(self, batch: ChangeBatch) -> None:
        self.given = [change.query if isinstance(change, Ddl) else change.columns["id"] for change in batch.changes]
        super().apply(batch)


def asked_tables(*names: tuple[str, str]) -> dict[tuple[str, str], TopicTable]:
    return {name: Asked(name, what_of({"id": "int"}, "id"), sanitized) for name in names}


def test_topic_tables_give_a_ddl_to_the_tables_that_it_may_change_alone() -> None:
    names = [("d", "t"), ("d", "T2"), ("e", "t"), ("my-shop", "order-lines"), ("my-shop", "t"), ("f", "x")]
    tables = TopicTables(asked_tables(*names))
    queries = {
        "ALTER TABLE `d`.`t` ADD COLUMN `x` INT": ("d", "t"),
        "ALTER TABLE `gone` ADD COLUMN `t` INT": ("d", "gone"),
        "CREATE TABLE `x` LIKE `d`.`t`": ("f", "x"),
        "RENAME TABLE `t2` TO `x`": ("d", "x"),
        "RENAME TABLE `t` TO `f`.`x`": ("f", "x"),
        "RENAME TABLE `my-shop`.`order-lines` TO `d`.`t`": ("d", "t"),
        "FLASHBACK DATABASE `E`": ("e", ""),
        "DROP DATABASE `my-shop`": ("my_shop", ""),
        "DROP DATABASE `gone`": ("gone", ""),
    }
    ddl = [
        Ddl(schema=schema, table=table, query=query, commit_ts=Ts(2), start_ts=Ts(1))
        for query, (schema, table) in queries.items()
    ]
    tables.apply(batch(*ddl))
    add, _, like, rename, move, lines, flashback, drop, _ = queries
    assert {name: cast("Asked", table).given for name, table in tables.tables.items()} == {
        ("d", "t"): [add, move, lines],
        ("d", "T2"): [rename],
        ("e", "t"): [move, flashback],
        ("my-shop", "order-lines"): [lines, drop],
        ("my-shop", "t"): [move, drop],
        ("f", "x"): [like, move],
    }


def test_topic_tables_give_a_table_its_rows_and_ddl_in_their_order() -> None:
    tables = TopicTables(asked_tables(("d", "t"), ("d", "u")))
    stamps = {"commit_ts": Ts(2), "start_ts": Ts(1)}
    empty = Ddl(schema="d", table="t", query="TRUNCATE TABLE `t`", **stamps)
    drop = Ddl(schema="d", table="", query="DROP DATABASE `d`", **stamps)
    rows = [row("t", {"id": number}, "id") for number in range(4)]
    tables.apply(batch(rows[0], empty, rows[1], row("u", {"id": 9}, "id"), rows[2], drop, rows[3]))
    assert cast("Asked", tables.tables["d", "t"]).given == [0, empty.query, 1, 2, drop.query, 3]
    assert cast("Asked", tables.tables["d", "u"]).given == [9, drop.query]
