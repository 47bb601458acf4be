"""Changefeed management as the CLI and `tidebus run` do it: a session, the store, the raw log's window."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from consumers.control.changefeeds.store import ChangefeedRequest, ChangefeedStore, NoFrontierError, StartTsError
from consumers.control.log.raw_log import RetainedFrontier, retained_frontier
from edges.kafka.access import KafkaAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.config.changefeed import load_changefeed
from schemas.config.settings import ChangefeedConfig
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import Action, BusError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import NAMESPACE_DEFAULT, ChangefeedInfo, ZkPaths
from schemas.nodes.prologue import Prologue
from schemas.rawlog.topics import raw_topics
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.route_check import check_routes
from sorters.run.schema_feed import schemas_at

NAMES_MAX: Final = 20
"""Of tables in one error."""


class Older(Protocol):
    """What the upstream still has from before the raw log, at a changefeed's start ts."""

    @property
    def prologue(self) -> Prologue:
        """What is stored with the changefeed."""

    @property
    def schemas(self) -> SchemaStore:
        """The schemas at the start ts."""

    def keep(self) -> None:
        """Hold it on: the changefeed is there."""


@contextmanager
def open_store(zookeeper: ZooKeeperAccess, cluster: str) -> Iterator[ChangefeedStore]:
    """Yield the store of a cluster's changefeeds.

    Raises:
        ZooKeeperUnreachableError
    """
    with Session(zookeeper) as session:
        yield ChangefeedStore(session, ZkPaths(cluster))


def create_changefeed(
    kafka: KafkaAccess,
    zookeeper: ZooKeeperAccess,
    cluster: str,
    request: ChangefeedRequest,
    checked: ChangefeedConfig | None = None,
    older: Older | None = None,
) -> ChangefeedInfo:
    """Check and create a changefeed; a sorter may start on it.

    ``checked`` is ``request.config`` as it was read from its file, so that errors can name the line. ``older`` is for a
    start ts below the raw log, which is refused without.

    Raises:
        DispatchError, ColumnSelectorError: the dispatcher rules or column selectors do not fit tables that there are at
            the start ts.
        BusError: see :meth:`ChangefeedStore.create`.
    """
    config = checked or load_changefeed(request.sink_uri, request.config)
    window = retained_frontier(kafka, raw_topics(request.upstream))
    if window is not None and request.start_ts is None:
        # Fixed here, so that what is checked is what is created.
        request = replace(request, start_ts=window.newest_ts)
    _check_tables(kafka, request, config, window, older)
    with open_store(zookeeper, cluster) as store:
        info = store.create(request, window, None if older is None else older.prologue)
    if older is not None:
        older.keep()
    return info


class TableIneligibleError(BusError):
    """Tables have no primary key and no not-null unique key, and nobody has said what is to become of them."""

    code, action = "changefeed.table_ineligible", Action.STOP_CHANGEFEED


def check_eligible(kafka: KafkaAccess, request: ChangefeedRequest, older: Older | None = None) -> None:
    """Refuse tables that could not be replicated, unless the settings say to force or to ignore them, as TiCDC does.

    ``older``: see :func:`create_changefeed`.

    Raises:
        TableIneligibleError
        BusError: Kafka does not answer, or the settings are not allowed.
    """
    config = load_changefeed(request.sink_uri, request.config)
    if config.force_replicate or config.ignore_ineligible_table:
        return
    window = retained_frontier(kafka, raw_topics(request.upstream))
    if window is None or not _can_tell(request.start_ts or window.newest_ts, window, older):
        return  # what is wrong with that is said where the changefeed is stored
    tables = scoped_tables(kafka, request.upstream, config, request.start_ts, older)
    names = [f"{stored.schema}.{stored.table}" for stored in tables if not stored.eligible]
    if names:
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        raise TableIneligibleError(
            "tables have no primary key and no not-null unique key; ignore-ineligible-table leaves them out, "
            "force-replicate sends their rows with possible repeats",
            tables=", ".join(names[:NAMES_MAX]) + more,
        )


def _can_tell(ts: Ts, window: RetainedFrontier, older: Older | None) -> bool:
    """Tell whether the schemas at ``ts`` are known."""
    return (older is not None or window.oldest_ts <= ts) and ts <= window.newest_ts


