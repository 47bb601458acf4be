"""Which registry a changefeed's schemas go to."""

from edges.registry.access import RegistryAccess
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.sink import AVRO_PROTOCOLS
from sorters.registry.registry import SchemaRegistry


class NoRegistry:
    """Of a blackhole sink: no schema is registered, and all messages name the schema 0."""

    def register(self, subject: str, schema: str, *, table: str) -> int:
        """See :class:`sorters.registry.registry.SchemaRegistry`."""
        return 0

    def close(self) -> None:
        """There is nothing to close."""


def registry_of(config: ChangefeedConfig, ours: RegistryAccess) -> SchemaRegistry | None:
    """Return the registry that a changefeed names, else the bus's own; None: its protocol has no schemas there.

    Their clients are imported here, for most changefeeds have none.

    Raises:
        ConfigError: a file of TLS cannot be used.
    """
    if config.protocol not in AVRO_PROTOCOLS:
        return None
    if config.uri.is_blackhole:
        return NoRegistry()
    if config.kafka.glue_schema_registry_config is not None:
        from sorters.registry.glue import GlueRegistry

        return GlueRegistry(config.kafka.glue_schema_registry_config)
    from sorters.registry.confluent import ConfluentRegistry

    url = config.sink.schema_registry
    access = ours.of_changefeed(url.reveal() if url else "")
    return ConfluentRegistry(access) if access else None
