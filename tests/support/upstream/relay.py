"""A TCP relay before one server on loopback, which can hold everything back as a network does that has failed."""

import socket
import threading
from contextlib import suppress
from typing import Self

PIECE_BYTES = 1 << 16


class Relay:
    """Use as a context manager."""

    def __init__(self, target: str) -> None:
        """``target`` is ``host:port`` of the server."""
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def hold(self) -> None:
        """Let nothing through; connections stay open."""
        self._goes_on.clear()

    def go_on(self) -> None:
        """Let everything through, what was held back too."""
        self._goes_on.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="relay", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._goes_on.set()
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, target), name="relay", daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                self._goes_on.wait()
                target.sendall(piece)
            target.shutdown(socket.SHUT_RDWR)
