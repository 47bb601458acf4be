"""Debian's Firefox without a window, driven by WebDriver BiDi: it speaks that itself, on a WebSocket of this machine.

Playwright drives a Firefox of its own only, which Debian has not. What a test needs of BiDi is little: pages opened,
expressions asked, and what the browser's console says. W3C WebDriver BiDi, and RFC 6455 for the frames.
"""

import base64
import json
import os
import re
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.browsers.browser import BrowserProgram, DebianBrowser, skipped_without

FIREFOX = DebianBrowser(
    folder="firefox",
    package="firefox-esr",
    names=("firefox-esr", "firefox"),
    binary=Path("usr/lib/firefox-esr/firefox-esr"),
)
START_S, ANSWER_S = 180.0, 240.0
_LISTENS = re.compile(r"WebDriver BiDi listening on ws://127\.0\.0\.1:(\d+)")
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10
_LENGTH_16, _LENGTH_64, _MASK = 126, 127, 1


class Firefox:
    """A browser with one page. ``complaints`` is what its console has said of errors, and of warnings of pages."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._number = connection, 0
        self.complaints: list[str] = []
        self._ask("session.new", capabilities={})
        self._ask("session.subscribe", events=["log.entryAdded"])
        self._context = self._ask("browsingContext.getTree")["contexts"][0]["context"]

    def go(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._ask("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        viewport = {"width": width, "height": height}
        self._ask("browsingContext.setViewport", context=self._context, viewport=viewport)

    def value(self, expression: str) -> Any:
        """Return what an expression, or its promise, comes to: JSON."""
        said = self.run(f"Promise.resolve({expression}).then((value) => JSON.stringify(value ?? null))")
        return json.loads(said["value"])

    def run(self, code: str) -> Any:
        """Run code in the page; return its last value as BiDi says it."""
        target = {"context": self._context}
        said = self._ask("script.evaluate", expression=code, target=target, awaitPromise=True)
        assert said["type"] == "success", said
        return said["result"]

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + ANSWER_S
        while not self.value(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.1)

    def _ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        _send(self._connection, _TEXT, json.dumps({"id": self._number, "method": method, "params": params}).encode())
        while True:
            said = json.loads(_receive(self._connection))
            if said.get("method") == "log.entryAdded" and said["params"]["level"] in ("error", "warn"):
                self.complaints.append(str(said["params"].get("text")))
            if said.get("id") == self._number:
                assert said["type"] == "success", said
                return said["result"]


@contextmanager
def started_firefox(folder: Path) -> Iterator[Firefox]:
    """Start Firefox with a profile of its own, or skip the test and say so loudly."""
    with skipped_without("Firefox"):
        program = FIREFOX.find()
    with (folder / "firefox.log").open("wb") as log:
        process = subprocess.Popen(_command(program, folder), stdout=log, stderr=log, env=_environment(program, folder))
    try:
        with socket.create_connection(("127.0.0.1", _port(process, folder / "firefox.log")), ANSWER_S) as connection:
            _shake_hands(connection)
            yield Firefox(connection)
    finally:
        process.kill()
        process.wait()


def _command(program: BrowserProgram, folder: Path) -> list[str]:
    profile = folder / "profile"
    profile.mkdir()
    return [str(program.binary), "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port=0"]


def _environment(program: BrowserProgram, folder: Path) -> dict[str, str]:
    own = {"HOME": str(folder), "MOZ_DISABLE_CONTENT_SANDBOX": "1"}  # containers have no user namespaces
    return {**os.environ, **own, **({"LD_LIBRARY_PATH": program.libraries} if program.libraries else {})}


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    deadline = time.monotonic() + START_S
    while not (listens := _LISTENS.search(log.read_text(errors="replace"))):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-2_000:]
        time.sleep(0.1)
    return int(listens[1])


def _shake_hands(connection: socket.socket) -> None:
    host, port = connection.getpeername()
    key = base64.b64encode(os.urandom(16)).decode()
    lines = ["GET /session HTTP/1.1", f"Host: {host}:{port}", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
    connection.sendall("\r\n".join(lines).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += _exactly(connection, 1)
    assert answer.startswith(b"HTTP/1.1 101"), answer


def _send(connection: socket.socket, kind: int, content: bytes) -> None:
    size = len(content)
    if size < _LENGTH_16:
        head = struct.pack(">BB", 0x80 | kind, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x80 | kind, 0x80 | _LENGTH_16, size)
    else:
        head = struct.pack(">BBQ", 0x80 | kind, 0x80 | _LENGTH_64, size)
    # Nothing between us needs a mask, but Firefox takes one of zeros for none.
    connection.sendall(head + bytes([_MASK] * 4) + bytes(byte ^ _MASK for byte in content))


def _receive(connection: socket.socket) -> bytes:
    """Return the next whole message."""
    message, is_last = b"", False
    while not is_last:
        first, size = _exactly(connection, 2)
        if size == _LENGTH_16:
            (size,) = struct.unpack(">H", _exactly(connection, 2))
        elif size == _LENGTH_64:
            (size,) = struct.unpack(">Q", _exactly(connection, 8))
        content, kind = _exactly(connection, size), first & 0x0F
        assert kind != _CLOSE, content
        if kind == _PING:
            _send(connection, _PONG, content)
        elif kind != _PONG:
            message, is_last = message + content, bool(first & 0x80)
    return message


def _exactly(connection: socket.socket, count: int) -> bytes:
    taken = bytearray()
    while len(taken) < count:
        more = connection.recv(count - len(taken))
        assert more, "the browser has gone"
        taken += more
    return bytes(taken)
