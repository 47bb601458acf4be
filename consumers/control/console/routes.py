"""The console's routes: its files, its live data, and what its pages read beyond TiCDC's API.

Everything that a page changes goes through the routes that programs use; these here only read.
"""

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import Annotated, Any, Final

import tomlkit
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from consumers.control.api.backend import Backend
from consumers.control.api.bodies import FeedRequest, StoredFeed, feed_body
from consumers.control.api.context import Bus, FeedId, Namespace, User, context_of
from consumers.control.api.errors import BusyError, NoSuchRouteError
from consumers.control.api.replica_config import OURS, replica_config
from consumers.control.api.requests import Body, Tso, ts_given
from consumers.control.api.routes.images import PROOFS_LOOKED_AT, images_body, refused_items
from consumers.control.api.sorter_bodies import feed_places, sorter_body
from consumers.control.changefeeds.processor_nodes import Share
from consumers.control.changefeeds.store import ChangefeedExistsError, ChangefeedNotFoundError
from consumers.control.console.core.advice import ErrorCode, advice_for, read_codes
from consumers.control.console.core.draft import form_of, laid_in
from consumers.control.console.core.exact import exact
from consumers.control.console.core.proofs import proofs_shown
from consumers.control.console.core.settings import readable, setting_rows
from consumers.control.console.core.table_verbs import table_verbs_of
from consumers.control.console.core.verbs import verbs_of
from consumers.control.console.files import HEADERS, START, STATIC_FILES, error_codes_text
from consumers.control.console.live import CLIENTS_MAX, LiveOverview, stream
from schemas.config.changefeed import load_changefeed, parse_changefeed_text
from schemas.config.sink.schemes import is_lake_scheme, sink_scheme
from schemas.errors import BusError, ConfigError
from schemas.masking import MASK
from schemas.nodes.sorter_service import FeedName
from schemas.sink.topic import has_processors

pages = APIRouter(prefix="/console", dependencies=[User], include_in_schema=False)
router = APIRouter(prefix="/api/tidebus/console", dependencies=[User], tags=["console"])

ROUTERS: Final = (pages, router)
"""What a capture's API serves beside its own routes."""
TABLES_MAX: Final = 2000
"""Names in one answer."""
EVENTS_SHOWN: Final = 20
"""On the page of a changefeed."""
_SHOWN_MASK: Final = "xxxxx"
"""TiCDC's, in sink URIs."""
TURN_S: Final = 3.0
_looking: Final = threading.BoundedSemaphore(4)
"""Checks under way, of drafts and of the surroundings: each reads Kafka, and holds a thread that answers everybody."""


class DraftBody(Body):
    """POST /api/tidebus/console/draft."""

    sink_uri: str = ""
    toml: str = Field(default="", description="the changefeed file's text")
    form: dict[str, object] | None = Field(default=None, description="fields to be laid into the text; null: none")
    changefeed_id: str | None = Field(default=None, description="null: one that there is")
    start_ts: Tso | None = None
    is_only_read: bool = Field(default=False, description="the text is read as the API takes it, and no more is said")


@pages.get("")
def start_page() -> Response:
    """Return the console's page."""
    return _file(START)


@pages.get("/{name}")
def static_file(name: str) -> Response:
    """Return one of its files.

    Raises:
        NoSuchRouteError: the table has no such name.
    """
    if name not in STATIC_FILES:
        raise NoSuchRouteError("the console has no such file", name=name[:50])
    return _file(name)


@router.get("/live", summary="The overview, again and again, as server-sent events")
async def live(request: Request) -> Response:
    """Send an event ``overview`` every two seconds, or ``trouble`` with what keeps it from being made.

    Raises:
        BusyError: too many listen.
    """
    overview = _live_of(request)
    if overview.clients >= CLIENTS_MAX:
        raise BusyError("too many listen to live data; ask for the overview instead", clients_max=CLIENTS_MAX)
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(stream(request, overview), media_type="text/event-stream", headers=headers)


@router.get("/changefeeds/{changefeed_id}", summary="All that the page of a changefeed shows")
def feed_page(request: Request, bus: Bus, namespace: Namespace, feed_id: FeedId) -> object:
    """Return settings without secrets, state, what to do about its error, and what each button would do."""
    feed = bus.feed(feed_id, namespace)
    shown = feed_body(feed, bus.upstream_id(feed.info.upstream))
    error, sink = shown["error"], sink_scheme(feed.info.sink_uri)
    places = feed_places(bus.services(), bus.captures())
    name = (feed.info.namespace, feed.info.changefeed_id)
    images = images_body(bus, feed.info.changefeed_id, feed.info.namespace)
    return exact(
        {
            "changefeed": {key: value for key, value in shown.items() if key != "config"},
            "toml": tomlkit.dumps(readable(feed.info.config)),
            "ours": [key.replace("-", "_") for key in OURS if key in feed.info.config],
            "settings": setting_rows(feed.info.config, feed.info.sink_uri),
            "advice": asdict(advice_for(error["code"], _codes(), sink)) if error else None,
            "images": images,
            "history": _history(request, name),
            "verbs": [asdict(verb) for verb in verbs_of(feed.state, sink)],
            "table_verbs": [asdict(verb) for verb in table_verbs_of(feed.state, sink)],
            "work": {**_work(feed), "sorter": sorter_body(bus, name, places.get(name))},
            "shares": [
                {"capture": share.capture, "partitions": list(share.partitions)} for share in _shares(bus, feed)
            ],
        }
    )


