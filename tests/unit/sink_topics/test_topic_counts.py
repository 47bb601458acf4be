"""What a changefeed uses of its topics, as it is written down: it reads back, and the border of growth is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import Ts
from sorters.core.cut.topic_counts import (
    SHARDS,
    TopicCount,
    decode_counts,
    encode_counts,
    new_partitions,
    shard_of,
)

GROWN = TopicCount(5, before=3, border_ts=Ts(70))


def test_count_that_grows_keeps_what_was_before_and_the_border() -> None:
    assert TopicCount(3).seen(5, Ts(70)) == GROWN
    assert GROWN.seen(5, Ts(90)) == GROWN
    assert GROWN.seen(6, Ts(90)) == TopicCount(6, before=5, border_ts=Ts(90))


def test_count_of_a_topic_that_was_made_anew_with_fewer_has_not_grown() -> None:
    assert GROWN.seen(2, Ts(90)) == TopicCount(2)


def test_new_partitions_are_those_of_this_border_alone() -> None:
    counts = [("grown", GROWN), ("as ever", TopicCount(3)), ("grown later", TopicCount(4, 1, Ts(80)))]
    assert new_partitions(counts, Ts(70)) == {"grown": range(3, 5)}
    assert new_partitions(counts, Ts(0)) == {}


@given(st.dictionaries(st.text(max_size=9), st.builds(TopicCount, st.integers(1, 2**31 - 1))))
def test_counts_that_are_written_down_read_back(counts: dict[str, TopicCount]) -> None:
    with_growth = {**counts, "grown": GROWN}
    assert decode_counts(encode_counts(with_growth)) == with_growth


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"t":3}', b'{"t":[3]}', b'{"t":[0,0,0]}', b'{"t":[3,3,9]}', b'{"t":["x",0,0]}'],
)
def test_counts_that_do_not_read_are_none(content: bytes) -> None:
    assert decode_counts(content) == {}


def test_shard_of_a_topic_stays_what_it_is() -> None:
    # It stands in ZooKeeper: the next version must look where this one has written.
    assert [shard_of(topic) for topic in ("orders", "shop_items", "t")] == [46, 31, 40]
    assert all(0 <= shard_of(f"t{number}") < SHARDS for number in range(1000))
