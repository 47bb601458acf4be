"""Plans the batches of a query on the driver: where each ends, and which offsets of the raw log its tasks read."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from schemas.ids import TableId, Ts, physical_ms
from schemas.rawlog.frontier import FrontierRecord, follow_frontier
from schemas.rawlog.region_batch import decode_region_batch, read_batch_head
from schemas.rawlog.row_parts import PartJoiner
from sorters.core.cut.cut import ChangefeedFrontier, Cut, cut_between, overlaps
from sorters.core.source.errors import NotReachedError
from sorters.core.source.offsets import SourceOffset
from sorters.core.source.options import SourceOptions
from sorters.core.source.row_counts import NO_ROWS, CountedRecords, RowCounts
from sorters.core.source.row_shape import RowShape
from sorters.core.source.start_image import StartImage
from sorters.core.source.table_history import Stop, bad_stop, stop_between
from sorters.log.failures import HistoryLostError
from sorters.source.table_log import TableLog

STEP_RECORDS: Final = 256
"""Raw records that are looked at as one: some 64 MiB."""
FRONTIER_RECORDS: Final = 2_048
"""Frontier records that are read at once: some minutes of them."""
IDLE_MS: Final = 60_000
"""How far the checkpoint may stay behind where the table has no changes: less would be empty batches."""
WAIT_S: Final = 0.2
LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the log was looked at: a border, and the frontier before it."""

    offset: SourceOffset
    record: FrontierRecord
    frontier: ChangefeedFrontier


@dataclass(frozen=True, slots=True)
class Batch:
    """What is known of a batch beyond its borders."""

    start: SourceOffset
    after: Reach
    """Nothing stands between ``start`` and it."""
    upto: Reach
    """At ``end``."""
    second: ChangefeedFrontier
    busy: Mapping[int, tuple[int, int]]
    """Raw partition → offsets ``[start, end)`` that all rows of the batch are within."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Offsets ``[start, end)`` of a raw partition at which rows of the table were found."""

    partition: int
    start: int
    end: int
    first_ts: Ts
    """The least commit_ts of the rows."""


@dataclass(slots=True)
class Busy:
    """Where rows of the table stand."""

    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)

    def note(self, partition: int, start: int, end: int) -> None:
        """Note that rows stand at offsets ``[start, end)``."""
        first, last = self.ranges.get(partition, (start, end))
        self.ranges[partition] = min(first, start), max(last, end)

    def note_upto(self, border: Ts | None, sightings: Iterable[Sighting]) -> None:
        """Note where rows at or below a border were found, so that no task reads the next batch's; None: all."""
        for each in sightings:
            if border is None or each.first_ts <= border:
                self.note(each.partition, each.start, each.end)

    def note_all(self, cut: Cut) -> None:
        """Note that rows may stand anywhere in a cut."""
        for partition, (start, end) in cut.share(0, 1).items():
            self.note(partition, start, end)


