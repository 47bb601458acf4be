"""Rows of commits that the sorter writes by columns are those that Spark's MERGE writes, whatever the changes are."""

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compose.stack.spark_files import name_spark_files
from schemas.config.sink.lake_layout import PartitionTerm
from schemas.ids import TableId, Ts
from sorters.core.lake.columns import OP, LakeColumn, arrow_type
from sorters.core.lake.errors import LakeOvertakenError
from sorters.core.lake.evolution import Evolution, LakeField, plan_evolution
from sorters.core.lake.layout import LakeLayout
from sorters.core.lake.resync import LakeResync
from sorters.run.lake.catalog import LakeCatalog
from sorters.run.lake.files import LakeFiles
from sorters.run.lake.maintenance import Compacted, compact
from sorters.run.lake.names import LakeName
from sorters.run.lake.rows import LakeRows
from sorters.run.lake.table import LakeOwner, LakeTable
from sorters.spark.session import create_session
from tests.integration.lake.test_lake_sink import nightly, patient
from tests.support.lakes.duckdb_lake import assert_duckdb_reads_the_same
from tests.support.lakes.lake import Lake

OWNER = LakeOwner("default/files", "default/files/1", "tidebus_files")
ROUNDS, KEYS = 8, 40
KEY = ("id", "part")
TYPES = {
    "id": "long",
    "part": "string",
    "v": "int",
    "f": "float",
    "d": "double",
    "text": "string",
    "bytes": "binary",
    "day": "date",
    "at": "timestamp",
    "stamp": "timestamptz",
    "money": "decimal(5, 2)",
    "big": "decimal(20, 0)",
}
COLUMNS = tuple(LakeColumn(number, name, type_name) for number, (name, type_name) in enumerate(TYPES.items(), 1))


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[LakeRows]:
    name_spark_files()
    spark = create_session("local[2]", "files", tmp_path / "spark")
    yield LakeRows(spark, {"type": "hadoop", "warehouse": str(tmp_path / "lake")}, OWNER.branch)
    spark.stop()


def _changes(chance: random.Random, columns: tuple[LakeColumn, ...]) -> pa.Table:
    """Return the last changes of some keys, in no order."""
    keys = chance.sample([(number, part) for number in range(KEYS) for part in ("a", "ü")], 25)
    made = [{OP: chance.choice("IUUD"), **_row(chance, *key)} for key in keys]
    fields = [pa.field(OP, pa.string()), *(pa.field(each.name, arrow_type(each.type)) for each in columns)]
    return pa.table({f.name: pa.array([row[f.name] for row in made], f.type) for f in fields}, schema=pa.schema(fields))


def _row(chance: random.Random, number: int, part: str) -> dict[str, Any]:
    at = datetime(2026, 1, 1, microsecond=chance.randrange(10**6))  # noqa: DTZ001 # a DATETIME has no zone
    row = {
        "v": chance.randrange(-(2**31), 2**31),
        "f": chance.choice([0.5, -0.0, float("inf")]),
        "d": chance.random(),
        "text": chance.choice(["", "x" * 300, "日本"]),
        "bytes": chance.randbytes(3),
        "day": date(1582, 10, chance.randrange(1, 30)),
        "at": at,
        "stamp": at.replace(tzinfo=UTC),
        "money": Decimal(chance.randrange(-99999, 99999)).scaleb(-2),
        "big": Decimal(chance.randrange(2**64)),
    }
    return {"id": number, "part": part, **{name: chance.choice([value, value, None]) for name, value in row.items()}}


def _held(lake: Lake, table: str) -> list[dict[str, Any]]:
    return sorted(lake.rows("s", table), key=lambda row: (row["id"], row["part"]))


def _read_by_spark(rows: LakeRows, table: str, folder: Path) -> list[dict[str, Any]]:
    """Let Spark write the rows to files, and read those: pyspark leaves the sockets open by which it collects."""
    rows.session.table(f"lake.s.{table}").orderBy("id", "part").write.parquet(str(folder))
    held: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    return sorted(held, key=lambda row: (row["id"], row["part"]))


def _create(catalog: LakeCatalog, name: str) -> LakeTable:
    return catalog.create(LakeName(("s",), name), COLUMNS, LakeLayout(), TableId(1), Ts(1), Ts(1))


