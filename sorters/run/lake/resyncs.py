"""Rows of a lake table go in together with what it notes of its resync (:mod:`sorters.core.lake.resync`)."""

import logging
from collections.abc import Callable

from schemas.ids import Ts
from sorters.core.lake.resync import LakeResync, TableStep, resync_after
from sorters.run.lake.files import LakeFiles
from sorters.run.lake.moves import Move
from sorters.run.lake.table import LakeTable

log = logging.getLogger(__name__)


def resyncing_move(
    table: LakeTable, files: LakeFiles, put: Callable[[], None], watermark_ts: Ts, step: TableStep | None
) -> Move:
    """Return how a table gets rows by ``put``, and what it says of them. ``step`` None: no resync goes on with them."""

    def prepare() -> LakeResync | None:
        table.begin()
        before = table.resync()
        noted = None if step is None else resync_after(before, step, table.files_upto())
        put()
        if noted is None and (before is not None or (step is not None and step.opened)):
            _say_ended(table)
        if noted is None or step is None or not noted.is_whole(step):
            return noted
        count = files.drop_upto(table, noted.files_upto)
        log.info("lake table is resynced", extra={"table": str(table.name), "files_dropped": count})
        return None

    return Move(table, prepare, watermark_ts)


def end_resync(table: LakeTable, ddl_ts: Ts, check_lease: Callable[[], None]) -> None:
    """Let a table forget a resync that a DDL ends, unless it has had rows behind the DDL: then it is another."""
    if table.progress().watermark_ts > ddl_ts or table.resync() is None:
        return
    check_lease()
    table.end_resync()
    _say_ended(table)


def end_idle_resync(table: LakeTable, step: TableStep | None, after_ts: Ts, check_lease: Callable[[], None]) -> None:
    """Let a table that had no rows in a step, which begins at ``after_ts``, forget a resync that is over by the step,
    as its next rows would: nobody compacts it until then.
    """
    noted = table.resync()
    if noted is None or step is None or table.progress().watermark_ts > after_ts:
        return
    if resync_after(noted, step, table.files_upto()) is None:
        check_lease()
        table.end_resync()
        _say_ended(table)


def _say_ended(table: LakeTable) -> None:
    log.warning(
        "lake table is backfilled from here on, not resynced: rows that the source has no more may stay, ask again",
        extra={"table": str(table.name)},
    )
