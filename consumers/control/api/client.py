"""A client of the API: one request, one answer; the command line uses it, and a capture that asks the owner.

What goes wrong on the way is said by what to do about it: nobody listens, TLS where there is none, a certificate.
"""

import base64
import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from consumers.control.api.access.tls import ApiTls
from schemas.errors import Action, BusError, ConfigError
from schemas.json_text import read_json

TIMEOUT_S = 60.0
"""Creating a changefeed reads the schemas of its start ts from Kafka, which takes long with very many tables. The
body has as long again."""
ANSWER_BYTES_MAX = 256 << 20
"""Names of 100,000 tables are some 10 MB."""


class ServerUnreachableError(BusError):
    """No API answers at the address."""

    code, action = "api.unreachable", Action.RETRY


class ServerTlsError(BusError):
    """Client and server do not come together over TLS."""

    code, action = "api.tls_refused", Action.STOP_CHANGEFEED


class ServerAnswerError(BusError):
    """What answers is not this API."""

    code, action = "api.strange_answer", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose API it is, for errors, and what to look at where nobody answers."""

    name: str
    unreachable: str


TIDEBUS: Final = Asked("TideBus", "no capture answers there; check --server, and that a capture runs with this --addr")
TICDC: Final = Asked("TiCDC", "no TiCDC answers there; check --ticdc, and that the server runs with this --addr")


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, type and body as they came."""

    status: int
    content_type: str
    body: bytes
    of: Asked = TIDEBUS

    def strange(self) -> ServerAnswerError:
        """Return the error that it is where it is none of the API's; the caller raises it."""
        shown = self.body[:100].decode(errors="replace")
        return ServerAnswerError(f"no {self.of.name} API answers there", status=self.status, body=shown)

    def json(self) -> Any:
        """Return the body read as JSON.

        Raises:
            ServerAnswerError: it is none.
        """
        try:
            return read_json(self.body)
        except ValueError as error:
            raise self.strange() from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiClient:
    """Of one server. Frozen; each request has a connection of its own."""

    url: str
    """``http://host:port`` or ``https://…``; without a scheme by whether there is a CA or a certificate."""
    tls: ApiTls = field(default_factory=ApiTls)
    user: str = ""
    password: str = field(default="", repr=False)
    of: Asked = TIDEBUS
    timeout_s: float = TIMEOUT_S

    def ask(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request to ``target``, path and query; return the answer, whatever it says.

        Raises:
            ConfigError: the URL is none.
            ServerUnreachableError: nobody answers.
            ServerTlsError: not over TLS, or over TLS where the server speaks none.
            ApiTlsError: our files cannot be used.
        """
        scheme, host, port = self._where()
        connection: http.client.HTTPConnection
        if scheme == "https":
            context = self.tls.client_context()
            connection = http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        sent = {"Content-Type": "application/json", **self._authorization(), **(headers or {})}
        try:
            with closing(connection):
                if isinstance(connection, http.client.HTTPSConnection):
                    connection.connect()
                    self._check_name(connection)
                connection.request(method, target, body, sent)
                answer = connection.getresponse()
                return Answer(answer.status, answer.getheader("Content-Type", ""), self._body(answer), self.of)
        except ssl.SSLCertVerificationError as error:
            reason = f"its certificate is refused: {error.verify_message}; --ca names whom to trust"
            raise ServerTlsError(reason, server=self.url, ca=self.tls.ca_path or "the system's") from error
        except ssl.SSLError as error:
            raise ServerTlsError(_tls_reason(error, self.tls), server=self.url) from error
        except (ConnectionResetError, http.client.BadStatusLine) as error:
            if scheme == "https":
                raise ServerTlsError("the server ended the connection; does it take our certificate?") from error
            reason = "the server ended the connection; one that speaks TLS wants https:// and --ca"
            raise ServerUnreachableError(reason, server=self.url) from error
        except (OSError, http.client.HTTPException) as error:
            raise ServerUnreachableError(self.of.unreachable, server=self.url, reason=_words(error)) from error

    def _body(self, answer: http.client.HTTPResponse) -> bytes:
        """Read what a server sends that a node of ZooKeeper, or a user, has named: it may have no end."""
        body, deadline = bytearray(), time.monotonic() + self.timeout_s
        while part := answer.read1(1 << 20):
            body += part
            if len(body) > ANSWER_BYTES_MAX:
                raise ServerAnswerError(
                    "an answer is longer than is allowed", server=self.url, bytes_max=ANSWER_BYTES_MAX
                )
            if time.monotonic() > deadline:
                raise ServerUnreachableError("an answer is too slow", server=self.url, timeout_s=self.timeout_s)
        if answer.length:
            raise http.client.IncompleteRead(bytes(body), answer.length)
        return bytes(body)

    def _check_name(self, connection: http.client.HTTPSConnection) -> None:
        """Say nothing to a server whose certificate is of the CA and not of a name that is allowed."""
        secure = connection.sock
        shown = secure.getpeercert() if isinstance(secure, ssl.SSLSocket) else None
        if refusal := self.tls.refusal(shown):
            raise ServerTlsError(f"the server's certificate is refused: {refusal}", server=self.url)

    def _where(self) -> tuple[str, str, int]:
        url = self.url
        if "://" not in url:
            url = f"{'https' if self.tls.ca_path or self.tls.cert_path else 'http'}://{url}"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError("server must be http://host:port", key="server", got=self.url) from error
        if parts.scheme not in ("http", "https") or not host or parts.path.strip("/"):
            raise ConfigError("server must be http://host:port", key="server", got=self.url)
        return parts.scheme, host, port or (443 if parts.scheme == "https" else 80)

    def _authorization(self) -> dict[str, str]:
        if not self.user:
            return {}
        token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {token}"}


def _tls_reason(error: ssl.SSLError, tls: ApiTls) -> str:
    reason = (error.reason or str(error)).upper()
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return "the server does not speak TLS; use http://"
    if "ALERT" in reason or "CERTIFICATE" in reason or "EOF" in reason:
        return f"the server refuses our certificate ({tls.cert_path or 'none given, see --cert and --key'})"
    return f"no TLS connection: {reason.replace('_', ' ').lower()}"


def _words(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "the host's name is not known"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
