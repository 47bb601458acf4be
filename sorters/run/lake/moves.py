"""The tables of a step move to its watermark: by one transaction of the catalog where it has them, else one by one.

    rows of each table to its branch ─▶ main of all, and the tag of all: one request ─▶ what does each table say now?

Whatever comes back, each table is asked before anything is written again: the request may have been carried out and its
answer lost. One that another writer has moved lets none move; its rows are written anew, on what it is now.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from schemas.ids import Ts
from sorters.core.lake.errors import LakeOvertakenError
from sorters.core.lake.resync import LakeResync
from sorters.run.lake.catalog import LakeCatalog
from sorters.run.lake.names import LakeName
from sorters.run.lake.table import LakeTable, StagedMove
from sorters.run.lake.updates import CONFLICT, OVERTAKEN_MAX

log = logging.getLogger(__name__)

_NOT_OFFERED = ("UnsupportedOperationException", "NoSuchTableException", "RESTException")
"""The endpoint is not among those that the server names; it answers 404; 405. Each may mean other things besides."""


@dataclass(slots=True)
class Move:
    """A table whose rows of a step stand in the run's branch."""

    table: LakeTable
    prepare: Callable[[], LakeResync | None]
    """Writes them there, on what main is now; returns what the table is to note of a resync."""
    watermark_ts: Ts
    resync: LakeResync | None = None


@dataclass(frozen=True, slots=True)
class Tagging:
    """A tag that goes with a transaction."""

    watermark_ts: Ts
    kept: int
    idle: Sequence[LakeTable]
    """Tables that have no rows in the step."""


class NotOfferedError(Exception):
    """The catalog has no transaction over several tables."""


def publish(move: Move, check_lease: Callable[[], None], schema_ts: Ts | None = None) -> None:
    """Write rows and move one table by itself; anew where a compaction has come in between."""
    for _ in range(OVERTAKEN_MAX):
        move.resync = move.prepare()
        check_lease()
        if not move.table.is_overtaken():
            break
        _say_anew(move.table)
    move.table.publish(move.watermark_ts, schema_ts, move.resync)


def publish_all(
    catalog: LakeCatalog, moves: Mapping[LakeName, Move], tagging: Tagging | None, check_lease: Callable[[], None]
) -> None:
    """Move all tables at once, and tag them and those of ``tagging``.

    Raises:
        NotOfferedError: no table was moved, and none can be so.
        LakeOvertakenError: another process of the changefeed has moved one.
        Py4JJavaError: Iceberg's; tables may have moved.
    """
    kept = None if tagging is None else tagging.kept
    waiting, idle = dict(moves), list(tagging.idle) if tagging else []
    for _ in range(OVERTAKEN_MAX):
        check_lease()
        staged = {name: _staged(move, kept) for name, move in waiting.items()}
        check_lease()
        error = _commit(catalog, staged, idle, tagging)
        for move in waiting.values():
            move.table.refresh()
        waiting = {name: move for name, move in waiting.items() if not move.table.has_had(staged[name])}
        if error is not None and tagging is not None:
            for table in idle:
                table.refresh()
            idle = [table for table in idle if tagging.watermark_ts not in table.progress().tags]
        else:
            idle = []
        if not waiting and not idle:
            if error is not None:
                log.info("lake tables have moved, though the catalog did not say so", extra={"reason": error.reason})
            return
        _judge(error, is_whole=len(waiting) == len(staged))
    raise LakeOvertakenError("lake tables were written by others, again and again", tables=_shown(waiting))


@dataclass(frozen=True, slots=True)
class _Refused:
    error: Exception
    kind: str
    """Of Java's class, without its package."""

    @property
    def reason(self) -> str:
        return str(self.error)[:500]


def _staged(move: Move, tags_kept: int | None) -> StagedMove:
    if move.table.is_overtaken():
        _say_anew(move.table)
        move.resync = move.prepare()
    return move.table.staged_move(move.watermark_ts, move.resync, tags_kept)


def _commit(
    catalog: LakeCatalog,
    staged: Mapping[LakeName, StagedMove],
    idle: Sequence[LakeTable],
    tagging: Tagging | None,
) -> _Refused | None:
    from py4j.protocol import Py4JJavaError  # comes with pyspark, which only a run needs

    assert tagging is not None or not idle
    tags = [(table, table.staged_tag(tagging.watermark_ts, tagging.kept)) for table in idle] if tagging else []
    try:
        catalog.commit([*staged.items(), *((table.name, tag) for table, tag in tags)])
    except Py4JJavaError as error:
        return _Refused(error, str(error.java_exception.getClass().getSimpleName()))
    for table, tag in tags:
        assert tagging is not None
        table.note_tag(tag, tagging.watermark_ts, tagging.kept)
    return None


def _judge(error: _Refused | None, *, is_whole: bool) -> None:
    """Go on where one table was overtaken; raise what else has kept tables where they were."""
    if error is None or error.kind == CONFLICT:
        log.info("lake tables have not moved: one was written by others", extra={"reason": error and error.reason})
        return
    if error.kind in _NOT_OFFERED and is_whole:
        raise NotOfferedError(error.reason) from error.error
    raise error.error


def _say_anew(table: LakeTable) -> None:
    log.info("lake table was compacted meanwhile: it is written again", extra={"table": str(table.name)})


def _shown(waiting: Mapping[LakeName, Move]) -> str:
    return ", ".join(map(str, waiting))[:200]