@router.get("/changefeeds/{changefeed_id}/topics", summary="Where each table of a changefeed goes")
def feed_topics(bus: Bus, namespace: Namespace, feed_id: FeedId) -> object:
    """Return what `tidebus explain` says of it; nothing where its sink is no Kafka."""
    info = bus.feed(feed_id, namespace).info
    with _taken():
        return exact(bus.explain(_request(info.sink_uri, info.config)))


@router.get("/changefeeds/{changefeed_id}/refused", summary="Which of its tables a lake's sink refuses")
def refused_tables(bus: Bus, namespace: Namespace, feed_id: FeedId) -> object:
    """Return of each what the API says, and by code what it means and what to do; none where its sink is no lake."""
    feed = bus.feed(feed_id, namespace)
    sink = sink_scheme(feed.info.sink_uri)
    with _taken() if is_lake_scheme(sink) else nullcontext():
        refused = refused_items(bus, feed)
    codes = sorted({str(each["code"]) for each in refused})
    return exact({"items": refused, "codes": {code: asdict(advice_for(code, _codes(), sink)) for code in codes}})


@router.get("/changefeeds/{changefeed_id}/proofs", summary="What a changefeed's newest proofs come to")
def feed_proofs(bus: Bus, namespace: Namespace, feed_id: FeedId) -> object:
    """Return how many windows are proven, differ, or are told of by nobody, and the newest of them."""
    feed = bus.feed(feed_id, namespace)
    with _taken():
        return exact(proofs_shown(bus.proofs(feed, PROOFS_LOOKED_AT)))


@router.get("/log", summary="The newest warnings and errors of this capture's log")
def log_lines(bus: Bus, namespace: Namespace, changefeed: Annotated[str, Query(max_length=200)] = "") -> object:
    """Return lines as JSON logs have them, newest first, of a changefeed alone where one is named. What its sorters and
    processors log, which are processes of their own, is not among them.
    """
    items = [line for line in bus.log_lines() if not changefeed or _is_of(line, changefeed, namespace)]
    return exact({"capture": bus.capture.capture_id, "items": items[::-1]})


@router.get("/events", summary="What has happened on the bus since this capture began")
def bus_events(
    request: Request, bus: Bus, namespace: Namespace, changefeed: Annotated[str, Query(max_length=200)] = ""
) -> object:
    """Return changes of states, owners, captures and stalls as this capture has seen them, newest first, of a
    changefeed alone where one is named; at most a thousand. It looks every few seconds.
    """
    history = context_of(request).history
    items = history.events((namespace, changefeed) if changefeed else None) if history else ()
    return exact({"capture": bus.capture.capture_id, "items": items})


@router.get("/tables", summary="Names of the upstream's physical tables, by id")
def table_names(bus: Bus) -> object:
    """Return ``id``, ``name`` and ``partition`` of tables, at most some thousands, and how many there are."""
    with _taken():
        return exact(bus.table_names(TABLES_MAX))


@router.get("/checks", summary="What `tidebus doctor` checks, from this capture")
def checks(bus: Bus) -> object:
    """Return a finding a line: ``name``, ``ok``, ``needed`` and ``said``."""
    with _taken():
        return {"capture": bus.capture.capture_id, "items": list(bus.checks())}


@router.post("/draft", summary="Check a changefeed that is being written")
def draft(bus: Bus, namespace: Namespace, body: DraftBody) -> object:
    """Return text and form laid into each other, problems, notes, and what would become of each table.

    A draft that is not allowed is no refused request: its problems are in the answer.
    """
    shown: dict[str, Any] = {"toml": body.toml, "form": None, "problems": [], "notes": [], "tables": None}
    shown |= {"explanation": None, "replica_config": None}
    try:
        shown["toml"] = laid_in(body.toml, body.form) if body.form is not None else body.toml
        shown["form"] = form_of(shown["toml"])
        table, _ = parse_changefeed_text(shown["toml"])
        shown["replica_config"] = replica_config(table)
        if body.is_only_read:
            return exact(shown)
        _check_draft(body)
        shown["notes"] = list(load_changefeed(body.sink_uri, shown["toml"]).notes)
        if body.changefeed_id is not None and _exists(bus, body.changefeed_id, namespace):
            raise ChangefeedExistsError("the id is taken", changefeed=body.changefeed_id)
        with _taken():
            request = replace(_request(body.sink_uri, table), start_ts=ts_given(body.start_ts))
            shown["tables"] = bus.tables(request)
            shown["explanation"] = bus.explain(request)
    except BusError as error:
        shown["problems"] = [_problem(error)]
    return exact(shown)


