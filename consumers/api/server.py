"""The API on a socket. The standard library's server is enough: some requests a second by operators and probes.

It serves for the whole life of the process: between two ZooKeeper sessions it answers 503, as TiCDC's does.
"""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from consumers.api.backend import Backend
from consumers.api.errors import ApiError, error_body
from consumers.api.routes import Request, Response, handle
from schemas.errors import Action, BusError, ConfigError

log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 1 << 20
"""A changefeed's settings must fit a ZooKeeper node, which is 1 MiB by default."""
REQUEST_TIMEOUT_S: Final = 30.0
"""A client that says nothing for so long gives its thread back."""


class ApiAddressError(BusError):
    """The API's address cannot be listened on."""

    code, action = "api.address", Action.STOP_CHANGEFEED


class ApiServer:
    """Listens from the start; :meth:`close` ends it."""

    def __init__(self, address: str) -> None:
        """Listen on ``host:port``; port 0 is a free one.

        Raises:
            ConfigError: no ``host:port``.
            ApiAddressError: it is taken, or not this machine's.
        """
        host, separator, port = address.rpartition(":")
        if not separator or not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError("addr must be host:port", key="addr", got=address)
        self._backend: Backend | None = None
        api = self

        class ApiHandler(_Handler):
            @property
            def backend(self) -> Backend | None:
                return api._backend

        try:
            self._server = _Server((host.strip("[]"), int(port)), ApiHandler)
        except OSError as error:
            raise ApiAddressError("cannot listen for the API; is another capture here?", addr=address) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="api", daemon=True
        )
        self._thread.start()
        log.info("api listens", extra={"addr": self.address})

    @property
    def address(self) -> str:
        """``host:port`` with the port in use."""
        host, port = self._server.server_address[:2]
        return f"{host if isinstance(host, str) else host.decode()}:{port}"

    @contextmanager
    def serving(self, backend: Backend) -> Iterator[None]:
        """Answer from ``backend`` while inside."""
        self._backend = backend
        try:
            yield
        finally:
            self._backend = None

    def close(self) -> None:
        """Stop listening; requests under way are not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "TideBus", ""
    timeout = REQUEST_TIMEOUT_S

    @property
    def backend(self) -> Backend | None:
        raise NotImplementedError

    def do_GET(self) -> None:  # the name that http.server calls
        self._answer()

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 # names that http.server calls

    def _answer(self) -> None:
        try:
            body = self._body()
        except ApiError as error:
            self.close_connection = True  # what is left of the body is not read
            self._send(Response(HTTPStatus.BAD_REQUEST, error_body(error)))
            return
        target = urlsplit(self.path)
        query = dict(parse_qsl(target.query, keep_blank_values=True))
        self._send(handle(Request(self.command, unquote(target.path), query, body), self.backend))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding"):
            raise ApiError("chunked bodies are not taken; send Content-Length")
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            raise ApiError("Content-Length is not allowed", got=length[:20], bytes_max=BODY_BYTES_MAX)
        return self.rfile.read(int(length))

    def _send(self, response: Response) -> None:
        body = response.body if isinstance(response.body, bytes) else json.dumps(response.body).encode()
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # http.server's name
        log.debug("api request", extra={"request": format % args})
