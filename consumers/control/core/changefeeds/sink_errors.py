"""Which errors of a changefeed are its sink's, and of which kind of event: what TiCDC counts as execution errors."""

from typing import Final, Literal

EventType = Literal["dml", "ddl"]

_OF_DDL: Final = frozenset({"apply.ddl_refused", "apply.recover_refused", "lake.schema_refused", "sink.ddl_unsafe"})
_OF_ROWS: Final = frozenset(
    {
        *("apply.destination_refused", "apply.destination_unreachable", "apply.row_refused", "apply.shape_differs"),
        *("lake.overtaken", "lake.table_taken", "lake.value_refused", "lake.warehouse"),
        *("sink.batch_too_large", "sink.claim_store_failed", "sink.encode_refused", "sink.message_too_large"),
        *("sink.schema_missing", "sink.storage_client_missing", "storage.client_missing", "storage.unavailable"),
        *("sorter.kafka_unreachable", "sorter.registry_unreachable", "sorter.schema_refused"),
        *("sorter.topic_missing", "sorter.topic_partitions", "sorter.topic_refused", "sorter.topic_replication"),
    }
)


def event_type_of(code: str) -> EventType | None:
    """Return what a changefeed that has failed with a code could not write; None: the sink was not to blame."""
    if code in _OF_DDL:
        return "ddl"
    return "dml" if code in _OF_ROWS else None