@nightly
@patient
def test_lake_rows_by_columns_are_those_of_spark_also_after_ddl_and_compaction(rows: LakeRows, tmp_path: Path) -> None:
    lake, chance = Lake(tmp_path / "lake"), random.Random(3)
    catalog, files = LakeCatalog(rows, OWNER), LakeFiles(rows.session._jvm, OWNER.branch)
    ours, sparks = _create(catalog, "ours"), _create(catalog, "sparks")
    columns: tuple[LakeColumn, ...] = COLUMNS
    for number in range(ROUNDS):
        if number == 3:  # what stands in files of before is narrower, and has another name
            columns = tuple(
                LakeColumn(each.id, {"v": "w"}.get(each.name, each.name), {"v": "long"}.get(each.name, each.type))
                for each in COLUMNS
            )
            for table in (ours, sparks):
                table.look()
                table.evolve(plan_evolution(table.fields(), columns, "t"), TableId(1), Ts(2))
        if number == 5:
            assert compact(ours, rows.session).files_before
        changes = _changes(chance, COLUMNS).rename_columns([OP, *(each.name for each in columns)])
        changes = changes.cast(
            pa.schema([pa.field(OP, pa.string()), *(pa.field(each.name, arrow_type(each.type)) for each in columns)])
        )
        for table in (ours, sparks):
            table.begin()
            if table is sparks:
                rows.merge(table.name, changes, KEY)
            else:
                assert files.merge(table, [changes], KEY)
            table.publish(Ts(10 + number))
        assert _held(lake, "ours") == _held(lake, "sparks")
    by_spark = [_read_by_spark(rows, name, tmp_path / f"read-{name}") for name in ("ours", "sparks")]
    assert by_spark[0] == by_spark[1] and len(by_spark[0]) > KEYS // 2
    assert lake.delete_files("s", "ours")
    for name in ("ours", "sparks"):
        assert assert_duckdb_reads_the_same(lake, "s", name, tmp_path) == len(by_spark[0])


@nightly
@patient
def test_field_that_is_set_aside_keeps_what_it_held_beside_the_new_one(rows: LakeRows, tmp_path: Path) -> None:
    lake, catalog = Lake(tmp_path / "lake"), LakeCatalog(rows, OWNER)
    table, files = _create(catalog, "aside"), LakeFiles(rows.session._jvm, OWNER.branch)
    first = pa.table({OP: ["I", "I"], "id": [1, 2], "part": ["a", "a"], "v": pa.array([7, 8], pa.int32())})
    table.begin()
    rows.merge(table.name, first, KEY)
    table.publish(Ts(10))
    wanted = [LakeColumn(3, "v", "string") if each.name == "v" else each for each in COLUMNS]
    evolution = plan_evolution(table.fields(), wanted, "t", set_aside_at=Ts(20), keys=KEY)
    assert evolution == Evolution(set_aside=(("v", "v_until_20"),), adds=(LakeColumn(3, "v", "string"),))
    table.look()
    table.evolve(evolution, TableId(1), Ts(20))
    assert LakeField("v", "string", "tidebus column 3") in table.fields()
    assert plan_evolution(table.fields(), wanted, "t").is_empty
    table.begin()
    changed = pa.table({OP: ["U", "I"], "id": [2, 3], "part": ["a", "a"], "v": ["eight", "three"]})
    assert not files.merge(table, [changed], KEY), "a row keeps its value of a field that no column has"
    rows.merge(table.name, changed, KEY)
    table.publish(Ts(20))
    held = [(row["id"], row["v_until_20"], row["v"]) for row in _held(lake, "aside")]
    assert held == [(1, 7, None), (2, 8, "eight"), (3, None, "three")]


@nightly
@patient
def test_rows_that_spark_appends_have_null_in_a_field_that_no_column_has(rows: LakeRows, tmp_path: Path) -> None:
    lake, catalog = Lake(tmp_path / "lake"), LakeCatalog(rows, OWNER)
    columns, layout = (
        (LakeColumn(1, "id", "long"), LakeColumn(2, "v", "int")),
        LakeLayout((PartitionTerm("identity", "v"),)),
    )
    table = catalog.create(LakeName(("s",), "log"), columns, layout, TableId(1), Ts(1), Ts(1))
    rows.session.sql("ALTER TABLE lake.s.log ADD COLUMN `of.others` int")
    table.begin()
    assert not LakeFiles(rows.session._jvm, OWNER.branch).append(table, []), "it is Spark's: there are partitions"
    rows.append(table.name, pa.table({"id": [1], "v": pa.array([7], pa.int32())}))
    table.publish(Ts(10))
    assert lake.rows("s", "log") == [{"id": 1, "v": 7, "of.others": None}]


@nightly
@patient
def test_names_of_any_characters_are_a_lake_tables_also_after_ddl(rows: LakeRows, tmp_path: Path) -> None:
    catalog = LakeCatalog(rows, OWNER)
    evil, added, key = "a.`b'\"c<", "x.y`", LakeColumn(1, "id", "long")
    name, columns = LakeName(("s.x",), "t`.1"), (key, LakeColumn(2, evil, "int"))
    table = catalog.create(name, columns, LakeLayout(), TableId(1), Ts(1), Ts(1))
    wanted = (key, LakeColumn(2, "p.q", "int"), LakeColumn(3, added, "int"))
    table.look()
    table.evolve(plan_evolution(table.fields(), wanted, "t"), TableId(1), Ts(2))
    table.begin()
    row = {"id": [1], "p.q": pa.array([5], pa.int32()), added: pa.array([6], pa.int32())}
    rows.merge(table.name, pa.table({OP: ["I"], **row}), ("id",))
    table.publish(Ts(3))
    assert [field.name for field in table.fields()] == ["id", "p.q", added]
    assert (tmp_path / "lake" / "s.x" / "t`.1" / "metadata").is_dir()


