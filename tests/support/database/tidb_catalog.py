"""A TiDB that keeps databases, tables and what a changefeed notes in the schema ``tidebus``; rows it only looks at.

It reads statements as TiDB restores them, by patterns of its own, and answers with TiDB's errors.
"""

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from tests.support.database.fake_tidb import Affected, Answer, FakeTidb

NO_DATABASE, EXISTS, NO_TABLE, SYNTAX = 1049, 1050, 1146, 1064
TIDB_VARIABLES = (
    "allow_auto_random_explicit_insert",
    "tidb_cdc_write_source",
    "tidb_enable_external_ts_read",
    "tidb_placement_mode",
    "tidb_txn_mode",
)
_NAME = r"(?:`((?:[^`]|``)+)`\.)?`((?:[^`]|``)+)`"
_NOTES = """
    CREATE TABLE changefeed (feed PRIMARY KEY, revision, opened DEFAULT 0, syncpoint_ts DEFAULT 0, ddl_position,
                             ddl_state, ddl_query, ddl_before, updated_at DEFAULT 0);
    CREATE TABLE position (feed, part, revision, opened DEFAULT 0, position, next_offset, commit_ts,
                           PRIMARY KEY (feed, part));
    CREATE TABLE syncpoint_start (feed PRIMARY KEY, revision, interval_ms, from_ts);
    CREATE TABLE index_ddl (feed, position, start_ts, ddl, ddl_before, noted_at, PRIMARY KEY (feed, position));
    CREATE TABLE resync (feed, table_id, notes, key_columns, PRIMARY KEY (feed, table_id));
"""


class _RefusedError(Exception):
    pass


@dataclass
class _Table:
    number: int
    said: list[str]
    partitions: dict[str, int] = field(default_factory=dict)
    """Numbers of those that were asked for, by name in lower case."""


