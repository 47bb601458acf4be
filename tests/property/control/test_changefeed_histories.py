"""What no order of events may do to a changefeed; sorters of older epochs go on talking meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.control.core.changefeeds.errors import FeedError
from consumers.control.core.changefeeds.state import (
    Failed,
    Feed,
    Message,
    Pause,
    RemoveFeed,
    Resume,
    SorterProgress,
    Tick,
    WaitsForTables,
    step,
)
from schemas.ids import Ts

ERRORS = st.sampled_from(
    [
        FeedError(code="sorter.spark_job", message="lost a broker"),
        FeedError(code="CDC:ErrSinkURIInvalid", message="no"),
        FeedError(code="CDC:ErrGCTTLExceeded", message="gone"),
        FeedError(code="mount.corrupt_row", message="what is this", may_heal=False),
    ]
)
TS = st.integers(1, 60)
EPOCHS_AGO = st.sampled_from([0, 0, 0, 1, 2])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, object, int, float]]:
    """Return events as (kind, argument, epochs ago, seconds since the last)."""
    kinds = st.sampled_from(["tick", "progress", "failed", "outside", "held", "free", "pause", "resume", "overwrite"])
    seconds = st.sampled_from([0.1, 9.0, 30.0, 700.0, 2000.0])
    events = []
    for kind in draw(st.lists(kinds, max_size=40)):
        argument = draw(ERRORS if kind in ("failed", "outside", "held") else st.tuples(TS, TS))
        events.append((kind, argument, draw(EPOCHS_AGO), draw(seconds)))
    if draw(st.booleans()):
        events.append(("remove", None, 0, 0.1))
    return events


def message_of(event: tuple[str, object, int, float], epoch: int, now_s: float, jitter: float) -> Message:
    kind, argument, _, _ = event
    if isinstance(argument, FeedError):
        if kind == "held":
            return WaitsForTables(argument)
        return Failed(argument, now_s, epoch if kind == "failed" else None, jitter)
    if isinstance(argument, tuple) and kind in ("progress", "overwrite"):
        low, high = sorted(argument)
        return SorterProgress(epoch, Ts(low), Ts(high), now_s) if kind == "progress" else Resume(Ts(argument[0]))
    others: dict[str, Message] = {
        "tick": Tick(now_s),
        "pause": Pause(),
        "resume": Resume(),
        "remove": RemoveFeed(),
        "free": WaitsForTables(None),
    }
    return others[kind]


def running_of(feed: Feed) -> int | None:
    """Return the epoch of the sorter that runs, as the shell has it."""
    return feed.epoch if feed.runs else None


@given(histories(), st.sampled_from([None, 30]), st.floats(-1, 1))
def test_changefeed_any_history_keeps_its_invariants(
    history: list[tuple[str, object, int, float]], target_ts: int | None, jitter: float
) -> None:
    feed = Feed(
        checkpoint_ts=Ts(5),
        resolved_ts=Ts(5),
        start_ts=Ts(5),
        target_ts=None if target_ts is None else Ts(target_ts),
    )
    now_s = 0.0
    for event in history:
        now_s += event[3]
        message = message_of(event, feed.epoch - event[2], now_s, jitter)
        before, feed = feed, step(feed, message)
        assert not (before.runs and feed.runs) or running_of(feed) == running_of(before), "the sorter is not heard"
        assert feed.state != "removed" or running_of(feed) is None, "removed under a sorter"
        assert feed.epoch >= before.epoch
        assert feed.runs or not before.runs or feed.epoch > before.epoch
        assert feed.checkpoint_ts <= feed.resolved_ts
        if not (isinstance(message, Resume) and message.overwrite_checkpoint_ts is not None):
            assert feed.checkpoint_ts >= before.checkpoint_ts
            assert feed.start_ts == before.start_ts
        if feed.state == "normal":
            assert feed.error is None
        if feed.state in ("failed", "pending"):
            assert feed.error is not None, "nobody can see why"
        if feed.state == "warning":
            assert feed.held is not None or (feed.error is not None and feed.retrying is not None), "nobody can see why"
        assert feed.held is None or feed.state == "warning"
        if before.state in ("failed", "finished", "stopped") and feed.runs:
            assert isinstance(message, Resume)
        if before.state == "removed":
            assert feed == before


@given(histories(), st.floats(-1, 1))
def test_changefeed_a_message_delivered_twice_changes_nothing_more(
    history: list[tuple[str, object, int, float]], jitter: float
) -> None:
    feed, now_s = Feed(checkpoint_ts=Ts(5), resolved_ts=Ts(5), start_ts=Ts(5)), 0.0
    for event in history:
        now_s += event[3]
        message = message_of(event, feed.epoch - event[2], now_s, jitter)
        feed = step(feed, message)
        again = step(feed, message)
        assert (again.state, again.checkpoint_ts, again.epoch, again.runs) == (
            feed.state,
            feed.checkpoint_ts,
            feed.epoch,
            feed.runs,
        )


@given(histories(), st.floats(-1, 1))
def test_changefeed_pending_left_alone_is_tried_again_or_fails(
    history: list[tuple[str, object, int, float]], jitter: float
) -> None:
    feed, now_s = Feed(checkpoint_ts=Ts(5), resolved_ts=Ts(5), start_ts=Ts(5)), 0.0
    for event in history:
        now_s += event[3]
        feed = step(feed, message_of(event, feed.epoch - event[2], now_s, jitter))
        if feed.state == "pending":
            waiting = step(feed, Tick(now_s))
            later = step(waiting, Tick(now_s + feed.patience.interval_s_max))
            assert later.state in ("warning", "failed")
