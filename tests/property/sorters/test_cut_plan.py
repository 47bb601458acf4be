"""Batches of the sorter: any run of frontier records is divided so that the cuts hold every row once."""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InvariantBrokenError
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, HeldTables
from sorters.core.cut.cut import ChangefeedFrontier, Cut, cut_between, frontier_for
from sorters.core.cut.cut_plan import CUT_OFFSETS_MAX, QUERY_BYTES_MIN, is_backlog, plan_cuts


@dataclass(frozen=True)
class Log:
    """A raw log of one partition and frontiers on it: the row at offset ``i`` has ``commit_ts[i]``."""

    commit_ts: list[int]
    frontiers: list[ChangefeedFrontier]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A log and true frontiers on it, made from the definition: not by the code under test."""
    commit_ts = draw(st.lists(st.integers(1, 30), max_size=40))
    frontiers, resolved, seen = [], 0, 0
    for _ in range(draw(st.integers(1, 8))):
        high = draw(st.integers(seen, len(commit_ts)))
        # R may reach up to the least ts that is still to come.
        limit = min(commit_ts[high:], default=31) - 1
        resolved = draw(st.integers(resolved, max(resolved, limit))) if limit >= resolved else resolved
        low = next((at for at, ts in enumerate(commit_ts[:high]) if ts > resolved), high)
        if limit >= resolved:
            frontiers.append(_frontier(resolved, low, high))
        seen = high
    frontiers = _with_lows_that_never_go_back(frontiers)
    return Log(commit_ts, frontiers or [_frontier(0, 0, 0)])


def _frontier(ts: int, low: int, high: int, repeat_high: int = 0) -> ChangefeedFrontier:
    return ChangefeedFrontier(resolved_ts=Ts(ts), low=(low,), high=(high,), repeat_high=(repeat_high,), ddl_high=0)


def _with_lows_that_never_go_back(frontiers: list[ChangefeedFrontier]) -> list[ChangefeedFrontier]:
    low = 1 << 30
    kept: list[ChangefeedFrontier] = []
    for later in reversed(frontiers):
        low = min(low, later.low[0])
        kept.append(_frontier(later.resolved_ts, low, later.high[0]))
    return kept[::-1]


def _rows_of(log: Log, cut: Cut) -> list[tuple[int, int]]:
    return [
        (ts, at)
        for at, ts in enumerate(log.commit_ts)
        if cut.start[0] <= at < cut.end[0] and cut.after_ts < ts <= cut.upto_ts
    ]


@given(logs(), st.integers(1, 50))
def test_plan_cuts_any_log_and_budget_yields_every_row_once_in_ts_order(log: Log, budget: int) -> None:
    base, *frontiers = log.frontiers
    cuts = plan_cuts(base, frontiers, base.resolved_ts, offsets_max=budget)
    last = log.frontiers[-1].resolved_ts
    want = sorted((ts, at) for at, ts in enumerate(log.commit_ts) if base.resolved_ts < ts <= last)
    assert [row for cut in cuts for row in sorted(_rows_of(log, cut))] == want


@given(logs(), st.integers(1, 50), st.integers(0, 31))
def test_plan_cuts_with_target_stops_exactly_there(log: Log, budget: int, target: int) -> None:
    base, *frontiers = log.frontiers
    cuts = plan_cuts(base, frontiers, base.resolved_ts, offsets_max=budget, target_ts=Ts(target))
    last = min(log.frontiers[-1].resolved_ts, target)
    want = sorted((ts, at) for at, ts in enumerate(log.commit_ts) if base.resolved_ts < ts <= last)
    assert [row for cut in cuts for row in sorted(_rows_of(log, cut))] == want
    assert all(cut.upto_ts <= target for cut in cuts)


@given(logs(), st.integers(1, 50), st.data())
def test_plan_cuts_from_a_checkpoint_between_records_skips_only_what_is_done(
    log: Log, budget: int, data: st.DataObject
) -> None:
    base, *frontiers = log.frontiers
    after_ts = Ts(data.draw(st.integers(base.resolved_ts, 31)))
    cuts = plan_cuts(base, frontiers, after_ts, offsets_max=budget)
    last = log.frontiers[-1].resolved_ts
    want = sorted((ts, at) for at, ts in enumerate(log.commit_ts) if after_ts < ts <= last)
    assert [row for cut in cuts for row in sorted(_rows_of(log, cut))] == want


@given(logs(), st.integers(1, 50))
def test_plan_cuts_with_more_than_one_record_in_a_batch_keeps_the_budget(log: Log, budget: int) -> None:
    base, *frontiers = log.frontiers
    frontier_at = {frontier.resolved_ts: frontier for frontier in reversed(log.frontiers)}
    for cut in plan_cuts(base, frontiers, base.resolved_ts, offsets_max=budget):
        first = frontier_at[cut.after_ts]
        again = first.high[0] - first.low[0]
        steps = {
            frontier.resolved_ts for frontier in log.frontiers if cut.after_ts < frontier.resolved_ts <= cut.upto_ts
        }
        assert len(steps) == 1 or cut.end[0] - first.high[0] <= max(budget, again)


def test_plan_cuts_when_low_stands_still_doubles_instead_of_reading_again_and_again() -> None:
    frontiers = [_frontier(ts, 0, 100 * ts) for ts in range(1, 65)]
    cuts = plan_cuts(frontiers[0], frontiers[1:], Ts(1), offsets_max=100)
    assert sum(cut.offsets for cut in cuts) < 3 * 6400


def test_plan_cuts_with_base_above_checkpoint_refuses() -> None:
    with pytest.raises(InvariantBrokenError):
        plan_cuts(_frontier(5, 0, 0), [], Ts(4))


def test_plan_cuts_when_frontier_goes_back_refuses() -> None:
    with pytest.raises(InvariantBrokenError):
        plan_cuts(_frontier(5, 0, 0), [_frontier(7, 0, 0), _frontier(6, 0, 0)], Ts(5))


@pytest.mark.parametrize(("repeat_high", "may_repeat"), [(0, False), (3, False), (4, True)])
def test_cut_between_when_repeats_end_at_or_below_low_needs_no_dropping(repeat_high: int, may_repeat: bool) -> None:
    cut = cut_between(_frontier(5, 3, 6), _frontier(9, 6, 9, repeat_high), Ts(5), Ts(9))
    assert (cut.start, cut.end, cut.may_repeat) == ((3,), (9,), may_repeat)


def test_frontier_for_with_held_tables_waits_only_for_those_of_the_changefeed() -> None:
    held = HeldTables(tables=(TableId(7),), ts=Ts(40), low=(2,))
    record = FrontierRecord(
        owner_rev=1, resolved_ts=Ts(90), high=(20,), low=(10,), ddl_high=3, repeat_high=(0,), held=(held,)
    )
    mine = frontier_for(record, lambda table: table == 7)
    others = frontier_for(record, lambda table: table != 7)
    assert (mine.resolved_ts, mine.low) == (40, (2,))
    assert (others.resolved_ts, others.low) == (90, (10,))


def test_plan_cuts_with_target_reads_nothing_beyond_the_frontier_that_reaches_it() -> None:
    frontiers = [replace(_frontier(ts, ts, 2 * ts), ddl_high=ts) for ts in (10, 20, 30, 40)]
    (cut,) = plan_cuts(frontiers[0], frontiers[1:], Ts(10), target_ts=Ts(25))
    assert (cut.upto_ts, cut.end, cut.ddl_end) == (25, (60,), 30)


RECORD_BYTES = 1 << 10
QUERY_RECORDS = QUERY_BYTES_MIN // RECORD_BYTES


@pytest.mark.parametrize(
    ("offsets", "small", "backlog"),
    [
        ([], 0, False),
        ([10], 0, False),
        ([2 * QUERY_RECORDS], 0, False),
        ([CUT_OFFSETS_MAX, CUT_OFFSETS_MAX], 0, False),
        ([QUERY_RECORDS // 2, QUERY_RECORDS // 2 - 1], 0, False),
        ([QUERY_RECORDS // 2, QUERY_RECORDS // 2], 0, True),
        ([QUERY_RECORDS // 2, QUERY_RECORDS // 2], QUERY_RECORDS // 2, False),
        ([1, QUERY_RECORDS - 1], 1, True),
        ([QUERY_RECORDS - 1, 1], 1, True),
    ],
)
def test_cuts_are_a_backlog_when_they_are_several_and_large_and_span_as_much_as_a_query_is_for(
    offsets: list[int], small: int, backlog: bool
) -> None:
    bounds = [1_000 + bound for bound in accumulate(offsets, initial=0)]
    cuts = [
        Cut(after_ts=Ts(at), upto_ts=Ts(at + 1), start=(start, 7), end=(end, 7), may_repeat=False, ddl_end=0)
        for at, (start, end) in enumerate(pairwise(bounds))
    ]
    assert is_backlog(cuts, lambda cut: cut.offsets <= small, RECORD_BYTES) is backlog


def test_cuts_that_read_the_same_records_again_are_a_backlog_by_what_they_span() -> None:
    cuts = [
        Cut(after_ts=Ts(at), upto_ts=Ts(at + 1), start=(0,), end=(end,), may_repeat=False, ddl_end=0)
        for at, end in enumerate((QUERY_RECORDS - 2, QUERY_RECORDS - 1))
    ]
    assert not is_backlog(cuts, lambda _: False, RECORD_BYTES)
    assert is_backlog([*cuts, replace(cuts[1], end=(QUERY_RECORDS,))], lambda _: False, RECORD_BYTES)