@dataclass
class TidbCatalog:
    """Databases with their tables and views; :meth:`serve` it and look at what became of it."""

    databases: dict[str, dict[str, _Table]] = field(default_factory=dict)
    ddl: list[str] = field(default_factory=list)
    """Statements that have run, in their order."""
    refused: list[str] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    """Statements that wrote rows, by table."""
    in_use: str = ""
    now_s: int = 1_700_000_000
    """What its clock says."""

    def __post_init__(self) -> None:
        self._numbers = count(100)
        self._dropped: dict[tuple[str, str], _Table] = {}
        self._dropped_databases: dict[str, dict[str, _Table]] = {}
        self._notes = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        for function in ("FROM_UNIXTIME", "UNIX_TIMESTAMP"):
            self._notes.create_function(function, 1, lambda time_s: time_s)
        self._notes.executescript(_NOTES)

    @contextmanager
    def serve(self) -> Iterator["CatalogServer"]:
        """Answer on a port of this machine."""
        with FakeTidb(self.answer) as server:
            yield CatalogServer(server)

    @property
    def tables(self) -> set[str]:
        """Names of all tables and views: ``schema.table``."""
        return {f"{schema}.{table}" for schema, tables in self.databases.items() for table in tables}

    def answer(self, sql: str) -> Answer:
        """Answer a statement."""
        try:
            return self._answer(sql)
        except _RefusedError as error:
            number, text = error.args
            if not sql.startswith("SHOW"):
                self.refused.append(sql)
            return int(number), str(text)

    def _answer(self, sql: str) -> Answer:
        if sql.startswith("SHOW SESSION VARIABLES"):
            return [(name, "x") for name in TIDB_VARIABLES if f"'{name}'" in sql]
        if sql.startswith("USE "):
            self.in_use = _names(sql)[-1][1]
            self._tables_of(self.in_use)
            return None
        if sql.startswith("SHOW CREATE"):
            return self._shown(sql)
        if "tidb_table_id" in sql:
            schema, table = re.findall(r"LOWER\('([^']*)'\)", sql)
            return [(str(self._table(schema, table).number),)]
        if "tidb_partition_id" in sql:
            schema, table, partition = re.findall(r"LOWER\('([^']*)'\)", sql)
            return [(str(self._partition(schema, table, partition)),)]
        if "tidb_current_ts" in sql:
            return [(str(self.now_s * 1000 << 18),)]
        if "information_schema.ddl_jobs" in sql:
            return []
        if "information_schema.tables" in sql:
            return [("3",)]
        if "tidebus." in sql:
            return self._note(sql)
        if sql.startswith(("SELECT GET_LOCK", "SELECT tidb_version", "SELECT @@max_allowed_packet")):
            return [("1" if "GET_LOCK" in sql else "67108864",)]
        if sql.startswith(("SET ", "BEGIN", "COMMIT", "ROLLBACK", "SHOW WARNINGS")):
            return [] if sql.startswith("SHOW") else None
        if sql.startswith(("INSERT INTO ", "REPLACE INTO ", "DELETE FROM ")):
            schema, table = _names(sql[:400])[0]
            self._table(schema, table)
            self.rows[f"{schema}.{table}"] += 1
            return Affected(1)
        self._run(sql)
        self.ddl.append(sql)
        return None

    def _note(self, sql: str) -> Answer:
        """Run a statement on the changefeed's own tables as SQLite, whose count is of the rows that were found."""
        values: list[str | bytes] = []

        def value(match: re.Match[str]) -> str:
            text = re.sub(r"\\(.)", _unescaped, match[2], flags=re.DOTALL)
            values.append(bytes.fromhex(text) if match[1] else text)
            return "?"

        sql = re.sub(r"(X)?'((?:[^'\\]|\\.)*)'", value, sql, flags=re.DOTALL)
        sql = sql.replace("INSERT IGNORE", "INSERT OR IGNORE").replace("tidebus.", "").removesuffix(" FOR UPDATE")
        cursor = self._notes.execute(sql, values)
        if sql.startswith("SELECT"):
            return [tuple(cell if isinstance(cell, bytes | None) else str(cell) for cell in row) for row in cursor]
        return Affected(cursor.rowcount)

    def _shown(self, sql: str) -> Answer:
        if "DATABASE" in sql:
            self._tables_of(_names(sql)[0][1])
            return [("name", "as it was made")]
        return [("name", "\n".join(self._table(*_names(sql)[0]).said))]

    def _tables_of(self, schema: str) -> dict[str, _Table]:
        if schema not in self.databases:
            raise _RefusedError(NO_DATABASE, f"Unknown database '{schema}'")
        return self.databases[schema]

    def _table(self, schema: str, table: str) -> _Table:
        tables = self._tables_of(schema or self.in_use)
        if table not in tables:
            raise _RefusedError(NO_TABLE, f"Table '{schema or self.in_use}.{table}' doesn't exist")
        return tables[table]

    def _partition(self, schema: str, table: str, partition: str) -> int:
        partitions = self._table(schema, table).partitions
        if partition.lower() not in partitions:
            partitions[partition.lower()] = next(self._numbers)
        return partitions[partition.lower()]

    def _create(self, sql: str, schema: str, name: str) -> None:
        tables = self._tables_of(schema or self.in_use)
        if name in tables and " OR REPLACE " not in sql:
            raise _RefusedError(EXISTS, f"Table '{name}' already exists")
        tables[name] = _Table(next(self._numbers), [sql])

    def _run(self, sql: str) -> None:
        for pattern, change in _CHANGES:
            match = re.match(pattern, sql)
            if match:
                change(self, sql, *((part or "").replace("``", "`") for part in match.groups()))
                return
        raise _RefusedError(SYNTAX, "You have an error in your SQL syntax")

    def create_database(self, _: str, name: str) -> None:
        self.databases.setdefault(name, {})

    def drop_database(self, _: str, name: str) -> None:
        self._dropped_databases[name] = self._tables_of(name)
        del self.databases[name]

    def alter_database(self, _: str, name: str) -> None:
        self._tables_of(name)

    def create_like(self, sql: str, schema: str, name: str, like_schema: str, like: str) -> None:
        self._table(like_schema, like)
        self._create(sql, schema, name)

    def drop_table(self, _: str, schema: str, name: str) -> None:
        schema = schema or self.in_use
        self._dropped[schema, name] = self._table(schema, name)
        del self.databases[schema][name]

    def recover(self, _: str, schema: str, name: str) -> None:
        if (schema or self.in_use, name) not in self._dropped:
            raise _RefusedError(1105, f"Can't find dropped/truncated table '{name}' in GC safe point")
        self.databases[schema or self.in_use][name] = self._dropped.pop((schema or self.in_use, name))

    def flashback(self, _: str, schema: str, name: str, new_name: str) -> None:
        self.recover(_, schema, name)
        tables = self.databases[schema or self.in_use]
        tables[new_name or name] = tables.pop(name)

    def flashback_database(self, _: str, name: str, new_name: str) -> None:
        if name not in self._dropped_databases:
            raise _RefusedError(1105, f"Can't find dropped database '{name}' in GC safe point")
        self.databases[new_name or name] = self._dropped_databases.pop(name)

    def rename(self, sql: str, schema: str, name: str, new_schema: str, new_name: str) -> None:
        table = self._table(schema, name)
        if new_name in self._tables_of(new_schema or self.in_use):
            raise _RefusedError(EXISTS, f"Table '{new_name}' already exists")
        del self.databases[schema or self.in_use][name]
        self.databases[new_schema or self.in_use][new_name] = table
        table.said.append(sql)

    def truncate(self, _: str, schema: str, name: str) -> None:
        self._table(schema, name).number = next(self._numbers)

    def exchange(self, _: str, schema: str, name: str, partition: str, other_schema: str, other: str) -> None:
        number, plain = self._partition(schema, name, partition), self._table(other_schema, other)
        self._table(schema, name).partitions[partition.lower()], plain.number = plain.number, number

    def alter(self, sql: str, schema: str, name: str) -> None:
        self._table(schema, name).said.append(sql)