class Planner:
    """Plans for one query, in the driver's process."""

    def __init__(self, log: TableLog, options: SourceOptions, shape: RowShape) -> None:
        self._log, self._options, self._shape = log, options, shape
        self._empty: tuple[SourceOffset, Reach] | None = None
        """From where on how far there are no changes of the table."""
        self._batch: Batch | None = None
        self._counted = CountedRecords()
        self.image: StartImage | None = None
        """What the query started at, as long as it has not passed it."""

    # -- borders ------------------------------------------------------------------------------------------------

    def next_end(self, start: SourceOffset, rows_max: int | None) -> SourceOffset:
        """Return where a batch from ``start`` ends; ``start`` itself where nothing has come.

        It ends between two transactions, with at most ``rows_max`` rows, or one transaction; and below a DDL at which
        the query must stop.

        Raises:
            SchemaChangedError, RowsReplacedError: such a DDL is next.
            HistoryLostError: the log no longer holds what comes after ``start``.
        """
        try:
            return self._next_end(start, rows_max)
        except HistoryLostError as error:
            raise self._log.lost(start.resolved_ts, error.message) from error

    def _next_end(self, start: SourceOffset, rows_max: int | None) -> SourceOffset:
        first = at = self._reach(start)
        total, seen = 0, Busy()
        while (rows_max is None or total < rows_max) and (step := self._step(at)) is not None:
            self._log.schemas.advance(step.record.ddl_high)
            at_ts = at.offset.resolved_ts
            stop = self._stop(at_ts, step.frontier.resolved_ts)
            upto_ts = max(at_ts, step.frontier.resolved_ts if stop is None else stop.upto_ts)
            border = None
            if upto_ts > at_ts:
                cut = cut_between(at.frontier, step.frontier, at_ts, upto_ts)
                if rows_max is None and total:  # what comes is within, however much it is
                    seen.note_all(cut)
                else:
                    counts, sightings = self._count(cut, exactly=rows_max is not None)
                    border = counts.border(rows_max and rows_max - total, may_be_empty=total > 0)
                    seen.note_upto(border, sightings)
                    total += counts.total
            if border is None and stop is None:
                at = replace(step, offset=replace(step.offset, resolved_ts=upto_ts))
                continue
            if stop is not None and not total and upto_ts <= start.resolved_ts:
                raise stop.error
            end = replace(at, offset=replace(at.offset, resolved_ts=upto_ts if border is None else border))
            return self._planned(Batch(start, first, end, step.frontier, seen.ranges))
        if total:
            return self._planned(Batch(start, first, at, at.frontier, seen.ranges))
        self._empty = start, at
        behind_ms = physical_ms(at.offset.resolved_ts) - physical_ms(start.resolved_ts)
        return self._planned(Batch(start, at, at, at.frontier, {})) if behind_ms >= IDLE_MS else start

    def wait(self, start: SourceOffset) -> None:
        """Wait a little for a frontier record that was not looked at yet, so that Spark asks less often."""
        upto = self._reach(start).offset.frontier_offset
        deadline = time.monotonic() + WAIT_S
        while self._log.frontier.end() <= upto and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _planned(self, batch: Batch) -> SourceOffset:
        self._batch = batch
        return batch.upto.offset

    def _reach(self, start: SourceOffset) -> Reach:
        if self._empty is not None and self._empty[0] == start:
            return self._empty[1]
        if self._batch is not None and self._batch.upto.offset == start:
            return self._batch.upto
        record = self._log.frontier.record_before(start.frontier_offset)
        return Reach(start, record, self._log.frontier_of(record, start.resolved_ts))

    def _step(self, at: Reach) -> Reach | None:
        """Return how far the log is looked at next; None: there is nothing more."""
        start = at.offset.frontier_offset
        end = min(self._log.frontier.end(), start + FRONTIER_RECORDS)
        again = sum(at.frontier.high) - sum(at.frontier.low)
        record, reach = at.record, None
        for number, read in enumerate(self._log.frontier.read(start, end), start + 1):
            record = follow_frontier(record, read)
            frontier = self._log.frontier_of(record, at.offset.resolved_ts)
            if reach is not None and sum(frontier.high) - sum(at.frontier.high) > max(STEP_RECORDS, again):
                break
            reach = Reach(SourceOffset(frontier.resolved_ts, number), record, frontier)
        return reach

    def _stop(self, after_ts: Ts, upto_ts: Ts) -> Stop | None:
        store, name = self._log.schemas.store, self._options.table
        stop = stop_between(store, name, self._shape, after_ts, upto_ts, self._options.pass_ddl_ts)
        bad = bad_stop(self._log.schemas.bad, name, self._log.ids(after_ts, upto_ts), upto_ts)
        stops = [each for each in (stop, bad) if each is not None]
        return min(stops, key=lambda each: each.upto_ts, default=None)

    def _count(self, cut: Cut, *, exactly: bool) -> tuple[RowCounts, list[Sighting]]:
        """Count the table's rows in a cut, and tell where they are; unless ``exactly`` a few will do."""
        ids = self._log.ids(cut.after_ts, cut.upto_ts)
        shares, counted, sightings = cut.share(0, 1), list[RowCounts](), list[Sighting]()
        if exactly:
            shares = self._counted_before(cut, ids, sightings, counted)
        joiner = PartJoiner(lambda head: head.table_id in ids)
        for partition, offset, value in self._log.events.read_all(shares):
            whole = joiner.take(partition, value)
            if whole is None:
                continue
            head, counts = read_batch_head(whole), NO_ROWS
            if head.table_id in ids and (exactly or overlaps(head, cut.after_ts, cut.upto_ts)):
                counts = RowCounts.joined([RowCounts.of(decode_region_batch(whole).rows)])
            if exactly and whole is value:
                self._counted.add(partition, offset, counts)
            counts = counts.between(cut.after_ts, cut.upto_ts)
            if not len(counts.rows):
                continue
            counted.append(counts)
            if not exactly:
                sightings = [Sighting(p, *offsets, counts.first_ts) for p, offsets in cut.share(0, 1).items()]
                break
            # Of a row in parts the first one stands somewhere before.
            start = offset if whole is value else cut.start[partition]
            sightings.append(Sighting(partition, start, offset + 1, counts.first_ts))
        if self.image is not None:
            counted.append(self.image.counts(cut.after_ts, cut.upto_ts))
        return RowCounts.joined(counted), sightings

    def _counted_before(
        self, cut: Cut, ids: frozenset[TableId], sightings: list[Sighting], counted: list[RowCounts]
    ) -> dict[int, tuple[int, int]]:
        """Take what is known of a cut's records; return which offsets are still to be read."""
        self._counted.begin(ids, dict(enumerate(cut.start)))
        rest = {}
        for partition, (start, end) in cut.share(0, 1).items():
            known = self._counted.known(partition, start, end)
            for offset, counts in enumerate(known, start):
                within = counts.between(cut.after_ts, cut.upto_ts)
                if len(within.rows):
                    counted.append(within)
                    sightings.append(Sighting(partition, offset, offset + 1, within.first_ts))
            if start + len(known) < end:
                rest[partition] = start + len(known), end
        return rest

    # -- what tasks read ----------------------------------------------------------------------------------------

    def cut(self, start: SourceOffset, end: SourceOffset) -> Cut | None:
        """Return what the tasks of a batch read; None: nothing.

        Raises:
            SchemaChangedError, RowsReplacedError: the query must stop at a DDL within.
            HistoryLostError: the log no longer holds all of it.
        """
        if start.resolved_ts >= end.resolved_ts:
            return None
        batch = self._batch
        if batch is None or (batch.start, batch.upto.offset) != (start, end):
            batch = self._batch_again(start, end)
        after_ts = batch.after.offset.resolved_ts
        cut = cut_between(batch.after.frontier, batch.second, after_ts, end.resolved_ts)
        lows, highs = list(cut.end), list(cut.end)
        for partition, (low, high) in batch.busy.items():
            lows[partition], highs[partition] = max(low, cut.start[partition]), min(high, cut.end[partition])
        cut = replace(cut, start=tuple(lows), end=tuple(highs))
        return cut if cut.offsets else None

    def _batch_again(self, start: SourceOffset, end: SourceOffset) -> Batch:
        """Return a batch that was not planned here: of a run before this one."""
        try:
            after, second = self._reach(start), self._second(end, start.resolved_ts)
            bounds = [self._log.events.bounds(partition) for partition in range(len(second.high))]
            cut = cut_between(after.frontier, second, start.resolved_ts, end.resolved_ts)
            for partition, (oldest, _) in enumerate(bounds):
                if cut.start[partition] < min(oldest, cut.end[partition]):
                    raise HistoryLostError("records are gone", partition=partition, oldest_offset=oldest)
        except HistoryLostError as error:
            raise self._log.lost(start.resolved_ts, error.message) from error
        stop = self._stop(start.resolved_ts, end.resolved_ts)
        if stop is not None and stop.upto_ts < end.resolved_ts:
            raise stop.error
        busy = {p: each for p, each in enumerate(zip(cut.start, cut.end, strict=True)) if each[0] < each[1]}
        return Batch(start, after, Reach(end, after.record, after.frontier), second, busy)

    def _second(self, end: SourceOffset, after_ts: Ts) -> ChangefeedFrontier:
        """Return a frontier at or above the end of a batch: the law holds for any."""
        record = self._log.frontier.record_before(end.frontier_offset)
        log_end = self._log.frontier.end()
        for read in chain([None], self._log.frontier.read(end.frontier_offset, log_end)):
            record = record if read is None else follow_frontier(record, read)
            self._log.schemas.advance(record.ddl_high)
            frontier = self._log.frontier_of(record, after_ts)
            if frontier.resolved_ts >= end.resolved_ts:
                return frontier
        raise NotReachedError("frontier has not reached the end of the batch", upto_ts=end.resolved_ts)
