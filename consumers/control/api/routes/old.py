"""TiCDC's version 1 where version 2 has nothing for it, and the routes from before that, by form values."""

from http import HTTPStatus
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Request, Response

from consumers.control.api.access.errors import ApiError
from consumers.control.api.backend import Backend
from consumers.control.api.bodies import StoredFeed, local_time, shown_state
from consumers.control.api.context import BODY_KEY, Bus, FeedId, Namespace, Owner, User
from consumers.control.api.requests import DrainBody, MoveTableBody
from consumers.control.api.routes.changefeeds import tasks_of
from consumers.control.api.routes.cluster import check_capture, drain
from consumers.control.changefeeds.store import ChangefeedNotFoundError, check_id
from schemas.ids import CaptureId, TableId
from schemas.nodes.changefeed import NAMESPACE_DEFAULT

router = APIRouter(dependencies=[User])

_PAUSE, _RESUME, _REMOVE = "1", "2", "3"
"""TiCDC's numbers of admin jobs."""


@router.post(
    "/api/v1/changefeeds/{changefeed_id}/tables/rebalance_table",
    tags=["v1"],
    summary="Spread the tables evenly",
    status_code=HTTPStatus.ACCEPTED,
)
def rebalance_table(bus: Bus, owner: Owner, namespace: Namespace, feed_id: FeedId) -> dict[str, object]:
    """Give every capture its share of the tables of the changefeed's upstream at once."""
    bus.feed(feed_id, namespace)
    owner.rebalance()
    return {}


@router.post(
    "/api/v1/changefeeds/{changefeed_id}/tables/move_table",
    tags=["v1"],
    summary="Move a table to a capture",
    status_code=HTTPStatus.ACCEPTED,
)
def move_table(bus: Bus, owner: Owner, namespace: Namespace, feed_id: FeedId, body: MoveTableBody) -> dict[str, object]:
    """Move a table of the changefeed, for all changefeeds of its upstream: it is pulled once."""
    feed = bus.feed(feed_id, namespace)
    check_capture(bus, body.capture_id)
    if body.table not in set(bus.feed_tables(feed)):
        raise ApiError("the changefeed has no such table", changefeed=feed_id, table_id=body.table_id)
    owner.move_table(body.table, body.capture)
    return {}


@router.put("/api/v1/captures/drain", tags=["v1"], summary="Drain a capture", status_code=HTTPStatus.ACCEPTED)
def drain_capture(bus: Bus, owner: Owner, body: DrainBody) -> dict[str, object]:
    """Move all tables of a capture away; ask again until it has none."""
    return drain(bus, owner, body.capture_id)


def form_of(request: Request) -> dict[str, str]:
    """Return the values of an old route: of a form, or of the query."""
    body = request.scope.get(BODY_KEY) or b""
    return {**request.query_params, **dict(parse_qsl(body.decode(errors="replace")))}


Form = Annotated[dict[str, str], Depends(form_of)]


@router.post("/capture/owner/resign", include_in_schema=False)
def old_resign(owner: Owner) -> Response:
    """Let the owner resign."""
    owner.resign()
    return _accepted()


@router.post("/capture/owner/admin", include_in_schema=False)
def old_admin(bus: Bus, form: Form) -> Response:
    """Pause, resume or remove a changefeed."""
    feed, job = _feed(bus, form), form.get("admin-job", "")
    names = feed.info.changefeed_id, feed.info.namespace
    if job == _PAUSE:
        bus.pause(*names)
    elif job == _RESUME:
        bus.resume(*names, None)
    elif job == _REMOVE:
        bus.remove(*names)
    else:
        raise ApiError("no such admin job; 1 pauses, 2 resumes, 3 removes", key="admin-job", got=job[:20])
    return _accepted()


@router.post("/capture/owner/rebalance_trigger", include_in_schema=False)
def old_rebalance(bus: Bus, owner: Owner, form: Form) -> Response:
    """Spread the tables evenly."""
    _feed(bus, form)
    owner.rebalance()
    return _accepted()


@router.post("/capture/owner/move_table", include_in_schema=False)
def old_move(bus: Bus, owner: Owner, form: Form) -> Response:
    """Move a table."""
    feed, capture, table = _feed(bus, form), form.get("target-cp-id", ""), form.get("table-id", "")
    check_capture(bus, capture)
    if not table.isdecimal() or int(table) not in set(bus.feed_tables(feed)):
        raise ApiError("the changefeed has no such table", key="table-id", got=table[:20])
    owner.move_table(TableId(int(table)), CaptureId(capture))
    return _accepted()


@router.post("/capture/owner/changefeed/query", include_in_schema=False)
def old_query(bus: Bus, owner: Owner, form: Form) -> dict[str, object]:
    """Show a changefeed's state and checkpoint, and who works for it."""
    feed = _feed(bus, form)
    error = feed.status.error if feed.status else None
    return {
        "state": shown_state(feed.state),
        "tso": feed.checkpoint_ts,
        "checkpoint": local_time(feed.checkpoint_ts),
        "error": error and {"time": error.time, "addr": "", "code": error.code, "message": error.message},
        "captures": list(tasks_of(bus, owner, feed)),
    }


def _feed(bus: Backend, form: dict[str, str]) -> StoredFeed:
    changefeed_id = form.get("cf-id", "")
    if not changefeed_id:
        raise ChangefeedNotFoundError("the form names no changefeed", key="cf-id")
    check_id("changefeed-id", changefeed_id)
    return bus.feed(changefeed_id, NAMESPACE_DEFAULT)


def _accepted() -> Response:
    return Response(status_code=HTTPStatus.ACCEPTED)
