"""A registry that speaks Confluent's API.

The client is Confluent's own, as in the producer; here its errors become ours, and its own retries are off: the
changefeed backs off, says why in its status, and tries again. It is imported for changefeeds
that have a registry (docs/decisions/2026-11-22-small-cuts-on-the-driver.md).
"""

from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError

from edges.registry.access import RegistryAccess
from sorters.registry.registry import MAY_PASS, TIMEOUT_S, RegistryUnreachableError, SchemaRefusedError


class ConfluentRegistry:
    """Client of Confluent's API, as far as a producer needs it; remembers what it has registered."""

    def __init__(self, access: RegistryAccess) -> None:
        self._address = access.url
        # What is in use stays known: a changefeed has a subject or two a table.
        self._client = access.client(timeout=TIMEOUT_S, max_retries=0, cache_capacity=1_000_000)

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    def register(self, subject: str, schema: str, *, table: str) -> int:
        """Return the id of ``schema`` (JSON text) under ``subject``; the registry gives the same one if it has it.

        Raises:
            SchemaRefusedError: status 4xx; 409 means incompatible.
            RegistryUnreachableError: anything else.
        """
        where = {"subject": subject, "table": table, "address": self._address}
        try:
            return int(self._client.register_schema(subject, Schema(schema, "AVRO")))
        except SchemaRegistryError as error:
            status, reason = error.http_status_code, f"{error.http_status_code} {error.error_message}"[:500]
            if 400 <= status < 500 and status not in MAY_PASS:
                raise SchemaRefusedError("schema registry refuses the schema", **where, reason=reason) from error
            raise RegistryUnreachableError("schema registry failed", **where, reason=reason) from error
        except (
            Exception
        ) as error:  # the client lets its HTTP library's errors through, and which one differs by version
            raise RegistryUnreachableError("schema registry does not answer", **where, reason=repr(error)) from error
