"""Ranges of an integer key as users write them: exactly the rows whose key is within are in the raw keys."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.ids import TableId
from schemas.tidb.handle_range import HandleRange, parse_handle_range
from schemas.tidb.keys import row_key, table_span

TABLE = TableId(112)
SIGNED = st.integers(-(1 << 63), (1 << 63) - 1)
UNSIGNED = st.integers(0, (1 << 64) - 1)
HALF = 1 << 63


@given(SIGNED | st.none(), SIGNED | st.none() | st.just(1 << 63), st.lists(SIGNED, min_size=1))
@example(-HALF, HALF, [-HALF, HALF - 1])
@example(None, -HALF + 1, [-HALF, -HALF + 1])
def test_signed_rows_are_in_the_raw_keys_if_their_key_is_in_the_range(
    start: int | None, end: int | None, handles: list[int]
) -> None:
    if start is not None and end is not None and start >= end:
        start, end = end, None
    if end == -HALF or start == HALF:
        end, start = None, None
    ranges = HandleRange(start, end).raw_keys(TABLE, is_unsigned=False)
    for value in {*handles, *(bound for bound in (start, end) if bound is not None and bound < HALF)}:
        inside = (start is None or start <= value) and (end is None or value < end)
        assert any(first <= row_key(TABLE, value) < last for first, last in ranges) == inside
    assert all(table_span(TABLE)[0] <= first < last < table_span(TABLE)[1] for first, last in ranges)


@given(UNSIGNED | st.none(), UNSIGNED | st.none() | st.just(1 << 64), st.lists(UNSIGNED, min_size=1))
@example(5, None, [0, 5, HALF - 1, HALF, 2 * HALF - 1])
@example(5, HALF, [4, HALF - 1, HALF])
@example(HALF, None, [HALF - 1, HALF, 2 * HALF - 1])
@example(HALF + 1, 2 * HALF - 1, [HALF, HALF + 1, 2 * HALF - 1])
def test_unsigned_rows_are_in_the_raw_keys_if_their_key_is_in_the_range(
    start: int | None, end: int | None, values: list[int]
) -> None:
    if start is not None and end is not None and start >= end:
        start, end = end, None
    if end == 0 or start == 2 * HALF:
        end, start = None, None
    ranges = HandleRange(start, end).raw_keys(TABLE, is_unsigned=True)
    assert all(first < last for first, last in ranges)
    assert list(ranges) == sorted(ranges)
    for value in {*values, *(bound for bound in (start, end) if bound is not None and bound < 2 * HALF)}:
        inside = (start is None or start <= value) and (end is None or value < end)
        raw = row_key(TABLE, value - 2 * HALF if value >= HALF else value)
        assert sum(first <= raw < last for first, last in ranges) == inside


@given(st.integers() | st.none(), st.integers() | st.none())
def test_a_range_is_read_as_it_is_written(start: int | None, end: int | None) -> None:
    bounds = [bound for bound in (start, end) if bound is not None]
    text = f"{'' if start is None else start}:{'' if end is None else end}"
    if not bounds or (len(bounds) == 2 and bounds[0] >= bounds[1]) or any(abs(bound) >= 10**20 for bound in bounds):
        with pytest.raises(ValueError, match=r"range"):
            parse_handle_range(text)
    else:
        assert parse_handle_range(text) == HandleRange(start, end)


@pytest.mark.parametrize(
    "text", ["", ":", "5", "1:2:3", "a:b", "1.5:2", "+1:2", " 1:2", "1:2\n", "١:٢", "1" * 21 + ":"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="START:END"):
        parse_handle_range(text)


@pytest.mark.parametrize(
    ("text", "is_unsigned"), [("-1:5", True), (f":{(1 << 64) + 1}", True), (f"{HALF + 1}:", False)]
)
def test_a_bound_that_no_key_can_have_is_refused(text: str, is_unsigned: bool) -> None:
    with pytest.raises(ValueError, match="is no value of"):
        parse_handle_range(text).raw_keys(TABLE, is_unsigned=is_unsigned)


@pytest.mark.parametrize(("text", "is_unsigned"), [(":0", True), (f"{2 * HALF}:", True), (f"{HALF}:", False)])
def test_a_range_without_a_key_is_refused(text: str, is_unsigned: bool) -> None:
    with pytest.raises(ValueError, match="no key can be in the range"):
        parse_handle_range(text).raw_keys(TABLE, is_unsigned=is_unsigned)
