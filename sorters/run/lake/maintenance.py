"""What keeps a lake table quick and small: its files are compacted, and snapshots expire that nobody names.

Neither changes what the table holds, or any tag. A compaction says no watermark: it may end after a commit that it has
not seen (:mod:`sorters.core.lake.snapshots`).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from schemas.ids import Ts
from sorters.core.lake.resync import LakeResync
from sorters.core.lake.snapshots import LakeSnapshot, expired_snapshots
from sorters.run.lake.properties import WATERMARK
from sorters.run.lake.table import LakeTable

log = logging.getLogger(__name__)

KEPT_S = 3600
"""How long somebody may go on reading what main has left."""
_REWRITE = {
    "min-input-files": "5",
    "remove-dangling-deletes": "true",
    # A file that is large enough stays, unless this much of it is deleted.
    "delete-ratio-threshold": "0.3",
}


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    files_before: int
    """Data files that were written anew."""
    files_after: int
    deletes_dropped: int
    """Delete files that no data file needs any more."""
    left_for: LakeResync | None = None
    """What the table notes of its resync, for which it is left as it is."""


def compact(table: LakeTable, session: Any) -> Compacted:
    """Write small data files, and those of which much is deleted, anew as larger ones; one snapshot. Nothing is done to
    a table that is resynced: which of its files are from before would not be known any more.

    Raises:
        Py4JJavaError: somebody has deleted rows of these files meanwhile; nothing is changed then.
    """
    table.java.refresh()
    noted = table.resync()
    if noted is not None:
        return Compacted(0, 0, 0, noted)
    actions = session._jvm.org.apache.iceberg.spark.actions.SparkActions.get(session._jsparkSession)
    action = actions.rewriteDataFiles(table.java)
    for key, value in _REWRITE.items():
        action = action.option(key, value)
    result = (action.sort() if table.java.sortOrder().isSorted() else action.binPack()).execute()
    table.java.refresh()
    return Compacted(
        int(result.rewrittenDataFilesCount()),
        int(result.addedDataFilesCount()),
        int(result.removedDeleteFilesCount()),
    )


def expire(table: LakeTable, kept_s: float = KEPT_S) -> int:
    """Take away the snapshots that neither a tag nor a branch names, and their files; return how many.

    Those stay that main has left for less than ``kept_s``, and what says how far the table is.
    """
    table.java.refresh()
    refs = table.java.refs()
    named = [int(refs[name].snapshotId()) for name in list(refs.keySet())]
    gone = expired_snapshots(
        _snapshots(table), named, int(table.java.currentSnapshot().snapshotId()), int(kept_s * 1000)
    )
    if gone:
        # Without an age Iceberg would take away by its own default what is five days old.
        action = table.java.expireSnapshots().expireOlderThan(0)
        for snapshot_id in gone:
            action = action.expireSnapshotId(snapshot_id)
        action.commit()
    return len(gone)


def maintain_each(
    tables: Iterable[LakeTable],
    session: Any | None,
    settle: Callable[[LakeTable], None],
    check_lease: Callable[[], None],
    is_stopping: Callable[[], bool],
) -> None:
    """Compact tables and let their snapshots expire. What fails is tried again next time: no row waits for it.

    ``settle`` is called of each first, to end what keeps it from compaction and is over. ``session`` None: no more than
    that is done.
    """
    from py4j.protocol import Py4JError  # comes with pyspark, which only a run needs

    for table in tables:
        if is_stopping():
            return
        check_lease()
        try:
            if table.resync() is not None:
                settle(table)
            if session is None:
                continue
            done, expired = compact(table, session), expire(table)
        except Py4JError as error:
            log.warning("lake table is not compacted", extra={"table": str(table.name), "reason": str(error)[:500]})
            continue
        if done.left_for is not None:
            since = {"since_ts": done.left_for.since_ts, "expired": expired}
            log.info("lake table is not compacted: it is resynced", extra={"table": str(table.name), **since})
            continue
        shown = {"files_before": done.files_before, "files_after": done.files_after, "expired": expired}
        log.info("lake table is compacted", extra={"table": str(table.name), **shown})


def _snapshots(table: LakeTable) -> dict[int, LakeSnapshot]:
    snapshots = {}
    for snapshot in table.java.snapshots():
        number, said, parent = snapshot.snapshotId(), snapshot.summary().get(WATERMARK), snapshot.parentId()
        watermark_ts = None if said is None else Ts(int(said))
        snapshots[number] = LakeSnapshot(number, parent, snapshot.timestampMillis(), watermark_ts)
    return snapshots
