"""One reign of an owner: what happens at each tick, apart from sessions, signals and threads.

    DDL feed --take--> tables and spans --> coordinator <--answers-- agents of all captures
                                                 |    --orders-->
    landing reports of all captures --> frontier --publish--> topic --the record--> agents

**Who is heard.** A capture that has not reported what it lands is not heard by the coordinator, so it is given no span
before, and a new owner gives none to anybody before all captures that were there have reported. So whatever may be
landing is among the reports that the frontier is taken over (:mod:`consumers.control.core.frontier.frontier`).

Deterministic with the clock and the salts that it is given, but for the counting of regions.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from random import SystemRandom

from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.core.frontier.frontier import FrontierInputs
from consumers.control.core.replication.captures import CaptureState
from consumers.control.core.replication.versions import VersionMismatchError, check_versions
from consumers.control.core.scheduling.coordinator import Coordinator, NotInitializedError
from consumers.control.log.frontier_topic import FrontierUnavailableError
from consumers.control.owner.figures.owner_figures import SchedulerFigures
from consumers.control.owner.heard_reports import HeardReports
from consumers.control.owner.held_feeds import HeldTable, held_tables
from consumers.control.owner.images.followed_tables import told_ts
from consumers.control.owner.pulled_tables import PulledTables
from consumers.control.owner.reign_orders import ReignOrders
from consumers.control.owner.reign_parts import ReignOptions, ReignParts
from consumers.control.peers.interface import Side
from schemas.errors import Action, BusError
from schemas.ids import CaptureId, TableId
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport

log = logging.getLogger(__name__)

GC_EVERY_S = 60.0
"""How often the owner forgets schemas that it needs no more; each run looks at all tables that changed."""
OLDEST_VERSION, END_VERSION = "0.1.0", "1.0.0"
"""Two versions may work together if both are at or above the first and below the second: in this range captures say the
same to each other."""


class MoveRefusedError(BusError):
    """This table cannot be moved there."""

    code, action = "scheduling.move_refused", Action.RETRY


class Reign:
    """Not thread-safe but for :attr:`orders`."""

    def __init__(
        self,
        parts: ReignParts,
        options: ReignOptions,
        *,
        had_predecessor: bool,
        sequence: int = 0,
        clock: Callable[[], float] = time.monotonic,
        new_salt: Callable[[], int] = lambda: SystemRandom().getrandbits(128),
    ) -> None:
        """Begin at what the owner has published. ``sequence``: of the coordinator before, of this very capture."""
        self._parts, self._options, self._clock, self._new_salt = parts, options, clock, new_salt
        self._epoch = parts.me.changefeed_epoch
        self._tables = PulledTables(
            options.split, parts.count_regions, look_s=options.split_look_s, clock=clock, counter=parts.counter
        )
        self._coordinator = self._new_coordinator(sequence)
        self._wanted: object = None
        self._captures: Mapping[CaptureId, CaptureInfo] = {}
        self._mismatch: VersionMismatchError | None = None
        self._repeats_until = clock() + options.repeats_s if had_predecessor else 0.0
        self._gc_at = self._unpublished_since = 0.0
        self._reports = HeardReports(parts.peers, parts.feed, parts.owner, parts.count_partitions, parts.is_past, clock)
        self.orders = ReignOrders()
        self.is_resigning = False
        """An operator wants another owner."""
        parts.peers.take(parts.feed, Side.SCHEDULER)  # what came for another reign
        parts.peers.publish(parts.feed, parts.owner.published)

    @property
    def published(self) -> FrontierRecord:
        """The newest published record."""
        return self._parts.owner.published

    @property
    def is_settled(self) -> bool:
        """Whether hardly any span is on its way: each hundredth may be, lest a stuck one or two look like a start."""
        book = self._coordinator.replications
        return self._coordinator.is_initialized and len(book.unsettled) + len(book.missing) <= len(book.wanted) // 100

    @property
    def sequence(self) -> int:
        """Where the next coordinator of this capture goes on."""
        return self._coordinator.sequence

    @property
    def epoch(self) -> int:
        """The changefeed epoch: how often the upstream was begun anew."""
        return self._epoch

    def tick(self) -> None:
        """Take one step.

        Raises:
            BusError: what ends the reign: a DDL job that the schema cannot take though a frontier has passed it as one
                that it can, a lost lease.
        """
        ddl_report = self._parts.ddl.report()
        # The report first: jobs up to its landed_ts are then among those that are taken.
        for record in self._parts.ddl.take():
            if (change := self._tables.take(record)) and self._parts.images is not None:
                self._parts.images.take(change)
        captures = self._look_around()
        live = sum(
            1 for status in self._coordinator.captures.captures.values() if status.state is not CaptureState.STOPPING
        )
        if not self._tables.look(ddl_report.landed_ts, self.published, max(live, 1)):
            return
        reports = self._reports.of(captures)
        try:
            self._schedule(frozenset(captures), reports)
        except BusError as error:
            if error.action is not Action.RETRY or not error.code.startswith("scheduling."):
                raise
            self._begin_anew(error)
            return
        self.orders.work_off(self)
        if self._coordinator.is_initialized:
            if self._parts.images is not None:
                self._parts.images.look(self._tables.store, self.published, reports)
            self._publish(ddl_report, reports)

    def close(self) -> None:
        """Answer nobody any more, count no more regions."""
        self.orders.close()
        self._tables.close()

    # -- orders, at a tick ---------------------------------------------------------------------------------------------

    def check_ready(self) -> None:
        """Raise unless everybody has answered and may work together.

        Raises:
            NotInitializedError: somebody has not.
            VersionMismatchError: the captures' versions do not go together.
        """
        if self._mismatch is not None:
            raise self._mismatch
        if not self._coordinator.is_initialized:
            raise NotInitializedError(
                "the owner waits for captures", waiting=sorted(self._coordinator.captures.first or ())
            )

    def tables(self) -> Mapping[CaptureId, Collection[TableId]]:
        """Return the tables of each capture."""
        members = self._coordinator.replications.members
        return {who: {span.table_id for span in members.get(who, ())} for who in self._captures}

    def figures(self) -> SchedulerFigures:
        """Return how the spans are spread; a step for each span that is not at rest."""
        book = self._coordinator.replications
        states = Counter(book.sets[span].state.name.lower() for span in book.unsettled if span in book.sets)
        states["replicating"] = len(book.sets) - sum(states.values())
        return SchedulerFigures(
            tables=self.table_count,
            capture_spans=self.spans_of_captures(),
            states=states,
            tasks=dict(book.begun),
            running=len(book.running),
        )

    def drain(self, capture: CaptureId) -> int:
        """Move all spans of a capture away."""
        return self._coordinator.drain(capture)

    def move_table(self, table: TableId, capture: CaptureId) -> None:
        """Move a table.

        Raises:
            NotInitializedError: too early.
            MoveRefusedError: it is not pulled, or there is no such capture, or it is leaving.
        """
        spans = self._tables.spans.get(table)
        if not spans:
            raise MoveRefusedError("table is not pulled", table_id=table)
        status = self._coordinator.captures.captures.get(capture)
        if status is None or status.state is not CaptureState.INITIALIZED:
            raise MoveRefusedError("there is no such capture, or it takes no tables", capture=capture)
        for span in spans:
            self._coordinator.move(span, capture)

    def rebalance(self) -> None:
        """Give every capture its share at once."""
        self._coordinator.rebalance()

    def resign(self) -> None:
        """Let this reign end."""
        self.is_resigning = True

    # -- for status and metrics ----------------------------------------------------------------------------------------

    def spans_of_captures(self) -> dict[CaptureId, int]:
        """Return how many spans each capture has."""
        members = self._coordinator.replications.members
        return {who: len(members.get(who, ())) for who in sorted(self._captures)}

    @property
    def table_count(self) -> int:
        """How many tables are pulled."""
        return len(self._tables.spans) + len(self._tables.split_anew)

    @property
    def span_count(self) -> int:
        """In how many spans."""
        return len(self._coordinator.replications.wanted)

    def held_tables(self, reports: Mapping[CaptureId, LandingReport]) -> tuple[HeldTable, ...]:
        """Return the tables that are held, with the reasons that ``reports`` tell."""
        return held_tables(self.published, self._tables.newest_of, reports)

    def complaints(self) -> list[str]:
        """Return what keeps the upstream, or its scheduling, from getting on, apart from stalled spans."""
        reasons = [str(job.error) for job in self._tables.bad_jobs[:5]]
        if self._mismatch is not None:
            reasons.append(str(self._mismatch))
        reasons += [f"landing report of {who} is not heard: {why}" for who, why in self._reports.refused.items()]
        if not self._coordinator.is_initialized:
            waiting = ", ".join(sorted(self._coordinator.captures.first or ()))
            reasons.append(f"the owner waits for captures to answer: {waiting or 'none registered'}")
        return reasons

    # -- a tick's parts ------------------------------------------------------------------------------------------------

    def _look_around(self) -> Mapping[CaptureId, CaptureInfo]:
        before, self._captures = self._captures, self._parts.captures()
        if self._captures is before:
            return before
        if before.keys() - self._captures.keys():
            self._repeats_until = self._clock() + self._options.repeats_s
        try:
            versions = {info.version for info in self._captures.values()}
            check_versions(versions, oldest=OLDEST_VERSION, end=END_VERSION)
            self._mismatch = None
        except VersionMismatchError as error:
            log.error("captures do not go together; nothing is scheduled", extra={"error": str(error)})
            self._mismatch = error
        return self._captures

    def _schedule(self, alive: frozenset[CaptureId], reports: Mapping[CaptureId, LandingReport]) -> None:
        parts, published, book = self._parts, self.published, self._coordinator.replications
        self._tables.forgotten(book.sets.keys())
        messages = [message for message in parts.peers.take(parts.feed, Side.SCHEDULER) if message.sender in reports]
        sent = self._coordinator.tick(
            messages,
            alive=alive,
            tables=self._tables.spans,
            barrier=None,
            salt=self._new_salt(),
            may_schedule=self._mismatch is None,
            starts=lambda table: self._tables.start_of(published, table),
        )
        parts.peers.send(parts.feed, sent)
        if book.wanted is not self._wanted:
            self._wanted = book.wanted
            self._tables.heard(book.wanted)

    def _begin_anew(self, error: BusError) -> None:
        """Let all captures drop their spans and begin from what is published."""
        self._epoch += 1
        log.error("upstream is begun anew", extra={"error": str(error), "epoch": self._epoch})
        self._parts.save_epoch(self._epoch)
        self._coordinator = self._new_coordinator(self._coordinator.sequence)
        self._wanted = None

    def _new_coordinator(self, sequence: int) -> Coordinator:
        me = replace(self._parts.me, changefeed_epoch=self._epoch)
        return Coordinator(me, self.published.resolved_ts, self._options.limits, sequence)

    def _publish(self, ddl_report: DdlReport, reports: Mapping[CaptureId, LandingReport]) -> None:
        now, book = self._clock(), self._coordinator.replications
        split_anew = [span for parts in self._tables.split_anew.values() for span in parts]
        try:
            record = self._parts.owner.tick(
                FrontierInputs(
                    reports,
                    ddl_report,
                    # What nobody has yet is missing in the reports, too: no R passes it.
                    [*book.wanted, *split_anew] if split_anew else book.wanted,
                    landing=[capture for capture, spans in book.members.items() if spans],
                    # What is pulled from a held job on may have landed before.
                    repeats_possible=now < self._repeats_until or bool(self.published.held_ddl),
                    bad_ddl=tuple(job.scope for job in self._tables.bad_jobs),
                ),
            )
        except FrontierUnavailableError as error:
            # The broker is away: rows wait in the producer, and a later record says all that this one would have.
            if not self._unpublished_since:
                self._unpublished_since = now
                log.warning("frontier not published; trying again", extra={"error": str(error)})
            return
        if self._unpublished_since:
            log.info("frontier published again", extra={"after_s": round(now - self._unpublished_since, 1)})
            self._unpublished_since = 0.0
        if record is not None:
            self._parts.peers.publish(self._parts.feed, record)
            if now >= self._gc_at:
                self._gc_at = now + GC_EVERY_S
                self._tables.forget_below(told_ts(record))