_Change = Callable[..., None]
_CHANGES: tuple[tuple[str, _Change], ...] = (
    (r"CREATE DATABASE (?:IF NOT EXISTS )?`([^`]+)`", TidbCatalog.create_database),
    (r"DROP DATABASE (?:IF EXISTS )?`([^`]+)`$", TidbCatalog.drop_database),
    (r"ALTER DATABASE `([^`]+)` ", TidbCatalog.alter_database),
    (rf"CREATE TABLE (?:IF NOT EXISTS )?{_NAME} LIKE {_NAME}$", TidbCatalog.create_like),
    (rf"CREATE TABLE (?:IF NOT EXISTS )?{_NAME} \(", TidbCatalog._create),
    (rf"CREATE (?:OR REPLACE )?ALGORITHM = .*? VIEW {_NAME} ", TidbCatalog._create),
    (rf"DROP (?:TABLE|VIEW) {_NAME}$", TidbCatalog.drop_table),
    (rf"RECOVER TABLE {_NAME}$", TidbCatalog.recover),
    (rf"FLASHBACK TABLE {_NAME}(?: TO `([^`]+)`)?$", TidbCatalog.flashback),
    (r"FLASHBACK DATABASE `([^`]+)`(?: TO `([^`]+)`)?$", TidbCatalog.flashback_database),
    (rf"RENAME TABLE {_NAME} TO {_NAME}$", TidbCatalog.rename),
    (rf"TRUNCATE TABLE {_NAME}$", TidbCatalog.truncate),
    (rf"ALTER TABLE {_NAME} EXCHANGE PARTITION `([^`]+)` WITH TABLE {_NAME}$", TidbCatalog.exchange),
    (rf"ALTER TABLE {_NAME} ", TidbCatalog.alter),
)


def _unescaped(match: re.Match[str]) -> str:
    return {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a"}.get(match[1], match[1])


def _names(sql: str) -> list[tuple[str, str]]:
    return [(schema.replace("``", "`"), name.replace("``", "`")) for schema, name in re.findall(_NAME, sql)]


@dataclass(frozen=True)
class CatalogServer:
    """Where one is served."""

    server: FakeTidb

    def uri(self, parameters: str = "", user: str = "root", password: str = "") -> str:
        """Return a sink URI that leads there; statements go one by one, as it answers them."""
        account = f"{user}:{password}" if password else user
        address = self.server.uri.partition("@")[2].rstrip("/")
        return f"tidb://{account}@{address}/?multi-stmt-enable=false&{parameters}"
