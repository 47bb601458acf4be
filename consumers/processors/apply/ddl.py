"""DDL at the destination: each step of the barrier (:mod:`consumers.processors.core.apply.barrier`) as statements.

**Asked before repeated.** BEGIN keeps a fingerprint of what the DDL is about: how the server itself writes the schema
and the tables down (``SHOW CREATE``), and for EXCHANGE PARTITION, which leaves all that as it was, a checksum of the
plain table's rows (``CHECKSUM TABLE``, which TiDB does not know: there the plain table gets the partition's id), and
sums of both sides' rows as text, which stay as they are where somebody gives a column another type. A
processor that finds a DDL begun compares: if it looks the same now, running it (again) does no harm: it has not run, or
it changes nothing that a second time would spoil (TRUNCATE TABLE: no partition has written a row behind it yet). If it
looks otherwise, that may be for the DDL or for who has mended what stood in its way: names tell whether what the DDL
leaves behind is there (:mod:`consumers.processors.apply.already_so`), and one that sets what no name tells is run once
more, as it does no harm either. Of the rest that it looks otherwise says that it has run, unless the destination has
refused it before, which is noted: then only the operator knows.

**One at a time.** The session that runs a DDL holds a named lock. A server goes on with a DDL whose client is gone; the
next processor waits for the lock then. A session that holds the lock and does nothing belongs to a processor that was
stopped in mid-step: it is ended, so that its DDL cannot come late.

**A TiDB's jobs.** A TiDB runs DDL in the background, and its lock goes with the session. So where the answer to a
statement is lost (``read-timeout`` has passed, say), and where an earlier processor has begun one, its jobs are asked
first: one that is under way is waited for, and one that was called off is an error, as in TiCDC
(:mod:`consumers.processors.core.apply.ddl_jobs`). What they do not know, the fingerprint tells as anywhere.

**A resync's steps** (:mod:`consumers.processors.apply.resync`) come as DDL without a statement, and are done again from
their beginning wherever one was begun.

**An index beside the rows.** One that can be built so (:mod:`consumers.processors.core.apply.index_ddl`) is only noted
when its turn comes; all go on behind it, and it is built then, with a lock of its own. The checkpoint stays below
it until it is there, and a later DDL on its table waits.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping

import pymysql

from consumers.processors.apply.already_so import (
    Outcome,
    is_already_so,
    outcome,
    warn_of_passing,
    what_happens_once,
    what_is_unknown,
    what_lacks,
)
from consumers.processors.apply.connection import Connection, execute, is_tidb, select
from consumers.processors.apply.ddl_jobs import read_clock, read_jobs
from consumers.processors.apply.ddl_session import set_up
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.apply.errors import (
    DdlRefusedError,
    DestinationUnreachableError,
    RecoverRefusedError,
    errno,
    general_error,
    is_refusal,
    may_heal,
    reason,
)
from consumers.processors.apply.fingerprint import fingerprint, is_as_before
from consumers.processors.apply.index_builder import IndexBuilder
from consumers.processors.apply.resync import end_notes, run_step
from consumers.processors.core.apply.ddl_jobs import DdlJob, JobVerdict, verdict
from consumers.processors.core.apply.index_ddl import IndexDdl, builds_apart
from consumers.processors.core.apply.partition import DdlMark
from consumers.processors.core.apply.statements import quoted
from schemas.ddl.job import DdlType
from schemas.sink.sql_rows import SqlDdl

log = logging.getLogger(__name__)
JOB_WAIT_S = 5.0
"""Between two looks at a TiDB's jobs; a long list of them takes it a second (TiCDC waits as long)."""
NAMED_LOCK_WAIT_S = 1
"""Of one request for the lock; between two we look who holds it, and whether we shall stop."""
_RECOVERS: Mapping[int, str] = {DdlType.RECOVER_TABLE: "table", DdlType.RECOVER_SCHEMA: "database with all its tables"}


class StoppedError(DestinationUnreachableError):
    """We were told to stop while waiting for a DDL."""

    code = "apply.stopped"


