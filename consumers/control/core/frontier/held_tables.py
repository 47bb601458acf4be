"""Which tables are held: they lag behind the others, and only changefeeds that contain them wait.

The law is in docs/architecture.md.

Why the frontier law holds for a changefeed with held tables, whose frontier is ``R' = min(R, ts of its groups)`` and
``low' = min(low, low of its groups)``:

* *A group is a frontier of its own*, at a lower ts: all rows of its tables up to ``ts`` have landed, and ``low`` is the
  low of a *published* record whose R was not above ``ts``, so it bounds all rows above ``ts``: of the other tables
  too, whose rows in ``(ts, R]`` are still to come for this changefeed. Reports cannot say it: a table that is not held
  starts anew from R, and what a dead capture knew of its rows below is gone.
* *R' does not go back where a table becomes held*: it has landed up to the R before, so ``ts`` is not below that R, and
  ``low`` is the low before. (What has not landed up to that R, since a DDL job was read late, is not held: R waits.)
* *A group never takes in another table*, whose changefeeds could go back to the group's ts: tables that begin to lag
  at one record are one group, whatever lags later is another.
* *R' jumps to R where a table has caught up*: it leaves when it has landed up to the R before, and is among those that
  the next R is taken over.
* A held table that moves, or is split anew, starts from its group's ts: a published one, as R is for the others. So
  does a second capture that prepares to take it over. Its copies count as soon as it has landed more than the first:
  they lie above the ``high`` of each record that was published before it began, and every low since then bounds those
  that it bounds, for no capture is given a span before it has reported.

What is held changes only with R, so equal R means equal groups, whichever owner said it: readers of the topic rely on
it (:func:`schemas.rawlog.frontier.follow_frontier`).
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, HeldTables

NEVER_HELD: Final = 1 << 62
"""A lag, in units of a TSO, that no table can have."""
HELD_GROUPS_MAX: Final = 8
"""Each costs a vector in every record."""
HELD_TABLES_MAX: Final = 1000
"""In all groups: some 10 KB of every record. Where more than so many lag, R waits for the rest of them."""
LOWS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Holding:
    """From which lag on tables are held, and the lows of some records that were published since some are: by them the
    lows of groups follow their ts. An owner begins with none: the lows of groups that it finds stand until their ts
    reaches what it has published.
    """

    lag: int
    """In units of a TSO."""
    lows: tuple[tuple[Ts, tuple[int, ...]], ...] = ()
    """(R, low), ascending."""

    def after(self, record: FrontierRecord) -> "Holding":
        """Return it after ``record`` was published. Of very many every other one is forgotten: that costs offsets
        which a sorter reads again, no more.
        """
        if not record.held:
            return replace(self, lows=())
        if self.lows and self.lows[-1][0] == record.resolved_ts:
            return self
        kept = self.lows if len(self.lows) < LOWS_MAX else self.lows[::2]
        return replace(self, lows=(*kept, (record.resolved_ts, record.low)))

    def low_of(self, group: HeldTables) -> tuple[int, ...]:
        """Return the low of a group: that of the last record whose R is not above its ts, if that is above its own."""
        reached = bisect_right(self.lows, group.ts, key=lambda low: low[0])
        if not reached:
            return group.low
        # A record of when there were fewer partitions says nothing of the new ones.
        return tuple(max(pair) for pair in zip_longest(group.low, self.lows[reached - 1][1], fillvalue=0))


NO_HOLDING: Final = Holding(NEVER_HELD)


def hold_back(
    previous: FrontierRecord, landed: Mapping[TableId, Ts], ddl_ts: Ts, holding: Holding
) -> tuple[Ts, tuple[HeldTables, ...]]:
    """Return the next R, and what is held from it on.

    A table becomes held when it is more than the lag behind the first. One that has come within half of it is waited
    for: R stands until the table is there, or has fallen back. So R is never behind by more than such a table.

    Args:
        previous: the record before.
        landed: of every table that must be pulled, the least of its spans.
        ddl_ts: how far the DDL feed has landed.
        holding: with lows up to that of ``previous``.
    """
    stood, lag = previous.resolved_ts, holding.lag
    first_ts = min(ddl_ts, max(landed.values(), default=ddl_ts))
    groups = [_still_held(group, landed, stood, holding) for group in previous.held]
    held = [group for group in groups if group.tables]
    waited = {table for group in held for table in group.tables}
    if any(landed[table] >= first_ts - lag // 2 for table in waited):
        return stood, previous.held
    room = HELD_TABLES_MAX - len(waited) if len(held) < HELD_GROUPS_MAX else 0
    behind = sorted((ts, table) for table, ts in landed.items() if table not in waited and stood <= ts < first_ts - lag)
    if behind[:room]:
        tables = tuple(sorted(table for _, table in behind[:room]))
        held.append(HeldTables(tables=tables, ts=behind[0][0], low=previous.low))
        waited.update(tables)
    resolved_ts = min([ddl_ts, *(ts for table, ts in landed.items() if table not in waited)])
    return (resolved_ts, tuple(held)) if resolved_ts > stood else (stood, previous.held)


def _still_held(group: HeldTables, landed: Mapping[TableId, Ts], stood: Ts, holding: Holding) -> HeldTables:
    """Return the group without what has caught up, or is pulled no more."""
    tables = tuple(table for table in group.tables if landed.get(table, stood) < stood)
    least = min((landed[table] for table in tables), default=group.ts)
    group = replace(group, tables=tables, ts=max(group.ts, least))
    return replace(group, low=holding.low_of(group))


def pulled_from(published: FrontierRecord, table: TableId, made_ts: Ts) -> Ts:
    """Return from where a table (re)starts that was made at ``made_ts``, which nobody pulls at the moment.

    From the published R; a held one from its own ts; one that a held DDL job made, which this owner can read, from it.
    """
    if published.held_ddl and made_ts in {held.ts for held in published.held_ddl}:
        return made_ts
    promised_ts = published.resolved_ts
    if published.held:
        promised_ts = min([promised_ts, *(held.ts for held in published.held if table in held.tables)])
    return max(made_ts, promised_ts)
