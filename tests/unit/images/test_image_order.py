"""Which tables and changefeeds the owner takes into a barrier of images, and in what order."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.control.core.images.inputs import ImageLimits, WantingFeed
from schemas.ids import TableId
from schemas.rawlog.images import (
    IdRange,
    KeyRange,
)
from schemas.tidb.keys import row_key, table_span
from tests.support.control.image_steps import NINE, SEVEN, WANTS, A, B, C, at, wanting


def test_of_a_paused_table_nothing_is_scanned_for_its_changefeed_alone() -> None:
    steps = wanting(A, B)
    steps.feeds[A] = replace(WANTS, paused=frozenset({SEVEN}))
    opened = steps.go(2)
    assert [(scan.table_id, scan.feeds) for scan in opened.barriers[0].scans] == [(SEVEN, (B,)), (NINE, (A, B))]
    steps.lands(0)
    steps.lands(1)
    steps.go(2.1)
    passed = steps.go(2.2)
    assert (passed.feed(A).initial, passed.feed(B).initial) == ((IdRange(SEVEN, SEVEN),), ())  # type: ignore[union-attr]
    assert not passed.barriers
    steps.feeds[A] = WANTS
    assert [(scan.table_id, scan.feeds) for scan in steps.go(2.3).barriers[0].scans] == [(SEVEN, (A,))]


def test_paused_tables_do_not_keep_those_behind_them_from_being_scanned() -> None:
    tables = [TableId(number) for number in range(1, 200)]
    steps = wanting(A)
    steps.feeds[A] = WantingFeed(tables=tables, wants_initial=True, paused=frozenset(tables[:150]))
    assert [scan.table_id for scan in steps.go(2).barriers[0].scans] == tables[150:152]


def test_a_table_that_is_paused_half_way_keeps_what_is_done() -> None:
    steps = wanting(A)
    steps.feeds[A] = WantingFeed(tables=[NINE], wants_initial=True)
    steps.go(2)
    middle = row_key(NINE, 5)
    steps.lands(0, reached=middle)
    steps.feeds[A] = replace(steps.feeds[A], paused=frozenset({NINE}))
    steps.go(2.1)
    rests = steps.go(2.2)
    assert (rests.barriers, rests.done_of(A, NINE)) == ((), (KeyRange(table_span(NINE)[0], middle),))
    steps.feeds[A] = replace(steps.feeds[A], paused=frozenset())
    assert [scan.keys for scan in steps.go(2.3).barriers[0].scans] == [KeyRange(middle, table_span(NINE)[1])]


def test_tables_that_come_first_are_scanned_before_those_that_are_begun() -> None:
    tables = [TableId(number) for number in range(1, 300)]
    steps = wanting(A)
    steps.feeds[A] = WantingFeed(tables=tables, wants_initial=True)
    assert [scan.table_id for scan in steps.go(2).barriers[0].scans] == [1, 2]
    steps.lands(0, reached=row_key(TableId(1), 5))
    steps.lands(1)
    steps.go(2.1)
    ranks = {TableId(299): 0, TableId(150): 1, TableId(149): 1, TableId(2): 0}
    steps.feeds[A] = replace(steps.feeds[A], ranks=ranks)
    assert [scan.table_id for scan in steps.go(2.2).barriers[0].scans] == [299, 149], "2 is whole"
    steps.lands(0)
    steps.lands(1)
    steps.go(2.3)
    assert [scan.table_id for scan in steps.go(2.4).barriers[0].scans] == [150, 1], "then those that are begun"


def test_changefeeds_with_other_ranks_share_a_barrier_by_the_lowest() -> None:
    steps = wanting(A, B)
    steps.limits = ImageLimits(scans_max=1)
    steps.feeds[B] = replace(WANTS, ranks={NINE: 3})
    assert [(scan.table_id, scan.feeds) for scan in steps.go(2).barriers[0].scans] == [(NINE, (A, B))]


@pytest.mark.parametrize(("of_a", "of_b", "scans"), [(None, None, 2), (1, None, 1), (1, 9, 1), (9, 9, 3)])
def test_a_barrier_has_as_many_scans_as_each_of_its_changefeeds_takes(
    of_a: int | None, of_b: int | None, scans: int
) -> None:
    steps = wanting()
    three = WantingFeed(tables=[SEVEN, TableId(8), NINE], wants_initial=True)
    steps.feeds = {A: replace(three, scans_max=of_a), B: replace(three, scans_max=of_b)}
    assert len(steps.go(2).barriers[0].scans) == scans


def test_a_changefeed_that_is_behind_gets_no_chunk_until_it_has_caught_up() -> None:
    steps = wanting()
    steps.feeds = {A: replace(WANTS, lag_max_s=5, checkpoint_ts=at(10)), B: WANTS}
    opened = steps.go(15.1)
    assert [barrier.feeds for barrier in opened.barriers] == [(B,)], "5 s behind is allowed, more is not"
    steps.feeds[A] = replace(steps.feeds[A], checkpoint_ts=at(15.2))
    steps.lands(0)
    steps.lands(1)
    steps.go(15.3)
    assert [barrier.feeds for barrier in steps.go(15.4).barriers] == [(A,)]


LAGS = st.tuples(st.sampled_from([0, 1, 5]), st.none() | st.integers(0, 8_000))


@given(st.dictionaries(st.sampled_from([A, B, C]), LAGS, min_size=1))
def test_only_changefeeds_within_their_bound_are_in_a_new_barrier(lags: dict[str, tuple[int, int | None]]) -> None:
    steps = wanting()
    steps.feeds = {
        name: replace(WANTS, lag_max_s=most_s, checkpoint_ts=None if lag is None else at(100 - lag / 1000))
        for name, (most_s, lag) in lags.items()
    }
    within = {name for name, (most_s, lag) in lags.items() if most_s == 0 or lag is None or lag <= 1000 * most_s}
    assert {feed for barrier in steps.go(100).barriers for feed in barrier.feeds} == within
