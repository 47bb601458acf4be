"""The field of a column that TiDB has made anew goes on only where values surely stay, in a table that shows rows."""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import MagicMock

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.config.sink.iceberg import LakeMode
from schemas.ddl.job import DdlType
from schemas.ids import TableId, Ts
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.feed.feed import compile_feed
from sorters.core.lake.columns import LakeColumn, lake_columns
from sorters.core.lake.commits import LakeProgress
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.lake.evolution import Evolution, LakeField, field_doc
from sorters.core.lake.remade import keeps_values
from sorters.run.lake.ddl import LakeDdl
from sorters.run.lake.known_tables import KnownTables
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info

UNSIGNED = 32
STRICT = 1436549152
"""TiDB's own sql_mode."""
UPSERT = "iceberg://?warehouse=file:///w&mode=upsert"
APPEND = UPSERT.replace("upsert", "append")
Kind = tuple[MysqlType, dict[str, Any]]


def of(tp: MysqlType, flen: int = 0, decimal: int = 0, *, flag: int = 0, elems: str = "") -> Kind:
    charset = {"charset": "utf8mb4", "collation": "utf8mb4_bin"} if elems else {}
    return tp, {"flen": flen, "decimal": decimal, "flag": flag, "elems": elems.split() or None, **charset}


def text(tp: MysqlType, flen: int, charset: str = "utf8mb4") -> Kind:
    return tp, {"flen": flen, "charset": charset, "collation": f"{charset}_bin"}


def raw(column_id: int, kind: Kind, name: str = "v") -> dict[str, Any]:
    return column(column_id, name, tp=kind[0], **kind[1])


def info(*columns: dict[str, Any]) -> dict[str, Any]:
    return table_info(9, "t", columns=[column(1, "id", not_null=True, flag=PRIMARY), *columns])


def spec(kind: Kind) -> ColumnVersion:
    return version(raw(2, kind)).columns[1]


def version(*columns: dict[str, Any]) -> TableVersion:
    return table_version(info(*columns), schema_id=1, schema="d", version=Ts(5))


T = MysqlType
INT, DATETIME, DATETIME_6 = of(T.INT, 11), of(T.DATETIME, 19), of(T.DATETIME, 26, 6)
BIG, SMALL, UINT = of(T.BIGINT, 20), of(T.SMALLINT, 6), of(T.INT, 10, flag=UNSIGNED)
AB = of(T.ENUM, elems="a b")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SMALL, INT),
        (UINT, BIG),
        (of(T.TINYINT, 3, flag=UNSIGNED), SMALL),
        (of(T.YEAR, 4), INT),
        (of(T.DECIMAL, 10, 2), of(T.DECIMAL, 12, 2)),
        (of(T.DECIMAL, 10, 2, flag=UNSIGNED), of(T.DECIMAL, 10, 2)),
        (of(T.DECIMAL, 40, 2), of(T.DECIMAL, 65, 2)),
        (text(T.STRING, 10), text(T.VARCHAR, 10)),
        (text(T.STRING, 10, "utf8"), text(T.VARCHAR, 20)),
        (text(T.VARCHAR, 10), text(T.BLOB, 65535)),
        (text(T.VARCHAR, 10, "binary"), text(T.BLOB, 65535, "binary")),
        (AB, of(T.ENUM, elems="b c a")),
        (AB, of(T.SET, elems="b c a")),
        (of(T.SET, elems="a b"), of(T.SET, elems="c a d b")),
        (AB, text(T.VARCHAR, 1)),
        (of(T.SET, elems="a b"), text(T.VARCHAR, 4)),
        (DATETIME, DATETIME),
    ],
)
def test_what_has_room_for_each_value_keeps_it(before: Kind, after: Kind) -> None:
    assert keeps_values(spec(before), spec(after), is_strict=False)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DATETIME_6, DATETIME),
        (of(T.TIMESTAMP, 26, 6), of(T.TIMESTAMP, 23, 3)),
        (of(T.TIME, 17, 6), of(T.TIME, 10)),
        (text(T.STRING, 10, "binary"), text(T.STRING, 20, "binary")),
        (text(T.STRING, 10, "binary"), text(T.VARCHAR, 10, "binary")),
        (text(T.VARCHAR, 20), text(T.VARCHAR, 10)),
        (text(T.VARCHAR, 20), text(T.STRING, 20)),
        (text(T.VARCHAR, 20), text(T.VARCHAR, 20, "latin1")),
        (text(T.VARCHAR, 100), text(T.TINYBLOB, 255)),
        (text(T.VARCHAR, 20), of(T.JSON)),
        (of(T.JSON), text(T.VARCHAR, 20)),
        (text(T.VARCHAR, 20), of(T.TIME, 10)),
        (text(T.VARCHAR, 20), AB),
        (of(T.DECIMAL, 65, 10), of(T.DECIMAL, 65, 2)),
        (of(T.DECIMAL, 65, 2), of(T.DECIMAL, 60, 2)),
        (of(T.DECIMAL, 10, 2), of(T.DECIMAL, 10, 2, flag=UNSIGNED)),
        (of(T.FLOAT, 7, 4), of(T.FLOAT, 7, 2)),
        (of(T.DOUBLE, 22, -1), of(T.DOUBLE, 22, -1, flag=UNSIGNED)),
        (INT, of(T.YEAR, 4)),
        (of(T.BIT, 8), of(T.BIT, 4)),
        (AB, of(T.ENUM, elems="a c")),
        (AB, of(T.TIME, 10)),
        (of(T.SET, elems="a b"), of(T.SET, elems="b a")),
        (of(T.SET, elems="a b"), of(T.ENUM, elems="a b")),
        (of(T.SET, elems="a b"), text(T.VARCHAR, 2)),
        (AB, text(T.VARCHAR, 10, "latin1")),
    ],
)
def test_what_may_change_a_value_is_not_taken_to_keep_it(before: Kind, after: Kind) -> None:
    assert not keeps_values(spec(before), spec(after), is_strict=True)


