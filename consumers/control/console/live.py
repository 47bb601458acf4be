"""Live data for the console: server-sent events, made once for all clients, for few clients at a time.

Source of the form: WHATWG HTML, "Server-sent events".
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, Final

from fastapi import Request

from consumers.control.api.context import OWNER_WAIT_S, ApiContext, ask_owner, bus_of, context_of
from consumers.control.api.errors import ForwardError
from consumers.control.api.overview import overview_body
from consumers.control.console.core.exact import exact
from consumers.control.console.core.waits import lags_of, waits_of
from schemas.errors import BusError

log = logging.getLogger(__name__)

CLIENTS_MAX: Final = 32
"""Each is a connection that stays; the API takes 128 of a host (:mod:`~consumers.control.api.access.connections`)."""
PERIOD_S: Final = 2.0
STREAM_S: Final = 600.0
"""Then a stream ends, and the browser opens another: a user who may not ask any more is out by then."""
NEWS_MAX: Final = 10
"""Newest events that come with each, to be announced once."""
_LOOK_S: Final = 0.25
"""Between two looks whether the server ends."""
_OVERVIEW: Final = "/api/tidebus/overview"


class LiveOverview:
    """The newest event, and how many listen. For one event loop."""

    def __init__(self) -> None:
        self.clients = 0
        self._lock, self._made_at, self._event = asyncio.Lock(), float("-inf"), b""

    async def event(self, request: Request) -> bytes:
        """Return the newest event; one who asks waits for another who has it made."""
        async with self._lock:
            if monotonic() - self._made_at >= PERIOD_S / 2:
                self._event = await _event(request)
                self._made_at = monotonic()
            return self._event


async def stream(request: Request, live: LiveOverview) -> AsyncIterator[bytes]:
    """Yield an event a period, until the client goes, the server ends, or the time is over: then the last one asks it
    to come again.
    """
    if live.clients >= CLIENTS_MAX:
        return
    context, end_at = context_of(request), monotonic() + STREAM_S
    live.clients += 1
    try:
        while not context.is_closing and monotonic() < end_at:
            yield await live.event(request)
            await _pause(context)
        if not context.is_closing:
            yield _encoded("again", {})
    finally:
        live.clients -= 1


async def _pause(context: ApiContext) -> None:
    until = monotonic() + PERIOD_S
    while not context.is_closing and monotonic() < until:
        await asyncio.sleep(_LOOK_S)


async def _event(request: Request) -> bytes:
    try:
        bus = await bus_of(request)
        shown = await asyncio.to_thread(_shown, request, bus)
        return _encoded("overview", shown)
    except BusError as error:
        return _encoded("trouble", {"error_msg": str(error), "code": error.code})


def _encoded(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _shown(request: Request, bus: Any) -> dict[str, Any]:
    overview = _overview(request, bus)
    upstreams = {item["upstream"]: item for item in overview["upstreams"]}
    feeds = [{**feed, "lags": lags_of(feed, upstreams.get(feed["upstream"]))} for feed in overview["changefeeds"]]
    history = context_of(request).history
    news = history.events()[:NEWS_MAX] if history is not None else ()
    shown = {**overview, "changefeeds": feeds, "answered_by": bus.capture.capture_id, "waits": waits_of(overview)}
    return dict(exact({**shown, "news": news}))


def _overview(request: Request, bus: Any) -> dict[str, Any]:
    """Return the owner's overview; without an owner to ask, our own, in which nobody knows the tables."""
    scheduling = bus.scheduling()
    try:
        if scheduling is not None:
            return overview_body(bus, scheduling.tables())
        answer = ask_owner(request, bus, OWNER_WAIT_S, target=_OVERVIEW)
        if answer.status_code != 200:
            raise ForwardError("the owner refuses the overview", status=answer.status_code)
        return dict(json.loads(bytes(answer.body)))
    except BusError as error:
        log.info("owner is not asked for the console", extra={"error": str(error)})
        return overview_body(bus, None)
