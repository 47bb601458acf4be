"""What lake tables say of themselves: their properties, and the summaries of their snapshots."""

from typing import Any

WATERMARK = "tidb.committed_resolved_ts"
"""In snapshot summaries, as TiCDC's branch has it; and a property of the table, for when these snapshots expire."""
CHANGEFEED, LIFE = "tidb.changefeed_id", "tidb.changefeed_gid"
"""Properties of a table, likewise: its changefeed, and which one of that name."""
TABLE_ID, SCHEMA_TS = "tidebus.table_id", "tidebus.schema_ts"
"""Properties of a table: TiDB's id, and the ts of the DDL that the fields follow."""
IMAGE_TO_COME = "tidebus.image_to_come"
"""A property of a table that was made for rows of its image, until main shows all of them."""
MADE_BEHIND = "tidebus.made_behind_tag"
"""A property of a table that was made by a run which read rows again: the newest tag of all tables then."""
RESYNC = "tidebus.resync"
"""A property of a table that is resynced (:mod:`sorters.core.lake.resync`)."""
FILE_SIZE = "write.target-file-size-bytes"
"""Iceberg's property of a table, which its own writers and compactions go by as we do."""
BRANCH_PREFIX = "tidebus_"


def newest_said(table: Any, snapshot: Any) -> tuple[int | None, str | None]:
    """Return the newest snapshot of Iceberg's table, from this one down, that says a watermark, and what it says; None:
    none does.
    """
    while snapshot is not None:
        said, parent = snapshot.summary().get(WATERMARK), snapshot.parentId()
        if said is not None:
            return int(snapshot.snapshotId()), str(said)
        snapshot = None if parent is None else table.snapshot(parent)
    return None, None
