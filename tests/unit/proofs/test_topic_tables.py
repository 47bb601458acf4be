"""Tables as ``tidebus verify`` reads them from topics, against hashes made here by hashlib alone."""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

from consumers.client.changes import ChangeBatch, Ddl, Row
from consumers.verify.core.columns import ColumnRow, Compared, KeyRow, compared
from consumers.verify.topic_check import TopicTables
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
