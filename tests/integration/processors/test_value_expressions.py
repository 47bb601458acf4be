"""Conditions of event filters against a real server: MariaDB computes what TiDB does, but for ``/``."""

from collections.abc import Iterator
from typing import Any

import pytest

from compose.stack.mariadb import LocalMariaDb
from sorters.core.filter.value_expression.general_ci import weights
from tests.support.database.expression_cases import CASES
from tests.support.database.mariadb import mariadb as mariadb

_COLUMNS = {
    "a": "INT",
    "b": "INT",
    "u": "BIGINT UNSIGNED",
    "s": "VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "r": "DOUBLE",
    "d": "DECIMAL(10, 2)",
    "t": "DATETIME(3)",
    "day": "DATE",
    "ci": "VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "raw": "VARBINARY(32)",
    "j": "JSON",
}


@pytest.fixture(scope="module")
def connection(mariadb: LocalMariaDb) -> Iterator[Any]:
    connection = mariadb.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES', collation_connection = 'utf8mb4_bin'")
        cursor.execute("SET SESSION time_zone = '+00:00'")
        cursor.execute("CREATE DATABASE conditions")
        columns = ", ".join(f"`{name}` {type_}" for name, type_ in _COLUMNS.items())
        cursor.execute(f"CREATE TABLE conditions.t ({columns})")
        cursor.execute("USE conditions")
    yield connection
    with connection.cursor() as cursor:
        cursor.execute("DROP DATABASE conditions")
    connection.close()


def test_each_character_weighs_under_general_ci_as_at_a_server(connection: Any) -> None:
    wrong = list[str]()
    with connection.cursor() as cursor:
        for plane in (*range(0xD8), *range(0xE0, 0x100), 0x1F6):
            chars = [chr(plane << 8 | low) for low in range(256)]
            column = " UNION ALL ".join(["SELECT %s AS c", *["SELECT %s"] * 255])
            cursor.execute(
                f"SELECT c, HEX(WEIGHT_STRING(CONVERT(c USING utf8mb4) COLLATE utf8mb4_general_ci)) FROM ({column}) t",
                chars,
            )
            wrong += [
                f"{ord(char):#06x}: {weight}, ours {ord(weights(char)):04X}"
                for char, weight in cursor.fetchall()
                if weight != f"{ord(weights(char)):04X}"
            ]
    assert wrong == []


@pytest.mark.parametrize(("expression", "values", "expected"), CASES)
def test_condition_is_true_of_the_rows_that_a_server_says(
    connection: Any, expression: str, values: dict[str, Any], expected: int | None
) -> None:
    names = ", ".join(f"`{name}`" for name in values) or "`a`"
    marks = ", ".join("%s" for _ in values) or "NULL"
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM t")
        cursor.execute(f"INSERT INTO t ({names}) VALUES ({marks})", tuple(values.values()))
        cursor.execute(f"SELECT {expression.replace('%', '%%')} FROM t", ())
        ((truth,),) = cursor.fetchall()
    assert truth == expected
