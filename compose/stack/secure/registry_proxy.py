"""TLS and a user before the stack's schema registry, which has neither; a process of its own.

It takes requests over HTTPS with basic authentication and passes them on to a port of this machine. Whoever has an
account here reaches that port too: a real cluster's registry does both itself. The password comes by the environment.
"""

import argparse
import base64
import hmac
import http.client
import os
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import closing
from typing import Any, Final

import anyio.to_thread
import uvicorn

PASSWORD_ENV: Final = "TIDEBUS_REGISTRY_PASSWORD"  # noqa: S105 # the name of the variable
BODY_BYTES_MAX: Final = 4 << 20
ANSWER_S: Final = 60.0
Message = MutableMapping[str, Any]
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"host", b"authorization", b"content-length"}
)


class RegistryProxy:
    """An ASGI application."""

    def __init__(self, port: int, user: str, password: str) -> None:
        self._port = port
        self._expected = b"Basic " + base64.b64encode(f"{user}:{password}".encode())

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Pass one request on, or refuse it."""
        if scope["type"] != "http":
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        shown = next((value for name, value in headers if name == b"authorization"), b"")
        if not hmac.compare_digest(shown, self._expected):
            challenge = [(b"www-authenticate", b'Basic realm="schema registry"')]
            await _answer(send, 401, challenge, b'{"error_code":40101,"message":"user or password is wrong"}')
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > BODY_BYTES_MAX:
                await _answer(send, 413, [], b'{"error_code":41301,"message":"body is too large"}')
                return
            if not message.get("more_body"):
                break
        path = scope["raw_path"].decode("ascii")
        target = f"{path}?{scope['query_string'].decode('ascii')}" if scope["query_string"] else path
        status, more, content = await anyio.to_thread.run_sync(self._ask, scope["method"], target, headers, body)
        await _answer(send, status, more, content)

    def _ask(
        self, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        passed = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name not in _HOP_BY_HOP}
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)) as wire:
                wire.request(method, target, body or None, passed)
                answer = wire.getresponse()
                kept = [
                    (name.lower().encode("latin-1"), value.encode("latin-1"))
                    for name, value in answer.getheaders()
                    if name.lower().encode("latin-1") not in _HOP_BY_HOP
                ]
                return answer.status, kept, answer.read()
        except (OSError, http.client.HTTPException):
            return 502, [], b'{"error_code":50201,"message":"the registry does not answer"}'


async def _answer(
    send: Callable[[Message], Awaitable[None]], status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--registry-port", type=int, required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--cert", required=True)
    parser.add_argument("--key", required=True)
    given = parser.parse_args()
    proxy: Any = RegistryProxy(given.registry_port, given.user, os.environ[PASSWORD_ENV])
    uvicorn.run(
        proxy, host="127.0.0.1", port=given.port, ssl_certfile=given.cert, ssl_keyfile=given.key,
        log_level="warning", lifespan="off",
    )  # fmt: skip


if __name__ == "__main__":
    main()