def _schemas(kafka: KafkaAccess, upstream: UpstreamId, ts: Ts, older: Older | None) -> SchemaStore | None:
    """Return the schemas at ``ts``: the ddl topic keeps everything, so it may know them from before its changes."""
    schemas = schemas_at(kafka.config(), raw_topics(upstream).ddl, ts)
    return older.schemas if schemas is None and older is not None else schemas


def _check_tables(
    kafka: KafkaAccess,
    request: ChangefeedRequest,
    config: ChangefeedConfig,
    window: RetainedFrontier | None,
    older: Older | None,
) -> None:
    """Hold the rules against the tables at the start ts; where the log cannot serve it, the store says so."""
    ts = request.start_ts
    if window is None or ts is None or not _can_tell(ts, window, older):
        return
    feed = compile_feed(config, request.namespace)
    if not feed.may_misfit:
        return
    schemas = _schemas(kafka, request.upstream, ts, older)
    if schemas is not None:
        check_routes(schemas, ts, feed)


def check_resume_ts(kafka: KafkaAccess, upstream: UpstreamId, ts: Ts) -> None:
    """Check that a changefeed can go on from ``ts``.

    Raises:
        StartTsError: the raw log does not reach back so far. One that has not come so far yet is waited for.
        NoFrontierError: there is no raw log to read yet.
        BusError: Kafka does not answer.
    """
    window = retained_frontier(kafka, raw_topics(upstream))
    if window is None:
        raise NoFrontierError("no frontier of this upstream has been published yet", upstream=upstream)
    if ts < window.oldest_ts:
        raise StartTsError(
            f"the raw log goes back to {window.oldest_ts}; nothing before can be read again",
            checkpoint_ts=ts,
            oldest_ts=window.oldest_ts,
            newest_ts=window.newest_ts,
        )


def upstream_tables(
    kafka: KafkaAccess, upstream: UpstreamId, ts: Ts | None, older: Older | None = None
) -> list[StoredTable]:
    """Return the tables with rows that an upstream has at ``ts`` (None: now), by name.

    ``older``: of this ts, where the raw log does not reach back to it.

    Raises:
        NoFrontierError: no capture has published a frontier yet.
        StartTsError: the raw log does not reach back to ``ts``.
        BusError: Kafka does not answer.
    """
    window = retained_frontier(kafka, raw_topics(upstream))
    if window is None:
        raise NoFrontierError("no frontier of this upstream has been published yet", upstream=upstream)
    at = window.newest_ts if ts is None else ts
    schemas = _schemas(kafka, upstream, at, older)
    if schemas is None:
        raise StartTsError("the schemas of this ts are gone", start_ts=at, oldest_ts=window.oldest_ts)
    tables = [stored for stored in schemas.stored_at(at) if stored.has_rows]
    return sorted(tables, key=lambda stored: (stored.schema, stored.table))


def scoped_tables(
    kafka: KafkaAccess, upstream: UpstreamId, config: ChangefeedConfig, ts: Ts | None, older: Older | None = None
) -> list[StoredTable]:
    """Return the tables at ``ts`` (None: now) that the filter lets through, eligible or not, by name.

    Raises:
        BusError: see :func:`upstream_tables`.
    """
    feed = compile_feed(config, NAMESPACE_DEFAULT)
    tables = upstream_tables(kafka, upstream, ts, older)
    return [stored for stored in tables if feed.filter.matches(stored.schema, stored.table)]


def tables_body(
    kafka: KafkaAccess, upstream: UpstreamId, config: ChangefeedConfig, ts: Ts | None, older: Older | None = None
) -> dict[str, list[dict[str, object]]]:
    """Return the API's Tables at ``ts`` (None: now), each list by name.

    Raises:
        BusError: see :func:`upstream_tables`.
    """
    names = compile_feed(config, NAMESPACE_DEFAULT).filter
    body: dict[str, list[dict[str, object]]] = {"ineligible_tables": [], "eligible_tables": [], "all_tables": []}
    for stored in upstream_tables(kafka, upstream, ts, older):
        shown = {
            "database_name": stored.schema,
            "table_name": stored.table,
            "table_id": stored.table_id,
            "is_partition": bool(stored.partition_ids),
        }
        if names.matches_schema(stored.schema):
            body["all_tables"].append(shown)
        if names.matches(stored.schema, stored.table):
            kind = "eligible_tables" if stored.eligible or config.force_replicate else "ineligible_tables"
            body[kind].append(shown)
    return body
