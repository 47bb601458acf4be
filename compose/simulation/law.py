"""What must hold whatever happens: the frontier law for every changefeed, and that nothing goes back.

The law: docs/architecture.md.

For records F1 before F2 of the frontier topic, as its readers follow it, the distinct rows with ``R1 < commit_ts <=
R2`` at offsets ``[low1, high2)`` must be the upstream's. R, low and high never go back, so for a given row the
strictest pair is the last record below its ts and the first that is not: looking at each with the one before
it covers all pairs. A changefeed of some tables has frontiers of its own (``sorters.core.cut.cut.frontier_for``): the
law is checked for all tables, for two halves of them and for each table alone.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest

from compose.simulation.broker import Broker
from compose.simulation.upstream import Upstream
from schemas.ids import CaptureId, TableId
from schemas.rawlog.frontier import FrontierRecord, widened
from sorters.core.cut.cut import ChangefeedFrontier, cut_between, frontier_for


class BrokenPromiseError(AssertionError):
    """Something happened that never may."""


Contains = Callable[[TableId], bool]


def _of_all(_: TableId) -> bool:
    return True


def _of_even(table: TableId) -> bool:
    return table % 2 == 0


def _of_odd(table: TableId) -> bool:
    return table % 2 == 1


@dataclass(slots=True)
class View:
    """A changefeed: its tables, and where it stands."""

    name: str
    contains: Contains
    frontier: ChangefeedFrontier


@dataclass(slots=True)
class Law:
    """Looks at each new record of the frontier topic."""

    upstream: Upstream
    broker: Broker
    views: list[View] = field(default_factory=list)
    _seen: int = 0
    _single: set[TableId] = field(default_factory=set)

    def check(self) -> None:
        """Check what was published since the last call.

        Raises:
            BrokenPromiseError: the law is broken, or something went back.
        """
        while self._seen < len(self.broker.followed):
            record = self.broker.followed[self._seen]
            if self._seen:
                self._check_whole(self.broker.followed[self._seen - 1], record)
            self._take_views(record)
            self._seen += 1
            for view in self.views:
                self._check_view(view, record)

    def check_told(self, capture: CaptureId, record: FrontierRecord) -> None:
        """Check that what an owner tells agents is a record of the topic: they drop what it makes needless, and spans
        begin from it.

        Raises:
            BrokenPromiseError: readers never stood there, as at the record of an owner that had a successor already.
        """
        if not any(record == followed for followed in reversed(self.broker.followed)):
            raise BrokenPromiseError(f"{capture} tells of {record}, which no reader stands by")

    def _take_views(self, record: FrontierRecord) -> None:
        if not self.views:
            for name, contains in (("all", _of_all), ("even", _of_even), ("odd", _of_odd)):
                self.views.append(View(name, contains, frontier_for(record, contains)))
        for table in self.upstream.lives:
            if table not in self._single:
                # Begun late it sees no less: the table has no row below.
                self._single.add(table)
                before = self.broker.followed[max(self._seen - 1, 0)]
                self.views.append(View(f"table {table}", table.__eq__, frontier_for(before, table.__eq__)))

    def _check_view(self, view: View, record: FrontierRecord) -> None:
        first, second = view.frontier, frontier_for(record, view.contains)
        if second == first:
            return
        view.frontier = second
        if second.resolved_ts < first.resolved_ts or _any_less(second.low, first.low):
            raise BrokenPromiseError(f"changefeed of {view.name} goes back: {first} -> {second}")
        if second.resolved_ts > first.resolved_ts:
            self._check_rows(view, first, second)

    def _check_rows(self, view: View, first: ChangefeedFrontier, second: ChangefeedFrontier) -> None:
        rows, copies = self.upstream.rows, self.broker.copies
        low, high = (widened(offsets, self.broker.partitions) for offsets in (first.low, second.high))
        may_repeat = cut_between(first, second, first.resolved_ts, second.resolved_ts).may_repeat
        at = bisect_right(rows, first.resolved_ts, key=lambda row: row.commit_ts)
        for row in rows[at:]:
            if row.commit_ts > second.resolved_ts:
                return
            if not view.contains(row.table):
                continue
            times = sum(
                low[copy.partition] <= copy.offset < high[copy.partition] for copy in copies.get(row.number, ())
            )
            if times > 1 and not may_repeat:
                # What a sorter's books of this cut would stop the changefeed for (sorters/core/flow/ledger.py).
                where = copies.get(row.number)
                raise BrokenPromiseError(f"changefeed of {view.name} has {row} twice at {where}: {first} .. {second}")
            is_there = times > 0
            if is_there != self.upstream.is_promised(row):
                what = "invented" if is_there else "lost"
                where = copies.get(row.number)
                raise BrokenPromiseError(f"changefeed of {view.name} {what} {row} at {where}: {first} .. {second}")

    def _check_whole(self, before: FrontierRecord, after: FrontierRecord) -> None:
        if (
            after.owner_rev < before.owner_rev
            or after.resolved_ts < before.resolved_ts
            or after.ddl_high < before.ddl_high
            or _any_less(after.high, before.high)
            or _any_less(after.low, before.low)
            or _any_less(after.repeat_high, before.repeat_high)
            or _any_less(after.high, after.low)
            or _any_less(tuple(self.broker.ends), after.high)
        ):
            raise BrokenPromiseError(f"frontier goes back: {before} -> {after}")
        if after.resolved_ts > before.resolved_ts:
            landed = {job.payload.get("id") for job in self.broker.ddl[: after.ddl_high] if job.kind == "job"}
            for job in self.upstream.jobs:
                if before.resolved_ts < job.ts <= after.resolved_ts and job.payload["id"] not in landed:
                    raise BrokenPromiseError(f"job {job.payload['id']} at {job.ts} is not below {after}")

    def check_repeats(self) -> None:
        """Check at the end that no row stands twice where frontier records say that nothing repeats.

        Raises:
            BrokenPromiseError: one does.
        """
        records = [record.widened(self.broker.partitions) for record in self.broker.followed]
        if all(record.repeat_high == record.high for record in records):
            return
        for row in self.upstream.rows:
            copies = self.broker.copies.get(row.number, ())
            for copy in copies:
                for other in copies:
                    if copy is other:
                        break
                    pair = (copy, other)
                    first = None
                    for record in records:
                        if record.resolved_ts >= row.commit_ts or any(record.low[c.partition] > c.offset for c in pair):
                            break
                        first = record
                    second = next(
                        (
                            record
                            for record in records
                            if record.resolved_ts >= row.commit_ts
                            and all(record.high[c.partition] > c.offset for c in pair)
                        ),
                        None,
                    )
                    if first and second and not _any_less(first.low, second.repeat_high):
                        raise BrokenPromiseError(f"{row} stands twice at {pair}: {first} .. {second}")


def _any_less(some: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Compare offsets by partition; what has come since stood at 0 before."""
    return any(mine < other for mine, other in zip_longest(some, others, fillvalue=0))
