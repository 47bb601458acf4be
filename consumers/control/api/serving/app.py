"""The API as an ASGI app, without a socket: FastAPI over one :class:`~consumers.control.api.context.ApiContext`.

``/docs`` shows it, ``/openapi.json`` tells it. Every answer that is an error has TiCDC's body, also what FastAPI itself
refuses: a path that there is not, a body that is no JSON, a value of another type.
"""

import asyncio
import functools
import json
import logging
import time
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from consumers.control.api.access.errors import ApiError, UnauthorizedError
from consumers.control.api.access.open_answers import LongResponse
from consumers.control.api.codes import INTERNAL
from consumers.control.api.context import BODY_KEY, AnsweredByOwner, ApiContext
from consumers.control.api.errors import NoSuchRouteError, error_body, status_of
from consumers.control.api.routes import changefeeds, cluster, debug, images, old, services, tables, v1
from consumers.control.api.serving.about import ABOUT_HEADERS, about_page
from consumers.control.api.serving.guard import Guard
from schemas.config.parse.nesting import LEVELS_MAX, nests_too_deep
from schemas.errors import BusError

log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 1 << 20
"""A changefeed's settings must fit a ZooKeeper node, which is 1 MiB by default."""
BODY_S: Final = 30.0
"""For a whole body to come."""
ABOUT: Final = "TiCDC's HTTP API version 2, and what a capture serves beside it. Errors: error_msg and error_code."


def create_app(context: ApiContext, routers: Sequence[APIRouter] = ()) -> ASGIApp:
    """Return the app; what it serves from may change while it runs. ``routers`` are further routes behind its door."""
    app = FastAPI(
        title="TideBus",
        version=version("tidebus"),
        description=ABOUT,
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        responses={400: {"description": "Error", "content": {"application/json": {"schema": _ERROR_SCHEMA}}}},
    )
    app.state.context = context
    parts = (cluster, changefeeds, v1, tables, services, images, old, debug)
    for router in (cluster.open_router, *(part.router for part in parts), *routers):
        app.include_router(router)
    _describe(app)
    app.add_exception_handler(BusError, _on_bus_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(AnsweredByOwner, _on_answered)
    app.add_exception_handler(Exception, _on_bug)
    return Observed(Guard(Bodies(app), context))


def _describe(app: FastAPI) -> None:
    """Serve what the API looks like, made when it is first asked for."""

    @functools.cache
    def document() -> bytes:
        return json.dumps(app.openapi(), separators=(",", ":")).encode()

    @functools.cache
    def page() -> bytes:
        return about_page(app.openapi()).encode()

    def openapi_json() -> Response:
        return LongResponse(document(), media_type="application/json")

    def docs() -> Response:
        return LongResponse(page(), media_type="text/html", headers=ABOUT_HEADERS)

    app.add_api_route("/openapi.json", openapi_json, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)


_ERROR_SCHEMA: Final = {
    "type": "object",
    "properties": {"error_msg": {"type": "string"}, "error_code": {"type": "string"}},
    "required": ["error_msg", "error_code"],
}


async def _on_bus_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, BusError)
    headers = {"WWW-Authenticate": 'Basic realm="TideBus"'} if isinstance(error, UnauthorizedError) else None
    return JSONResponse(error_body(error), status_of(error), headers)


async def _on_bad_request(request: Request, error: Exception) -> Response:
    """Name each value that is not allowed, by its path; the value itself may be a password."""
    assert isinstance(error, RequestValidationError)
    texts = []
    for detail in error.errors()[:5]:
        field_path = ".".join(
            str(part) for part in detail["loc"][1:] if not isinstance(part, int) or detail["type"] != "json_invalid"
        )
        texts.append(f"{field_path}: {detail['msg']}" if field_path else str(detail["msg"]))
    return await _on_bus_error(request, ApiError(f"the request is not allowed: {'; '.join(texts)}"))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        missing = NoSuchRouteError("no such path with this method", method=request.method, path=request.url.path[:200])
        return await _on_bus_error(request, missing)
    return await _on_bus_error(request, ApiError(str(error.detail)))


async def _on_answered(_request: Request, answered: Exception) -> Response:
    assert isinstance(answered, AnsweredByOwner)
    return answered.response


async def _on_bug(_request: Request, error: Exception) -> Response:
    text = f"[{INTERNAL}] {type(error).__name__}; the capture's log says more"
    return JSONResponse({"error_msg": text, "error_code": INTERNAL}, HTTPStatus.INTERNAL_SERVER_ERROR)


class Bodies:
    """Reads bodies whole, within a bound, and calls them JSON: `curl -d` and others call theirs a form."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"] = scope["path"].rstrip("/") or "/"
        try:
            async with asyncio.timeout(BODY_S):
                body = await _read(scope, receive)
        except TimeoutError:
            body = None
        error = _refused(body)
        if body is None or error is not None:
            error = error or ApiError("the body is too large or too slow", bytes_max=BODY_BYTES_MAX, timeout_s=BODY_S)
            # What is left of the body is not read.
            refusal = JSONResponse(error_body(error), status_of(error), {"Connection": "close"})
            await refusal(scope, receive, send)
            return
        body = body if body.strip() else b""
        scope[BODY_KEY] = body
        kept = [(name, value) for name, value in scope["headers"] if name not in (b"content-type", b"content-length")]
        scope["headers"] = [*kept, (b"content-type", b"application/json")]
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def given() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, given, send)


def _refused(body: bytes | None) -> ApiError | None:
    """Return what is wrong with a body that a parser would take, and nobody behind it could.

    A text with half a character cannot be written as UTF-8: once stored, no answer could show it any more. What nests
    deep ends whoever walks it.
    """
    if body is None:
        return None
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return ApiError("the body is no UTF-8", offset=error.start)
    if b"\0" in body:  # Python's parser would take it for UTF-16
        return ApiError("the body holds a NUL", offset=body.index(b"\0"))
    if b"\\u" not in body and body.count(b"[") + body.count(b"{") <= LEVELS_MAX:
        return None
    try:
        value = json.loads(body)
        if nests_too_deep(value):
            return ApiError("the body nests too deep", levels_max=LEVELS_MAX)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return ApiError("the body holds half a character: one of \\ud800 to \\udfff without its other half")
    except RecursionError:
        return ApiError("the body nests too deep", levels_max=LEVELS_MAX)
    except ValueError:
        return None  # it is no JSON, which is said where it is read
    return None


async def _read(scope: Scope, receive: Receive) -> bytes | None:
    """Return the body, None if it is above the bound."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    if any(not value.isdigit() or int(value) > BODY_BYTES_MAX for value in lengths):
        return None
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body", False):
            return bytes(body)


class Observed:
    """Logs each request: those that change something, or fail, at INFO."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve and log."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_at, status = time.monotonic(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except Exception:  # answered already, by _on_bug
            log.exception("api request failed", extra={"method": scope["method"], "path": scope["path"]})
        client = scope.get("client")
        seen: dict[str, object] = {"method": scope["method"], "path": scope["path"], "status": status}
        seen |= {"client": client[0] if client else "", "ms": round((time.monotonic() - began_at) * 1000)}
        log.log(logging.DEBUG if scope["method"] == "GET" and status < 400 else logging.INFO, "api request", extra=seen)