@router.post("/first-messages", summary="What a changefeed that is being written would write first")
def first_messages(bus: Bus, body: DraftBody) -> object:
    """Return some messages of rows that the raw log has. Nothing is written.

    Who may create changefeeds may see rows: a changefeed sends them wherever it is told.

    Raises:
        ConfigError: the draft is not allowed.
    """
    _check_draft(body)
    table, _ = parse_changefeed_text(body.toml)
    with _taken():
        return exact(bus.first_messages(replace(_request(body.sink_uri, table), start_ts=ts_given(body.start_ts))))


def _check_draft(body: DraftBody) -> None:
    """Check what the settings' own check does not see.

    Raises:
        ConfigError: there is no sink URI, or a masked one.
    """
    if not body.sink_uri:
        raise ConfigError("sink_uri is empty; it says where to", key="sink-uri")
    if _SHOWN_MASK in body.sink_uri or MASK in body.sink_uri:
        raise ConfigError("a masked secret would be stored; write it out again", key="sink-uri")


def _history(request: Request, name: FeedName) -> dict[str, object]:
    history = context_of(request).history
    if history is None:
        return {"events": (), "batches": ()}
    return {"events": history.events(name)[:EVENTS_SHOWN], "batches": history.batches(name)}


def _is_of(line: Mapping[str, object], changefeed_id: str, namespace: str) -> bool:
    if line.get("changefeed") == f"{namespace}/{changefeed_id}":
        return True
    return line.get("changefeed") == changefeed_id and line.get("namespace", namespace) == namespace


def _exists(bus: Backend, changefeed_id: str, namespace: str) -> bool:
    if not changefeed_id:
        return False
    try:
        bus.feed(changefeed_id, namespace)
    except ChangefeedNotFoundError:
        return False
    return True


def _problem(error: BusError) -> dict[str, object]:
    """Return an error as a field of a form shows it: what it is about, and the text."""
    where: dict[str, object] = {name: error.fields[name] for name in ("key", "line", "column") if name in error.fields}
    return {"code": error.code, "message": str(error), **where}


def _request(sink_uri: str, config: Mapping[str, object]) -> FeedRequest:
    return FeedRequest(
        namespace=None,
        changefeed_id=None,
        start_ts=None,
        target_ts=None,
        sink_uri=sink_uri,
        config=dict(config),
        pd_addresses=(),
    )


def _work(feed: StoredFeed) -> dict[str, object]:
    """Return what its sorter did, by who did it: tasks of Spark, or the driver's own threads."""
    status = feed.sorter_status or feed.status
    if status is None:
        return {"rows_total": 0, "spark_rows_total": 0, "driver_rows_total": 0, "batch_rows": 0, "batch_s": 0.0}
    return {
        "rows_total": status.rows_total,
        "spark_rows_total": status.spark_rows_total,
        "driver_rows_total": max(0, status.rows_total - status.spark_rows_total),
        "batch_rows": status.batch_rows,
        "batch_s": status.batch_s,
        "corrupt_rows_total": status.corrupt_rows_total,
        "damaged_records_total": status.damaged_records_total,
        "sorter_deaths": status.sorter_deaths,
    }


def _shares(bus: Backend, feed: StoredFeed) -> Sequence[Share]:
    return bus.processor_shares(feed) if has_processors(feed.info.sink_uri) else ()


def _live_of(request: Request) -> LiveOverview:
    """Return the app's; the event loop that asks is the app's only one."""
    state = request.app.state
    if not hasattr(state, "live"):
        state.live = LiveOverview()
    assert isinstance(state.live, LiveOverview)
    return state.live


@functools.cache
def _codes() -> Mapping[str, ErrorCode]:
    return read_codes(error_codes_text())


def _file(name: str) -> Response:
    file = STATIC_FILES[name]
    return Response(file.content, media_type=file.media_type, headers=dict(HEADERS))


@contextmanager
def _taken() -> Iterator[None]:
    """Hold a turn; wait some seconds for it.

    Raises:
        BusyError: there is none.
    """
    if not _looking.acquire(timeout=TURN_S):
        raise BusyError("other checks are under way; ask again in a moment")
    try:
        yield
    finally:
        _looking.release()
