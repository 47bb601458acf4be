"""What can go wrong at a MySQL or TiDB, by who can help: time, an operator, or nobody."""

import re
import ssl

import pymysql
from pymysql.constants import CR, ER

from schemas.errors import Action, BusError


class DestinationUnreachableError(BusError):
    """The destination does not answer, is full, or refuses for now."""

    code, action = "apply.destination_unreachable", Action.RETRY


class DestinationRefusedError(BusError):
    """The destination does not let us in or do what we must: only an operator can help."""

    code, action = "apply.destination_refused", Action.STOP_CHANGEFEED


class RowRefusedError(BusError):
    """The destination does not take a row; ``fields`` name table, key, commit_ts and its reason."""

    code, action = "apply.row_refused", Action.STOP_CHANGEFEED


class ShapeDiffersError(BusError):
    """The destination's table is not there, or has other columns or keys than an image needs; ``fields`` name both."""

    code, action = "apply.shape_differs", Action.STOP_CHANGEFEED


class DdlRefusedError(BusError):
    """The destination does not take a DDL; ``fields`` name it and say how to pass it."""

    code, action = "apply.ddl_refused", Action.STOP_CHANGEFEED


class RecoverRefusedError(DdlRefusedError):
    """The destination cannot bring a dropped table back: it is made there by hand, and backfilled."""

    code = "apply.recover_refused"


class ProcessorReplacedError(BusError):
    """Another processor has taken this changefeed over: what we hold is worth nothing any more."""

    code, action = "apply.processor_replaced", Action.RETRY


NO_SUCH_TABLE = frozenset({ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE})
_FULL = frozenset({1021, 1026, 1114})
"""No space left, a file that cannot be written, a tablespace that may not grow: somebody makes room."""
_ENGINES = frozenset({1005, 1030, 1296})
"""What a server says of a storage engine's error, whatever that is; the text has the engine's own number or words."""
_NO_ROOM = re.compile(r"err(?:no|or):? (?:28|135)\b|Temp file write failure")
"""Seen of MariaDB's InnoDB in the middle of a DDL: ENOSPC, HA_ERR_RECORD_FILE_FULL, and a file for sorting."""
_LOCKED = frozenset({ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK})
_KILLED = 1927  # MariaDB: "Connection was killed"
_READ_ONLY = frozenset({ER.OPTION_PREVENTS_STATEMENT, 1792, 1836})
"""A server, its new transactions, or its InnoDB may be read for a while and not written."""
_NO_SUCH_PARTITION_CHANGE = (1507, 1517)
"""The partition to drop is not there; one to add is."""
_TIDB_RETRY = frozenset({8002, 8022, 8027, 8028, 9001, 9002, 9003, 9005, 9007})
"""TiDB: conflicts, schema changes under way, and a TiKV or PD that does not answer."""
_RETRY = _TIDB_RETRY | {
    *(CR.CR_CONNECTION_ERROR, CR.CR_CONN_HOST_ERROR, CR.CR_SERVER_GONE_ERROR),
    *(CR.CR_SERVER_LOST, CR.CR_SERVER_LOST_EXTENDED),
    *(ER.QUERY_INTERRUPTED, ER.SERVER_SHUTDOWN, ER.CON_COUNT_ERROR),
    *(ER.NET_READ_ERROR, ER.NET_READ_INTERRUPTED, ER.NET_ERROR_ON_WRITE, ER.NET_WRITE_INTERRUPTED),
    *(ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED, ER.OUT_OF_RESOURCES),
    _KILLED,
    *_READ_ONLY,
    *_LOCKED,
}  # fmt: skip
_REFUSED = frozenset(
    {
        *(ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR),
        *(ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.HOST_NOT_PRIVILEGED, ER.HOST_IS_BLOCKED),
    }
)
ALREADY_SO = frozenset(
    {
        *(ER.DB_CREATE_EXISTS, ER.DB_DROP_EXISTS, ER.TABLE_EXISTS_ERROR, ER.BAD_TABLE_ERROR),
        *(ER.DUP_FIELDNAME, ER.DUP_KEYNAME, ER.CANT_DROP_FIELD_OR_KEY, ER.MULTIPLE_PRI_KEY),
        *_NO_SUCH_PARTITION_CHANGE,
    }
)
"""What a DDL ends with whose effect is there already; TiCDC passes over these too (``isIgnorableMySQLDDLError``)."""

UNKNOWN_VIEW = 4092
"""What a MariaDB says to a DROP VIEW in place of 1051. To a MySQL the number is another error."""


def errno(error: pymysql.MySQLError) -> int:
    """Return the server's or client's number; 0: it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def _cause(error: pymysql.MySQLError) -> object:
    """Return what PyMySQL has turned into its own error when it could not connect."""
    return getattr(error, "original_exception", None)


def reason(error: pymysql.MySQLError) -> str:
    """Return number and text, for people."""
    return ", ".join(str(part) for part in error.args)


def may_heal(error: pymysql.MySQLError) -> bool:
    """Tell whether the same may work later."""
    if isinstance(_cause(error), ssl.SSLError):
        return False  # a certificate that the other side's is not signed by does not get better
    if is_full(error):
        return True
    # PyMySQL says InterfaceError without a number for a connection that it has closed itself.
    return errno(error) in _RETRY or (errno(error) == 0 and isinstance(error, pymysql.err.InterfaceError))


def is_full(error: pymysql.MySQLError) -> bool:
    """Tell whether there is no room for what is written."""
    return errno(error) in _FULL or (errno(error) in _ENGINES and _NO_ROOM.search(reason(error)) is not None)


def is_of_statement(error: pymysql.MySQLError) -> bool:
    """Tell whether what a statement waits for is its table's: room, or a lock. The connection is as good as before."""
    return is_full(error) or errno(error) in _LOCKED


def is_refusal(error: pymysql.MySQLError) -> bool:
    """Tell whether we lack a privilege."""
    return errno(error) in _REFUSED


def general_error(error: pymysql.MySQLError, **where: object) -> BusError:
    """Return the error of a statement that concerns no single row; the caller raises it."""
    if may_heal(error):
        return DestinationUnreachableError(
            "destination does not answer or refuses for now", **where, reason=reason(error)
        )
    what = (
        "destination and we do not agree on TLS" if isinstance(_cause(error), ssl.SSLError) else "destination refuses"
    )
    return DestinationRefusedError(what, **where, reason=reason(error))
