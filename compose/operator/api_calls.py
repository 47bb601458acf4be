"""The API's calls as the command line makes them: JSON in and out, and refusals as errors that end a command."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from consumers.control.api.client import Answer, ApiClient
from schemas.config.parse.origin import Origin
from schemas.errors import Action, BusError, ConfigError

USAGE_CODES: Final = frozenset(
    {
        "CDC:ErrAPIInvalidParam",
        "CDC:ErrFilterRuleInvalid",
        "CDC:ErrSinkURIInvalid",
        "CDC:ErrTargetTsBeforeStartTs",
        "CDC:ErrExpressionParseFailed",
    }
)
"""What was asked for is not allowed, whatever the state of the bus: exit status 2."""
HINTS: Final = {
    "CDC:ErrUnauthorized": "give --user and --password, or write them once with `tidebus cli configure-credentials`",
    "CDC:ErrOwnerNotFound": "ask again in some seconds; `tidebus cli capture list` shows the captures",
    "CDC:ErrServerIsNotReady": "ask again in some seconds; the capture's log says what it waits for",
    "CDC:ErrRequestForwardErr": "give --server the owner's address, see `tidebus cli capture list`",
    "CDC:ErrChangeFeedNotExists": "`tidebus cli changefeed list --all` shows those there are",
    "CDC:ErrChangeFeedAlreadyExists": "take another --changefeed-id, or remove that one first",
    "CDC:ErrStartTsBeforeGC": "take a later --start-ts, or none to start from now",
    "CDC:ErrCaptureNotExist": "`tidebus cli capture list` shows those there are",
    "CDC:ErrVersionIncompatible": "bring all captures to one version; `tidebus cli capture list` shows where they run",
}
"""What to do, where the server's text does not say it."""
TOLD: Final = {
    "CDC:ErrChangeFeedNotExists": "changefeed list",
    "CDC:ErrChangeFeedAlreadyExists": "--changefeed-id",
}
"""Words by which it does."""


class ApiRefusedError(BusError):
    """The server refuses, or fails at, a request; its own code and text are the message."""

    code, action = "api.refused", Action.STOP_CHANGEFEED

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message, **fields)
        self.cdc_code = str(fields.get("cdc_code", ""))

    def __str__(self) -> str:
        return self.message


class RefusedRequestError(ApiRefusedError, ConfigError):
    """What was asked for is not allowed."""

    code, action = "api.refused_request", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class ApiCalls:
    """Asks one server."""

    client: ApiClient

    def get(self, path: str, **query: str) -> Any:
        """Return what is at ``path`` below /api/v2.

        Raises:
            ApiRefusedError: the server says no.
            BusError: it is not reached.
        """
        return self.call("GET", path, None, **query)

    def call(self, method: str, path: str, body: Mapping[str, object] | None = None, **query: str) -> Any:
        """Send a request; ``path`` is below /api/v2, or whole where it begins with /api or /debug, or is /config.

        Raises:
            ApiRefusedError: the server says no.
            BusError: it is not reached.
        """
        given = {name: value for name, value in query.items() if value}
        target = path if path.startswith(("/api/", "/debug/")) or path == "/config" else f"/api/v2{path}"
        target += f"?{urlencode(given)}" if given else ""
        answer = self.client.ask(method, target, None if body is None else json.dumps(body).encode())
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise refusal(answer)
        return answer.json() if answer.body else None


def tables_without_key(api: ApiCalls, settings: Mapping[str, object], start_ts: int) -> list[str]:
    """Return the tables that a changefeed of these settings would have to leave out, for want of a key, by name.

    Raises:
        BusError: the bus does not answer, or refuses the settings.
    """
    tables = api.call("POST", "/verify_table", {**settings, "start_ts": start_ts})["ineligible_tables"]
    return [f"{table['database_name']}.{table['table_name']}" for table in tables]


def refusal(answer: Answer) -> BusError:
    """Return the error that an answer is."""
    body = answer.json()
    if not isinstance(body, dict) or not isinstance(body.get("error_msg"), str):
        return answer.strange()
    code, text = str(body.get("error_code", "")), body["error_msg"]
    hint, known = HINTS.get(code), TOLD.get(code)
    shown = f"{text}; {hint}" if hint and not (known and known in text) else text
    kind = RefusedRequestError if code in USAGE_CODES else ApiRefusedError
    return kind(shown, cdc_code=code)


def located(error: ApiRefusedError, origin: Origin) -> ApiRefusedError:
    """Return a refusal that names file and line of the setting it is about: the server has never seen the file."""
    key_text = re.search(r"\(.*?key=([\w.\-\[\]]+)(?=[,)])", error.message)
    if key_text is None or origin.file is None:
        return error
    path = tuple(int(part) if part.isdecimal() else part for part in re.findall(r"[\w\-]+", key_text[1]) if part)
    where = {name: value for name, value in origin.where(path).items() if name != "key"}
    shown = ", ".join(f"{name}={value}" for name, value in where.items())
    at = key_text.end(1)
    return type(error)(f"{error.message[:at]}, {shown}{error.message[at:]}", **error.fields)