class DdlRunner:
    """Runs the DDL of one changefeed, one at a time; :meth:`close` it when nobody leads with it any more."""

    def __init__(
        self,
        *,
        destination: DatabaseDestination,
        time_zone: str = "UTC",
        read_timeout_s: float = 0.0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """``read_timeout_s``: after which the answer to a DDL is given up, for errors to name; 0: not known."""
        self.destination, self.time_zone, self.stopped = destination, time_zone, stopped
        self._read_timeout_s = read_timeout_s
        self.indexes = IndexBuilder(self._build)
        self._apart = b""
        """Position of the last index that :meth:`run` has left for later: one that is there, or skipped, is not."""

    def resume(self, ignore_start_ts: Collection[int] = ()) -> None:
        """Go on with the indexes that leaders before us have not built, but for those that the user wants skipped.

        Raises:
            DestinationUnreachableError, DestinationRefusedError
        """
        connection = self.destination.connect()
        try:
            indexes = self.destination.index_ddls(connection)
            for index in indexes:
                if index.start_ts in ignore_start_ts:
                    self.destination.index_done(connection, index.position)
        except pymysql.MySQLError as error:
            raise general_error(error, schema="tidebus") from error
        finally:
            connection.close()
        self.indexes.add([index for index in indexes if index.start_ts not in ignore_start_ts])

    def close(self) -> None:
        """Wait for nothing: an index that a server has begun is asked for by the next leader."""
        self.indexes.close()

    def begin(self, mark: DdlMark) -> None:
        """Note the DDL, and what the destination looks like before it; no index is being built on its table then.

        Raises:
            DdlRefusedError: that index cannot be built.
            ProcessorReplacedError, DestinationUnreachableError, DestinationRefusedError
        """
        if not self.indexes.wait_for(mark.ddl, self.stopped):
            raise StoppedError("told to stop while an index is built")
        connection = self.destination.connect()
        try:
            self._note(connection, mark)
        except pymysql.MySQLError as error:
            raise self._failed(error, mark) from error
        finally:
            connection.close()

    def check(self, mark: DdlMark) -> bool:
        """Tell whether a DDL that an earlier processor has begun has run; one that is under way is waited for.

        Raises:
            DdlRefusedError: it was under way, and was called off; or it was refused, and whether somebody has done it
                by hand cannot be told.
            ProcessorReplacedError, DestinationUnreachableError, DestinationRefusedError
        """
        if mark.ddl.step is not None:
            return False
        connection = self.destination.connect()
        try:
            self._lock(connection)
            self.destination.check_revision(connection)
            noted = self.destination.noted(connection)
            try:
                if self._job_done(connection, mark, noted.noted_s):
                    return True
            except DdlRefusedError:
                self.destination.note_refusal(connection)
                raise
            is_as_it_was = is_as_before(connection, mark.ddl, noted.before)
            became = Outcome.NOT_DONE if is_as_it_was else outcome(connection, mark.ddl, noted.before)
            if became is Outcome.UNKNOWN and noted.was_refused:
                raise _not_told(mark)
            if became is Outcome.NOT_DONE and (noted.was_refused or not is_as_it_was):
                # What it looks like from here on is as it was mended, and no refusal is heard yet.
                self._note(connection, mark)
            return became is not Outcome.NOT_DONE
        except pymysql.MySQLError as error:
            raise self._failed(error, mark) from error
        finally:
            connection.close()

    def run(self, mark: DdlMark) -> None:
        """Run the DDL; nothing where it is an index that is built beside the rows, once :meth:`finish` has noted it.

        Raises:
            DdlRefusedError: the destination does not take it.
            RecoverRefusedError: it cannot bring a dropped table back.
            ShapeDiffersError: a table that is to be resynced is not there, or has another key.
            ProcessorReplacedError, DestinationUnreachableError, DestinationRefusedError
        """
        if builds_apart(mark.ddl):
            self._apart = mark.position
            return
        try:
            self._run(mark)
        except DdlRefusedError:
            if mark.ddl.step is None:
                self.destination.connected(self.destination.note_refusal)
            raise

    def _note(self, connection: Connection, mark: DdlMark) -> None:
        before, noted_s = fingerprint(connection, mark.ddl), read_clock(connection)
        self.destination.note_ddl(connection, mark.position, mark.ddl.query, before, noted_s)

    def _run(self, mark: DdlMark) -> None:
        connection = self.destination.connect()
        try:
            self._lock(connection)
            # Under the lock: who comes after us waits for it, and who came before us is known by now.
            self.destination.check_revision(connection)
            if mark.ddl.step is None:
                self._query(connection, mark)
            else:
                run_step(connection, self.destination.feed, mark.ddl, self.destination.fence, self._go_on)
        except pymysql.MySQLError as error:
            if mark.ddl.step is not None or not (may_heal(error) and self._goes_on(mark)):
                raise self._failed(error, mark) from error
        finally:
            connection.close()

    def _go_on(self) -> None:
        if self.stopped() or self.indexes.is_closed:
            raise StoppedError("told to stop in the middle of a resync")

    def _build(self, index: IndexDdl) -> None:
        """Build an index, unless it is there already, and note that."""
        mark, what = DdlMark(index.position, index.start_ts, index.ddl, 0), index.position.hex()
        connection = self.destination.connect()
        try:
            self._lock(connection, what)
            self.destination.check_revision(connection)
            is_there = not is_as_before(connection, index.ddl, index.before)
            is_there = is_there and outcome(connection, index.ddl, index.before) is not Outcome.NOT_DONE
            if not (is_there or self._job_done(connection, mark, index.noted_s)):
                self._query(connection, mark)
        except pymysql.MySQLError as error:
            if not (may_heal(error) and self._goes_on(mark, what, index.noted_s)):
                raise self._failed(error, mark) from error
        finally:
            connection.close()
        self.destination.connected(lambda connection: self.destination.index_done(connection, index.position))

    def _query(self, connection: Connection, mark: DdlMark) -> None:
        set_up(connection, mark.ddl, self.time_zone, self._read_timeout_s)
        try:
            connection.query(_text(mark.ddl))
        except pymysql.MySQLError as error:
            if not is_already_so(mark.ddl, error):
                raise
            not_so = {"lacks": what_lacks(connection, mark.ddl), "not_known": what_is_unknown(mark.ddl)}
            if shown := {name: text for name, text in not_so.items() if text}:
                raise _refused(mark, errno=errno(error), reason=reason(error)[:500], **shown) from error
            warn_of_passing(mark.ddl, error)

    def _goes_on(self, mark: DdlMark, what: str = "", noted_s: int | None = None) -> bool:
        """After an answer was lost: wait for the statement's job, and tell whether there is one.

        Raises:
            DdlRefusedError: the job was called off.
            ProcessorReplacedError, DestinationUnreachableError, DestinationRefusedError
        """
        connection = self.destination.connect()
        try:
            if not is_tidb(connection):
                return False
            self._lock(connection, what)
            self.destination.check_revision(connection)
            noted_s = self.destination.noted(connection).noted_s if noted_s is None else noted_s
            return self._job_done(connection, mark, noted_s, was_said=True)
        except pymysql.MySQLError as error:
            raise self._failed(error, mark) from error
        finally:
            connection.close()

    def _job_done(self, connection: Connection, mark: DdlMark, noted_s: int, *, was_said: bool = False) -> bool:
        """Wait until a TiDB has no job of this statement under way; tell whether one has done it.

        ``was_said``: we have just said it. A job that was called off before we came is none: who resumes tries again.
        """
        while noted_s:
            jobs = read_jobs(connection, mark.ddl, _text(mark.ddl), noted_s)
            match verdict(jobs, noted_s):
                case JobVerdict.UNKNOWN:
                    return False
                case JobVerdict.DONE:
                    return True
                case JobVerdict.REFUSED if was_said:
                    raise _called_off(mark, max(jobs, key=lambda job: job.job_id), noted_s, self._read_timeout_s)
                case JobVerdict.REFUSED:
                    return False
            if not was_said:
                log.info("waiting for a ddl that the destination runs", extra={"table": mark.ddl.name})
            was_said = True
            until_s = time.monotonic() + JOB_WAIT_S
            while time.monotonic() < until_s:
                if self.stopped() or self.indexes.is_closed:
                    raise StoppedError("told to stop while the destination runs a ddl")
                time.sleep(min(JOB_WAIT_S, NAMED_LOCK_WAIT_S))
        return False

    def finish(self, mark: DdlMark, next_offsets: dict[int, int]) -> None:
        """Note the DDL as done, with all partitions behind it.

        Raises:
            ProcessorReplacedError, DestinationUnreachableError, DestinationRefusedError
        """
        connection = self.destination.connect()
        try:
            noted = self.destination.noted(connection) if mark.position == self._apart else None
            if mark.ddl.step is None:
                end_notes(connection, self.destination.feed, mark.ddl)
            apart = None
            if noted is not None and noted.before is not None:
                apart = IndexDdl(mark.position, mark.start_ts, mark.ddl, noted.before, noted.noted_s)
            self.destination.pass_ddl(connection, mark.position, next_offsets, apart)
        except pymysql.MySQLError as error:
            raise self._failed(error, mark) from error
        finally:
            connection.close()
        if apart is not None:
            self.indexes.add([apart])

    def _lock(self, connection: Connection, what: str = "") -> None:
        """Take the lock of this changefeed's DDL, or of one index."""
        name = "tidebus:" + hashlib.sha256((self.destination.feed + what).encode()).hexdigest()[:40]
        while True:
            if select(connection, "SELECT GET_LOCK(%s, %s)", (name, NAMED_LOCK_WAIT_S))[0][0] == 1:
                return
            if self.stopped() or self.indexes.is_closed:
                raise StoppedError("told to stop while another session runs a ddl")
            holder = select(connection, "SELECT IS_USED_LOCK(%s)", (name,))[0][0]
            sql = "SELECT command FROM information_schema.processlist WHERE id = %s"
            if holder is not None and [row[0] for row in select(connection, sql, (holder,))] == ["Sleep"]:
                try:
                    execute(connection, f"KILL {int(holder)}")
                except pymysql.MySQLError:
                    time.sleep(0.1)  # gone by itself, or we may not: it is asked for again

    def _failed(self, error: pymysql.MySQLError, mark: DdlMark) -> Exception:
        ddl = mark.ddl
        if may_heal(error):
            return general_error(error, **_where(mark))
        what = _RECOVERS.get(ddl.ddl_type) if not is_refusal(error) else None
        if what is not None:
            return RecoverRefusedError(
                f"destination cannot bring back what was dropped; create the {what} there, empty, and resume: that is "
                "noticed; then `tidebus table backfill` brings rows (with `initial` they come by themselves); or "
                "copy them there by hand as they stood upstream at commit_ts (a dump of that ts) and resume",
                **_where(mark),
                start_ts=mark.start_ts,
                errno=errno(error),
                reason=reason(error)[:500],
            )
        return _refused(mark, errno=errno(error), reason=reason(error)[:500])


def _where(mark: DdlMark) -> dict[str, object]:
    return {"table": mark.ddl.name, "commit_ts": mark.ddl.commit_ts, "query": mark.ddl.query[:4000]}


def _refused(mark: DdlMark, **why: object) -> DdlRefusedError:
    return DdlRefusedError(
        "destination does not take a ddl; skip it by its start_ts in filter.ignore-txn-start-ts, or change the "
        "destination by hand and resume",
        **_where(mark),
        start_ts=mark.start_ts,
        **why,
    )


def _not_told(mark: DdlMark) -> DdlRefusedError:
    return DdlRefusedError(
        "a ddl was refused, and the destination has been changed since; nothing tells whether the ddl has been done by "
        "hand: do it if it has not been, and skip it by its start_ts in filter.ignore-txn-start-ts",
        **_where(mark),
        start_ts=mark.start_ts,
        not_known=what_happens_once(mark.ddl),
    )


def _called_off(mark: DdlMark, job: DdlJob, noted_s: int, read_timeout_s: float) -> DdlRefusedError:
    """Name the key that lets the next try end: the job was called off by somebody, or as its session was gone."""
    ran_s = (job.ended_s or noted_s) - noted_s
    return DdlRefusedError(
        "a ddl whose answer was lost was called off at the destination, by hand or because its session was gone; set "
        "read-timeout (sink URI or [sink.mysql-config]) longer than the ddl takes there and resume, which says it "
        "once more; or skip it by its start_ts in filter.ignore-txn-start-ts",
        **_where(mark),
        start_ts=mark.start_ts,
        job=f"{job.job_id} ({job.state})",
        ran_s=ran_s,
        key="read-timeout",
        got=f"{read_timeout_s:g}s",
        allowed=f"more than {max(ran_s, round(read_timeout_s))}s",
    )


def _text(ddl: SqlDdl) -> bytes:
    """Return the statement as it is said."""
    query = ddl.query.encode("utf-8", "surrogateescape")
    if ddl.ddl_type == DdlType.RECOVER_TABLE and query.startswith(b"RECOVER TABLE BY JOB"):
        # Jobs of the destination have other numbers: that one may have dropped another table.
        return b"RECOVER TABLE " + quoted(ddl.schema) + b"." + quoted(ddl.table)
    return query
