"""The API on a socket: uvicorn in a thread of its own.

It serves for the whole life of the process: between two ZooKeeper sessions it answers 503, as TiCDC's does.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import uvicorn
from fastapi import APIRouter

from consumers.control.api.access.connections import HEADER_BYTES_MAX, BoundedListener, bounded_protocol
from consumers.control.api.access.credentials import Users
from consumers.control.api.access.origin import hosts_of
from consumers.control.api.access.tls import ApiTls
from consumers.control.api.backend import Backend
from consumers.control.api.context import ApiContext
from consumers.control.api.errors import ApiAddressError
from consumers.control.api.serving.app import create_app
from schemas.errors import BusError, ConfigError

log = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 30
"""A client that says nothing for so long gives its connection back."""
RENEW_S: Final = 5.0
"""Between two looks at the certificate's files."""
STOP_S: Final = 2
"""Requests under way at the end have so long."""


class ApiServer:
    """Listens from the start; :meth:`close` ends it."""

    def __init__(
        self,
        address: str,
        *,
        tls: ApiTls | None = None,
        credentials: Users | None = None,
        hosts: Collection[str] = (),
        routers: Sequence[APIRouter] = (),
    ) -> None:
        """Listen on ``host:port``, and nowhere else; port 0 is a free one. ``hosts`` are further names of it,
        ``routers`` further routes.

        Raises:
            ConfigError: no ``host:port``.
            ApiAddressError: it is taken, or not this machine's.
            ApiTlsError: a TLS file cannot be used.
        """
        host, port = listen_address(address)
        self.context = ApiContext(tls, credentials, hosts_of([host, socket.gethostname(), *hosts]))
        tls = self.context.tls
        context = tls.server_context() if tls.serves else None
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = BoundedListener(socket.create_server((host, port), family=family))
        except OSError as error:
            reason = "cannot listen for the API; is another capture here? give this one another --addr"
            raise ApiAddressError(reason, addr=address, reason=error.strerror) from error
        config = uvicorn.Config(
            create_app(self.context, routers),
            http=bounded_protocol(tls),
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
        )
        config.load()
        config.ssl = context
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)
        self._thread.start()
        log.info("api listens", extra={"addr": self.address, "tls": tls.serves})

    @property
    def address(self) -> str:
        """``host:port`` with the port in use."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @contextmanager
    def serving(self, backend: Backend) -> Iterator[None]:
        """Answer from ``backend`` while inside."""
        self.context.backend = backend
        try:
            yield
        finally:
            self.context.backend = None

    def close(self) -> None:
        """Stop listening; requests under way have a moment to end."""
        self.context.is_closing = True
        self._server.should_exit = True
        self._thread.join(STOP_S + 5.0)
        self._socket.close()

    async def _serve(self) -> None:
        renewing = asyncio.create_task(self._renew()) if self.context.tls.serves else None
        await self._server.serve(sockets=[self._socket])
        if renewing is not None:
            renewing.cancel()

    async def _renew(self) -> None:
        """Take up certificate files that have changed, for connections to come."""
        tls, context = self.context.tls, self._server.config.ssl
        seen = tls.edition()
        while context is not None:
            await asyncio.sleep(RENEW_S)
            if (now := tls.edition()) == seen:
                continue
            seen = now
            try:
                tls.server_context()  # all files fit each other, or nothing changes
                tls.load_into(context)
                log.info("api certificate is read anew", extra={"cert": tls.cert_path})
            except BusError as error:
                log.error("api certificate stays as it was", extra={"code": error.code, "error": str(error)})

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception("api server has ended", extra={"addr": self.address})


def listen_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``.

    Raises:
        ConfigError: it is none.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError("addr must be host:port", key="addr", got=address)
    return host.strip("[]"), int(port)
