"""Changefeed management as the CLI and `tidebus run` do it: a session, the store, the raw log's window."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from compose.stack.local import Addresses
from consumers.changefeed_control import ChangefeedControl, state_of
from consumers.changefeed_store import ChangefeedRequest, ChangefeedStore, NoFrontierError, StartTsError
from consumers.raw_log import FrontierWindow, frontier_window
from consumers.zookeeper import Session
from schemas.changefeed import NAMESPACE_DEFAULT, ChangefeedInfo, ChangefeedStatus, ZkPaths
from schemas.config.changefeed import ChangefeedConfig, load_changefeed
from schemas.config.secret import MASK, mask_uri
from schemas.ids import Ts, UpstreamId, physical_ms
from schemas.rawlog.topics import raw_topics
from schemas.tidb.schema_change import StoredTable
from sorters.core.feed import compile_feed
from sorters.core.route_check import check_routes
from sorters.schema_feed import schemas_at


@contextmanager
def open_store(zookeeper: str, cluster: str) -> Iterator[ChangefeedStore]:
    """Yield the store of a cluster's changefeeds.

    Raises:
        ZooKeeperUnreachableError
    """
    with Session(zookeeper) as session:
        yield ChangefeedStore(session, ZkPaths(cluster))


@contextmanager
def open_control(zookeeper: str, cluster: str) -> Iterator[ChangefeedControl]:
    """Yield what changes a cluster's changefeeds.

    Raises:
        ZooKeeperUnreachableError
    """
    with Session(zookeeper) as session:
        yield ChangefeedControl(session, ZkPaths(cluster))


def create_changefeed(
    addresses: Addresses, cluster: str, request: ChangefeedRequest, checked: ChangefeedConfig | None = None
) -> ChangefeedInfo:
    """Check and create a changefeed; a sorter may start on it.

    ``checked`` is ``request.config`` as it was read from its file, so that errors can name the line.

    Raises:
        DispatchError: the dispatcher rules do not fit tables that there are at the start ts.
        BusError: see :meth:`ChangefeedStore.create`.
    """
    config = checked or load_changefeed(request.sink_uri, request.config)
    window = frontier_window(addresses.kafka, raw_topics(request.upstream))
    if window is not None and request.start_ts is None:
        # Fixed here, so that what is checked is what is created.
        request = replace(request, start_ts=window.newest_ts)
    _check_tables(addresses.kafka, request, config, window)
    with open_store(addresses.zookeeper, cluster) as store:
        return store.create(request, window)


def _check_tables(
    kafka: str, request: ChangefeedRequest, config: ChangefeedConfig, window: FrontierWindow | None
) -> None:
    """Hold the rules against the tables at the start ts; where the log cannot serve it, the store says so."""
    ts = request.start_ts
    if window is None or ts is None or not window.oldest_ts <= ts <= window.newest_ts:
        return
    feed = compile_feed(config, request.namespace)
    if not any(rule.asks_for_columns for rule in feed.dispatcher.rules):
        return
    schemas = schemas_at({"bootstrap.servers": kafka}, raw_topics(request.upstream).ddl, ts)
    if schemas is not None:
        check_routes(schemas, ts, feed)


def check_resume_ts(kafka: str, upstream: UpstreamId, ts: Ts) -> None:
    """Check that a changefeed can go on from ``ts``.

    Raises:
        StartTsError: the raw log does not reach back so far, or has not come so far.
        NoFrontierError: there is no raw log to read yet.
        BusError: Kafka does not answer.
    """
    window = frontier_window(kafka, raw_topics(upstream))
    if window is None:
        raise NoFrontierError("no frontier of this upstream has been published yet", upstream=upstream)
    if not window.oldest_ts <= ts <= window.newest_ts:
        raise StartTsError(
            f"the raw log serves a checkpoint from {window.oldest_ts} to {window.newest_ts}",
            checkpoint_ts=ts,
            oldest_ts=window.oldest_ts,
            newest_ts=window.newest_ts,
        )


def scoped_tables(kafka: str, upstream: UpstreamId, config: ChangefeedConfig, ts: Ts | None) -> list[StoredTable]:
    """Return the tables at ``ts`` (None: now) that the filter lets through, eligible or not, by name.

    Raises:
        NoFrontierError: no capture has published a frontier yet.
        StartTsError: the raw log does not reach back to ``ts``.
        BusError: Kafka does not answer.
    """
    window = frontier_window(kafka, raw_topics(upstream))
    if window is None:
        raise NoFrontierError("no frontier of this upstream has been published yet", upstream=upstream)
    at = window.newest_ts if ts is None else ts
    schemas = schemas_at({"bootstrap.servers": kafka}, raw_topics(upstream).ddl, at)
    if schemas is None:
        raise StartTsError("the schemas of this ts are gone", start_ts=at, oldest_ts=window.oldest_ts)
    feed = compile_feed(config, NAMESPACE_DEFAULT)
    found = (stored for stored in schemas.stored_at(at) if stored.has_rows)
    return sorted(
        (stored for stored in found if feed.filter.matches(stored.schema, stored.table)),
        key=lambda stored: (stored.schema, stored.table),
    )


def summary(info: ChangefeedInfo, status: ChangefeedStatus | None) -> dict[str, Any]:
    """Return what `changefeed list` shows of one."""
    shown: dict[str, Any] = {
        "id": info.changefeed_id,
        "namespace": info.namespace,
        "upstream": info.upstream,
        "state": state_of(info, status),
        "checkpoint_ts": status.checkpoint_ts if status else info.start_ts,
    }
    shown["checkpoint_ms"] = physical_ms(shown["checkpoint_ts"])
    if status and status.error:
        shown["error"] = {"code": status.error.code, "message": status.error.message, "time": status.error.time}
    return shown


def details(info: ChangefeedInfo, status: ChangefeedStatus | None) -> dict[str, Any]:
    """Return what `changefeed query` shows of one, without secrets."""
    shown = summary(info, status) | {"start_ts": info.start_ts, "target_ts": info.target_ts}
    shown |= {"sink_uri": mask_uri(info.sink_uri), "config": _masked(info.config)}
    if status:
        shown |= {"resolved_ts": status.resolved_ts, "rows_total": status.rows_total}
        shown |= {"batch_rows": status.batch_rows, "batch_s": status.batch_s}
    return shown


_SECRET_NAMES = ("password", "secret", "token", "credential")


def _masked(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, name) for item in value]
    if isinstance(value, str):
        return MASK if any(part in name.lower() for part in _SECRET_NAMES) else mask_uri(value)
    return value
