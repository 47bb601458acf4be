"""The schema registry, on the driver only: schemas are registered before a row that needs them is encoded."""

import base64
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request

from schemas.errors import Action, BusError, ConfigError

TIMEOUT_S = 10.0
"""For one request; the changefeed backs off and tries again."""
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class SchemaRefusedError(BusError):
    """The registry will not have the schema: not compatible with the subject's earlier ones, or not allowed."""

    code, action = "sorter.schema_refused", Action.STOP_CHANGEFEED


class RegistryUnreachableError(BusError):
    """The registry does not answer, or with an error of its own."""

    code, action = "sorter.registry_unreachable", Action.RETRY


class SchemaRegistry:
    """Client of Confluent's API, as far as a producer needs it; remembers what it has registered."""

    def __init__(self, url: str) -> None:
        """``url`` may hold ``user:password@`` for basic authentication, and a path."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ConfigError(
                "schema-registry must be an http or https URL", key="schema-registry", scheme=parts.scheme
            )
        self._headers = {"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE}
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        host = parts.netloc.rpartition("@")[2]
        self._url = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
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
        request = urllib.request.Request(  # noqa: S310 # http or https: checked above
            f"{self._url}/subjects/{urllib.parse.quote(subject, safe='')}/versions",
            json.dumps({"schema": schema}).encode(),
            self._headers,
        )
        where = {"subject": subject, "table": table}
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                schema_id = int(json.load(answer)["id"])
        except urllib.error.HTTPError as error:
            reason = f"{error.code} {_message(error)}"
            if 400 <= error.code < 500 and error.code not in (408, 429):
                raise SchemaRefusedError("schema registry refuses the schema", **where, reason=reason) from error
            raise RegistryUnreachableError("schema registry failed", **where, reason=reason) from error
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise RegistryUnreachableError("schema registry does not answer", **where, reason=error) from error
        self._ids[(subject, schema)] = schema_id
        return schema_id


def _message(error: urllib.error.HTTPError) -> str:
    try:
        body = error.read()
        return str(json.loads(body).get("message", body[:300]))
    except (OSError, ValueError, AttributeError):
        return str(error.reason)
