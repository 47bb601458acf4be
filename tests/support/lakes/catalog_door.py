"""A door before a REST catalog, on loopback: one request at a time, so that nobody sees half a transaction.

Iceberg's own server carries a transaction out table by table. Servers in use do it at once; behind this door, which
lets nobody in meanwhile, so does this one. A test may do something as a transaction comes to the
door, or lose its answer. Where it has a :class:`TokenServer`, nobody comes in without a token.
"""

import json
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from compose.ports import LOOPBACK

_TRANSACTION = "/v1/transactions/commit"
_TABLE = re.compile(r"/v1/namespaces/[^/]+/tables/[^/]+")
TOKEN_PATH = "/somewhere/else/token"
Change = dict[str, Any]


class LostError(Exception):
    """Raised by a test: the answer, or the request, is lost."""


@dataclass
class TokenServer:
    """Gives out tokens, at :data:`TOKEN_PATH` of the door, as OAuth2's servers do."""

    client: str
    secret: str
    lasting_s: int = 3600
    given: list[str] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    """What each request for a token said."""

    def answer(self, body: bytes) -> tuple[int, bytes]:
        """Give a token to the client, or for a token that was given before."""
        said = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.asked.append(said)
        is_client = (said.get("client_id"), said.get("client_secret")) == (self.client, self.secret)
        if not is_client and said.get("subject_token") not in self.given:
            return 401, b'{"error": "invalid_client"}'
        self.given.append(f"bearer-{secrets.token_hex(8)}")
        token = {"access_token": self.given[-1], "token_type": "bearer", "expires_in": self.lasting_s}
        kind = "urn:ietf:params:oauth:token-type:access_token"
        return 200, json.dumps(token | {"issued_token_type": kind}).encode()


@dataclass
class CatalogDoor:
    """What came to the door, and what a test does then."""

    address: str
    asked: list[list[Change]] = field(default_factory=list)
    """The table changes of each transaction."""
    before: Callable[[list[Change]], None] = lambda _: None
    """Called before a transaction is carried out; :class:`LostError`: it is not, and nobody answers."""
    after: Callable[[list[Change]], None] = lambda _: None
    """Called when it is carried out, before the answer."""
    before_commit: Callable[[Change], None] = lambda _: None
    """Called before a commit to one table alone is carried out."""
    is_offered: bool = True
    """Whether the server knows transactions; one that does not answers 404."""
    tokens: TokenServer | None = None
    refused: int = 0
    """Requests without a token, where it wants some."""


def is_of_tags(changes: list[Change]) -> bool:
    """Tell whether a transaction moves no rows."""
    return not any(update["action"] == "add-snapshot" for change in changes for update in change["updates"])


@contextmanager
def catalog_door(server: str) -> Iterator[CatalogDoor]:
    """Open the door of a server."""
    house = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with house:
                try:
                    status, answer = self._carried_out(body)
                except LostError:
                    self.close_connection = True
                    return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 # http.server's names

        def _carried_out(self, body: bytes) -> tuple[int, bytes]:
            if door.tokens is not None:
                if self.path == TOKEN_PATH:
                    return door.tokens.answer(body)
                if self.headers.get("Authorization", "").removeprefix("Bearer ") not in door.tokens.given:
                    door.refused += 1
                    return 401, b'{"error": {"message": "who?", "type": "NotAuthorizedException", "code": 401}}'
            if self.command == "POST" and _TABLE.fullmatch(self.path):
                door.before_commit(json.loads(body))
            if self.path != _TRANSACTION:
                return self._asked(body)
            if not door.is_offered:
                return 404, b'{"error": {"message": "no such path", "type": "NotFound", "code": 404}}'
            changes = json.loads(body)["table-changes"]
            door.asked.append(changes)
            door.before(changes)
            done = self._asked(body)
            door.after(changes)
            return done

        def _asked(self, body: bytes) -> tuple[int, bytes]:
            connection = HTTPConnection(urlsplit(server).netloc, timeout=60)
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            status, content = answer.status, answer.read()
            connection.close()
            return status, content

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as listening:
        door = CatalogDoor(f"http://{LOOPBACK}:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield door
        finally:
            listening.shutdown()
            thread.join()
