"""Changefeed management as the CLI and `tidebus run` do it: a session, the store, the raw log's window."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from compose.stack.local import Addresses
from consumers.api.bodies import StoredFeed, error_body_of, local_time, shown_state
from consumers.changefeed_control import ChangefeedControl, state_of
from consumers.changefeed_store import ChangefeedRequest, ChangefeedStore, NoFrontierError, StartTsError
from consumers.raw_log import FrontierWindow, frontier_window
from consumers.zookeeper import Session
from schemas.changefeed import NAMESPACE_DEFAULT, ChangefeedInfo, ChangefeedStatus, ZkPaths
from schemas.config.changefeed import ChangefeedConfig, load_changefeed
from schemas.config.secret import MASK, mask_uri
from schemas.errors import ConfigError
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
        DispatchError, ColumnSelectorError: the dispatcher rules or column selectors do not fit tables that there are at
            the start ts.
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
    if not feed.may_misfit:
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


def resume_ts(kafka: str, upstream: UpstreamId, wanted: str) -> Ts:
    """Return the checkpoint of ``--overwrite-checkpoint-ts``: a TSO that the raw log serves, or its newest for `now`.

    Raises:
        ConfigError: neither, or there is no --kafka.
        BusError: see :func:`check_resume_ts`.
    """
    if not kafka:
        raise ConfigError("--overwrite-checkpoint-ts needs --kafka, where the raw log is", key="kafka")
    if wanted != "now" and not wanted.isdecimal():
        raise ConfigError("must be a TSO or `now`", key="overwrite-checkpoint-ts", got=wanted)
    if wanted != "now":
        check_resume_ts(kafka, upstream, Ts(int(wanted)))
        return Ts(int(wanted))
    window = frontier_window(kafka, raw_topics(upstream))
    if window is None:
        raise NoFrontierError("no frontier of this upstream has been published yet", upstream=upstream)
    return window.newest_ts


def upstream_tables(kafka: str, upstream: UpstreamId, ts: Ts | None) -> list[StoredTable]:
    """Return the tables with rows that an upstream has at ``ts`` (None: now), by name.

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
    found = [stored for stored in schemas.stored_at(at) if stored.has_rows]
    return sorted(found, key=lambda stored: (stored.schema, stored.table))


def scoped_tables(kafka: str, upstream: UpstreamId, config: ChangefeedConfig, ts: Ts | None) -> list[StoredTable]:
    """Return the tables at ``ts`` (None: now) that the filter lets through, eligible or not, by name.

    Raises:
        BusError: see :func:`upstream_tables`.
    """
    feed = compile_feed(config, NAMESPACE_DEFAULT)
    tables = upstream_tables(kafka, upstream, ts)
    return [stored for stored in tables if feed.filter.matches(stored.schema, stored.table)]


def summary(info: ChangefeedInfo, status: ChangefeedStatus | None) -> dict[str, Any]:
    """Return what `changefeed create` shows of it."""
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


def listed(info: ChangefeedInfo, status: ChangefeedStatus | None) -> dict[str, Any]:
    """Return what `changefeed list` shows of one, as `cdc cli` does."""
    feed = StoredFeed(info, status)
    return {
        "id": info.changefeed_id,
        "namespace": info.namespace,
        "summary": {
            "state": shown_state(feed.state),
            "tso": feed.checkpoint_ts,
            "checkpoint": local_time(feed.checkpoint_ts),
            "error": error_body_of(feed),
        },
    }


def details(info: ChangefeedInfo, status: ChangefeedStatus | None) -> dict[str, Any]:
    """Return what `changefeed query` shows of one, as `cdc cli` does and with what only we have; no secrets."""
    feed = StoredFeed(info, status)
    shown = {
        "upstream": info.upstream,
        "namespace": info.namespace,
        "id": info.changefeed_id,
        "sink_uri": mask_uri(info.sink_uri),
        "config": _masked(info.config),
        "create_time": info.create_time,
        "start_ts": info.start_ts,
        "resolved_ts": feed.resolved_ts,
        "target_ts": info.target_ts or 0,
        "checkpoint_tso": feed.checkpoint_ts,
        "checkpoint_time": local_time(feed.checkpoint_ts),
        "state": shown_state(feed.state),
        "error": error_body_of(feed),
        "creator_version": info.creator_version,
    }
    if status:
        shown |= {"rows_total": status.rows_total, "batch_rows": status.batch_rows, "batch_s": status.batch_s}
        shown |= {"corrupt_rows_total": status.corrupt_rows_total}
    return shown


def simple(info: ChangefeedInfo, status: ChangefeedStatus | None) -> dict[str, Any]:
    """Return what `changefeed query --simple` shows."""
    shown = listed(info, status)["summary"]
    return {
        "state": shown["state"],
        "tso": shown["tso"],
        "checkpoint": shown["checkpoint"],
        "error": shown["error"],
    }


def gaps(info: ChangefeedInfo, status: ChangefeedStatus | None, now_ms: float) -> dict[str, str]:
    """Return what `changefeed statistics` shows: how far the sink is behind what could be written, and behind now."""
    feed = StoredFeed(info, status)
    checkpoint_ms = physical_ms(feed.checkpoint_ts)
    return {
        "sink_gap": f"{physical_ms(feed.resolved_ts) - checkpoint_ms}ms",
        "replication_gap": f"{max(0, round(now_ms - checkpoint_ms))}ms",
    }


_SECRET_NAMES = ("password", "secret", "token", "credential")


def _masked(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, name) for item in value]
    if isinstance(value, str):
        return MASK if any(part in name.lower() for part in _SECRET_NAMES) else mask_uri(value)
    return value
