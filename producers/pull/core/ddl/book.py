"""The DDL feed's pure half: which jobs are new, in which order they go to the ddl topic, and how far that has landed.

    jobs, in any order --add--> waiting --resolved(ts)--> to send, by (finished_ts, job id) --acked--> for the owner

A job stands as `done` in its row once or more often (the row is written again); its first `done` counts, as its
commit_ts is the moment at which the schema changed. A job that has its effect before (``early_jobs.py``) goes out as of
then, as if it were done, and no more when it is. A row that does not decode may be any of them, so each such row goes
to the topic, where its commit_ts belongs.
"""

from collections import deque
from collections.abc import Iterable

from producers.pull.core.ddl.early_jobs import PartitionedTables, is_early
from schemas.ddl.job import DdlDecodeError, read_undecodable
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import DdlReport

_Identity = int | tuple[str, Ts]
"""A job's id, or key and commit_ts of a row that does not decode."""


class DdlBook:
    """Not thread-safe. Records are sent and acknowledged in one order: the topic has one partition."""

    def __init__(self, landed: Iterable[tuple[int, DdlRecord]]) -> None:
        """Open the book over what the ddl topic holds, as ``(offset, record)`` in order."""
        self.snapshot_ts: Ts | None = None
        self._known: set[_Identity] = set()
        self._waiting: dict[_Identity, DdlRecord] = {}
        self._early: dict[_Identity, DdlRecord] = {}
        """Beside those that wait to be done: only in its turn an early job turns out to fit its table."""
        self._tables = PartitionedTables()
        self._sent = 0
        self._acked = 0
        self._marks: deque[tuple[int, Ts]] = deque()
        self._landed_ts = Ts(0)
        self._end = 0
        for offset, record in landed:
            self._end = offset + 1
            self._tables.see(record)
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

    def snapshot_landed(self, ts: Ts, end: int, records: Iterable[DdlRecord]) -> None:
        """Note that the whole snapshot, ``records``, is acknowledged."""
        self.snapshot_ts, self._landed_ts, self._end = ts, ts, end
        for record in records:
            self._tables.see(record)

    def add(self, record: DdlRecord) -> None:
        """Take a finished job, an early one, or a row that does not decode; one that is known already changes nothing
        but may turn out earlier.
        """
        identity, queue = _identity(record), self._queue(record)
        waiting = queue.get(identity)
        if identity not in self._known and (waiting is None or record.ts < waiting.ts):
            queue[identity] = record

    def resolved(self, ts: Ts) -> list[DdlRecord]:
        """Return the jobs to send now: no job at or below ``ts`` is still to come."""
        ready = sorted(
            (record for record in (*self._early.values(), *self._waiting.values()) if record.ts <= ts),
            key=lambda record: (record.ts, int(record.payload.get("id", 0))),
        )
        to_send = []
        for record in ready:
            identity, queue = _identity(record), self._queue(record)
            del queue[identity]
            sent = self._tables.as_done(record) if queue is self._early else record
            if sent is not None and identity not in self._known:
                self._known.add(identity)
                self._tables.see(sent)
                to_send.append(sent)
        self._sent += len(to_send)
        self._marks.append((self._sent, ts))
        self._settle()
        return to_send

    def _queue(self, record: DdlRecord) -> dict[_Identity, DdlRecord]:
        return self._early if record.kind == "job" and is_early(record.payload) else self._waiting

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
