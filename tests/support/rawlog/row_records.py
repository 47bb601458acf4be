"""The records that row changes of one table become, by what tasks, the driver and the dry run call."""

from schemas.changes import RowChanges
from schemas.ddl.schema_store import SchemaStore
from sorters.core.feed.claim_check import StoreClaim
from sorters.core.feed.feed import CompiledFeed
from sorters.core.mount.corrupt_rows import OnCorrupt
from sorters.core.records.order import OutputRecords, join_records, no_records
from sorters.core.rows.shared_pass import run_chunks


def records_of(
    rows: RowChanges,
    schemas: SchemaStore,
    feed: CompiledFeed,
    *,
    encoded_at_ms: int,
    store_claim: StoreClaim | None = None,
    on_corrupt: OnCorrupt | None = None,
) -> OutputRecords:
    """Return the records of the sink topics, in no particular order; see :func:`run_chunks`."""
    parts = run_chunks(
        [rows], schemas, feed, encoded_at_ms=encoded_at_ms, store_claim=store_claim, on_corrupt=on_corrupt
    )
    return join_records([no_records(), *parts])
