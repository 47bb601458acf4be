"""What stands before Avro's binary in a message: which schema of a registry it was written by.

Confluent: byte 0, schema id (i32 big-endian). Glue: version 3, no compression, a UUID.
"""

import struct

from schemas.tidb.table import TableVersion
from sorters.core.encode.wire.protocol import SchemaIds, SchemaMissingError

_MAGIC = b"\0"
_GLUE_MAGIC = b"\3\0"
_ID = struct.Struct(">i")
_UUID_BYTES = 16


def schema_head(schema_ids: SchemaIds, subject: str, table: TableVersion, *, glue: bool) -> bytes:
    """Return the head of messages by a table version's schema.

    Args:
        glue: ids are the numbers of AWS Glue's UUIDs, and stand in messages as Glue's readers want them.

    Raises:
        SchemaMissingError: ``schema_ids`` lacks it.
    """
    schema_id = schema_ids.get((subject, table.table_id, table.version))
    if schema_id is None:
        raise SchemaMissingError(
            "no schema id for the rows of this table version",
            subject=subject,
            table=table.name,
            table_id=table.table_id,
            version=table.version,
        )
    return id_head(schema_id, glue=glue)


def id_head(schema_id: int, *, glue: bool) -> bytes:
    """Return the head of messages by a schema."""
    return _GLUE_MAGIC + schema_id.to_bytes(_UUID_BYTES, "big") if glue else _MAGIC + _ID.pack(schema_id)


def head_bytes(*, glue: bool) -> int:
    """Return how long every head is."""
    return len(_GLUE_MAGIC) + _UUID_BYTES if glue else len(_MAGIC) + _ID.size
