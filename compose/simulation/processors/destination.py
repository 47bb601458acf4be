"""The destination: its tables, what a changefeed keeps there, and a server that holds every write to the promises.

Each call is one transaction, which happens whole or not at all; the conditions are those of
:mod:`consumers.processors.apply.destination`. A DDL is the exception: it needs the named lock, and a server goes on
with it though its client is gone (:mod:`consumers.processors.apply.ddl`).

What may never happen is an error here, at the moment when it does: a transaction written twice, by halves, out of order
or by somebody who does not have the partition; a DDL that meets other rows than it met upstream, or runs twice; a
syncpoint, or a checkpoint, of a ts at which the tables are not what they were upstream.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from compose.simulation.law import BrokenPromiseError
from compose.simulation.processors.history import START_TS, SimDdl, SimHistory, SimTxn, Tables, WrongError, partition_of
from compose.simulation.processors.history import RowChange as Row
from compose.simulation.processors.sink_topic import ddl_position
from consumers.processors.apply.errors import ProcessorReplacedError
from consumers.processors.core.apply.partition import Claim, start_position
from schemas.ids import Ts
from schemas.sink.position import RowOp


def next_syncpoint(last: Ts, interval: int) -> Ts:
    """Return the syncpoint after ``last``; 0: the first one."""
    return Ts((max(last, START_TS) // interval + 1) * interval)


@dataclass(slots=True)
class PositionRow:
    """A row of ``tidebus.position``."""

    position: bytes
    next_offset: int = 0
    revision: int = 0
    opened: int = 0
    holder: str = ""
    """Who has taken it; the server does not know, the law does."""


@dataclass(slots=True)
class DdlSession:
    """A connection that holds the named lock."""

    holder: str
    ddl: SimDdl
    runs_until: int | None = None
    """When the server is done with the DDL; None: its client has not sent it."""
    is_killed: bool = False


@dataclass(slots=True, kw_only=True)
class SimDestination:
    """``partitions`` of one changefeed."""

    history: SimHistory
    partitions: int
    tables: Tables = field(init=False)
    positions: list[PositionRow] = field(init=False)
    revision: int = 0
    noted: bytes | None = None
    """Position of the DDL that was begun and not finished."""
    before: str = ""
    """The fingerprint of what that DDL met."""
    syncpoint_ts: Ts = Ts(0)
    syncpoint_start: tuple[int, int, Ts] = (-1, 0, Ts(0))
    """The row of ``tidebus.syncpoint_start``: revision, interval, and the least ts of one."""
    lock: DdlSession | None = None
    refused: int = 0
    syncpoints: int = 0
    _applied: Counter[tuple[int, Ts, Ts]] = field(default_factory=Counter)
    _ran: Counter[Ts] = field(default_factory=Counter)
    _finished: set[Ts] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tables = self.history.begin()
        self.positions = [PositionRow(start_position(START_TS)) for _ in range(self.partitions)]

    # -- what a changefeed asks

    def lead(self, revision: int, interval: int) -> tuple[bytes | None, Ts, Ts]:
        """Take DDL and syncpoints over; return the DDL that was begun, the last syncpoint, and the least of a next."""
        if revision < self.revision:
            raise self._replaced()
        noted_by, noted, from_ts = self.syncpoint_start
        if (noted_by, noted) != (self.revision, interval):
            from_ts = self._begin_syncpoints(revision)
        self.syncpoint_start = revision, interval, from_ts
        self.revision = revision
        return self.noted, self.syncpoint_ts, from_ts

    def next_syncpoint(self) -> Ts:
        """Return the one that must be written next."""
        _, interval, from_ts = self.syncpoint_start
        return next_syncpoint(Ts(max(self.syncpoint_ts, from_ts - 1)), interval)

    def locate(self, partition: int) -> tuple[bytes, int]:
        """Return where a partition is."""
        row = self.positions[partition]
        return row.position, row.next_offset

    def take(self, partition: int, revision: int, who: str) -> tuple[int, bytes, int]:
        """Take a partition over; return its new ``opened``, and where it is."""
        row = self.positions[partition]
        if revision < row.revision:
            raise self._replaced()
        row.revision, row.opened, row.holder = revision, row.opened + 1, who
        return row.opened, row.position, row.next_offset

    def apply(self, partition: int, opened: int, before: bytes, claim: Claim, who: str) -> None:
        """Write the rows of a claim, and its position."""
        self._move(partition, opened, before, claim.position, claim.next_offset, who)
        self._write(partition, claim)

    def keep(self, partition: int, opened: int, before: bytes, position: bytes, next_offset: int, who: str) -> None:
        """Move a position over what holds no rows."""
        self._move(partition, opened, before, position, next_offset, who)

    def begin(self, revision: int, ddl: SimDdl) -> None:
        """Note a DDL as begun, with what it meets."""
        self._led_by(revision)
        self.noted, self.before = ddl_position(ddl), self.tables.fingerprint(ddl)

    def try_lock(self, revision: int, ddl: SimDdl, who: str) -> DdlSession | None:
        """Take the named lock and see that nobody else leads; None: another session runs a DDL. One that holds it and
        does nothing is ended.
        """
        if self.lock is not None:
            if self.lock.runs_until is not None:
                return None
            self.lock.is_killed = True
            self.lock = None
        self._led_by(revision)
        self.lock = DdlSession(who, ddl)
        return self.lock

    def check(self, session: DdlSession) -> bool:
        """Tell whether the DDL that is noted has run; gives the lock back."""
        self._alive(session)
        self.lock = None
        return self.tables.fingerprint(session.ddl) != self.before

    def send_ddl(self, session: DdlSession, until: int) -> None:
        """Begin to run the DDL; it is done at ``until``."""
        self._alive(session)
        session.runs_until = until

    def finish(self, revision: int, ddl: SimDdl, offsets: Mapping[int, int]) -> None:
        """Note a DDL as done, and move all partitions behind it."""
        self._led_by(revision)
        position = ddl_position(ddl)
        if not self._ran[ddl.commit_ts]:
            raise BrokenPromiseError(f"{ddl} is noted as done and has not run")
        if sorted(offsets) != list(range(self.partitions)):
            raise BrokenPromiseError(f"{ddl} is passed by partitions {sorted(offsets)} only")
        self._finished.add(ddl.commit_ts)
        self.noted = None
        for partition, offset in offsets.items():
            row = self.positions[partition]
            if row.position > position:
                raise BrokenPromiseError(f"partition {partition} is behind {ddl} before it is done")
            row.position, row.next_offset = position, offset

    def write_syncpoint(self, revision: int, ts: Ts) -> None:
        """Note a syncpoint."""
        self._led_by(revision)
        if ts < self.syncpoint_ts:
            raise BrokenPromiseError(f"syncpoint {ts} is written after {self.syncpoint_ts}")
        self.syncpoint_ts = ts
        self.syncpoints += 1
        self._same_as_upstream(ts, f"syncpoint {ts}")

    # -- what the server does by itself

    def work(self, now: int) -> None:
        """Go on with the DDL that is under way."""
        session = self.lock
        if session is not None and session.runs_until is not None and session.runs_until <= now:
            self.lock = None
            self._run(session.ddl)

    def hang_up(self, who: str) -> None:
        """A client is gone: a session that does nothing ends, and gives its lock back."""
        if self.lock is not None and self.lock.holder == who and self.lock.runs_until is None:
            self.lock.is_killed = True
            self.lock = None

    def restart(self) -> None:
        """All sessions end; a DDL that was under way has run or not."""
        if self.lock is not None:
            self.lock.is_killed = True
            self.lock = None

    # -- the law

    def check_checkpoint(self, checkpoint_ts: Ts) -> None:
        """See that all up to a checkpoint is here."""
        for event in self.history.between(START_TS, checkpoint_ts):
            if isinstance(event, SimDdl):
                if event.commit_ts not in self._finished:
                    raise BrokenPromiseError(f"checkpoint {checkpoint_ts} is above {event}, which is not done")
            else:
                for partition in {partition_of(row.table, self.partitions) for row in event.rows}:
                    if not self._applied[partition, event.commit_ts, event.start_ts]:
                        raise BrokenPromiseError(f"checkpoint {checkpoint_ts} is above {event}: partition {partition}")

    def check_all(self, ts: Ts) -> None:
        """See at the end that the tables are what they are upstream."""
        self._same_as_upstream(ts, f"end {ts}")

    def _write(self, partition: int, claim: Claim) -> None:
        """Write rows, transaction by transaction; all of a transaction's that stand in this partition, once."""
        txns: dict[tuple[Ts, Ts], list[Row]] = {}
        for row_slice in claim.rows.slices:
            for number in range(row_slice.first, row_slice.end):
                read, form = row_slice.rows.row(number, row_slice.form), row_slice.form
                is_read = read.commit_ts == read.start_ts
                row = Row(form.table, form.version, RowOp(read.op), int(read.key), int(read.row or b"0"), is_read)
                txns.setdefault((Ts(read.commit_ts), Ts(read.start_ts)), []).append(row)
        for (commit_ts, start_ts), rows in txns.items():
            (event,) = self.history.between(Ts(commit_ts - 1), commit_ts)
            assert isinstance(event, SimTxn)
            whole = [row for row in event.rows if partition_of(row.table, self.partitions) == partition]
            if rows != whole:
                raise BrokenPromiseError(f"partition {partition} writes {rows} of {event}")
            self._applied[partition, commit_ts, start_ts] += 1
            if self._applied[partition, commit_ts, start_ts] > 1:
                raise BrokenPromiseError(f"partition {partition} writes {event} twice")
            for row in rows:
                try:
                    self.tables.row(row)
                except WrongError as error:
                    raise BrokenPromiseError(f"partition {partition} writes {event}: {error}") from error

    def _run(self, ddl: SimDdl) -> None:
        """A DDL takes effect: between exactly those rows where it stood upstream, and once.

        What it does again before it is noted as done must be what changes nothing then.
        """
        self._ran[ddl.commit_ts] += 1
        if ddl.commit_ts in self._finished:
            raise BrokenPromiseError(f"{ddl} runs after it was noted as done")
        if self._ran[ddl.commit_ts] > 1 and ddl.kind != "truncate":
            before, after = self.history.at(Ts(ddl.commit_ts - 1)), self.history.at(ddl.commit_ts)
            if before.fingerprint(ddl) != after.fingerprint(ddl):
                raise BrokenPromiseError(f"{ddl} runs twice")
        if self._ran[ddl.commit_ts] == 1:
            self._same_as_upstream(Ts(ddl.commit_ts - 1), f"before {ddl}")
        try:
            self.tables.ddl(ddl)
        except WrongError as error:
            raise BrokenPromiseError(str(error)) from error

    def _same_as_upstream(self, ts: Ts, what: str) -> None:
        want = self.history.at(ts)
        if self.tables != want:
            names = sorted(want.tables.keys() | self.tables.tables.keys())
            wrong = [name for name in names if want.tables.get(name) != self.tables.tables.get(name)]
            shown = [f"{name}: {self.tables.tables.get(name)} is not {want.tables.get(name)}" for name in wrong]
            raise BrokenPromiseError(f"{what}: {'; '.join(shown)}")

    def _move(self, partition: int, opened: int, before: bytes, position: bytes, next_offset: int, who: str) -> None:
        row = self.positions[partition]
        if not self._may_move(row, opened, before):
            raise self._replaced()
        if row.holder != who:
            raise BrokenPromiseError(f"{who} writes to partition {partition}, which {row.holder} has taken")
        if position < row.position:
            raise BrokenPromiseError(f"partition {partition} goes back")
        row.position, row.next_offset = position, next_offset

    def _may_move(self, row: PositionRow, opened: int, before: bytes) -> bool:
        return row.opened == opened and row.position == before

    def _led_by(self, revision: int) -> None:
        if revision != self.revision:
            raise self._replaced()

    def _begin_syncpoints(self, revision: int) -> Ts:
        """Let nobody write any more, and return what the furthest partition holds."""
        for row in self.positions:
            row.revision, row.opened, row.holder = revision, row.opened + 1, ""
        return Ts(max(int.from_bytes(row.position[:8], "big") for row in self.positions))

    def _alive(self, session: DdlSession) -> None:
        if session.is_killed or self.lock is not session:
            raise self._replaced()

    def _replaced(self) -> ProcessorReplacedError:
        self.refused += 1
        return ProcessorReplacedError("another processor has written here")
