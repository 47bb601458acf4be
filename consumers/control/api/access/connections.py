"""Bounds on what a client may hold before it has said anything: connections, headers, and time for them.

Connections are counted where they are accepted: one that never shakes hands for TLS is a connection, too. A client has
some time for the headers of each request, also of a later one on the same connection, and to read what it is answered.
"""

import asyncio
import logging
import socket
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from consumers.control.api.access.tls import ApiTls

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 512
HOST_CONNECTIONS_MAX: Final = 128
"""Of one address, lest one client hold all."""
HEADER_BYTES_MAX: Final = 16 << 10
HEADER_S: Final = 10.0
"""From a connection's beginning to the end of its first request's headers, and from the first byte of a later request
to the end of its own; between two requests it has the keep-alive time."""
READ_S: Final = 30.0
"""So long a client may read nothing of an answer that no longer fits into what the system keeps for it."""


class BoundedListener(socket.socket):
    """A listening socket that hangs up on who has, or who all have, too many connections. For one thread."""

    def __init__(self, listening: socket.socket) -> None:
        """Take a listening socket over."""
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self._accepted: list[tuple[socket.socket, str]] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            ConnectionAbortedError: it was one too many; the event loop goes on with the next one.
        """
        connection, client = super().accept()
        self._accepted = [each for each in self._accepted if each[0].fileno() >= 0]
        same = sum(host == client[0] for _, host in self._accepted)
        if len(self._accepted) >= CONNECTIONS_MAX or same >= HOST_CONNECTIONS_MAX:
            log.debug("api has too many connections", extra={"client": client, "all": len(self._accepted)})
            connection.close()
            raise ConnectionAbortedError
        self._accepted.append((connection, client[0]))
        return connection, client


def bounded_protocol(tls: ApiTls) -> type[H11Protocol]:
    """Return uvicorn's protocol, which ends connections that are too slow, or of a name not allowed."""

    class BoundedProtocol(H11Protocol):
        _header_timer: asyncio.TimerHandle | None = None
        _read_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if refusal := tls.refusal(transport.get_extra_info("peercert")):
                log.warning("api client is refused", extra={"reason": refusal, "client": self.client})
                transport.abort()
            else:
                self._wait_for_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # uvicorn's keep-alive time has ended with the first byte, whatever that was.
            if not self._is_asked and self._header_timer is None and not self.transport.is_closing():
                self._wait_for_headers()

        def handle_events(self) -> None:
            super().handle_events()
            if self._is_asked and self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

        def pause_writing(self) -> None:
            super().pause_writing()
            self._read_timer = self.loop.call_later(READ_S, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._read_timer is not None:
                self._read_timer.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._header_timer, self._read_timer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def _wait_for_headers(self) -> None:
            self._header_timer = self.loop.call_later(HEADER_S, self.transport.abort)

        @property
        def _is_asked(self) -> bool:
            """Whether a request is under way whose headers are whole."""
            return self.cycle is not None and not self.cycle.response_complete

    return BoundedProtocol
