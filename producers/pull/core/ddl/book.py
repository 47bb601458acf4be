"""The DDL feed's pure half: which jobs are new, in which order they go to the ddl topic, and how far that has landed.

    jobs, in any order --add--> waiting --resolved(ts)--> to send, by (finished_ts, job id) --acked--> for the owner
                            |      ^
                            +-> unread --read(TableInfo)

A job stands as `done` in its row once or more often (the row is written again); its first `done` counts, as its
commit_ts is the moment at which the schema changed. A job that has its effect before (``early_jobs.py``) goes out as of
then, as if it were done, and no more when it is; its row has no TableInfo, so nothing above it goes out until that has
been read. A row that does not decode may be any of them, so each such row goes to the topic, where its commit_ts
belongs.
"""

from collections import deque
from collections.abc import Iterable

from producers.pull.core.ddl.early_jobs import as_done, is_early
from schemas.ddl.job import DdlDecodeError, read_undecodable
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import DdlReport
from schemas.tidb.info_json import JsonObject

_Identity = int | tuple[str, Ts]
"""A job's id, or key and commit_ts of a row that does not decode."""


class DdlBook:
    """Not thread-safe. Records are sent and acknowledged in one order: the topic has one partition."""

    def __init__(self, landed: Iterable[tuple[int, DdlRecord]]) -> None:
        """Open the book over what the ddl topic holds, as ``(offset, record)`` in order."""
        self.snapshot_ts: Ts | None = None
        self._known: set[_Identity] = set()
        self._waiting: dict[_Identity, DdlRecord] = {}
        self._unread: dict[_Identity, DdlRecord] = {}
        """Early jobs whose table has not been read yet, beside those that wait."""
        self._resolved_ts = Ts(0)
        self._sent = 0
        self._acked = 0
        self._marks: deque[tuple[int, Ts]] = deque()
        self._landed_ts = Ts(0)
        self._end = 0
        for offset, record in landed:
            self._end = offset + 1
            if record.kind in ("job", "undecodable"):
                self._known.add(_identity(record))
                self._known |= _late_job_id(record)
                # Of two jobs with one finished_ts perhaps only the first has landed: so one less.
                self._landed_ts = max(self._landed_ts, Ts(record.ts - 1))
            elif record.kind == "snapshot_end" and self.snapshot_ts is None:
                self.snapshot_ts = self._landed_ts = record.ts

    def resume_ts(self, published_ts: Ts) -> Ts:
        """Return from which ts (exclusive) the job table must be read again, after ``published_ts`` was published."""
        assert self.snapshot_ts is not None, "without a snapshot there is nothing to resume"
        return max(self._landed_ts, published_ts)

    def snapshot_landed(self, ts: Ts, end: int) -> None:
        """Note that the whole snapshot is acknowledged."""
        self.snapshot_ts, self._landed_ts, self._end = ts, ts, end

    def add(self, record: DdlRecord) -> None:
        """Take a finished job, an early one, or a row that does not decode; one that is known already changes nothing
        but may turn out earlier.
        """
        is_unread = record.kind == "job" and is_early(record.payload)
        self._put(self._unread if is_unread else self._waiting, record)

    def unread(self) -> list[DdlRecord]:
        """Return the early jobs whose table's TableInfo is to be read, as it stood at their ts."""
        return list(self._unread.values())

    def read(self, record: DdlRecord, table_info: JsonObject | None) -> None:
        """Take what was read for one of :meth:`unread`; None: it is not there any more."""
        identity = _identity(record)
        if self._unread.get(identity) is not record:
            return  # an earlier row of it has come meanwhile
        del self._unread[identity]
        done = as_done(record, table_info) if table_info is not None else None
        if done is not None:
            self._put(self._waiting, done)

    def resolved(self, ts: Ts) -> list[DdlRecord]:
        """Return the jobs to send now: no job at or below ``ts`` is still to come."""
        self._resolved_ts = max(self._resolved_ts, ts)
        return self.to_send()

    def to_send(self) -> list[DdlRecord]:
        """Return the jobs to send after some have been read."""
        ts = min((self._resolved_ts, *(Ts(record.ts - 1) for record in self._unread.values())))
        to_send = sorted(
            (record for record in self._waiting.values() if record.ts <= ts),
            key=lambda record: (record.ts, int(record.payload.get("id", 0))),
        )
        for record in to_send:
            identity = _identity(record)
            del self._waiting[identity]
            self._known.add(identity)
        self._sent += len(to_send)
        if not self._marks or self._marks[-1] != (self._sent, ts):
            self._marks.append((self._sent, ts))
        self._settle()
        return to_send

    def _put(self, queue: dict[_Identity, DdlRecord], record: DdlRecord) -> None:
        identity = _identity(record)
        former = [each for each in (queue.get(identity), self._waiting.get(identity)) if each is not None]
        if identity not in self._known and all(record.ts < each.ts for each in former):
            queue[identity] = record

    def acked(self, offset: int) -> None:
        """Note the next record's acknowledgement."""
        self._acked += 1
        self._end = offset + 1
        self._settle()

    def report(self) -> DdlReport:
        """Return how far the feed has landed."""
        return DdlReport(landed_ts=self._landed_ts, end=self._end)

    def _settle(self) -> None:
        while self._marks and self._marks[0][0] <= self._acked:
            self._landed_ts = max(self._landed_ts, self._marks.popleft()[1])


def _identity(record: DdlRecord) -> _Identity:
    return int(record.payload["id"]) if record.kind == "job" else (str(record.payload["key"]), record.ts)


def _late_job_id(record: DdlRecord) -> set[_Identity]:
    """Return the id of the job in a row that an earlier version could not read and this one can: it has landed."""
    if record.kind != "undecodable":
        return set()
    try:
        job = read_undecodable(record)
    except DdlDecodeError:
        return set()
    return set() if job is None else {int(job.payload["id"])}
