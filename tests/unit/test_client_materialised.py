"""A table made of batches, and its proof, against hashes made here by hashlib alone."""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from consumers.client import ChangeBatch, Ddl, Row
from consumers.client.canal_json import CanalJsonDecoder
from consumers.client.core.partition import PartitionKey, StreamRecord
from consumers.client.errors import ProofLostError
from consumers.client.materialised import MaterialisedTable
from schemas.errors import ConfigError, CorruptDataError
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp
from schemas.state_proof.row_text import TableProof

TYPES = {"id": "bigint unsigned", "s": "varchar(9)", "f": "float"}


def expected(*rows: str) -> TableProof:
    """Of rows as texts: hexadecimal, by commas, ~ for NULL."""
    hashes = [int(hashlib.md5(row.encode()).hexdigest()[:16], 16) for row in rows]
    xor = 0
    for number in hashes:
        xor ^= number
    return TableProof(len(rows), xor)


def row(
    op: Literal["insert", "update", "delete"], columns: Mapping[str, Any], old: Mapping[str, Any] | None = None
) -> Row:
    return Row(
        schema="d",
        table="t",
        op=op,
        commit_ts=Ts(1),
        start_ts=Ts(1),
        columns=columns,
        old=old,
        key_names=("id",),
        types=TYPES,
    )


def ddl(query: str) -> Ddl:
    return Ddl(schema="d", table="t", query=query, commit_ts=Ts(1), start_ts=Ts(1))


def batch(ts: int, *changes: Row | Ddl) -> ChangeBatch:
    return ChangeBatch(watermark_ts=Ts(ts), changes=changes)


def filled() -> MaterialisedTable:
    table = MaterialisedTable("d", "t")
    table.apply(batch(5, row("insert", {"id": 1, "s": "ü", "f": 0.1}), row("insert", {"id": 2, "s": None, "f": -0.0})))
    return table


def test_materialised_table_of_inserts_has_their_proof() -> None:
    table = filled()
    assert table.watermark_ts == 5
    # 0.1 as a FLOAT is 0.10000000149011612; "ü" is c3 bc.
    assert table.proof() == expected(f"31,C3BC,{b'0.10000000149011612'.hex().upper()}", "32,~,30")


def test_materialised_table_after_changes_has_the_proof_of_what_is_left() -> None:
    table = filled()
    table.apply(
        batch(
            9,
            row("update", {"id": 3, "s": "x", "f": 1.5}, {"id": 1, "s": "ü", "f": 0.1}),
            row("delete", {"id": 2, "s": None, "f": 0.0}),
            Row(schema="d", table="other", op="insert", commit_ts=Ts(7), start_ts=Ts(6), columns={"id": 9}),
        )
    )
    assert table.proof() == expected("33,78,312E35")
    assert list(table.rows) == [(3,)]


def test_materialised_table_when_rows_come_again_counts_each_once() -> None:
    table = filled()
    before = table.proof()
    table.apply(batch(6, row("insert", {"id": 1, "s": "ü", "f": 0.1})))
    assert table.proof() == before


def test_materialised_table_after_a_ddl_that_changes_rows_has_no_proof() -> None:
    table = filled()
    table.apply(batch(6, ddl("CREATE INDEX `i` ON `t` (`s`)")))
    assert table.proof().rows == 2
    table.apply(batch(7, ddl("ALTER TABLE `t` ADD COLUMN `n` INT DEFAULT 5")))
    with pytest.raises(ProofLostError):
        table.proof()
    table.apply(batch(8, ddl("TRUNCATE TABLE `t`")))
    assert table.proof() == TableProof()


def test_materialised_table_of_a_type_that_is_not_told_in_full_needs_it_given() -> None:
    value = (
        b'{"database":"d","table":"t","pkNames":["id"],"isDdl":false,"type":"INSERT","old":null,'
        b'"mysqlType":{"id":"int","e":"enum","b":"bit"},"data":[{"id":"1","e":"2","b":"257"}]}'
    )
    position = Position(Ts(4), PositionClass.ROW, Ts(3), RowOp.INSERT, b"k")
    change = CanalJsonDecoder()(StreamRecord(PartitionKey("t", 0), 0, None, value, position.encode()), position)
    table = MaterialisedTable("d", "t")
    table.apply(batch(5, change))
    with pytest.raises(CorruptDataError):
        table.proof()
    in_full = MaterialisedTable("d", "t", types={"e": "enum('a','b')", "b": "bit(9)"})
    in_full.apply(batch(5, change))
    assert in_full.proof() == expected("31,62,0101")
    assert in_full.tidb_sql().startswith("select count(*), count(h), coalesce(bit_xor(h), 0) from (select cast(conv(")


def test_materialised_table_of_unknown_types_refuses_a_proof() -> None:
    table = MaterialisedTable("d", "t")
    change = Row(
        schema="d", table="t", op="insert", commit_ts=Ts(1), start_ts=Ts(1), columns={"id": 1}, key_names=("id",)
    )
    table.apply(batch(5, change))
    with pytest.raises(ConfigError):
        table.proof()


def test_materialised_table_while_rows_below_its_watermark_come_has_no_proof_and_keeps_its_watermark() -> None:
    table = filled()
    table.apply(batch(3))
    assert table.watermark_ts == 5
    assert table.proof().rows == 2, "what came is of other tables"
    table.apply(batch(4, row("insert", {"id": 3, "s": "x", "f": 1.5})))
    with pytest.raises(ProofLostError, match="still coming"):
        table.proof()
    table.apply(batch(5))
    assert table.proof().rows == 3
