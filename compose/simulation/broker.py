"""Kafka as the simulation has it: appends that are acknowledged later, records that land after their sender died."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from compose.simulation.upstream import SimRow
from producers.pull.core.landing.book import LandingBook, Sent
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import FrontierRecord, follow_frontier


@dataclass(slots=True)
class RowRecord:
    """A record of region-events. ``offset`` is None until the broker has it."""

    sent: Sent
    rows: list[SimRow]
    offset: int | None = None


@dataclass(slots=True)
class Copy:
    """Where a row stands in the raw log."""

    partition: int
    offset: int


@dataclass(slots=True)
class Broker:
    """The three raw topics of one upstream. ``followed`` holds, for each frontier record, the one by which a reader of
    the topic stands after it."""

    partitions: int
    ends: list[int] = field(default_factory=list)
    copies: dict[int, list[Copy]] = field(default_factory=dict)
    """Where each row stands, by its number."""
    frontier: list[FrontierRecord] = field(default_factory=list)
    followed: list[FrontierRecord] = field(default_factory=list)
    ddl: list[DdlRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ends = [0] * self.partitions

    def grow(self) -> None:
        """Give region-events one more partition. Clients that run know nothing of it until they are started anew."""
        self.partitions += 1
        self.ends.append(0)

    def append(self, partition: int, record: RowRecord) -> None:
        """Give a record the next offset."""
        record.offset = self.ends[partition]
        self.ends[partition] += 1
        for row in record.rows:
            self.copies.setdefault(row.number, []).append(Copy(partition, record.offset))

    def append_frontier(self, record: FrontierRecord) -> None:
        """Take a frontier record from whoever sends it."""
        self.frontier.append(record)
        self.followed.append(follow_frontier(self.followed[-1] if self.followed else None, record))

    def newest_followed(self) -> FrontierRecord | None:
        """Return where a reader of the whole frontier topic stands."""
        return self.followed[-1] if self.followed else None


@dataclass(slots=True)
class Producer:
    """One client: records of a partition are appended, and acknowledged, in the order in which they were sent."""

    broker: Broker
    random: Random
    flights: list[deque[RowRecord]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flights = [deque() for _ in range(self.broker.partitions)]

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way."""
        return not any(self.flights)

    def append(self) -> None:
        """Let some of what is on its way reach the broker."""
        for partition, flight in enumerate(self.flights):
            if flight and self.random.random() < 0.5:
                waiting = [record for record in flight if record.offset is None]
                for record in waiting[: self.random.randint(1, 3)]:
                    self.broker.append(partition, record)

    def acknowledge(self, book: LandingBook) -> None:
        """Let some of the answers come back."""
        for flight in self.flights:
            if flight and self.random.random() < 0.6:
                for _ in range(self.random.randint(1, 3)):
                    if flight and flight[0].offset is not None:
                        record = flight.popleft()
                        book.acked(record.sent, record.offset or 0)

    def abandon(self) -> None:
        """The sender is gone: of what is on its way some first records of each partition may still come."""
        for partition, flight in enumerate(self.flights):
            waiting = [record for record in flight if record.offset is None]
            kept = waiting[: self.random.randint(0, len(waiting))]
            self.flights[partition] = deque(kept)

    def straggle(self) -> None:
        """After the sender's end: what has come needs no answer."""
        self.append()
        for partition, flight in enumerate(self.flights):
            self.flights[partition] = deque(record for record in flight if record.offset is None)


def newest_ts(rows: list[SimRow]) -> Ts:
    """Return the greatest commit_ts."""
    return max(row.commit_ts for row in rows)
