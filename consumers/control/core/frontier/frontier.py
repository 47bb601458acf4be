"""The owner's arithmetic: from what agents report to the next frontier record (docs/architecture.md).

**The law.** For any two published records F1 before F2 the distinct row changes with ``R1 < commit_ts <= R2`` at
offsets ``[low1[p], high2[p])`` are exactly the upstream's row changes in that ts interval.

Why it holds, given what a :class:`LandingReport` says of one moment of one agent:

* *Nothing is missing above.* R is at most the landed_ts of every span, in the report of some live capture; the spans of
  a table cover it exactly, or R stands; and a report's ``ends`` are of the same moment: every row up to R is below
  ``high``. *Which* capture does not matter: its copies of all rows between the published ts from which it began and its
  landed_ts are in the log, and the rows up to that ts are below a published ``high``. So a capture that only prepares
  to take a span over counts as the one does that has it, and a move makes no pause.
* *Nothing is missing below.* A row above R1 is in a chunk whose max_commit_ts is above R1, or in flight, or not yet
  sent: chunks and floors of the reports bound all three, for every copy of every live capture, spans that it had
  before among them. What a dead capture knew is not needed: R moves on by the report of a capture that lives, whose own
  copy of each row above R is bounded. It began at a *published* ts, also where its table is split anew, and what it has
  landed since has offsets above every ``high`` that was published before. So it does no harm that the dead one's
  copy, the only one at or above ``low`` perhaps, never reaches the log, nor that it lies below a ``low`` of later.
* *A capture that nobody has heard of yet* may have rows in flight that no floor bounds. If R went on by another's copy,
  low could pass the silent one's, and when the other one dies the silent one's report counts, whose copy no cut
  finds. So until every capture that may be ``landing`` has reported, neither R nor low moves. (A capture's rows stay
  above the low that stood when it got its first span.) The owner hears, and gives spans to, only who has reported.
* *Old reports are as true as new ones*: they bound everything that their agent landed later. So reports may be lost,
  late or out of order. A capture that restarts has a new id, so a report never outlives its agent's memory.
* *A table that lags* can be held: R and low are then those of the rest
  (:mod:`consumers.control.core.frontier.held_tables`).
* *Nothing is invented*, because raw rows are facts: a repeat is the same change.

And none of the three ever goes back, whatever is reported. Owners change as
:func:`schemas.rawlog.frontier.follow_frontier` says: a new owner first publishes a record of its own revision
(:func:`take_over`), reads the topic up to it, goes on from where that leaves every reader, and only then
assigns tables. A record of the old owner after it counts for nobody. Captures hear of a record only when it counts:
acknowledged, and the owner's lease held still after that.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from consumers.control.core.frontier.held_tables import NO_HOLDING, Holding, hold_back
from schemas.ddl.job import JobScope
from schemas.errors import Action, BusError, InvariantBrokenError
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import DdlReport, FrontierRecord, HeldDdl, HeldTables, LandingReport
from schemas.tidb.spans import TableSpan, incomplete_tables

HELD_DDL_MAX = 16
"""Bad DDL jobs that one record lists. Each costs 100 bytes in every record, and more of them tell that this version
cannot read this TiDB's jobs at all."""


class NewerOwnerError(BusError):
    """The raw log has a later owner than ZooKeeper knows: it lost its data, or another cluster uses the raw log."""

    code, action = "frontier.newer_owner", Action.STOP_CHANGEFEED


def first_record(owner_rev: int, start_ts: Ts, partitions: int) -> FrontierRecord:
    """Return the record that opens an empty raw log of ``partitions``: everything above ``start_ts`` is to come."""
    zeros = (0,) * partitions
    return FrontierRecord(
        owner_rev=owner_rev, resolved_ts=start_ts, high=zeros, low=zeros, ddl_high=0, repeat_high=zeros
    )


def take_over(last: FrontierRecord, owner_rev: int) -> FrontierRecord:
    """Return the first record of a new owner: the same frontier under its own revision.

    Raises:
        NewerOwnerError: somebody with this revision or a higher one has published already.
    """
    if owner_rev <= last.owner_rev:
        raise NewerOwnerError(
            "owner revision did not grow: ZooKeeper's data was lost, or another cluster uses this upstream's raw log; "
            "if none does, stop all captures and run `tidebus unsafe adopt-raw-log`",
            owner_rev=owner_rev,
            last_owner_rev=last.owner_rev,
        )
    return replace(last, owner_rev=owner_rev)


@dataclass(frozen=True, slots=True)
class FrontierInputs:
    """What the next frontier is made of: all that is known of landing, DDL and tables at one moment."""

    reports: Mapping[CaptureId, LandingReport]
    """One report of every live capture that has sent one."""
    ddl: DdlReport | None
    """None until the DDL feed has reported."""
    spans: Collection[TableSpan]
    """Those of every table that must be pulled, wherever. The DDL feed behind them must have been read at least up to
    ``ddl.landed_ts``, or a table that was created below R could be missing."""
    landing: Collection[CaptureId] = ()
    """Live captures that may be landing something, in whatever role; the caller names them or has seen to it that they
    have reported."""
    repeats_possible: bool = False
    """The whole log up to ``high`` counts as repeating: a capture that had spans and is not among ``reports`` any more
    may be landing still."""
    bad_ddl: Collection[JobScope] = ()
    """The DDL jobs that cannot be read or applied, in order."""


