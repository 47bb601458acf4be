"""Which raw log a run of a changefeed reads: its prologue's until it ends, then the upstream's."""

from dataclasses import replace
from typing import Protocol

from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.nodes.prologue import Prologue, log_at

LOOK_S = 1.0
"""Between two looks whether a prologue is complete."""


class PrologueFailedError(BusError):
    """The changes between the start ts and the raw log's beginning cannot be had."""

    code, action = "sorter.prologue_failed", Action.STOP_CHANGEFEED


class KnowsPrologue(Protocol):
    """What is asked of a :class:`~sorters.run.nodes.status.StatusBoard`."""

    def prologue(self) -> Prologue | None:
        """Return the changefeed's prologue; None: it has none, or none any more."""


def runnable(board: KnowsPrologue, info: ChangefeedInfo, checkpoint_ts: Ts) -> ChangefeedInfo | None:
    """Return a changefeed as it can run from its checkpoint; None: its prologue has not landed yet.

    While it runs its prologue, that is its upstream, and its target is where the prologue ends: the next run, from
    there, reads the upstream's raw log. By the frontier law it may begin there, whatever records stand around that ts.

    Raises:
        PrologueFailedError: it will not land, unless somebody lets the changefeed go on.
        ZooKeeperUnreachableError, CorruptDataError
    """
    prologue = board.prologue()
    log = log_at(prologue, info.upstream, checkpoint_ts)
    if log == info.upstream or prologue is None:
        return info
    failure = prologue.failure
    if log is None and failure is not None and failure.epoch == info.epoch:
        raise PrologueFailedError(
            f"changes before the raw log began cannot be read from TiKV: {failure.message}",
            reason=failure.code,
            start_ts=prologue.start_ts,
            end_ts=prologue.end_ts,
        )
    if log is None:
        return None
    end_ts = prologue.end_ts if info.target_ts is None else min(prologue.end_ts, info.target_ts)
    return replace(info, upstream=log, target_ts=end_ts)
