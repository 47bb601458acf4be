"""A server before another one that writes down what is asked: stand-ins of storages ignore some of it."""

import contextlib
import http.client
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from compose.stack.secure.certificates import Authority

LOOPBACK = "127.0.0.1"
_OF_A_CONNECTION = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"})


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked; names of headers in small letters."""

    method: str
    target: str
    """Path and query."""
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Recording:
    """The requests so far; ``answer`` may answer one in place of the server: status and body."""

    address: str
    requests: list[Request] = field(default_factory=list)
    answer: Callable[[Request], tuple[int, bytes] | None] = lambda _: None

    def of(self, method: str, part: str = "") -> list[Request]:
        return [request for request in self.requests if request.method == method and part in request.target]


@contextmanager
def recorded(server: str, tls: Path | None = None, hosts: tuple[str, ...] = (LOOPBACK,)) -> Iterator[Recording]:
    """Stand before ``host:port``, by TLS with an authority of its own in that folder (``ca.pem``) if one is given.

    Args:
        server: who answers, unless ``answer`` does.
        tls: the folder.
        hosts: names that the certificate is for.
    """
    recording = Recording("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            recording.requests.append(request)
            said = recording.answer(request)
            status, answered, content = (said[0], [], said[1]) if said else _asked(server, request)
            self.send_response(status)
            for name, value in answered:
                if name.lower() not in _OF_A_CONNECTION:
                    to = value.replace("http:", f"{scheme}:", 1) if name.lower() == "location" else value
                    self.send_header(name, to)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815  # the library's names

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    proxy = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    scheme = "http"
    if tls is not None:
        pair = Authority(tls).issue("proxy", hosts=hosts)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        proxy.socket, scheme = context.wrap_socket(proxy.socket, server_side=True), "https"
    recording.address = f"{scheme}://{LOOPBACK}:{proxy.server_address[1]}"
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield recording
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


def _asked(server: str, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
    connection = http.client.HTTPConnection(server, timeout=60)
    with contextlib.closing(connection):
        connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            if name not in ("connection", "content-length"):
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(request.body)))
        connection.endheaders(request.body)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
