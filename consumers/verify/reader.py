"""One side of a comparison: a connection on which a table stands still, and the statements of a proof on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pymysql

from consumers.processors.apply.connection import Connection, is_tidb, select
from consumers.processors.apply.errors import errno, general_error
from consumers.verify.core.columns import ColumnRow, Compared, KeyRow
from consumers.verify.core.differences import HashedRow
from consumers.verify.errors import RowTooLongError, TableInMotionError
from schemas.errors import BusError
from schemas.state_proof.proof_sql import Dialect, borders_sql, buckets_sql, quoted, rows_sql, totals_sql
from schemas.state_proof.row_text import SUMS, TableProof

Name = tuple[str, str]
_IN_MOTION = frozenset({1412, 8027, 8028})
"""The definition has changed since the snapshot was taken: MariaDB and MySQL; TiDB."""
_COLUMNS = (
    "SELECT column_name, column_type, extra FROM information_schema.columns"
    " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)
_KEYS = (
    "SELECT index_name, column_name, nullable FROM information_schema.statistics"
    " WHERE table_schema = %s AND table_name = %s AND non_unique = 0"
    " ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"
)
_TABLES = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE' ORDER BY 1, 2"


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """Keys above ``after`` up to ``upto`` of one integer column; None: without an end."""

    column: str | None = None
    after: int | None = None
    upto: int | None = None

    @property
    def condition(self) -> str:
        """As SQL."""
        if self.column is None:
            return "true"
        ends = ((self.after, ">"), (self.upto, "<="))
        parts = [f"{quoted(self.column)} {sign} %s" for end, sign in ends if end is not None]
        return " and ".join(parts) or "true"

    @property
    def arguments(self) -> tuple[int, ...]:
        """Of the condition."""
        return () if self.column is None else tuple(end for end in (self.after, self.upto) if end is not None)


class SideReader:
    """See the module. The caller opens and closes the connection."""

    def __init__(self, connection: Connection, side: str) -> None:
        """``side`` is said in errors: source or destination.

        Raises:
            DestinationUnreachableError, DestinationRefusedError
        """
        self._connection, self._side = connection, side
        try:
            self.dialect = _dialect(connection)
        except pymysql.MySQLError as error:
            raise general_error(error, side=side) from error

    def tables(self) -> list[Name]:
        """Return all tables, views left out."""
        return [(str(schema), str(table)) for schema, table in self._ask(_TABLES, ())]

    def columns(self, table: Name) -> list[ColumnRow]:
        """Return a table's columns; none: there is no such table."""
        return [ColumnRow(str(name), _text(kind), str(extra)) for name, kind, extra in self._ask(_COLUMNS, table)]

    def keys(self, table: Name) -> list[KeyRow]:
        """Return the parts of its unique indexes."""
        return [
            KeyRow(str(index), str(column), str(nullable).upper() == "YES")
            for index, column, nullable in self._ask(_KEYS, table)
            if column is not None  # of an expression
        ]

    def border(self, table: Name, column: str, after: int | None, rows: int) -> int | None:
        """Return the key that stands ``rows`` rows above ``after``; None: there are fewer."""
        lowest = -(1 << 63) - 1
        answer = self._ask(borders_sql(table, column), (lowest if after is None else after, rows - 1))
        return int(answer[0][0]) if answer else None

    def proof(self, table: Name, compared: Compared, keys: ColumnRange) -> TableProof:
        """Return the proof of a range.

        Raises:
            RowTooLongError: a row has no hash here.
        """
        sql = totals_sql(self.dialect, table, compared.columns, keys.condition, with_sum=not compared.has_key)
        ((rows, hashed, xor, *sums),) = self._ask(sql, keys.arguments)
        if rows != hashed:
            raise RowTooLongError(
                "a row's text is longer than max_allowed_packet",
                side=self._side,
                table=".".join(table),
                rows=int(rows) - int(hashed),
            )
        return _proof(rows, xor, sums)

    def buckets(self, table: Name, compared: Compared, keys: ColumnRange, shift: int) -> dict[int, TableProof]:
        """Return the proofs of a range's buckets."""
        with_sum = not compared.has_key
        sql = buckets_sql(self.dialect, table, compared.columns, shift, keys.condition, with_sum=with_sum)
        answer = self._ask(sql, keys.arguments)
        return {int(bucket): _proof(rows, xor, sums) for bucket, rows, xor, *sums in answer}

    def rows(
        self, table: Name, compared: Compared, keys: ColumnRange, shift: int, buckets: Sequence[int], rows_max: int
    ) -> list[HashedRow]:
        """Return the rows of some buckets, at most ``rows_max``."""
        sql = rows_sql(self.dialect, table, compared.columns, compared.key, shift, keys.condition)
        answer = self._ask(sql, (*keys.arguments, tuple(buckets), rows_max))
        return [HashedRow(int(row[0]), tuple(map(_shown, row[1:]))) for row in answer]

    def _ask(self, sql: str, arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            return select(self._connection, sql, arguments)
        except pymysql.MySQLError as error:
            raise self._error(error) from error

    def _error(self, error: pymysql.MySQLError) -> BusError:
        if errno(error) in _IN_MOTION:
            return TableInMotionError("a table's definition has changed meanwhile", side=self._side)
        return general_error(error, side=self._side)


def _proof(rows: Any, xor: Any, sums: Sequence[Any]) -> TableProof:
    return TableProof(int(rows), int(xor), int(sums[0]) % SUMS if sums else None)


def _dialect(connection: Connection) -> Dialect:
    if is_tidb(connection):
        return Dialect.TIDB
    return Dialect.MARIADB if "MariaDB" in connection.get_server_info() else Dialect.MYSQL


def _shown(text: object) -> str | None:
    return None if text is None else bytes.fromhex(_text(text)).decode("utf-8", "backslashreplace")


def _text(value: object) -> str:
    """Return a text that a server may give as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
