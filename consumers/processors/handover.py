"""Partitions on their way to a processor: located and read ahead, then taken over
(``consumers.processors.core.apply.executor``).

What takes a while at the destination or at Kafka is done in the caller's pool; everything else in the caller's thread.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from consumers.processors.core.apply.executor import Work, WorkOrder
from consumers.processors.core.apply.prefetch import Prefetch
from consumers.processors.sink_source import SinkRecord, Source

At = TypeVar("At")


@dataclass(frozen=True, slots=True)
class Taken(Generic[At]):
    """A partition that was taken over."""

    at: At
    """Where it is, in the destination's own words."""
    next_offset: int
    """Where reading must begin."""


class Handover(Generic[At]):
    """One processor's. ``locate`` returns from where each partition is to be read, ``take`` takes some over by word of
    the leader of a revision; both run in the pool, and raise BusError."""

    def __init__(
        self,
        source: Source,
        pool: ThreadPoolExecutor,
        locate: Callable[[list[int]], Mapping[int, int]],
        take: Callable[[list[int], int], Mapping[int, Taken[At]]],
    ) -> None:
        self._source, self._pool, self._do_locate, self._take = source, pool, locate, take
        self._tickets: dict[int, int] = {}
        self._jobs: list[tuple[Future[Mapping[int, Any]], list[WorkOrder]]] = []
        self._read: dict[int, Prefetch[SinkRecord]] = {}
        self._paused: set[int] = set()

    @property
    def is_busy(self) -> bool:
        """Whether something is under way in the pool."""
        return bool(self._jobs)

    def obey(self, orders: list[WorkOrder]) -> None:
        """Begin to locate or to take over what these orders say; forget what they forget."""
        by_work: dict[tuple[Work, int], list[WorkOrder]] = {}
        for order in orders:
            if order.work in (Work.LOCATE, Work.OPEN):
                self._tickets[order.partition] = order.ticket
                by_work.setdefault((order.work, order.revision), []).append(order)
            elif order.work is Work.FORGET:
                self._forget(order.partition)
        for (work, revision), same_orders in by_work.items():
            parts = [order.partition for order in same_orders]
            if work is Work.LOCATE:
                self._jobs.append((self._pool.submit(self._locate, parts), same_orders))
            else:
                self._jobs.append((self._pool.submit(self._take, parts, revision), same_orders))

    def add(self, record: SinkRecord) -> None:
        """Take a record of a partition that is not taken over yet."""
        ahead = self._read.get(record.partition)
        if ahead is None:
            return  # of one that was just given away
        ahead.add(record)
        if ahead.is_full and record.partition not in self._paused:
            self._paused.add(record.partition)
            self._source.pause(record.partition)

    def finished(self, begin: Callable[[int, At, list[SinkRecord]], None]) -> list[WorkOrder]:
        """Return the orders that are done. ``begin``: applies a partition that was taken over, given what was read.

        Raises:
            BusError: one could not be done.
        """
        done: list[WorkOrder] = []
        for job in [job for job in self._jobs if job[0].done()]:
            self._jobs.remove(job)
            results = job[0].result()
            for order in job[1]:
                if self._tickets.get(order.partition) != order.ticket:
                    continue  # given away meanwhile
                if order.work is Work.LOCATE:
                    self._read_ahead(order.partition, results[order.partition])
                else:
                    taken = results[order.partition]
                    begin(order.partition, taken.at, self._read_before(order.partition, taken.next_offset))
                done.append(order)
        return done

    def _locate(self, parts: list[int]) -> Mapping[int, int]:
        offsets = self._do_locate(parts)
        self._source.check(offsets)
        return offsets

    def _read_ahead(self, partition: int, offset: int) -> None:
        self._paused.discard(partition)
        self._read[partition] = Prefetch(offset)
        self._source.begin({partition: offset})

    def _read_before(self, partition: int, offset: int) -> list[SinkRecord]:
        """Return what was read from ``offset`` on, and go on reading behind it."""
        records = self._read.pop(partition).take(offset)
        was_paused = partition in self._paused
        self._paused.discard(partition)
        if records is None:
            self._source.begin({partition: offset})
            return []
        if was_paused:
            self._source.resume(partition)
        return records

    def _forget(self, partition: int) -> None:
        self._source.end(partition)
        self._tickets.pop(partition, None)
        self._read.pop(partition, None)
        self._paused.discard(partition)