@pytest.mark.parametrize(("before", "after"), [(INT, SMALL), (INT, UINT), (UINT, INT), (BIG, of(T.TINYINT, 4))])
def test_integers_that_may_not_fit_are_kept_where_the_ddl_fails_then(before: Kind, after: Kind) -> None:
    assert keeps_values(spec(before), spec(after), is_strict=True)
    assert not keeps_values(spec(before), spec(after), is_strict=False)


@dataclass
class _Table:
    """The lake table of a version of ``d.t``."""

    columns: tuple[LakeColumn, ...]
    name: str = "d.t"
    table_id: TableId = TableId(9)
    schema_ts: Ts = Ts(10)
    evolved: list[Evolution] = field(default_factory=list)
    filled: bool = False

    def fields(self) -> list[LakeField]:
        return [LakeField(each.name, each.type, field_doc(each)) for each in self.columns]

    def laid_by(self) -> set[str]:
        return set()

    def progress(self) -> LakeProgress:
        return LakeProgress(Ts(10), frozenset())

    def resync(self) -> None:
        return None

    def look(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def is_overtaken(self) -> bool:
        return False

    def publish(self, *_: object) -> None:
        pass

    def evolve(
        self,
        evolution: Evolution,
        table_id: TableId,
        schema_ts: Ts | None,
        emptied_at: Ts | None = None,
        *,
        image_to_come: bool = False,
    ) -> None:
        self.evolved.append(evolution)
        self.filled |= schema_ts is None


def _ddl(table: _Table, uri: str, config: dict[str, Any] | None = None) -> LakeDdl:
    loaded = load_changefeed(uri, config or {})
    feed = compile_feed(loaded, "default")
    tables = KnownTables(MagicMock(load=lambda name: table), loaded.sink.iceberg, feed)
    return LakeDdl(tables, MagicMock(), MagicMock(), loaded.sink.iceberg, feed, lambda: None)


def _follow(
    before: list[dict[str, Any]],
    after: list[dict[str, Any]],
    *,
    uri: str = UPSERT,
    type_: DdlType = DdlType.MODIFY_COLUMN,
    sql_mode: int = STRICT,
    laid: list[dict[str, Any]] | None = None,
) -> _Table:
    """Let a lake table follow a DDL; ``laid``: columns that it follows before, if a filter left DDL out since."""
    store = snapshot(("d", 1, [info(*before)]))
    mode: LakeMode = "append" if "append" in uri else "upsert"
    table = _Table(lake_columns(version(*(before if laid is None else laid)), mode))
    record = job(30, type_, schema_id=1, table_id=9, schema="d", query="alter table t …", table_info=info(*after))
    change = store.apply(replace(record, payload={**record.payload, "sql_mode": sql_mode}))
    assert change is not None
    _ddl(table, uri).follow(change, store)
    return table


def test_column_made_anew_that_iceberg_cannot_tell_from_the_old_one_stops_an_upsert() -> None:
    with pytest.raises(LakeSchemaError, match="no row change brings") as caught:
        _follow([raw(2, DATETIME_6)], [raw(3, DATETIME)])
    assert "type-change=new-column" in str(caught.value) and "commit_ts=30" in str(caught.value)


def test_column_made_anew_goes_on_as_a_new_field_where_that_is_asked_for() -> None:
    table = _follow([raw(2, DATETIME_6)], [raw(3, DATETIME)], uri=f"{UPSERT}&type-change=new-column")
    assert table.evolved == [Evolution(set_aside=(("v", "v_until_30"),), adds=(LakeColumn(3, "v", "timestamp"),))]


def test_changes_stay_as_they_were_in_append() -> None:
    table = _follow([raw(2, DATETIME_6)], [raw(3, DATETIME)], uri=APPEND)
    assert table.evolved == [Evolution(docs=(("v", "tidebus column 3"),))]


def test_integer_that_gets_smaller_goes_by_the_sql_mode_of_the_ddl() -> None:
    assert _follow([raw(2, INT)], [raw(3, SMALL)]).evolved == [Evolution(docs=(("v", "tidebus column 3"),))]
    with pytest.raises(LakeSchemaError, match="no row change brings"):
        _follow([raw(2, INT)], [raw(3, SMALL)], sql_mode=0)


def test_column_that_is_renamed_and_made_anew_is_the_same_field_or_refused() -> None:
    wider, with_default = of(T.DECIMAL, 12, 2), {"origin_default": "7"}
    kept = raw(3, wider, "w") | with_default
    table = _follow([raw(2, of(T.DECIMAL, 10, 2))], [kept])
    docs, widened = (("v", "tidebus column 3"),), (("v", "decimal(12, 2)"),)
    assert table.evolved == [Evolution(renames=(("v", "w"),), widened=widened, docs=docs)]
    assert not table.filled, "it would lose what it held"
    for after in (DATETIME, text(T.VARCHAR, 20)):
        with pytest.raises(LakeSchemaError, match=r"column=w,.*(no row change brings|Iceberg cannot make)"):
            _follow([raw(2, DATETIME_6)], [raw(3, after, "w")])


def test_column_that_is_dropped_and_added_again_is_a_new_field() -> None:
    dropped = _follow([raw(2, DATETIME_6)], [], type_=DdlType.DROP_COLUMN)
    assert dropped.evolved == [Evolution(drops=("v",))]
    added = _follow([], [raw(3, DATETIME)], type_=DdlType.ADD_COLUMN)
    assert added.evolved == [Evolution(adds=(LakeColumn(3, "v", "timestamp"),))]
    assert not added.filled


def test_field_that_a_filter_let_nobody_drop_is_the_column_that_is_added_again() -> None:
    table = _follow([], [raw(3, DATETIME)], type_=DdlType.ADD_COLUMN, laid=[raw(2, DATETIME_6)])
    assert table.evolved == [Evolution(docs=(("v", "tidebus column 3"),))]
    assert table.filled, "it has none of its values"


def test_table_that_a_ddl_empties_takes_any_column_of_its_lake_type() -> None:
    table = _follow([raw(2, DATETIME_6)], [raw(3, DATETIME)], type_=DdlType.TRUNCATE_TABLE)
    assert table.evolved == [Evolution(docs=(("v", "tidebus column 3"),))]


def _other(name: str) -> dict[str, Any]:
    return table_info(7, name, columns=[column(1, "id", not_null=True, flag=PRIMARY), raw(3, DATETIME)])


def test_table_that_comes_back_as_another_one_takes_any_column_of_its_lake_type() -> None:
    store = snapshot(("d", 1, [table_info(9, "t"), _other("u")]))
    gone, came = (
        job(ts, type_, schema_id=1, table_id=number, schema="d", query=query, table_info=made)
        for ts, type_, number, query, made in (
            (20, DdlType.DROP_TABLE, 9, "drop table t", None),
            (30, DdlType.RENAME_TABLE, 7, "rename table u to t", _other("t")),
        )
    )
    store.apply(gone)
    change = store.apply(came)
    assert change is not None
    table = _Table(lake_columns(version(raw(2, DATETIME_6)), "upsert"))
    _ddl(table, UPSERT, {"filter": {"rules": ["d.t"]}, "initial": "snapshot"}).follow(change, store)
    assert table.evolved == [Evolution(docs=(("v", "tidebus column 3"),))]


@pytest.mark.parametrize(
    ("before", "after", "is_kept"),
    [
        (SMALL, INT, True),
        (UINT, BIG, True),
        (of(T.DECIMAL, 10, 2), of(T.DECIMAL, 12, 2), True),
        (INT, UINT, False),
        (INT, SMALL, False),
        (INT, of(T.YEAR, 4), False),
        (DATETIME_6, DATETIME, False),
        (of(T.DECIMAL, 65, 10), of(T.DECIMAL, 65, 2), False),
        (text(T.STRING, 10), text(T.VARCHAR, 20), False),
    ],
)
def test_behind_a_ddl_that_is_left_out_only_what_holds_all_of_the_lake_type_goes_on(
    before: Kind, after: Kind, is_kept: bool
) -> None:
    made = table_version(info(raw(3, after)), schema_id=1, schema="d", version=Ts(20))
    table = _Table(lake_columns(version(raw(2, before)), "append"))
    _ddl(table, APPEND).evolve_for_rows(table, made)  # type: ignore[arg-type]
    assert len(table.evolved) == 1
    table = _Table(lake_columns(version(raw(2, before)), "upsert"))
    refused = nullcontext() if is_kept else pytest.raises(LakeSchemaError, match="no row change brings")
    with refused:
        _ddl(table, UPSERT).evolve_for_rows(table, made)  # type: ignore[arg-type]
    assert len(table.evolved) == is_kept
