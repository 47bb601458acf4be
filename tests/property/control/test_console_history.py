"""The history of the bus: whatever was seen between two looks, each difference is an event, and nothing else is."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from consumers.control.console.core.history import BATCHES_MAX, EVENTS_MAX, History, SeenBus, SeenFeed, changes
from schemas.ids import Ts

NAMES = st.tuples(st.sampled_from(["default", "team"]), st.sampled_from(["a", "b"]))
FEEDS = st.builds(
    SeenFeed,
    state=st.sampled_from(["normal", "warning", "failed"]),
    code=st.sampled_from(["", "sorter.topic_missing"]),
    service=st.sampled_from(["", "s1", "s2"]),
    checkpoint_ts=st.integers(0, 5).map(Ts),
    rows_total=st.integers(0, 50),
)
CAPTURES = st.dictionaries(st.sampled_from(["c1", "c2", "c3"]), st.just("127.0.0.1:1"))
LOOKS = st.one_of(
    st.builds(
        SeenBus,
        captures=CAPTURES,
        owner=st.sampled_from(["", "c1", "c2"]),
        feeds=st.dictionaries(NAMES, FEEDS),
        stalls=st.frozensets(st.sampled_from(["table 7: no leader", "table 8: locked"])),
    ),
    st.just(SeenBus(trouble="zookeeper.unreachable")),
)


@given(st.lists(LOOKS, max_size=8))
def test_history_is_the_differences_of_looks_at_which_something_was_seen(looks: list[SeenBus]) -> None:
    history, seen = History(), [look for look in looks if not look.trouble]
    for at_s, look in enumerate(looks):
        history.take(look, float(at_s))
    expected = [text for before, now in pairwise(seen) for text, _ in changes(before, now)]
    shown = [event["text"] for event in history.events()][::-1]
    assert [text for text in shown if "look at the bus" not in text and text != "it can again"] == expected
    numbers = [event["number"] for event in history.events()]
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) == len(numbers)


@given(LOOKS)
def test_look_that_sees_the_same_is_no_event(look: SeenBus) -> None:
    assert list(changes(look, look)) == []


@given(st.lists(st.integers(0, 9), max_size=60))
def test_batches_of_a_changefeed_are_bounded_and_their_rows_are_those_that_came(steps: list[int]) -> None:
    history, total = History(), 0
    name = ("default", "a")
    history.take(SeenBus(feeds={name: SeenFeed(state="normal")}), 0.0)
    for at, rows in enumerate(steps, 1):
        total += rows
        seen = SeenFeed(state="normal", rows_total=total, batch_rows=rows, checkpoint_ts=Ts(at))
        history.take(SeenBus(feeds={name: seen}), float(at))
    shown = history.batches(name)
    came = [rows for rows in steps if rows][-BATCHES_MAX:]
    assert [batch["rows_since"] for batch in shown] == came[::-1]
    again = SeenFeed(state="normal", checkpoint_ts=Ts(len(steps) + 1))  # another run, which counts from 0
    history.take(SeenBus(feeds={name: again}), 99.0)
    assert history.batches(name) == shown
    history.take(SeenBus(), 100.0)
    assert history.batches(name) == []


def test_history_is_bounded() -> None:
    history = History()
    for at in range(EVENTS_MAX + 10):
        history.take(SeenBus(captures={str(at): f"127.0.0.1:{at}"}), float(at))
    assert len(history.events()) == EVENTS_MAX
