"""What a TiDB's list of DDL jobs says of a statement whose session has gone.

A TiDB runs DDL as jobs, which go on when nobody waits for them any more; TiCDC asks for them in the same way
(``waitDDLDone`` in pingcap/ticdc ``pkg/sink/mysql/mysql_writer_ddl.go``).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

JobVerdict = Enum("JobVerdict", ["UNKNOWN", "UNDER_WAY", "DONE", "REFUSED"])

_DONE = frozenset({"done", "synced"})
_REFUSED = frozenset({"cancelled", "rollback done"})
"""Every other state (queueing, running, cancelling, rollingback, paused, …) is one that a job leaves again."""


@dataclass(frozen=True, slots=True)
class DdlJob:
    """A job with the statement's text that was created in the second in which the statement was noted, or later."""

    job_id: int
    state: str
    ended_s: int | None
    """Unix time; None: it has not ended."""


def verdict(jobs: Iterable[DdlJob], noted_s: int) -> JobVerdict:
    """Tell what became of a statement that was noted at ``noted_s`` (Unix time, by the clock of the jobs).

    The list tells whole seconds, so a job that ended in that very second may be of an earlier statement with the same
    text: it says nothing.
    """
    states = {job.state.lower() for job in jobs if job.ended_s is None or job.ended_s > noted_s}
    if states - _DONE - _REFUSED:
        return JobVerdict.UNDER_WAY
    if states & _DONE:
        return JobVerdict.DONE
    return JobVerdict.REFUSED if states else JobVerdict.UNKNOWN
