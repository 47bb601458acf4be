"""A server that speaks MySQL's protocol, says that it is a TiDB, keeps what it is asked, and answers as it is told.

Source: MySQL's internals manual, "Client/Server Protocol": HandshakeV10, OK, ERR, text result sets.
"""

import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

VERSION = "8.0.11-TiDB-v8.5.4"
_TLS = 1 << 11
_CAPABILITIES = 0x00FFF7DF & ~_TLS
_TEXT, _NUMBER = 0xFD, 0x08
_UTF8MB4, _BINARY = 45, 63
FAST_PATH = b"\x01\x03"
"""What ``caching_sha2_password`` says to who has proved himself by his hash; nothing answers it."""

Rows = Sequence[Sequence[str | bytes | None]]


@dataclass(frozen=True, slots=True)
class Affected:
    """Success, and how many rows a statement found."""

    rows: int


@dataclass(frozen=True, slots=True)
class Gone:
    """No answer: the connection is closed instead."""


Answer = Rows | tuple[int, str] | Affected | Gone | None
"""Rows of texts and bytes, an error's number and text, nothing but success, or nothing at all."""


class FakeTidb:
    """One on a free port of this machine; ``answer`` is asked for each statement, in the order in which they come."""

    def __init__(
        self,
        answer: Callable[[str], Answer],
        version: str = VERSION,
        tls: ssl.SSLContext | None = None,
        plugin: bytes = b"",
        prompt: bytes = b"",
        greeting: bytes = b"mysql_native_password",
        more: Sequence[bytes] = (),
    ) -> None:
        """``plugin``: a way to prove who one is to which the server turns, with ``prompt`` as the first word of it, and
        ``more`` of what it says then; it begins with that of ``greeting``.
        """
        self.answered: list[bytes] = []
        """What clients have answered to that."""
        self.said: list[str] = []
        self.sessions: list[list[str]] = []
        """The same by session."""
        outer, lock = self, threading.Lock()

        class Session(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                try:
                    self._shake_hands()
                except (EOFError, ssl.SSLError):  # the client has thought better of it
                    return
                with lock:
                    outer.sessions.append(said := [])
                while True:
                    try:
                        _, body = self._receive()
                    except EOFError:
                        return
                    if body[0] == 1:  # COM_QUIT
                        return
                    text = body[1:].decode("utf-8", "surrogateescape") if body[0] == 3 else ""
                    with lock:
                        outer.said.append(text)
                        said.append(text)
                        result = answer(text)
                    if isinstance(result, Gone):
                        return
                    self._send(1, *_answer(result))

            def finish(self) -> None:
                self.request.close()  # over TLS it is not the one that the server knows

            def _shake_hands(self) -> None:
                self._send(0, _handshake(version, _CAPABILITIES | (_TLS if tls is not None else 0), greeting))
                number, body = self._receive()
                if tls is not None and int.from_bytes(body[:4], "little") & _TLS:
                    self.request = tls.wrap_socket(self.request, server_side=True)
                    number, body = self._receive()
                if greeting != b"mysql_native_password":
                    outer.answered.append(body)
                for said in ([b"\xfe" + plugin + b"\0" + prompt] if plugin else []) + list(more):
                    self._send(number + 1, said)
                    number += 1
                    if said != FAST_PATH:
                        number, body = self._receive()
                        outer.answered.append(body)
                self._send(number + 1, _ok())

            def _send(self, number: int, *bodies: bytes) -> None:
                # At once: one by one, the client's system would wait before it acknowledges.
                parts = enumerate(bodies, number)
                self.request.sendall(b"".join(struct.pack("<I", len(b))[:3] + bytes([at]) + b for at, b in parts))

            def _receive(self) -> tuple[int, bytes]:
                head = self._exactly(4)
                return head[3], self._exactly(int.from_bytes(head[:3], "little"))

            def _exactly(self, count: int) -> bytes:
                data = b""
                while len(data) < count:
                    more = self.request.recv(count - len(data))
                    if not more:
                        raise EOFError
                    data += more
                return data

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session)
        self._server.daemon_threads = True

    @property
    def uri(self) -> str:
        return f"tidb://root@127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handshake(version: str, capabilities: int, greeting: bytes) -> bytes:
    low, high = capabilities & 0xFFFF, capabilities >> 16
    return (
        b"\x0a" + version.encode() + b"\0" + struct.pack("<I", 7) + b"a" * 8 + b"\0"
        + struct.pack("<HBHH", low, 45, 2, high) + bytes([21]) + bytes(10) + b"b" * 12 + b"\0" + greeting + b"\0"
    )  # fmt: skip


def _ok(affected: int = 0) -> bytes:
    return b"\0" + _length(affected) + _length(0) + struct.pack("<HH", 2, 0)


def _length(value: int) -> bytes:
    return bytes([value]) if value < 251 else b"\xfd" + struct.pack("<I", value)[:3]


def _text(cell: str | bytes | None) -> bytes:
    if cell is None:
        return b"\xfb"
    data = cell.encode("utf-8", "surrogateescape") if isinstance(cell, str) else cell
    return _length(len(data)) + data


def _answer(answer: Rows | tuple[int, str] | Affected | None) -> list[bytes]:
    if answer is None:
        return [_ok()]
    if isinstance(answer, Affected):
        return [_ok(answer.rows)]
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], int):
        return [b"\xff" + struct.pack("<H", answer[0]) + b"#HY000" + str(answer[1]).encode()]
    rows: Rows = answer
    width = max((len(row) for row in rows), default=1)
    end = b"\xfe" + struct.pack("<HH", 0, 2)
    columns = [_column([row[at] for row in rows]) for at in range(width)]
    return [_length(width), *columns, end, *(b"".join(map(_text, row)) for row in rows), end]


def _column(cells: Sequence[str | bytes | None]) -> bytes:
    digits = all(isinstance(cell, str) and cell.isdigit() for cell in cells)
    charset = _BINARY if any(isinstance(cell, bytes) for cell in cells) else _UTF8MB4
    names = b"".join(map(_text, ("def", "", "", "", "c", "c")))
    return names + b"\x0c" + struct.pack("<HIBHB", charset, 1024, _NUMBER if digits else _TEXT, 0, 0) + bytes(2)
