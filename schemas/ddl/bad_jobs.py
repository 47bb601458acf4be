"""DDL jobs that a schema store could not take: noted with their errors, so that the feed behind them is still read.

Who feeds a store from the ddl topic (the owner, a sorter) feeds it through :class:`BadJobs`. What comes after a bad job
is applied to a schema that lacks it, so nothing that the job may concern may be used from its ts on; the owner holds
the frontier there (``FrontierRecord.held_ddl``), and changefeeds that it concerns fail at it.
"""

from dataclasses import dataclass

from schemas.ddl.job import JobScope, job_scope
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord

ADVICE = (
    "upgrade TideBus and resume: the job is kept in the raw log as it is; or, if this changefeed does not need it, "
    "put its start_ts into filter.ignore-txn-start-ts"
)


@dataclass(frozen=True, slots=True)
class BadJob:
    """One job and why it cannot be used."""

    scope: JobScope
    error: BusError


class BadJobs:
    """In the order of the topic; one that was landed again is noted once."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[Ts, Ts, object], BadJob] = {}

    def apply(self, store: SchemaStore, record: DdlRecord, **where: object) -> SchemaChange | None:
        """Feed one record into ``store``; a job that fails is noted, with ``where`` among its error's fields.

        Raises:
            BusError: a snapshot record does not decode. Without the snapshot there is nothing to go on from.
        """
        try:
            return store.apply(record)
        except BusError as error:
            if record.kind not in ("job", "undecodable"):
                error.fields.update(where)
                raise
            error.fields.update(where, commit_ts=record.ts, start_ts=record.start_ts)
            error.fields.setdefault("do", ADVICE)
            same = record.payload.get("id") if record.kind == "job" else record.payload.get("key")
            self._jobs.setdefault((record.ts, record.start_ts, str(same)), BadJob(job_scope(record), error))
            return None

    @property
    def jobs(self) -> tuple[BadJob, ...]:
        """All of them, in finished_ts order."""
        return tuple(self._jobs.values())
