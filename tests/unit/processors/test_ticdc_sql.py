"""What becomes of each statement of ``ticdc-sql/upstream.sql``, and of its rows, beside what TiCDC said to a TiDB."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.processors.core.apply.statements import StatementSettings, statements
from consumers.processors.core.apply.waiting import RowBatch, RowSlice
from schemas.ddl.job import parse_ddl_job
from schemas.ids import Ts
from schemas.sink.position import RowOp
from schemas.sink.sql_rows import SqlRow, TableForm, decode_rows, encode_rows
from schemas.tidb.table_info import table_version
from sorters.core.encode.sql.rows import form_of
from sorters.core.sql.restore import restore
from sorters.core.sql.statement import check_statement, plain_statement
from sorters.core.sql.tokens import UnsupportedSqlError
from tests.support.recorded.ddl_jobs import column, index, job, table_info
from tests.support.recorded.recording import TIDB_DATA, read_jsonl

RECORDED = TIDB_DATA.parent / "ticdc-sql"
UPSTREAM = RECORDED / "upstream.sql"
NO_DDL = frozenset({"use", "insert", "update", "delete", "replace", "begin", "commit"})

DISCARDED = {
    "alter table nopk shard_row_id_bits = 4": 16,
    "alter table cl set tiflash replica 0": 30,
    "create sequence sq start with 10 cache 5": 34,
    "alter table ai auto_id_cache 100": 39,
    "create placement policy pp followers=1": 51,
    "alter table uk placement policy = pp": 56,
    "alter table uk placement policy = default": 56,
    "alter table ai cache": 57,
    "alter table ai nocache": 59,
}
"""Statement and TiDB's type of its job: it is not on TiCDC's allow-list, so its text goes nowhere."""
NO_JOB = frozenset({"create temporary table tmpt (id int)", "create user 'u1'@'%' identified by 'x'"})
"""TiDB makes no DDL job of these."""
AS_IT_WAS = frozenset({"create table us (id int primary key, n bigint default next value for sq)"})
"""Our restorer does not know it; users' text goes out, as it stands."""


def ddl_of_upstream() -> Iterator[str]:
    for line in Path(UPSTREAM).read_text().splitlines():
        statement = line.rstrip(";")
        if statement.partition(" ")[0] not in NO_DDL:
            yield statement


def restored(statement: str) -> str | None:
    try:
        return restore(statement)
    except UnsupportedSqlError:
        return None


def test_each_ddl_of_upstream_is_restored_or_discarded_or_goes_out_as_it_was() -> None:
    ddl = list(ddl_of_upstream())
    assert len(ddl) == 63
    assert {*DISCARDED, *NO_JOB, *AS_IT_WAS} <= set(ddl)
    for statement in ddl:
        text = restored(statement)
        if statement in DISCARDED or statement in NO_JOB:
            continue
        assert (text is None) == (statement in AS_IT_WAS), statement
        check_statement(text or plain_statement(statement, 0))


@pytest.mark.parametrize(("statement", "type_id"), DISCARDED.items())
def test_ddl_that_is_discarded_is_so_by_the_type_of_its_job(statement: str, type_id: int) -> None:
    assert parse_ddl_job(job(20, type_id, schema_id=2, query=statement)).type is None


def recorded(name: str) -> list[str]:
    return [line["sql"].strip() for line in read_jsonl(RECORDED / f"{name}.jsonl.zst")]


def normal(sql: str) -> str:
    return sql.rstrip("; ")


def test_recorded_ddl_texts_equal_ours() -> None:
    ours = {text for statement in ddl_of_upstream() if (text := restored(statement)) is not None}
    theirs = {
        normal(sql)
        for name in ("classic", "new")
        for sql in recorded(name)
        if re.match("CREATE |ALTER |DROP |RENAME |TRUNCATE ", sql) and "tidb_cdc" not in sql
    }
    assert len(theirs) == 3  # a TiDB writes few DDL into its general log
    assert theirs <= ours


def table(name: str, *columns: str, key: int = 1, generated: tuple[str, ...] = ()) -> TableForm:
    """Return the form of a table of ``rec`` whose first columns are its key."""
    made = [column(number, each, not_null=number <= key) for number, each in enumerate(columns, 1)]
    made = [each | {"offset": at} for at, each in enumerate(made)]
    for each in made:
        if each["name"]["O"] in generated:
            each["generated_expr_string"] = "`a` + 1"
    info: dict[str, Any] = table_info(
        100, name, columns=made, indexes=[index(1, "k", list(range(key)), unique=True)], pk_is_handle=False
    )
    return form_of(table_version(info, schema_id=1, schema="rec", version=Ts(1)))


FORMS = [
    table("ar", "id", "v"),
    table("ai", "id", "v"),
    table("ai", "id", "v", "j", "ts"),
    table("nc", "a", "b"),
    table("cl", "a", "b", "c", key=2),
    table("lk", "a", "b", "c", key=2),
    table("uk", "a", "b", "c", key=2),
    table("uk2", "a", "b"),  # the former nc
    table("us", "id", "n"),
    table("gen", "id", "a", "v", "s", generated=("v", "s")),
    table("par", "id", "name"),
    table("chi", "id", "pid"),
    table("rp", "id", "d", key=2),
    table("ex", "id", "d", key=2),
]
"""As ``upstream.sql`` has made and changed them."""


def said_of_rows(form: TableForm) -> set[str]:
    """Return heads of the statements for rows of a table: up to VALUES, and of a DELETE which columns it names."""
    key = b"1" if len(form.key) == 1 else b"(" + b" AND ".join(b"`%s`=1" % name.encode() for name in form.key) + b")"
    row = b"(" + b",".join(b"1" for _ in form.columns) + b")"
    made = encode_rows(form, [SqlRow(9, 8, RowOp.DELETE, key), SqlRow(10, 9, RowOp.UPDATE, key, row)])
    heads = set[str]()
    for first in (0, 1):
        piece = RowSlice(form, decode_rows(made), first, first + 1, 0)
        for safe_mode in (False, True):
            settings = StatementSettings(safe_mode=safe_mode)
            heads |= {head(each.sql.decode()) for each in statements(RowBatch((piece,)), settings)}
    return heads


def head(sql: str) -> str:
    sql = re.sub("^REPLACE", "INSERT", sql)  # which of them, is the destination's state's affair
    if sql.startswith("DELETE"):
        name, _, condition = sql.partition(" WHERE ")
        return f"{name} BY {sorted(set(re.findall('`[^`]+`', condition)))}"
    return sql.partition(" VALUES ")[0]


def test_rows_are_written_into_the_columns_and_by_the_keys_that_ticdc_names() -> None:
    theirs = {
        head(normal(sql))
        for name in ("classic", "new")
        for sql in recorded(name)
        if re.match("REPLACE|INSERT|DELETE", sql) and "`rec`" in sql
    }
    ours = set[str]().union(*map(said_of_rows, FORMS))
    assert theirs - ours == set()
    assert len(theirs) >= 20
