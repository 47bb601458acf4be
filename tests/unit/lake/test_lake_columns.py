"""Types, names and evolution of lake tables."""

from dataclasses import replace

import pytest

from schemas.ids import Ts
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.lake.columns import LakeColumn, checked_name, key_names, lake_columns, widens
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.lake.evolution import (
    SET_ASIDE_DOC,
    Evolution,
    LakeField,
    check_fields,
    field_doc,
    plan_anew,
    plan_evolution,
    says_changes,
)
from tests.support.recorded.ddl_jobs import PRIMARY, column, table_info

UNSIGNED = 32


def _version(*columns: dict[str, object], pk_is_handle: bool = True) -> TableVersion:
    key = [column(1, "id", not_null=True, flag=PRIMARY)]
    info = table_info(9, "t", columns=[*key, *columns], pk_is_handle=pk_is_handle)
    return table_version(info, schema_id=1, schema="d", version=Ts(5))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (column(2, "c", tp=MysqlType.TINYINT), "int"),
        (column(2, "c", tp=MysqlType.INT, flag=UNSIGNED), "long"),
        (column(2, "c", tp=MysqlType.BIGINT), "long"),
        (column(2, "c", tp=MysqlType.BIGINT, flag=UNSIGNED), "decimal(20, 0)"),
        (column(2, "c", tp=MysqlType.YEAR), "int"),
        (column(2, "c", tp=MysqlType.BIT, flen=63), "long"),
        (column(2, "c", tp=MysqlType.BIT, flen=64), "decimal(20, 0)"),
        (column(2, "c", tp=MysqlType.FLOAT), "float"),
        (column(2, "c", tp=MysqlType.DECIMAL, flen=38, decimal=10), "decimal(38, 10)"),
        (column(2, "c", tp=MysqlType.DECIMAL, flen=39, decimal=10), "string"),
        (column(2, "c", tp=MysqlType.DATE), "date"),
        (column(2, "c", tp=MysqlType.DATETIME, decimal=6), "timestamp"),
        (column(2, "c", tp=MysqlType.TIMESTAMP), "timestamptz"),
        (column(2, "c", tp=MysqlType.TIME), "string"),
        (column(2, "c", tp=MysqlType.VARCHAR, charset="utf8mb4", collation="utf8mb4_bin"), "string"),
        (column(2, "c", tp=MysqlType.VARCHAR), "binary"),
        (column(2, "c", tp=MysqlType.JSON), "string"),
        (column(2, "c", tp=MysqlType.ENUM, elems=["a"]), "string"),
        (column(2, "c", tp=MysqlType.VECTOR), "string"),
    ],
)
def test_column_of_a_type_has_the_lake_type_that_holds_its_values(raw: dict[str, object], expected: str) -> None:
    assert lake_columns(_version(raw), "upsert")[1].type == expected


def test_append_has_the_change_columns_after_the_tables_own() -> None:
    names = [each.name for each in lake_columns(_version(), "append")]
    assert names == ["id", "_tidb_op", "_tidb_commit_ts", "_tidb_commit_time"]


def test_append_without_change_columns_has_the_tables_own_alone() -> None:
    columns = lake_columns(_version(), "append", says_changes=False)
    assert [each.name for each in columns] == ["id"]
    fields = [LakeField(each.name, each.type, field_doc(each)) for each in columns]
    assert not says_changes(fields)
    whole = lake_columns(_version(), "append")
    assert says_changes(LakeField(each.name, each.type, field_doc(each)) for each in whole)


def test_column_with_the_name_of_a_change_column_is_refused() -> None:
    with pytest.raises(LakeSchemaError, match="_tidb_op"):
        lake_columns(_version(column(2, "_TIDB_op")), "append")


def test_upsert_of_a_table_without_a_key_is_refused() -> None:
    assert key_names(_version()) == ("id",)
    with pytest.raises(LakeSchemaError, match="primary key"):
        key_names(_version(pk_is_handle=False))


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\\b", "a\nb", "a:b", "x" * 201])
def test_name_that_could_leave_its_folder_is_refused(name: str) -> None:
    assert checked_name("größe 1.0", _version()) == "größe 1.0"
    with pytest.raises(LakeSchemaError):
        checked_name(name, _version())


def test_types_widen_as_iceberg_widens_them() -> None:
    assert widens("int", "long") and widens("float", "double") and widens("decimal(5, 2)", "decimal(9, 2)")
    for before, after in [("long", "int"), ("decimal(9, 2)", "decimal(5, 2)"), ("decimal(5, 2)", "decimal(9, 3)")]:
        assert not widens(before, after)
    assert not widens("int", "string")


