"""The API's door, before a body is read: where a request comes from, and who asks."""

import asyncio
import base64
import binascii
import hashlib
import logging
import secrets
from time import monotonic
from typing import Final

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from consumers.control.api.access.credentials import Users
from consumers.control.api.access.errors import ApiError, LoginDelayError, UnauthorizedError
from consumers.control.api.access.logins import Logins
from consumers.control.api.access.origin import check_request
from consumers.control.api.context import USER_KEY, ApiContext
from consumers.control.api.errors import error_body, status_of

log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset(
    {"/status", "/api/v1/status", "/api/v2/status", "/api/v1/health", "/api/v2/health", "/metrics"}
    | {"/docs", "/openapi.json"}
)
"""For probes and Prometheus, which have no user, and what the API looks like. They take no body."""
CHECKS_MAX: Final = 2
"""Passwords checked at once: each takes some 30 ms and 16 MiB (scrypt)."""
KNOWN_MAX: Final = 1000


class Guard:
    """Lets a request through, or answers it; then its body is never read, and the connection ends."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app, self._context = app, context
        self._logins = Logins()
        self._checking = asyncio.Semaphore(CHECKS_MAX)
        self._known: set[bytes] = set()
        """Logins that were right, as digests: the next request need not wait for scrypt."""
        self._known_of: object = None
        self._key = secrets.token_bytes(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, and pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            check_request(scope["method"], scope.get("scheme", "http"), headers, self._context.hosts)
            path = scope["path"].rstrip("/") or "/"
            if self._context.credentials is not None and path not in OPEN_PATHS:
                client = scope.get("client")
                await self._log_in(self._context.credentials, headers, client[0] if client else "")
            scope[USER_KEY] = True
        except ApiError as error:
            answer = JSONResponse(error_body(error), status_of(error), _headers_of(error))
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _log_in(self, users: Users, headers: dict[str, str], host: str) -> None:
        user, password = _who_asks(headers.get("authorization", ""))
        digest = hashlib.blake2b(f"{user}:{password}".encode(), key=self._key).digest()
        if users.edition is not self._known_of:
            self._known_of = users.edition
            self._known.clear()
        async with self._checking:
            wait_s = self._logins.wait_s(host, user, monotonic())
            if wait_s > 0:
                raise LoginDelayError(
                    "too many failed logins; try again later", user=user[:50], wait_s=round(wait_s, 1)
                )
            if digest in self._known:
                return
            if await asyncio.to_thread(users.allow, user, password):
                self._logins.succeeded(host, user)
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known.add(digest)
                return
            self._logins.failed(host, user, monotonic())
        log.warning("login failed", extra={"client": host, "user": user[:50]})
        raise UnauthorizedError("unknown user or wrong password", user=user[:50])


def _who_asks(authorization: str) -> tuple[str, str]:
    """Return user and password.

    Raises:
        UnauthorizedError: there are none. `cdc cli` without a user sends an empty one.
    """
    kind, _, token = authorization.partition(" ")
    try:
        said = base64.b64decode(token.strip(), validate=True).decode() if kind.lower() == "basic" else ""
    except (binascii.Error, UnicodeDecodeError) as error:
        raise UnauthorizedError("the Authorization header does not decode") from error
    user, _, password = said.partition(":")
    if not user:
        raise UnauthorizedError("this server wants to know who asks; give --user and --password")
    return user, password


def _headers_of(error: ApiError) -> dict[str, str]:
    headers = {"Connection": "close"}  # a body that comes is not read
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = 'Basic realm="TideBus"'
    if isinstance(error, LoginDelayError):
        headers["Retry-After"] = str(int(float(str(error.fields["wait_s"])) + 1))
    return headers
