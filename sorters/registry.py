"""The schema registry, on the driver only: schemas are registered before a row that needs them is encoded."""

import base64
import http.client
import json
import urllib.parse

from schemas.errors import Action, BusError, ConfigError

TIMEOUT_S = 10.0
"""For one request; the changefeed backs off and tries again."""
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_MAY_PASS = (408, 429)
"""Status 4xx that says nothing about the schema: a time-out, too many requests."""


class SchemaRefusedError(BusError):
    """The registry will not have the schema: not compatible with the subject's earlier ones, or not allowed."""

    code, action = "sorter.schema_refused", Action.STOP_CHANGEFEED


class RegistryUnreachableError(BusError):
    """The registry does not answer, or with an error of its own."""

    code, action = "sorter.registry_unreachable", Action.RETRY


class SchemaRegistry:
    """Client of Confluent's API, as far as a producer needs it; remembers what it has registered."""

    def __init__(self, url: str) -> None:
        """``url`` may hold ``user:password@`` for basic authentication, and a path.

        Raises:
            ConfigError: not an http or https URL with a host.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "schema-registry must be an http or https URL", key="schema-registry", scheme=parts.scheme
            )
        self._tls, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._root = parts.path.rstrip("/")
        self._headers = {"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE}
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        self._ids: dict[tuple[str, str], int] = {}

    def register(self, subject: str, schema: str, *, table: str) -> int:
        """Return the id of ``schema`` (JSON text) under ``subject``; the registry gives the same one if it has it.

        Raises:
            SchemaRefusedError: status 4xx; 409 means incompatible.
            RegistryUnreachableError: anything else.
        """
        known = self._ids.get((subject, schema))
        if known is not None:
            return known
        port = f":{self._port}" if self._port else ""
        where = {"subject": subject, "table": table, "address": f"{self._host}{port}"}
        path = f"{self._root}/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        try:
            status, body = self._post(path, json.dumps({"schema": schema}).encode())
            if status == http.HTTPStatus.OK:
                schema_id = self._ids[(subject, schema)] = int(json.loads(body)["id"])
                return schema_id
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise RegistryUnreachableError("schema registry does not answer", **where, reason=repr(error)) from error
        reason = f"{status} {_message(body)}"
        if 400 <= status < 500 and status not in _MAY_PASS:
            raise SchemaRefusedError("schema registry refuses the schema", **where, reason=reason)
        raise RegistryUnreachableError("schema registry failed", **where, reason=reason)

    def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", path, body, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return body[:300].decode(errors="replace")
