"""Connections to the destination, set up so that literals mean there what they meant upstream."""

import ssl
from dataclasses import dataclass
from typing import Any, Protocol

import pymysql
from pymysql.constants import CLIENT

from consumers.processors.apply.errors import DestinationRefusedError, errno, general_error, may_heal
from consumers.processors.apply.tls import DatabaseConnection, tls_context
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.sink_uri import DatabaseServer
from schemas.errors import ConfigError
from schemas.nodes.changefeed import SOURCE_ID_DEFAULT

Connection = Any
"""``pymysql.connections.Connection``; its stubs know no bytes as a statement."""


class Connect(Protocol):
    """Opens connections to a destination."""

    def __call__(self, *, multi_statements: bool = False) -> Connection:
        """Open one; ``multi_statements``: for rows, whose texts we make ourselves. No other may hold two statements."""
        ...


ROW_SQL_MODE = "STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
"""What does not fit is an error; zero dates, dates like 2024-02-31 and an AUTO_INCREMENT of 0 stay as they are."""
LOOSE_SQL_MODE = ROW_SQL_MODE.removeprefix("STRICT_TRANS_TABLES,")
UNKNOWN_VARIABLE = 1193
_PACKET_VARIABLE = "max_allowed_packet"
PACKET_BYTES_LEAST = 1 << 20
"""What a server that does not say its ``max_allowed_packet`` is taken to have: the least that one ever came with."""
_WHICH_VARIABLES = "SHOW SESSION VARIABLES WHERE Variable_name IN %s"
_TIDB_VARIABLES = {
    "allow_auto_random_explicit_insert": "1",
    "tidb_enable_external_ts_read": "'OFF'",
    "tidb_placement_mode": "'ignore'",
}
"""What only a TiDB has: it takes AUTO_RANDOM values that a row brings along, writes though its readers are bound to an
external ts, and passes over placement, whose policies are the upstream's own. Source: pingcap/tiflow
``pkg/sink/mysql/db_helper.go``, ``generateDSNByConfig``."""
LOCK_WAIT_S = 50
"""So long a statement of ours waits for a lock on a table (``LOCK TABLES``, a backup's, a DDL by hand), as InnoDB does
for one on a row. A server's default is a day: each try would leave a session behind that waits there."""
IDLE_MAX_S = 30
"""After so long without a statement a server ends the session. One whose machine is gone, or frozen, would else hold
the locks of its transaction for hours, and nobody could take its partitions over; who waits for such a lock gives up
after 50 s by default."""


@dataclass(frozen=True, slots=True)
class Connector:
    """Opens connections of one changefeed."""

    server: DatabaseServer
    config: ChangefeedConfig
    source_id: int = SOURCE_ID_DEFAULT
    """The upstream's, which a TiDB marks our writes with."""

    def __call__(self, *, multi_statements: bool = False) -> Connection:
        """Open one; transactions are begun and committed by the caller.

        ``multi_statements``: for rows, if the changefeed's settings say so. One for DDL takes one statement at a time,
        so that no text that came from upstream can hold a second.

        Raises:
            DestinationUnreachableError, DestinationRefusedError: by who can help.
        """
        mysql = self.config.sink.mysql
        try:
            connection: Connection = DatabaseConnection(
                host=self.server.host,
                port=self.server.port,
                user=self.server.user,
                password=self.server.password.reveal(),
                charset="utf8mb4",
                autocommit=True,
                # An UPDATE tells the rows that it found, also those that it left as they were.
                client_flag=CLIENT.FOUND_ROWS
                | (CLIENT.MULTI_STATEMENTS if multi_statements and mysql.enable_multi_statement else 0),
                connect_timeout=max(1, round(mysql.timeout_s)),
                read_timeout=max(1, round(mysql.read_timeout_s)),
                write_timeout=max(1, round(mysql.write_timeout_s)),
                ssl=self._tls(),
                allows_key_retrieval=mysql.allow_public_key_retrieval,
                hides_user=self.server.hides_user,
            )
        except pymysql.MySQLError as error:
            raise general_error(error, address=f"{self.server.host}:{self.server.port}") from error
        except (OSError, RuntimeError) as error:
            raise ConfigError("TLS settings of the sink cannot be used", reason=repr(error)) from error
        try:
            self._set_up(connection)
        except pymysql.MySQLError as error:
            connection.close()
            raise general_error(error, address=f"{self.server.host}:{self.server.port}") from error
        except DestinationRefusedError:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: Connection) -> None:
        settings = f"sql_mode='{ROW_SQL_MODE}', time_zone='+00:00', foreign_key_checks=0"
        settings += f", wait_timeout={IDLE_MAX_S}, lock_wait_timeout={LOCK_WAIT_S}"
        connection.query(f"SET SESSION {settings}".encode())
        connection.query(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        wanted = {**_TIDB_VARIABLES, "tidb_txn_mode": f"'{self.config.sink.mysql.tidb_txn_mode}'"}
        # Asked for one by one: a TiDB need not say in its version that it is one, and an older one lacks some.
        asked = select(connection, _WHICH_VARIABLES, ((*wanted, _PACKET_VARIABLE),))
        known = {str(name).lower(): str(value) for name, value in asked}
        connection.packet_bytes_max = int(known.pop(_PACKET_VARIABLE, PACKET_BYTES_LEAST))
        if not known:
            self._refuse_unmarked()
            return
        settings = ", ".join(f"{name}={value}" for name, value in wanted.items() if name in known)
        connection.query(f"SET SESSION {settings}".encode())
        try:
            # The mark by which bidirectional replication tells our writes from those of users; SHOW need not list it.
            connection.query(f"SET SESSION tidb_cdc_write_source={self.source_id}".encode())
        except pymysql.MySQLError as error:
            if errno(error) != UNKNOWN_VARIABLE:
                raise
            self._refuse_unmarked()

    def _refuse_unmarked(self) -> None:
        if self.config.bdr_mode:  # the changefeed of the way back would send what we write
            raise DestinationRefusedError(
                "bdr-mode needs a destination that marks our writes: a TiDB with tidb_cdc_write_source (6.5 or later)",
                key="bdr-mode",
                address=f"{self.server.host}:{self.server.port}",
            )

    def _tls(self) -> ssl.SSLContext | None:
        mysql = self.config.sink.mysql
        return tls_context(mysql) if self.server.tls or mysql.ssl_ca or mysql.ssl_cert else None


def is_tidb(connection: Connection) -> bool:
    """Tell whether the server is a TiDB, whatever version it gives itself out as.

    Raises:
        pymysql.MySQLError: it does not answer.
    """
    if "TiDB" in connection.get_server_info():
        return True
    try:
        select(connection, "SELECT tidb_version()")
    except pymysql.MySQLError as error:
        if may_heal(error):
            raise
        return False
    return True


def select(connection: Connection, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments)
        return list(cursor.fetchall())


def execute(connection: Connection, sql: str, arguments: tuple[Any, ...] = ()) -> int:
    """Run a statement of our own and return the rows that it found."""
    with connection.cursor() as cursor:
        return int(cursor.execute(sql, arguments))