def _fields(*columns: LakeColumn) -> list[LakeField]:
    return [LakeField(each.name, each.type, field_doc(each)) for each in columns]


ID, V = LakeColumn(1, "id", "int"), LakeColumn(2, "v", "int")


def test_evolution_of_an_equal_table_is_empty() -> None:
    assert plan_evolution(_fields(ID, V), [ID, V], "d.t").is_empty


def test_evolution_goes_by_ids_whatever_the_names() -> None:
    wanted = [LakeColumn(2, "id", "long"), LakeColumn(3, "v", "string")]
    assert plan_evolution(_fields(ID, V), wanted, "d.t") == Evolution(
        drops=("id",), renames=(("v", "id"),), widened=(("v", "long"),), adds=(wanted[1],)
    )


def test_column_made_anew_under_its_name_is_the_same_field_if_it_widens() -> None:
    anew = LakeColumn(7, "v", "long")
    assert plan_evolution(_fields(ID, V), [ID, anew], "d.t") == Evolution(
        widened=(("v", "long"),), docs=(("v", "tidebus column 7"),)
    )
    with pytest.raises(LakeSchemaError, match="string of int"):
        plan_evolution(_fields(ID, V), [ID, LakeColumn(7, "v", "string")], "d.t")


def test_evolution_of_another_tables_fields_goes_by_names() -> None:
    fields = _fields(ID, V, LakeColumn(3, "qty", "int"))
    wanted = [ID, LakeColumn(2, "qty", "long"), LakeColumn(3, "V", "string")]
    kept = Evolution(widened=(("qty", "long"),), adds=(wanted[2],), docs=(("qty", "tidebus column 2"),))
    assert plan_anew(fields, wanted, "d.t", set_aside_at=None) == replace(kept, drops=("v",))
    aside = (("v", "v_until_77"),)
    assert plan_anew(fields, wanted, "d.t", {"qty"}, set_aside_at=Ts(77)) == replace(kept, set_aside=aside)
    for set_aside_at in (None, Ts(77)):
        with pytest.raises(LakeSchemaError, match="partitions or sort order go by it"):
            plan_anew(fields, wanted, "d.t", {"v"}, set_aside_at=set_aside_at)
        with pytest.raises(LakeSchemaError, match="is not ours"):
            plan_anew([*fields, LakeField("w", "int", None)], [LakeColumn(1, "W", "int")], "d.t", set_aside_at=None)


def test_field_of_another_type_is_set_aside_where_that_is_asked_for() -> None:
    narrowed = LakeColumn(2, "v", "string")
    planned = plan_evolution(_fields(ID, V), [ID, narrowed], "d.t", set_aside_at=Ts(77), keys=["id"])
    assert planned == Evolution(set_aside=(("v", "v_until_77"),), adds=(narrowed,))
    aside = [*_fields(ID, narrowed), LakeField("v_until_77", "int", SET_ASIDE_DOC)]
    assert plan_evolution(aside, [ID, narrowed], "d.t").is_empty
    for laid_by, keys in (({"v"}, []), ((), ["v"])):
        with pytest.raises(LakeSchemaError, match="string of int"):
            plan_evolution(_fields(ID, V), [ID, narrowed], "d.t", laid_by, set_aside_at=Ts(77), keys=keys)


def test_field_of_somebody_else_stays_and_its_name_is_refused() -> None:
    fields = [*_fields(ID), LakeField("note", "string", "mine")]
    assert plan_evolution(fields, [ID], "d.t").is_empty
    with pytest.raises(LakeSchemaError, match="not ours"):
        plan_evolution(fields, [ID, LakeColumn(5, "Note", "string")], "d.t")


def test_rows_of_a_table_whose_fields_somebody_has_renamed_or_dropped_are_refused_with_what_helps() -> None:
    others = LakeField("note", "string", "mine")
    check_fields([*_fields(ID, V), others], [ID, V], "d.t", "lake.d.t")
    renamed = LakeField("w", "int", "tidebus column 2")
    with pytest.raises(
        LakeSchemaError, match=r"columns=v,.*renamed.*rename in the lake table w to v, and resume; or drop"
    ):
        check_fields([*_fields(ID), renamed, others], [ID, V], "d.t", "lake.d.t")
    with pytest.raises(
        LakeSchemaError, match=r"lake_table=lake.d.t, columns=v,.*dropped.*what_helps=drop that one lake"
    ):
        check_fields([*_fields(ID), others], [ID, V], "d.t", "lake.d.t")
