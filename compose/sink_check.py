"""Whether a changefeed's sink can be used: asked when it is created, gets another sink or goes on, as TiCDC asks.

Nothing is written there. What is so then may be otherwise a minute later: sorters and processors check it all again.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pymysql

from consumers.processors.apply.connection import Connection, Connector, execute, select
from consumers.processors.apply.errors import general_error, may_heal
from consumers.processors.storage.store import file_store
from edges.secrets import SecretReferenceError, load_with_secrets
from schemas.config.client_options import librdkafka_options
from schemas.config.lake_rules import is_on_s3, warehouse_folder
from schemas.config.settings import ChangefeedConfig
from schemas.config.zone import session_zone
from schemas.errors import Action, BusError
from schemas.masking import mask_uri
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.tidb.time_zone import UTC_NAME
from sorters.log.topic_admin import TopicAdmin

log = logging.getLogger(__name__)

_CLUSTER_ID = "SELECT VARIABLE_VALUE FROM mysql.tidb WHERE VARIABLE_NAME = 'cluster_id'"
_KEYSPACE = "SHOW CONFIG WHERE type = 'tidb' AND name = 'keyspace-name'"


class SinkRefusedError(BusError):
    """The sink cannot be reached, or does not take what the changefeed would bring; ``reason`` says more."""

    code, action = "changefeed.sink_refused", Action.STOP_CHANGEFEED


class SameClusterError(BusError):
    """The sink is the upstream's own cluster: its rows would come back for ever."""

    code, action = "changefeed.same_cluster", Action.STOP_CHANGEFEED


class WarehouseError(BusError):
    """The folder of a warehouse is none, or not ours to write."""

    code, action = "lake.warehouse", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class TidbCluster:
    """What a TiDB says of where it belongs to."""

    cluster_id: int
    keyspace: str
    """Empty: it has none, or does not say."""


def check_sink(info: ChangefeedInfo, upstream_id: Callable[[], int]) -> None:
    """Connect to a changefeed's sink. One whose secrets are not here is left to who has them.

    Args:
        info: the changefeed as it would be stored.
        upstream_id: asks PD for the upstream's cluster id.

    Raises:
        SinkRefusedError, SameClusterError
        BusError: PD does not answer.
    """
    config = _with_secrets(info)
    if config is None:
        return
    try:
        cluster = _try(config, info)
    except BusError as error:
        sink = mask_uri(info.sink_uri).partition("?")[0]
        raise SinkRefusedError("sink cannot be used", sink=sink, reason=str(error)) from error
    _check_other(cluster, info, upstream_id)


def check_other_cluster(info: ChangefeedInfo, upstream_id: Callable[[], int]) -> None:
    """Check that a changefeed that is to go on does not write into its own upstream, which a TiDB that was restored or
    given another address may have become. What does not answer is left to the changefeed, which waits for it.

    Raises:
        SameClusterError
        BusError: PD does not answer.
    """
    config = _with_secrets(info)
    if config is None or config.uri.server is None:
        return
    try:
        cluster = _try(config, info)
    except BusError as error:
        where = {"changefeed": info.changefeed_id, "error": str(error)}
        log.warning("sink does not say which cluster it is; the changefeed goes on", extra=where)
        return
    _check_other(cluster, info, upstream_id)


def _with_secrets(info: ChangefeedInfo) -> ChangefeedConfig | None:
    """Return the settings; None: its secrets are not here."""
    try:
        return load_with_secrets(info)
    except SecretReferenceError as error:
        where = {"changefeed": info.changefeed_id, "error": str(error)}
        log.warning("sink is not tried: its secrets are not where this capture is", extra=where)
        return None


def _check_other(cluster: TidbCluster | None, info: ChangefeedInfo, upstream_id: Callable[[], int]) -> None:
    if (
        cluster is not None
        and cluster.keyspace.lower() in ("", info.namespace.lower())
        and cluster.cluster_id == upstream_id()
    ):
        raise SameClusterError("the sink is the upstream's own TiDB cluster", cluster_id=cluster.cluster_id)


def _try(config: ChangefeedConfig, info: ChangefeedInfo) -> TidbCluster | None:
    """Connect; return which TiDB cluster the sink is, None: it is none."""
    if config.uri.is_blackhole:
        return None
    if config.uri.storage is not None:
        file_store(config.uri.storage).get("metadata")
        return None
    if config.uri.is_lake:
        lake = config.sink.iceberg
        if lake.catalog == "rest" or is_on_s3(lake):  # its sorter asks the server, which may know nobody else
            return None
        check_warehouse(Path(warehouse_folder(config)))
        return None
    if config.uri.server is None:
        kafka = config.kafka
        TopicAdmin(
            librdkafka_options(config),
            partitions=kafka.partition_num,
            replication=kafka.replication_factor,
            auto_create=kafka.auto_create_topic,
            acks_all=kafka.required_acks == -1,
        ).check(config.default_topic)
        return None
    connection = Connector(config.uri.server, config)()
    try:
        zone = session_zone(config, info.time_zone)
        if zone and zone != UTC_NAME:
            execute(connection, "SET SESSION time_zone = %s", (zone,))
        return _cluster(connection)
    except pymysql.MySQLError as error:
        raise general_error(error) from error
    finally:
        connection.close()


def check_warehouse(folder: Path) -> None:
    """Check that lake tables can be written below a folder, which need not be there yet.

    Raises:
        WarehouseError: they cannot.
    """
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise WarehouseError("this capture cannot write lake tables there", warehouse=str(folder), seen=str(there))


def _cluster(connection: Connection) -> TidbCluster | None:
    try:
        rows = select(connection, _CLUSTER_ID)
    except pymysql.MySQLError as error:
        if may_heal(error):
            raise
        return None  # no TiDB, an old one, or one that does not show us: TiCDC goes on too
    if not rows or not str(rows[0][0]).isdecimal():
        return None
    try:
        names = {str(row[3]) for row in select(connection, _KEYSPACE)}
    except pymysql.MySQLError as error:
        if may_heal(error):
            raise
        names = set()
    return TidbCluster(int(rows[0][0]), names.pop() if len(names) == 1 else "")
