"""An address at which nobody listens, until it is opened as another way to a part that runs."""

import socket
import threading
from contextlib import suppress


class LateAddress:
    """A port of loopback. Connections are refused before :meth:`open`, and passed on to its target from there on."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else gets the port
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def open(self, target: str) -> None:
        """Pass connections on to ``target``, ``host:port``."""
        host, port = target.rsplit(":", 1)
        self._listener.listen()
        threading.Thread(target=self._accept, args=(host, int(port)), daemon=True).start()

    def close(self) -> None:
        """Take no further connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, host: str, port: int) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((host, port))
                threading.Thread(target=_pass_on, args=(near, far), daemon=True).start()


def _pass_on(near: socket.socket, far: socket.socket) -> None:
    """Pass on what either says until both have said all."""
    with near, far:
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
