"""Where schemas are registered, on the driver only, and before a row that needs them is encoded."""

import http
from typing import Protocol

from schemas.errors import Action, BusError

TIMEOUT_S = 10.0
"""For one request."""
MAY_PASS = (http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS)
"""Status 4xx that says nothing about the schema."""


class SchemaRefusedError(BusError):
    """The registry will not have the schema: not compatible with the subject's earlier ones, or not allowed."""

    code, action = "sorter.schema_refused", Action.STOP_CHANGEFEED


class RegistryUnreachableError(BusError):
    """The registry does not answer, or with an error of its own."""

    code, action = "sorter.registry_unreachable", Action.RETRY


class SchemaRegistry(Protocol):
    """Where schemas are registered."""

    def register(self, subject: str, schema: str, *, table: str) -> int:
        """Return the id of ``schema`` (JSON text) under ``subject``; the registry gives the same one if it has it,
        and is asked once.

        Raises:
            SchemaRefusedError, RegistryUnreachableError
        """
        ...

    def close(self) -> None:
        """Close the client's connections."""
        ...
