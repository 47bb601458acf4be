"""Lines and schema files of storage sinks."""
