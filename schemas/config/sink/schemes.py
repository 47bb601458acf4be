"""What a sink is by its URI's scheme alone, for who has not read its settings."""

from schemas.config.sink.iceberg import ICEBERG_SCHEMES


def sink_scheme(sink_uri: str) -> str:
    """Return a sink URI's scheme; '': it has none."""
    return sink_uri.partition("://")[0].lower() if "://" in sink_uri else ""


def is_lake_scheme(scheme: str) -> bool:
    """Tell whether a sink is lake tables, which its sorter writes itself."""
    return scheme in ICEBERG_SCHEMES
