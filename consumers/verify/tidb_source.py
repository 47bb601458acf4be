"""A TiDB as it was at a ts, read by SQL.

``tidb_snapshot`` takes a ts itself, and shows the schemas of this ts too; ``AS OF TIMESTAMP`` takes a time, which has
no room for a ts's counter.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pymysql

from consumers.processors.apply.connection import Connect, execute, is_tidb
from consumers.processors.apply.errors import DestinationRefusedError, DestinationUnreachableError, general_error
from consumers.verify.border import read_settings
from consumers.verify.errors import NoAncientRowsError
from consumers.verify.reader import SideReader
from schemas.ids import Ts

_SNAPSHOT = "SET SESSION tidb_snapshot = %s"


@dataclass(frozen=True, slots=True)
class TidbSource:
    """Opens the source as it was."""

    connect: Connect
    time_zone: str = ""
    """In which its TIMESTAMPs are shown; '': UTC, as they are in a database."""

    @contextmanager
    def __call__(self, ts: Ts) -> Iterator[SideReader]:
        """Open it as it was at ``ts``; 0: as it is now.

        Raises:
            NoAncientRowsError: it is no TiDB.
            DestinationUnreachableError, DestinationRefusedError: it does not answer, or holds no rows that old.
        """
        try:
            connection = self.connect()
        except (DestinationUnreachableError, DestinationRefusedError) as error:
            # The connection's own words are a changefeed's, for which any database is a destination.
            text = error.message.replace("destination", "the source, from which rows are to be read,")
            raise type(error)(text, side="source", **error.fields) from error
        try:
            if not is_tidb(connection):
                raise NoAncientRowsError("the source must be a TiDB: only it shows what it held at a ts")
            read_settings(connection)
            if self.time_zone:
                execute(connection, "SET SESSION time_zone = %s", (self.time_zone,))
            if ts:
                execute(connection, _SNAPSHOT, (str(ts),))
            yield SideReader(connection, "source")
        except pymysql.MySQLError as error:
            raise general_error(error, side="source", ts=ts) from error
        finally:
            connection.close()
