"""A table made of batches, and its proof, against hashes made here by hashlib alone."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest

from consumers.client import ChangeBatch, Ddl, Row
from consumers.client.canal_json import CanalJsonDecoder
from consumers.client.core.partition import PartitionKey, StreamRecord
from consumers.client.core.stream import ReadPosition, StreamReader
from consumers.client.errors import ProofLostError
from consumers.client.materialised import MaterialisedTable
from schemas.errors import ConfigError, CorruptDataError
from schemas.ids import Ts
from schemas.sink.image_note import NOTHING_TO_COME, ImageNote
from schemas.sink.position import Position, PositionClass, RowOp
from schemas.state_proof.row_text import TableProof
from tests.support.recorded.recording import oracle

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
        commit_ts=Ts(2),
        start_ts=Ts(1),
        columns=columns,
        old=old,
        key_names=("id",),
        types=TYPES,
    )


def ddl(query: str) -> Ddl:
    return Ddl(schema="d", table="t", query=query, commit_ts=Ts(2), start_ts=Ts(1))


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


def of_other(schema: str, table: str, query: str) -> Ddl:
    return Ddl(schema=schema, table=table, query=query, commit_ts=Ts(2), start_ts=Ts(1))


@pytest.mark.parametrize(
    "other",
    [
        of_other("d", "p", "ALTER TABLE `d`.`p` EXCHANGE PARTITION `p1` WITH TABLE `d`.`t`"),
        of_other("e", "p", "alter table p exchange partition p1 with table D . T"),
        of_other("e", "u", "RENAME TABLE `d`.`t` TO `e`.`u`"),
        of_other("d", "u", "RENAME TABLE `t` TO `u`"),
        of_other("e", "u", "RENAME TABLE `t` TO `e`.`u`"),
        of_other("d", "u", "ALTER TABLE `t` RENAME AS `u`"),
        of_other("d", "u", "RENAME TABLE `a` TO `u`, `t` TO `a`"),
        of_other("d", "u", "FLASHBACK TABLE `t` TO `u`"),
        of_other("d", "", "FLASHBACK DATABASE `d`"),
        of_other("e", "", "FLASHBACK DATABASE `d` TO `e`"),
        of_other("D", "", "DROP DATABASE `D`"),
        of_other("d", "u", "ALTER TABLE `t` COMMENT 'it''s `a', RENAME TO `u`"),
        of_other("d", "u", "ALTER TABLE `t` COMMENT 'C:\\', RENAME TO `u`, ALTER `a` SET DEFAULT 'b'"),
        of_other("d", "u", "/* don't */ ALTER TABLE `t` RENAME TO `u` /* don't */"),
        of_other("d", "u", "ALTER TABLE `t` -- don't\n RENAME TO `u` -- don't"),
        of_other("d", "u", "ALTER TABLE `t` # don't\n RENAME TO `u` # don't"),
        of_other("d", "u", "ALTER TABLE `t`RENAME`u`"),
        of_other("d", "u", "ALTER TABLE `t` COMMENT 'RENAME `u`"),
    ],
    ids=lambda ddl: ddl.query,
)
def test_materialised_table_after_a_ddl_of_another_table_that_names_it_has_no_proof(other: Ddl) -> None:
    table = filled()
    table.apply(batch(6, other))
    with pytest.raises(ProofLostError, match="materialise the table anew"):
        table.proof()
    table.apply(batch(8, ddl("CREATE TABLE `t` (`id` INT PRIMARY KEY)")))
    assert table.proof() == TableProof()


def test_materialised_table_of_names_that_avro_changed_goes_by_what_the_statement_has() -> None:
    table = MaterialisedTable("my_shop", "order_lines")
    table.apply(batch(6, of_other("my_shop", "old", "RENAME TABLE `my-shop`.`order-lines` TO `my-shop`.`old`")))
    with pytest.raises(ProofLostError, match="materialise the table anew"):
        table.proof()


@pytest.mark.parametrize("query", ["DROP DATABASE `d`", "drop schema d", "DROP DATABASE IF EXISTS `D`"])
def test_materialised_table_whose_schema_is_dropped_is_empty(query: str) -> None:
    table = filled()
    table.apply(batch(6, of_other("d", "", query)))
    assert table.proof() == TableProof()


@pytest.mark.parametrize("name", ["`shop-1`", "IF EXISTS `shop 1`", "`shop``1` /* shop_1 */", "/* shop_1 */ `shop-1`"])
def test_materialised_table_when_a_schema_that_avro_calls_the_same_is_dropped_has_no_proof(name: str) -> None:
    table = MaterialisedTable("shop_1", "t")
    table.apply(batch(5, replace(row("insert", {"id": 1, "s": "x", "f": 1.5}), schema="shop_1")))
    table.apply(batch(6, of_other("shop_1", "", f"DROP DATABASE {name}")))
    assert list(table.rows) == [(1,)]
    with pytest.raises(ProofLostError, match="materialise the table anew"):
        table.proof()


@pytest.mark.parametrize(
    "other",
    [
        of_other("e", "", "DROP DATABASE `e`"),
        of_other("d", "", "ALTER DATABASE `d` CHARACTER SET = utf8mb4"),
        of_other("e", "", "FLASHBACK DATABASE `e`"),
        of_other("d", "u", "CREATE TABLE `u` LIKE `t`"),
        of_other("d", "u", "DROP TABLE `d`.`u`"),
        of_other("d", "v", "CREATE VIEW `v` AS SELECT `exchange` FROM `d`.`t`"),
        of_other("d", "u", "RENAME TABLE `u` TO `tt`"),
        of_other("e", "u", "RENAME TABLE `t` TO `u`"),
        of_other("e", "u", "RENAME TABLE `e`.`t` TO `e`.`u`"),
        of_other("d", "u", "ALTER TABLE `u` RENAME COLUMN `t` TO `n`"),
        of_other("d", "u", "ALTER TABLE `u` RENAME INDEX `t` TO `n`"),
        of_other("d", "u", "ALTER TABLE `u` ADD CONSTRAINT `c` FOREIGN KEY (`x`) REFERENCES `t`(`id`)"),
        of_other("d", "u", "ALTER TABLE `u` ADD COLUMN `exchange` DECIMAL(10,2), ADD COLUMN `t` INT"),
        of_other("d", "u", "ALTER TABLE `u` ADD COLUMN `a``rename` INT, ADD COLUMN `t` INT"),
        of_other("d", "u", "ALTER TABLE `u` ADD COLUMN `t` INT COMMENT 'the user''s rename'"),
        of_other("d", "u", 'ALTER TABLE `u` ADD COLUMN `t` INT DEFAULT "a "" recover" COMMENT "flashback"'),
        of_other("d", "u", "ALTER TABLE `u` ADD COLUMN `t` ENUM('','`exchange`','/* rename')"),
    ],
    ids=lambda ddl: ddl.query,
)
def test_materialised_table_after_a_ddl_that_leaves_it_alone_keeps_its_proof(other: Ddl) -> None:
    table = filled()
    before = table.proof()
    table.apply(batch(6, other))
    assert table.proof() == before


@pytest.mark.parametrize(
    ("schema", "table_name", "query"),
    [
        ("d1", "t_ex", "EXCHANGE PARTITION"),
        ("d1", "t_ddl", "RENAME TABLE `t_ddl`"),
        ("d1", "t_like", "RENAME TABLE `d1`.`t_like`"),
        ("d2", "t_moved", "DROP DATABASE `d2`"),
    ],
)
def test_materialised_table_takes_in_ddl_that_ticdc_recorded_under_another_name(
    schema: str, table_name: str, query: str
) -> None:
    table = MaterialisedTable(schema, table_name)
    table.apply(batch(5, replace(row("insert", {"id": 1, "s": "x", "f": 1.5}), schema=schema, table=table_name)))
    position = Position(Ts(6), PositionClass.DDL, Ts(5))
    values = [base64.b64decode(line["value"]) for line in oracle("encoded/canal-json") if line["op"] == "ddl"]
    (value,) = [value for value in values if query in json.loads(value)["sql"]]
    change = CanalJsonDecoder()(StreamRecord(PartitionKey("t", 0), 0, None, value, position.encode()), position)
    assert (change.schema, change.table) != (schema, table_name)
    table.apply(batch(6, change))
    if query.startswith("DROP"):
        assert table.proof() == TableProof()
    else:
        with pytest.raises(ProofLostError, match="materialise the table anew"):
            table.proof()


def of_unique_key(op: Literal["insert", "update", "delete"], columns: Mapping[str, Any], **more: Any) -> Row:
    """A row in canal-json of a table whose key is a NOT NULL unique key: ``pkNames`` is empty."""
    return replace(row(op, columns, **more), key_names=())


def test_materialised_table_whose_messages_name_no_key_goes_by_the_one_that_is_given() -> None:
    table = MaterialisedTable("d", "t", key=["id"])
    table.apply(batch(5, *(of_unique_key("insert", {"id": number, "s": "x", "f": 1.5}) for number in (1, 2, 3))))
    table.apply(batch(6, of_unique_key("delete", {"id": 2})))
    table.apply(batch(7, of_unique_key("update", {"id": 4, "s": "x", "f": 1.5}, old={"id": 3})))
    assert table.proof() == expected("31,78,312E35", "34,78,312E35")


@pytest.mark.parametrize(
    ("key", "said"), [((), "a row has no key"), (("id", "code"), r"a row lacks columns of the key: code \(")]
)
def test_materialised_table_refuses_rows_that_nothing_tells_apart(key: tuple[str, ...], said: str) -> None:
    with pytest.raises(ProofLostError, match=said):
        MaterialisedTable("d", "t", key=key).apply(batch(5, of_unique_key("delete", {"id": 1})))


def noted(ts: int, note: ImageNote, *changes: Row | Ddl) -> ChangeBatch:
    return ChangeBatch(
        watermark_ts=Ts(ts), changes=changes, images_left=note.left, whole=note.whole, waiting=note.waiting
    )


ME, OTHER = ("d", "t"), ("d", "u")
IMAGE = replace(row("insert", {"id": 1, "s": "x", "f": 1.5}), start_ts=Ts(2))


@pytest.mark.parametrize(
    ("notes", "whole"),
    [
        ([ImageNote(2, (), (ME, OTHER)), ImageNote(1, (ME,), (OTHER,))], [False, True]),
        ([ImageNote(1, (), (OTHER,))], [True]),
        ([ImageNote(300), ImageNote(299, (ME,)), ImageNote(298, (OTHER,))], [False, True, True]),
        ([ImageNote(300), ImageNote(9, (), (OTHER,))], [False, True]),
        ([ImageNote(300), NOTHING_TO_COME], [False, True]),
    ],
    ids=["named", "another table", "too many to be named", "few in the end", "nothing in the end"],
)
def test_materialised_table_is_whole_from_the_batch_on_that_says_so(notes: list[ImageNote], whole: list[bool]) -> None:
    table = MaterialisedTable(*ME)
    for ts, (note, is_whole) in enumerate(zip(notes, whole, strict=True), 5):
        table.apply(noted(ts, note, *([IMAGE] if ts == 5 else ())))
        assert table.is_whole is is_whole
        if is_whole:
            assert table.proof() == expected("31,78,312E35")
        else:
            with pytest.raises(ProofLostError, match="its image is under way"):
                table.proof()


def test_materialised_table_that_is_resynced_has_no_proof_until_it_is_whole() -> None:
    table = filled()
    truncate = Ddl(schema="d", table="t", query="TRUNCATE TABLE `d`.`t`", commit_ts=Ts(8), start_ts=Ts(8))
    table.apply(noted(8, ImageNote(300), truncate))
    assert not table.is_whole
    table.apply(noted(9, ImageNote(300), IMAGE))
    assert not table.is_whole
    table.apply(noted(10, ImageNote(299, (ME,))))
    assert table.proof() == expected("31,78,312E35")


def watermark(partition: int, offset: int, ts: int, note: ImageNote | None = None) -> StreamRecord:
    position = Position(Ts(ts), PositionClass.WATERMARK).encode()
    return StreamRecord(PartitionKey("t", partition), offset, None, b"", position, note.encode() if note else b"")


def test_reader_of_several_partitions_says_of_images_what_stands_at_its_watermark() -> None:
    reader = StreamReader(1 << 20)
    reader.assign({PartitionKey("t", number): ReadPosition(-1, Ts(0)) for number in (0, 1)})
    both, other, none = ImageNote(2, (), (ME, OTHER)), ImageNote(1, (ME,), (OTHER,)), ImageNote(0, (OTHER,), ())
    for offset, (ts, note) in enumerate([(10, both), (20, other), (30, none), (40, None)]):
        reader.take(watermark(0, offset, ts, note))
    reader.take(watermark(1, 0, 10, both))
    assert (released := reader.release()) is not None
    assert (released.watermark_ts, released.images) == (10, both), "not what a partition says that is further"
    for offset, (ts, note) in enumerate([(20, other), (30, none)], 1):
        reader.take(watermark(1, offset, ts, note))
    assert (released := reader.release()) is not None
    assert released.images == ImageNote(0, (ME, OTHER), ()), "all that became whole"
    reader.take(watermark(1, 3, 40))
    assert (released := reader.release()) is not None
    assert released.images == NOTHING_TO_COME


@pytest.mark.parametrize(
    "header", [b"", b"{", b"[]", b'{"left":-1,"whole":[]}', b'{"left":1,"whole":[["a"]]}', b'{"left":1}']
)
def test_images_header_that_is_none_is_refused(header: bytes) -> None:
    with pytest.raises(CorruptDataError):
        ImageNote.decode(header)


def test_images_header_says_what_it_was_made_of_and_names_no_more_than_a_few() -> None:
    few = ImageNote(2, (ME,), (("d", "a.b"), ("ü", "'")))
    assert ImageNote.decode(few.encode()) == few
    many = ImageNote(500, (), tuple(("d", f"t{number}") for number in range(500)))
    assert ImageNote.decode(many.encode()) == ImageNote(500)
    long = ImageNote(90, (), tuple(("ü" * 64, f"{'ü' * 60}{number}") for number in range(90)))
    assert len(long.encode()) < 100
