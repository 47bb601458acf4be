"""What to do about what stops a changefeed at its lake tables (:mod:`sorters.core.lake.errors`)."""

from collections.abc import Mapping
from typing import Final

RESUME: Final = "Then resume."
_BEGIN_ANEW: Final = (
    "Else give that one lake table a new beginning: drop it, by a tool of your catalog. Its tags go with it.",
    "Resume: it is made anew, and takes changes from the checkpoint on.",
    "Backfill it, by the buttons of table images, for the rows of before; until then its tags show it in part.",
)
LAKE_HISTORY_LOST: Final = (
    "What the changefeed needs is no longer held, so it cannot go on without a gap.",
    "Another checkpoint does not help: lake tables belong to the life of the changefeed that has made them.",
    "Remove it, and create it anew with another namespace or warehouse, and with initial for the rows of before.",
)
LAKE_STEPS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "lake.schema_refused": (
        (
            "Leave the table that the error names out by the filter: Update;",
            "or, at another type of a column, say type-change=new-column in the sink URI: it goes on as a new field;",
            "or, at a rename, route the new name back to the old one by target-table;",
            "or, at a partition that goes or is exchanged, add the DDL's start_ts to ignore-txn-start-ts. Then resume,",
            "and, where such a DDL was passed by, resync its table by the buttons of table images.",
            *_BEGIN_ANEW,
        ),
        ("update", "resume"),
    ),
    "lake.table_gone": (
        (
            "Bring back the lake table that the error names, if your catalog can. Then resume.",
            "Else resume without it: it is made anew, and takes changes from the checkpoint on.",
            _BEGIN_ANEW[2],
        ),
        ("resume",),
    ),
    "lake.table_taken": (
        (
            "Another changefeed has made the lake table that the error names, or this one's former life.",
            "Write elsewhere: Update namespace or warehouse in the sink URI. Then resume.",
            *_BEGIN_ANEW,
        ),
        ("update", "resume"),
    ),
    "lake.watermark_lost": (
        ("The lake table was rolled back, or lost its snapshots to others' maintenance.", *_BEGIN_ANEW),
        ("resume",),
    ),
    "lake.value_refused": (
        (
            "No lake column holds the value that the error names: leave its table out by the filter (Update).",
            "A date that no calendar has is no key in mode upsert; a changefeed of its own in mode append takes it.",
            RESUME,
        ),
        ("update", "resume"),
    ),
    "lake.warehouse": (
        ("Make the folder that the error names, so that captures can write it; or name another one: Update.", RESUME),
        ("update", "resume"),
    ),
    "lake.jar_missing": (
        (
            "Spark of the sorter lacks what the error names: tidebus setup fetches Iceberg's jar,",
            "and TIDEBUS_SPARK_JARS names further ones. Start that capture again.",
            RESUME,
        ),
        ("resume",),
    ),
}