@nightly
@patient
def test_files_of_before_a_resync_go_with_its_end_and_are_not_compacted_before(rows: LakeRows, tmp_path: Path) -> None:
    lake, catalog = Lake(tmp_path / "lake"), LakeCatalog(rows, OWNER)
    files = LakeFiles(rows.session._jvm, OWNER.branch)
    for name, layout in (("plain", LakeLayout()), ("parts", LakeLayout((PartitionTerm("bucket", "id", 2),)))):
        table = catalog.create(LakeName(("s",), name), COLUMNS, layout, TableId(1), Ts(1), Ts(1))
        upto = 0
        for number in range(1, 7):
            table.begin()
            if number == 4:
                upto = table.files_upto()
            change = pa.table(
                {OP: ["U", "I"], "id": [1, number], "part": ["a", "b"], "v": pa.array([number] * 2, pa.int32())}
            )
            rows.merge(table.name, change, KEY)
            noted = LakeResync(TableId(1), upto, since_ts=Ts(14))
            table.publish(Ts(10 + number), resync=noted if upto else None)
        assert table.resync() == noted
        assert compact(table, rows.session) == Compacted(0, 0, 0, left_for=noted)
        held = {(row["id"], row["v"]) for row in _held(lake, name)}
        assert held == {(1, 6), *((number, number) for number in range(1, 7))}
        table.begin()
        assert files.drop_upto(table, upto)
        table.publish(Ts(20))
        assert table.resync() is None
        assert {(row["id"], row["v"]) for row in _held(lake, name)} == {(1, 6), (4, 4), (5, 5), (6, 6)}
        compact(table, rows.session)
        assert {(row["id"], row["v"]) for row in _held(lake, name)} == {(1, 6), (4, 4), (5, 5), (6, 6)}
        table.begin()
        table.publish(Ts(30), resync=LakeResync(TableId(1), upto))
        table.look()
        table.evolve(Evolution(), TableId(1), None, Ts(40), image_to_come=True)
        assert table.resync() is None and table.progress().image_to_come
        assert table.progress().watermark_ts == 40 and not _held(lake, name)


@nightly
@patient
def test_process_that_goes_on_late_is_refused_by_the_table_wherever_it_stood(rows: LakeRows, tmp_path: Path) -> None:
    lake, catalog, jvm = Lake(tmp_path / "lake"), LakeCatalog(rows, OWNER), rows.session._jvm
    heir_owner = replace(OWNER, branch="tidebus_heir")
    change = pa.table({"id": [1], "part": ["a"], "v": pa.array([7], pa.int32())})
    for name, is_put_late in (("before", False), ("after", True)):
        late = _create(catalog, name)
        heir = LakeCatalog(rows, heir_owner).load(late.name)
        assert heir is not None
        late.begin()
        if not is_put_late:
            assert LakeFiles(jvm, OWNER.branch).append(late, [change])
        heir.begin()
        assert LakeFiles(jvm, heir_owner.branch).append(heir, [change])
        heir.publish(Ts(10))
        if is_put_late:
            assert LakeFiles(jvm, OWNER.branch).append(late, [change])
        assert not late.is_overtaken(), "by no compaction: it must not write again"
        with pytest.raises(LakeOvertakenError):
            late.publish(Ts(10))
        assert len(lake.rows("s", name)) == 1
        assert lake.watermarks("s", name)[-1] == 10


@nightly
@patient
def test_data_files_end_at_the_tables_size_and_are_found_again_by_keys(rows: LakeRows, tmp_path: Path) -> None:
    lake, catalog = Lake(tmp_path / "lake"), LakeCatalog(rows, OWNER)
    files = LakeFiles(rows.session._jvm, OWNER.branch)
    columns, name = (LakeColumn(1, "id", "long"), LakeColumn(2, "v", "long")), LakeName(("s",), "sized")
    table = catalog.create(name, columns, LakeLayout(), TableId(1), Ts(1), Ts(1), file_size_bytes=1 << 20)
    chance, count = random.Random(5), 300_000
    held = {number: chance.randrange(1 << 62) for number in range(count)}
    new = pa.table({"id": pa.array(held.keys(), pa.int64()), "v": pa.array(held.values(), pa.int64())})
    table.begin()
    assert files.append(table, [new])
    table.publish(Ts(10))
    assert lake.data_files("s", "sized") > 2
    ids = chance.sample(range(count), 1_000)
    held |= dict.fromkeys(ids, 0)
    changed = pa.table(
        {OP: ["U"] * len(ids), "id": pa.array(ids, pa.int64()), "v": pa.array([0] * len(ids), pa.int64())}
    )
    table.begin()
    assert files.merge(table, [changed], ("id",))
    table.publish(Ts(11))
    assert {row["id"]: row["v"] for row in lake.rows("s", "sized")} == held