def advance(previous: FrontierRecord, inputs: FrontierInputs, holding: Holding = NO_HOLDING) -> FrontierRecord:
    """Return the frontier after ``previous``; equal to it when nothing has moved.

    R passes a bad DDL job, and the record says in ``held_ddl`` who must not. What is held no more (a new owner reads
    the job) is still held until R moves, for by then every table has landed up to R, those of the job too. At more than
    HELD_DDL_MAX of them R itself waits.

    Tables that lag are held as ``holding`` says (:func:`hold_back`).

    Raises:
        InvariantBrokenError: vectors do not fit the log's partitions, or a report contradicts itself.
    """
    reports, ddl = inputs.reports, inputs.ddl
    for report in reports.values():
        _check(report, len(previous.high))
    high = _highest(previous.high, (report.ends for report in reports.values()))
    if inputs.repeats_possible or len({*reports, *inputs.landing}) > 1:
        # One capture's end can be above what another has landed again and not reported yet.
        repeat_high = high
    else:
        repeat_high = _highest(previous.repeat_high, (report.repeat_ends for report in reports.values()))
    is_whole = all(capture in reports for capture in inputs.landing)
    resolved_ts, held = previous.resolved_ts, previous.held
    if is_whole and ddl is not None:
        resolved_ts, held = _reach(previous, reports, ddl, inputs.spans, holding)
    held_ddl, resolved_ts = _held_ddl(previous, tuple(inputs.bad_ddl), resolved_ts)
    if resolved_ts == previous.resolved_ts:
        held = previous.held
    return replace(
        previous,
        resolved_ts=resolved_ts,
        high=high,
        low=_low(previous, reports, resolved_ts, high) if is_whole and reports else previous.low,
        ddl_high=max(previous.ddl_high, ddl.end if ddl else 0),
        repeat_high=repeat_high,
        held=held,
        held_ddl=held_ddl,
    )


def _held_ddl(previous: FrontierRecord, bad: tuple[JobScope, ...], resolved_ts: Ts) -> tuple[tuple[HeldDdl, ...], Ts]:
    """Return what is held, and the R that may be published."""
    bad_ids = {(scope.ts, scope.start_ts) for scope in bad}
    before = {(held.ts, held.start_ts): held for held in previous.held_ddl}
    # By this law's own words previous.low bounds all rows above previous.resolved_ts, so those above a later ts too.
    new = [
        HeldDdl(
            ts=scope.ts,
            start_ts=scope.start_ts,
            low=previous.low,
            schema=scope.schema,
            table=scope.table,
            table_id=scope.table_id,
        )
        for scope in bad
        if (scope.ts, scope.start_ts) not in before and previous.resolved_ts < scope.ts <= resolved_ts
    ]
    room = max(HELD_DDL_MAX - len(before), 0)
    if len(new) > room:
        resolved_ts = max(previous.resolved_ts, Ts(new[room].ts - 1))
        new = [held for held in new[:room] if held.ts <= resolved_ts]
    kept = [held for at, held in before.items() if at in bad_ids or resolved_ts == previous.resolved_ts]
    return (*kept, *new), resolved_ts


def _reach(
    previous: FrontierRecord,
    reports: Mapping[CaptureId, LandingReport],
    ddl: DdlReport,
    spans: Collection[TableSpan],
    holding: Holding,
) -> tuple[Ts, tuple[HeldTables, ...]]:
    """Return the R that what has landed allows and what is held; the previous ones if something was not heard of."""
    stands = previous.resolved_ts, previous.held
    if incomplete_tables(spans):
        return stands
    landed = _furthest(reports, spans)
    known = [ts for ts in landed if ts is not None]
    if len(known) < len(landed):
        return stands
    if not previous.held and (not known or min(known) >= max(known) - holding.lag):
        return max(previous.resolved_ts, min([*known, ddl.landed_ts])), ()
    tables: dict[TableId, Ts] = {}
    for span, ts in zip(spans, known, strict=True):
        tables[span.table_id] = min(ts, tables.get(span.table_id, ts))
    return hold_back(previous, tables, ddl.landed_ts, holding)


def _furthest(reports: Mapping[CaptureId, LandingReport], spans: Collection[TableSpan]) -> list[Ts | None]:
    """Return of each span the greatest landed_ts that anybody reports; None: nobody has it."""
    reported = sorted((report.landed_ts for report in reports.values() if report.landed_ts), key=len)
    if len(reported) == 1:
        return list(map(reported[0].get, spans))
    furthest: dict[TableSpan, Ts] = {}
    for landed in reversed(reported):
        many = len(furthest) + len(landed)
        before, furthest = furthest, furthest | dict(landed)
        if len(furthest) < many:  # hardly ever: a span at two captures, which moves
            for span in before.keys() & landed.keys():
                furthest[span] = max(before[span], landed[span])
    return list(map(furthest.get, spans))


def _low(
    previous: FrontierRecord, reports: Mapping[CaptureId, LandingReport], resolved_ts: Ts, high: tuple[int, ...]
) -> tuple[int, ...]:
    low = list(high)
    for report in reports.values():
        low = [min(pair) for pair in zip(low, report.floors, strict=True)]
        for chunk in report.chunks:
            if chunk.max_commit_ts > resolved_ts:
                low[chunk.partition] = min(low[chunk.partition], chunk.start_offset)
    return tuple(max(pair) for pair in zip(previous.low, low, strict=True))


def _highest(first: tuple[int, ...], others: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(max(offsets) for offsets in zip(first, *others, strict=True))


def _check(report: LandingReport, partitions: int) -> None:
    lengths = {len(report.ends), len(report.floors), len(report.repeat_ends)}
    if lengths != {partitions}:
        raise InvariantBrokenError(
            "landing report does not fit the raw log", capture=report.capture, lengths=lengths, partitions=partitions
        )
    for chunk in report.chunks:
        if not 0 <= chunk.start_offset < report.ends[chunk.partition]:
            raise InvariantBrokenError(
                "chunk starts outside what was acknowledged", capture=report.capture, chunk=chunk, ends=report.ends
            )
