"""AWS Glue as the schema registry: schemas by name in a registry of Glue's, versions told apart by UUIDs.

An id here is a UUID's number, which :class:`sorters.core.encode.avro.encoder.AvroEncoder` writes as Glue's readers want
it.

Source: pingcap/tiflow ``pkg/sink/codec/avro/glue_schema_registry.go``: names are the subjects, and schemas that are
created have no compatibility check.
"""

import uuid
from typing import Any, Final

from schemas.config.sink.kafka import GlueSchemaRegistry
from schemas.errors import Action, BusError
from sorters.registry.registry import TIMEOUT_S, RegistryUnreachableError, SchemaRefusedError

_MAY_PASS: Final = frozenset({"ThrottlingException", "ConcurrentModificationException", "InternalServiceException"})
_EXPIRED: Final = frozenset({"ExpiredTokenException", "ExpiredToken", "RequestExpired"})
"""Where the machine's own credentials are used, others follow without anybody's doing."""
_SERVER_ERROR: Final = 500


class GlueClientMissingError(BusError):
    """The library that talks to AWS is not installed."""

    code, action = "sorter.glue_client_missing", Action.STOP_CHANGEFEED


class GlueRegistry:
    """See :class:`sorters.registry.registry.SchemaRegistry`; remembers what it has registered."""

    def __init__(self, config: GlueSchemaRegistry) -> None:
        """Without keys in ``config`` the machine's own AWS credentials count.

        Raises:
            GlueClientMissingError: see there.
        """
        self._name, self._region = config.registry_name, config.region
        self._client = _client(config)
        self._may_pass = _MAY_PASS | (_EXPIRED if config.access_key is None else frozenset())
        self._ids: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    def register(self, subject: str, schema: str, *, table: str) -> int:
        """Return the number of the schema version's UUID.

        Raises:
            SchemaRefusedError: Glue will not have the schema, or does not let us in.
            RegistryUnreachableError: anything else.
        """
        known = self._ids.get((subject, schema))
        if known is not None:
            return known
        where = {"subject": subject, "table": table, "registry": self._name, "region": self._region}
        try:
            answer = self._add(subject, schema)
        except Exception as error:  # botocore makes classes of errors as it reads the service's description
            raise self._registry_error(error, where) from error
        if answer.get("Status", answer.get("SchemaVersionStatus")) == "FAILURE":
            raise SchemaRefusedError("schema registry refuses the schema", **where, reason="status FAILURE")
        schema_id = self._ids[subject, schema] = uuid.UUID(str(answer["SchemaVersionId"])).int
        return schema_id

    def _add(self, subject: str, schema: str) -> dict[str, object]:
        try:
            return self._add_version(subject, schema)
        except self._client.exceptions.EntityNotFoundException:
            pass
        try:
            answer: dict[str, object] = self._client.create_schema(
                RegistryId={"RegistryName": self._name},
                SchemaName=subject,
                DataFormat="AVRO",
                Compatibility="NONE",
                SchemaDefinition=schema,
            )
        except self._client.exceptions.AlreadyExistsException:  # another changefeed has met the table just now
            answer = self._add_version(subject, schema)
        return answer

    def _add_version(self, subject: str, schema: str) -> dict[str, object]:
        schema_id = {"RegistryName": self._name, "SchemaName": subject}
        answer: dict[str, object] = self._client.register_schema_version(SchemaId=schema_id, SchemaDefinition=schema)
        return answer

    def _registry_error(self, error: Exception, where: dict[str, str]) -> BusError:
        """Return ours for one of botocore's; its text holds no credentials."""
        answer = getattr(error, "response", None)
        if not isinstance(answer, dict):
            return RegistryUnreachableError("schema registry does not answer", **where, reason=repr(error)[:500])
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", _SERVER_ERROR))
        if status >= _SERVER_ERROR or answer.get("Error", {}).get("Code") in self._may_pass:
            return RegistryUnreachableError("schema registry failed", **where, reason=str(error)[:500])
        return SchemaRefusedError("schema registry refuses the schema", **where, reason=str(error)[:500])


def _client(config: GlueSchemaRegistry) -> Any:
    try:
        import botocore.session
        from botocore.config import Config
    except ImportError as error:
        raise GlueClientMissingError("AWS Glue needs botocore: install tidebus[s3]", reason=error) from error

    def shown(secret: Any) -> str | None:
        return None if secret is None else secret.reveal()

    return botocore.session.get_session().create_client(
        "glue",
        region_name=config.region,
        aws_access_key_id=shown(config.access_key),
        aws_secret_access_key=shown(config.secret_access_key),
        aws_session_token=shown(config.token),
        config=Config(connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries={"max_attempts": 0}),
    )
