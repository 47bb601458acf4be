"""Tasks read every offset of a cut once, and about as much as each other."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import Ts
from sorters.core.cut.cut import Cut

RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=12)


@given(RANGES, st.integers(1, 6))
def test_cut_share_of_all_tasks_is_every_offset_once_and_even(ranges: list[tuple[int, int]], count: int) -> None:
    start = tuple(start for start, _ in ranges)
    end = tuple(start + length for start, length in ranges)
    cut = Cut(after_ts=Ts(1), upto_ts=Ts(2), start=start, end=end, may_repeat=False, ddl_end=0)
    shares = [cut.share(number, count) for number in range(count)]
    read = [(p, offset) for share in shares for p, (low, high) in share.items() for offset in range(low, high)]
    assert sorted(read) == [(p, offset) for p in range(len(ranges)) for offset in range(start[p], end[p])]
    for partition, (_, length) in enumerate(ranges):
        pieces = [share.get(partition, (0, 0)) for share in shares]
        assert all(high - low <= length // count + 1 for low, high in pieces)


def test_cut_share_of_short_partitions_gives_every_task_some() -> None:
    cut = Cut(after_ts=Ts(1), upto_ts=Ts(2), start=(0,) * 8, end=(1,) * 8, may_repeat=False, ddl_end=0)
    assert [len(cut.share(number, 2)) for number in range(2)] == [4, 4]
