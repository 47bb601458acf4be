"""A schema of one's own in a MariaDB, and two tables in it, for tests of processors."""

from collections.abc import Callable, Iterator

import pytest

from compose.stack.mariadb import LocalMariaDb
from tests.support.database.apply import run_sql
from tests.support.topics.sink_log import form

A = form("d.a", "id", "v")
B = form("d.b", "id", "k", "v", key=("id", "k"))


@pytest.fixture
def feed(mariadb: LocalMariaDb, fresh_name: Callable[[str], str]) -> Iterator[str]:
    run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
    yield fresh_name("feed")
    run_sql(mariadb, "DROP DATABASE IF EXISTS d")


def two_tables(mariadb: LocalMariaDb) -> None:
    run_sql(
        mariadb,
        "CREATE TABLE d.a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE d.b (id INT, k VARCHAR(10), v INT, PRIMARY KEY (id, k))",
    )
