"""Syncpoints at the destination: TiCDC's map from upstream's ts to the destination's (``tidb_cdc.syncpoint_v1``)."""

import logging
from dataclasses import dataclass

import pymysql

from consumers.processors.apply.connection import UNKNOWN_VARIABLE, Connection, execute, is_tidb, select
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.apply.errors import errno, general_error, is_refusal, reason
from consumers.processors.core.apply.syncpoint import next_syncpoint
from schemas.ids import Ts
from schemas.nodes.changefeed import NAMESPACE_DEFAULT

log = logging.getLogger(__name__)
NAME_CHARS_MAX = 255
"""Of the column ``changefeed``; an INSERT IGNORE cuts what is longer, and nothing finds it by its whole name then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncpointWriter:
    """Writes TiCDC's ts map table, ``tidb_cdc.syncpoint_v1``."""

    destination: DatabaseDestination
    cluster: str
    changefeed_id: str
    namespace: str
    start_ts: Ts
    interval_s: float
    retention_s: float

    @property
    def name(self) -> str:
        """The changefeed in the table, whose primary key has it: of the namespace ``default`` its id alone, as TiCDC's
        classic architecture writes it; of others both, as the new architecture does, as far as the column takes them.
        """
        name = self.changefeed_id if self.namespace == NAMESPACE_DEFAULT else f"{self.namespace}/{self.changefeed_id}"
        return name[:NAME_CHARS_MAX]

    @property
    def interval_ms(self) -> int:
        """Between two syncpoints."""
        return round(self.interval_s * 1000)

    def next(self, last: Ts) -> Ts:
        """Return the syncpoint after ``last``; 0: the first."""
        return next_syncpoint(last, self.start_ts, self.interval_s)

    def write(self, ts: Ts) -> None:
        """Write the syncpoint ``ts``; the destination stands still at it. Done again, it changes nothing.

        Raises:
            ProcessorReplacedError, DestinationUnreachableError, DestinationRefusedError
        """
        connection = self.destination.connect()
        try:
            self._write(connection, ts)
        except pymysql.MySQLError as error:
            raise general_error(error, table="tidb_cdc.syncpoint_v1", primary_ts=ts) from error
        finally:
            connection.close()

    def _write(self, connection: Connection, ts: Ts) -> None:
        there = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        if select(connection, there, ("tidb_cdc", "syncpoint_v1"))[0][0] != 1:
            execute(connection, "CREATE DATABASE IF NOT EXISTS tidb_cdc")
            execute(connection, _SYNCPOINT_TABLE)
        has_ts = is_tidb(connection)
        connection.begin()
        # Another destination than TiDB has no ts of its own.
        secondary = str(select(connection, "SELECT @@tidb_current_ts")[0][0]) if has_ts else "0"
        self.destination.note_syncpoint(connection, ts)
        sql = (
            "INSERT IGNORE INTO tidb_cdc.syncpoint_v1 (ticdc_cluster_id, changefeed, primary_ts, secondary_ts)"
            " VALUES (%s, %s, %s, %s)"
        )
        fresh = execute(connection, sql, (self.cluster, self.name, str(ts), secondary))
        if not fresh:
            self._warn_of_others(connection, ts)
        elif has_ts:
            _set_external_ts(connection, secondary, ts)
        execute(
            connection,
            "DELETE FROM tidb_cdc.syncpoint_v1 WHERE ticdc_cluster_id = %s AND changefeed = %s"
            " AND created_at < NOW() - INTERVAL %s SECOND",
            (self.cluster, self.name, round(self.retention_s)),
        )
        connection.commit()

    def _warn_of_others(self, connection: Connection, ts: Ts) -> None:
        """The key of TiCDC's table does not have the cluster: one of the same name elsewhere may have been first."""
        sql = "SELECT ticdc_cluster_id, changefeed FROM tidb_cdc.syncpoint_v1 WHERE changefeed = %s AND primary_ts = %s"
        there = [tuple(map(str, row)) for row in select(connection, sql, (self.name, str(ts)))]
        for holder in there:
            if holder != (self.cluster, self.name):
                log.warning(
                    "a changefeed of the same name in another cluster has written this syncpoint; ours is left out",
                    extra={
                        "cluster": self.cluster,
                        "changefeed": self.name,
                        "primary_ts": ts,
                        "holder": " ".join(holder),
                    },
                )


def _set_external_ts(connection: Connection, secondary: str, ts: Ts) -> None:
    """Set what readers of the destination that are bound to a ts read at.

    A TiDB before 6.4 does not have it, which TiCDC passes over, too. Without the privilege for it TiCDC ends; here the
    map is written all the same, which is what most have syncpoints for.
    """
    try:
        execute(connection, f"SET GLOBAL tidb_external_ts = {int(secondary)}")
    except pymysql.MySQLError as error:
        if errno(error) == UNKNOWN_VARIABLE:
            return
        if not is_refusal(error):
            raise
        log.warning(
            "tidb_external_ts of the destination may not be set: who reads at it does not read at this syncpoint",
            extra={"primary_ts": ts, "secondary_ts": secondary, "errno": errno(error), "reason": reason(error)},
        )


_SYNCPOINT_TABLE = """CREATE TABLE IF NOT EXISTS tidb_cdc.syncpoint_v1 (
    ticdc_cluster_id VARCHAR(255),
    changefeed VARCHAR(255),
    primary_ts VARCHAR(18),
    secondary_ts VARCHAR(18),
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    INDEX (created_at),
    PRIMARY KEY (changefeed, primary_ts)
)"""
