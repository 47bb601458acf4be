"""The routes of ``/api/v2``, and ``/metrics``: one function each, from request and bus to an answer. No socket."""

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from consumers.api.backend import Backend
from consumers.api.bodies import (
    StoredFeed,
    capture_body,
    common_body,
    feed_body,
    list_body,
    read_feed_request,
    read_object,
    status_body,
    text_of,
    ts_of,
    wanted_states,
)
from consumers.api.errors import ApiError, NoSuchCaptureError, NoSuchRouteError, NotReadyError, error_body, status_of
from consumers.api.metrics import CONTENT_TYPE, metrics_text
from consumers.changefeed_store import ChangefeedNotFoundError, check_id
from schemas.changefeed import NAMESPACE_DEFAULT
from schemas.errors import BusError, ConfigError
from schemas.ids import physical_ms

log = logging.getLogger(__name__)

_LOGICAL_MASK: Final = (1 << 18) - 1


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came: the path without its query, still percent-decoded by the server."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def namespace(self) -> str:
        """The namespace asked for.

        Raises:
            ConfigError: no legal name; it would become part of a path in ZooKeeper.
        """
        name = self.query.get("namespace") or NAMESPACE_DEFAULT
        check_id("namespace", name)
        return name


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; the body becomes JSON, unless it is bytes of another type."""

    status: HTTPStatus
    body: Any
    content_type: str = "application/json; charset=utf-8"


Handler = Callable[[Backend, Request, dict[str, str]], Any]


def handle(request: Request, backend: Backend | None) -> Response:
    """Answer a request. Never raises: an error is an answer too.

    ``backend`` is None while the capture has no session.
    """
    try:
        handler, names = _route(request)
        if backend is None:
            raise NotReadyError("this capture has no session with ZooKeeper at the moment")
        for key, value in names.items():
            if key != "capture":
                check_id("changefeed-id", value)
        body = handler(backend, request, names)
        return body if isinstance(body, Response) else Response(HTTPStatus.OK, body)
    except BusError as error:
        return Response(status_of(error), error_body(error))
    except Exception as error:
        log.exception("api request failed", extra={"method": request.method, "path": request.path})
        text = f"[CDC:ErrInternalServerError] {type(error).__name__}; the capture's log says more"
        body = {"error_msg": text, "error_code": "CDC:ErrInternalServerError"}
        return Response(HTTPStatus.INTERNAL_SERVER_ERROR, body)


def _route(request: Request) -> tuple[Handler, dict[str, str]]:
    path = request.path.rstrip("/")
    for method, pattern, handler in ROUTES:
        found = re.fullmatch(pattern, path)
        if found and method == request.method:
            return handler, found.groupdict()
    raise NoSuchRouteError("no such path with this method", method=request.method, path=request.path[:200])


def _status(backend: Backend, _request: Request, _names: dict[str, str]) -> Any:
    return {
        "version": backend.capture.version,
        "git_hash": "",
        "id": backend.capture.capture_id,
        "cluster_id": backend.cluster,
        "pid": os.getpid(),
        "is_owner": backend.owner() == backend.capture.capture_id,
        "liveness": int(backend.is_stopping()),
    }


def _health(backend: Backend, _request: Request, _names: dict[str, str]) -> Any:
    backend.check_health()
    return {}


def _list_feeds(backend: Backend, request: Request, _names: dict[str, str]) -> Any:
    states = wanted_states(request.query.get("state", ""))
    feeds = [feed for feed in backend.feeds(request.namespace) if feed.state in states]
    return list_body([common_body(feed, backend.upstream_id(feed.info.upstream)) for feed in feeds])


def _get_feed(backend: Backend, request: Request, names: dict[str, str]) -> Any:
    return _full(backend, backend.feed(names["feed"], request.namespace))


def _feed_status(backend: Backend, request: Request, names: dict[str, str]) -> Any:
    return status_body(backend.feed(names["feed"], request.namespace))


def _create_feed(backend: Backend, request: Request, _names: dict[str, str]) -> Any:
    wanted = read_feed_request(read_object(request.body))
    if wanted.sink_uri is None:
        raise ConfigError("sink_uri is empty; it says where to", key="sink-uri")
    namespace = wanted.namespace or request.namespace
    info = backend.create(wanted, namespace)
    return _full(backend, StoredFeed(info, None))


def _update_feed(backend: Backend, request: Request, names: dict[str, str]) -> Any:
    change = read_feed_request(read_object(request.body)).change()
    backend.configure(names["feed"], request.namespace, change)
    return _full(backend, backend.feed(names["feed"], request.namespace))


def _delete_feed(backend: Backend, request: Request, names: dict[str, str]) -> Any:
    try:
        backend.remove(names["feed"], request.namespace)
    except ChangefeedNotFoundError:
        log.info("changefeed to be removed is gone already", extra={"changefeed": names["feed"]})
    return {}


def _pause_feed(backend: Backend, request: Request, names: dict[str, str]) -> Any:
    backend.pause(names["feed"], request.namespace)
    return {}


def _resume_feed(backend: Backend, request: Request, names: dict[str, str]) -> Any:
    ts = ts_of(read_object(request.body), "overwrite_checkpoint_ts")
    backend.resume(names["feed"], request.namespace, ts)
    return {}


def _captures(backend: Backend, _request: Request, _names: dict[str, str]) -> Any:
    owner = backend.owner()
    return list_body([capture_body(capture, owner, backend.cluster) for capture in backend.captures()])


def _processors(_backend: Backend, _request: Request, _names: dict[str, str]) -> Any:
    return list_body([])  # sinks other than Kafka have processors, and none of those is supported yet


def _processor(backend: Backend, request: Request, names: dict[str, str]) -> Any:
    backend.feed(names["feed"], request.namespace)
    if names["capture"] not in {capture.capture_id for capture in backend.captures()}:
        raise NoSuchCaptureError("there is no such capture", capture=names["capture"])
    return {"table_ids": []}


def _tso(backend: Backend, _request: Request, _names: dict[str, str]) -> Any:
    ts = backend.now_ts()
    return {"timestamp": physical_ms(ts), "logic_time": ts & _LOGICAL_MASK}


def _verify_table(backend: Backend, request: Request, _names: dict[str, str]) -> Any:
    ineligible, eligible = backend.tables(read_feed_request(read_object(request.body)))
    return {"ineligible_tables": ineligible, "eligible_tables": eligible}


def _log_level(_backend: Backend, request: Request, _names: dict[str, str]) -> Any:
    wanted = (text_of(read_object(request.body), "log_level") or "").upper()
    level = {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(wanted, wanted)
    if level not in logging.getLevelNamesMapping():
        raise ApiError("no such log level; known are debug, info, warn, error", key="log_level", got=wanted[:50])
    logging.getLogger().setLevel(level)
    return {}


def _metrics(backend: Backend, _request: Request, _names: dict[str, str]) -> Any:
    return Response(HTTPStatus.OK, metrics_text(backend.metrics()), CONTENT_TYPE)


def _full(backend: Backend, feed: StoredFeed) -> dict[str, Any]:
    return feed_body(feed, backend.upstream_id(feed.info.upstream))


_V2, _FEED = "/api/v2", "/api/v2/changefeeds/(?P<feed>[^/]+)"
ROUTES: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("GET", f"{_V2}/status", _status),
    ("GET", "/status", _status),
    ("GET", "/metrics", _metrics),
    ("GET", f"{_V2}/health", _health),
    ("POST", f"{_V2}/log", _log_level),
    ("GET", f"{_V2}/changefeeds", _list_feeds),
    ("POST", f"{_V2}/changefeeds", _create_feed),
    ("GET", _FEED, _get_feed),
    ("PUT", _FEED, _update_feed),
    ("DELETE", _FEED, _delete_feed),
    ("GET", f"{_FEED}/meta_info", _get_feed),
    ("GET", f"{_FEED}/status", _feed_status),
    ("POST", f"{_FEED}/pause", _pause_feed),
    ("POST", f"{_FEED}/resume", _resume_feed),
    ("GET", f"{_V2}/captures", _captures),
    ("GET", f"{_V2}/processors", _processors),
    ("GET", f"{_V2}/processors/(?P<feed>[^/]+)/(?P<capture>[^/]+)", _processor),
    ("POST", f"{_V2}/tso", _tso),
    ("POST", f"{_V2}/verify_table", _verify_table),
)
"""Tried in this order. ``/captures/{id}/drain``, ``/owner/resign``, ``synced`` and ``/unsafe`` are not there yet."""
