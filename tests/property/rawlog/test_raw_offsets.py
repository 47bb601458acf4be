"""Ranges of damaged raw records: exactly the offsets that they name, and nothing that is no range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config.parse.raw_offsets import OffsetRange, RawOffsets

SMALL = st.integers(0, 12)


@given(st.lists(st.tuples(SMALL, SMALL, SMALL), max_size=5))
def test_ranges_hold_their_offsets_with_both_ends_and_no_other(named: list[tuple[int, int, int]]) -> None:
    texts, held = [], set()
    for partition, first, more in named:
        texts.append(f"{partition}:{first}-{first + more}" if more else f"{partition}:{first}")
        held |= {(partition, offset) for offset in range(first, first + more + 1)}
    offsets = RawOffsets.parse(texts)
    assert {
        (partition, offset) for partition in range(14) for offset in range(30) if (partition, offset) in offsets
    } == held


@given(st.text("0123456789:-, +", max_size=12))
def test_text_is_a_range_or_is_refused_by_what_is_allowed(text: str) -> None:
    try:
        named = OffsetRange.parse(text)
    except ValueError as error:
        assert "PARTITION:FIRST-LAST" in str(error) or "FIRST-LAST must be" in str(error)
    else:
        assert named.partition >= 0 and 0 <= named.first <= named.last
        assert text.replace(":", "-").split("-")[0].lstrip("0") == str(named.partition).lstrip("0")


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("0:0-999999", True),
        ("0:1-1000000", True),
        ("0:0-1000000", False),
        ("0:5-5", True),
        ("0:5-4", False),
        ("0:9223372036854775807", True),
        ("0:9223372036854775808", False),
        ("0:1-", False),
        ("0:-1", False),
        ("٣:1", False),
        ("0:1\n", False),
    ],
)
def test_bounds_of_a_range(text: str, *, is_allowed: bool) -> None:
    if is_allowed:
        assert OffsetRange.parse(text).partition == 0
    else:
        with pytest.raises(ValueError, match="FIRST-LAST"):
            OffsetRange.parse(text)
