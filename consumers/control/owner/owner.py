"""The owner's shell: puts what the pure arithmetic of :mod:`consumers.control.core.frontier.frontier` says into the
frontier topic.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from consumers.control.core.frontier.frontier import FrontierInputs, advance, first_record, take_over
from consumers.control.core.frontier.held_tables import Holding
from schemas.ids import Ts, compose_ts
from schemas.rawlog.frontier import NO_TOPIC_IDS, FrontierRecord, TopicIds, follow_frontier
from schemas.rawlog.images import ImageState

log = logging.getLogger(__name__)

OFFSETS_ONLY_S = 1.0
"""A record that moves neither R nor ddl_high tells a sorter nothing new; offsets alone are published this seldom."""
REPEAT_S = 60.0
"""A frontier that does not move is published again after so long: Kafka's retention must always find a newer record."""

HELD_LAG_S = 10.0
"""Further behind the first table than this, by commit time, a table is held: only its own changefeeds wait for it. A
region that changes its leader, or a store that restarts, is usually back within it."""


class FrontierLog(Protocol):
    """What is asked of :class:`consumers.control.log.frontier_topic.FrontierTopic`."""

    def publish(self, record: FrontierRecord) -> int:
        """Append a record; return once every replica has it, or raise FrontierUnavailableError."""

    def newest(self) -> FrontierRecord | None:
        """Return where a reader of the whole topic stands."""


NextImages = Callable[[FrontierRecord, FrontierRecord], ImageState]
"""What follows of table images: given the record that is published, and all else of the one that is about to be."""


class Leased(Protocol):
    """What is asked of :class:`edges.zookeeper.session.Session`."""

    def check_lease(self) -> None:
        """Raise LeaseLostError when the lease is over."""


class Owner:
    """One reign: from a won election to the end of the session, a resignation or an error."""

    def __init__(
        self,
        topic: FrontierLog,
        session: Leased,
        owner_rev: int,
        partitions: int,
        *,
        topic_ids: TopicIds = NO_TOPIC_IDS,
        held_lag_s: float = HELD_LAG_S,
        images: NextImages | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic, self._session, self._clock = topic, session, clock
        self.images = images
        """Asked before each record; None: nothing changes."""
        self._holding = Holding(compose_ts(round(held_lag_s * 1000)))
        self._owner_rev, self._partitions, self._topic_ids = owner_rev, partitions, topic_ids
        self._published: FrontierRecord | None = None
        self._published_at = 0.0
        self._is_unsure = False
        """A record was not acknowledged: it may be in the topic all the same, and readers stand by it."""

    @property
    def published(self) -> FrontierRecord:
        """The newest published record. Only after :meth:`start`."""
        assert self._published is not None
        return self._published

    def start(self, first_ts: Callable[[], Ts]) -> FrontierRecord:
        """Close the topic to older owners and return the record to go on from; tables (re)start from it.

        ``first_ts`` gives the ts to start an empty raw log from.

        Raises:
            LeaseLostError: the session is over.
            FrontierUnavailableError: Kafka does not answer.
            FrontierLostError: there were records, and retention has removed them all.
            NewerOwnerError: a newer owner has published already.
        """
        last = self._topic.newest()
        if last is None:
            opening = first_record(self._owner_rev, first_ts(), self._partitions)
        else:
            opening = take_over(last.widened(self._partitions), self._owner_rev)
        opening = replace(opening, topic_ids=self._topic_ids.or_else(opening.topic_ids))
        self._go_on_from(opening)
        log.info(
            "owner took over the frontier",
            extra={"owner_rev": self._owner_rev, "resolved_ts": self.published.resolved_ts, "new": last is None},
        )
        return self.published

    @property
    def partitions(self) -> int:
        """Of region-events, as far as this owner knows."""
        return self._partitions

    def widen(self, partitions: int) -> None:
        """Take region-events for as wide; it never gets narrower."""
        if partitions > self._partitions:
            log.info("region-events has more partitions", extra={"partitions": partitions, "before": self._partitions})
            self._partitions = partitions

    def _go_on_from(self, opening: FrontierRecord) -> None:
        """Publish where we stand, and stand where that leaves readers."""
        self._session.check_lease()
        self._topic.publish(opening)
        # Another record may have come before it, a predecessor's or one of ours that nobody acknowledged: readers have
        # followed it, so we do. None can come after it that counts.
        self._published = follow_frontier(self._topic.newest(), opening)
        self._session.check_lease()
        self._published_at, self._is_unsure = self._clock(), False
        self._holding = self._holding.after(self._published)

    def tick(self, inputs: FrontierInputs) -> FrontierRecord | None:
        """Publish the frontier that ``inputs`` allow, or return None when there is nothing to say.

        When this returns a record, every in-sync replica has it, and no other owner had spoken by then: only then may
        agents drop what it makes needless.

        Raises:
            LeaseLostError: the session is over; nothing was published that counts for certain.
            FrontierUnavailableError: not acknowledged; tick again, and what readers have made of it is found out first.
        """
        if self._is_unsure:
            self._go_on_from(self.published)
        now, published = self._clock(), self.published.widened(self._partitions)
        record = advance(published, inputs, self._holding)
        if self.images is not None:
            record = replace(record, images=self.images(published, record))
        moved = (record.resolved_ts, record.ddl_high) != (published.resolved_ts, published.ddl_high)
        moved = moved or record.images is not published.images
        rest_s = 0.0 if moved else REPEAT_S if record == published else OFFSETS_ONLY_S
        if now < self._published_at + rest_s:
            return None
        self._session.check_lease()
        self._is_unsure = True
        self._topic.publish(record)
        self._is_unsure = False
        # Whoever was stopped for a while before it sent this may have a successor, which every reader follows now.
        self._session.check_lease()
        self._published, self._published_at = record, now
        self._holding = self._holding.after(record)
        _tell_held(published, record)
        return record


def _tell_held(before: FrontierRecord, record: FrontierRecord) -> None:
    tables_before, tables_now = ({table for held in stage.held for table in held.tables} for stage in (before, record))
    if tables_now - tables_before:
        log.warning(
            "tables lag and are held",
            extra={"tables": sorted(tables_now - tables_before)[:10], "held": len(tables_now)},
        )
    if tables_before - tables_now:
        log.info(
            "tables are held no more",
            extra={"tables": sorted(tables_before - tables_now)[:10], "held": len(tables_now)},
        )
