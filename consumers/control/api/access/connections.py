"""Bounds on what a client may hold before it has said anything: connections, headers, and time for them."""

import asyncio
import logging
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from consumers.control.api.access.tls import ApiTls

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 512
HOST_CONNECTIONS_MAX: Final = 128
"""Of one address, lest one client hold all."""
HEADER_BYTES_MAX: Final = 16 << 10
HEADER_S: Final = 10.0
"""From a connection's beginning to the end of its first request's headers; later ones have the keep-alive time."""


def bounded_protocol(tls: ApiTls) -> type[H11Protocol]:
    """Return uvicorn's protocol, which ends connections that are too many, too slow, or of a name not allowed."""

    class BoundedProtocol(H11Protocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            host = self.client[0] if self.client else ""
            same = sum(
                1 for connection in self.connections if (getattr(connection, "client", None) or ("",))[0] == host
            )
            if refusal := tls.refusal(transport.get_extra_info("peercert")):
                log.warning("api client is refused", extra={"reason": refusal, "client": self.client})
                transport.abort()
            elif len(self.connections) > CONNECTIONS_MAX or same > HOST_CONNECTIONS_MAX:
                log.debug("api has too many connections", extra={"client": self.client, "all": len(self.connections)})
                transport.abort()
            else:
                self._patience = self.loop.call_later(HEADER_S, transport.abort)

        def handle_events(self) -> None:
            super().handle_events()
            if self.cycle is not None and self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._patience is not None:
                self._patience.cancel()
            super().connection_lost(exc)

    return BoundedProtocol
