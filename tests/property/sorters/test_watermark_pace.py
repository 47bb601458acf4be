"""Watermarks of a changefeed with very many partitions: one a second of ts, whatever the batches are."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from schemas.ids import Ts, compose_ts
from sorters.core.cut.cut import Cut
from sorters.core.cut.watermark_pace import EVERY_CUT_MAX, INTERVAL_MS, watermark_is_due

MANY = EVERY_CUT_MAX + 1
ENDS_MS = st.lists(st.integers(0, 10 * INTERVAL_MS), min_size=2, unique=True).map(sorted)


def cut(after_ms: int, upto_ms: int) -> Cut:
    after, upto = compose_ts(1_760_000_000_000 + after_ms), compose_ts(1_760_000_000_000 + upto_ms)
    return Cut(after_ts=after, upto_ts=upto, start=(0,), end=(1,), may_repeat=False, ddl_end=0)


def due(after_ms: int, upto_ms: int) -> bool:
    return watermark_is_due(cut(after_ms, upto_ms), MANY, is_needed=False)


@given(ends=ENDS_MS)
@example(ends=[0, 999, 1000, 1001, 1999, 2000])
def test_watermarks_of_many_partitions_come_once_in_each_second_that_batches_end_in(ends: list[int]) -> None:
    sent = [upto for after, upto in itertools.pairwise(ends) if due(after, upto)]
    # Each second after the first's, counted at the first batch that ends in it: no more, and none is left out.
    first_of_second = {ms // 1000: ms for ms in reversed(ends)}
    assert sent == sorted(ms for second, ms in first_of_second.items() if second > ends[0] // 1000)


@given(ends=ENDS_MS, left_out=st.sets(st.integers(0, 100)))
def test_watermarks_after_batches_are_joined_are_never_fewer_seconds(ends: list[int], left_out: set[int]) -> None:
    joined = [ms for number, ms in enumerate(ends) if number in (0, len(ends) - 1) or number not in left_out]
    seconds = {upto // 1000 for after, upto in itertools.pairwise(joined) if due(after, upto)}
    assert seconds == {ms // 1000 for ms in joined if ms // 1000 > joined[0] // 1000}


@given(after=st.integers(0, 5000), length=st.integers(1, 5000))
def test_watermark_is_always_due_for_few_partitions_ddl_and_the_target(after: int, length: int) -> None:
    some = cut(after, after + length)
    assert watermark_is_due(some, EVERY_CUT_MAX, is_needed=False)
    assert watermark_is_due(some, MANY, is_needed=True)
    assert watermark_is_due(some, MANY, is_needed=False, target_ts=some.upto_ts)
    assert watermark_is_due(some, MANY, is_needed=False, target_ts=Ts(some.upto_ts + 1)) == due(after, after + length)
