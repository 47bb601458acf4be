"""``tidebus lake …``: maintenance of a changefeed's lake tables, by hand, whether or not its sorter runs.

A sorter that runs does the same by itself each ``compaction-interval``. What a verb changes while a commit is under way
makes that commit begin again (:mod:`sorters.run.lake.tables`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from kazoo.exceptions import NoNodeError

from consumers.control.changefeeds.store import ChangefeedNotFoundError
from edges.secrets import decode_info, load_with_secrets
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.config.lake_rules import catalog_options
from schemas.errors import BusError, ConfigError
from schemas.ids import physical_ms
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths
from sorters.core.lake.errors import LakeOvertakenError
from sorters.core.lake.resync import LakeResync
from sorters.log.failures import bus_error
from sorters.run.lake.catalog import LakeCatalog, lake_owner
from sorters.run.lake.maintenance import Compacted, compact, expire
from sorters.run.lake.rows import LakeRows
from sorters.run.lake.table import LakeTable
from sorters.run.lake.updates import CONFLICT
from sorters.spark.session import create_session

Done = TypeVar("Done")
_RESYNCED: Final = "a resync has begun and is not over: which files are from before would not be known any more"
_OVERTAKEN: Final = (CONFLICT, "ValidationException")
"""Iceberg's: the second where files that it was to rewrite are gone."""
_WHAT_HELPS: Final = (
    "let the changefeed run, and compact again: its sorter lets the table forget the resync when that is whole; where "
    "it has ended early, with the table's next rows, or within compaction-interval (an hour where that is 0s)"
)
"""The verb cannot: whether a resync is over the frontier says, and the sorter alone knows what the table has had."""


@dataclass(frozen=True, kw_only=True)
class LakeOptions:
    """What the verbs take."""

    changefeed_id: str
    namespace: str
    cluster: str
    zookeeper: ZooKeeperAccess
    master: str
    driver_memory: str
    data_dir: Path


def compact_tables(options: LakeOptions) -> Iterator[tuple[str, Compacted | BusError]]:
    """Compact each lake table of a changefeed; yield its name and what was done, or why it was not.

    Raises:
        ChangefeedNotFoundError, ConfigError: there is none, or its sink is no lake.
        SecretKeyError: its settings are sealed by a key that is not here; or they are not sealed, and a key is here.
        BusError: Spark does not start, or the catalog does not answer.
    """
    tables, session = _opened(options)
    return of_each(tables, lambda table: compact(table, session))


def left_shown(noted: LakeResync) -> dict[str, object]:
    """Return why a table was not compacted, since when, and what to do."""
    since_ts = noted.since_ts or None
    since = since_ts and datetime.fromtimestamp(physical_ms(since_ts) / 1000, UTC).isoformat(timespec="seconds")
    return {"why": _RESYNCED, "since_ts": since_ts, "since": since, "what_helps": _WHAT_HELPS}


def expire_tables(options: LakeOptions, kept_s: float) -> Iterator[tuple[str, int | BusError]]:
    """Let snapshots of each lake table of a changefeed expire; yield its name and how many went, or why none did.

    Raises:
        ChangefeedNotFoundError, ConfigError, SecretKeyError, BusError: see :func:`compact_tables`.
    """
    tables, _ = _opened(options)
    return of_each(tables, lambda table: expire(table, kept_s))


def of_each(tables: Iterable[LakeTable], act: Callable[[LakeTable], Done]) -> Iterator[tuple[str, Done | BusError]]:
    """Do something to each table; yield its name and what came of it. One that Iceberg refuses leaves the others."""
    from py4j.protocol import Py4JError  # comes with pyspark

    for table in tables:
        try:
            done: Done | BusError = act(table)
        except Py4JError as error:
            done = _failure(error)
        yield str(table.name), done


def _failure(error: Exception) -> BusError:
    known = bus_error(error)
    if any(kind in str(error) for kind in _OVERTAKEN):
        text = "somebody has written the table meanwhile; nothing is changed: do it again"
        return LakeOvertakenError(text, reason=known.fields.get("reason", error))
    return known


def _opened(options: LakeOptions) -> tuple[list[LakeTable], object]:
    info = _stored(options)
    config = load_with_secrets(info)
    if not config.uri.is_lake:
        raise ConfigError("this changefeed has no lake tables", key="sink-uri", changefeed=options.changefeed_id)
    app = f"tidebus-lake-{options.namespace}-{options.changefeed_id}"
    session = create_session(options.master, app, options.data_dir, driver_memory=options.driver_memory)
    owner = lake_owner(info)
    rows = LakeRows(session, catalog_options(config), owner.branch)
    try:
        return list(LakeCatalog(rows, owner).tables()), rows.session
    except Exception as error:  # Py4J's, of many kinds
        raise bus_error(error) from error


def _stored(options: LakeOptions) -> ChangefeedInfo:
    path = ZkPaths(options.cluster).changefeed_info(options.namespace, options.changefeed_id)
    with Session(options.zookeeper) as session, session.requests("reading the changefeed") as client:
        try:
            return decode_info(client.get(path)[0])
        except NoNodeError as error:
            raise ChangefeedNotFoundError(
                "there is no such changefeed; `tidebus changefeed list` shows all",
                changefeed=options.changefeed_id,
                namespace=options.namespace,
            ) from error
