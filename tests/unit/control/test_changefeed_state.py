"""The table of changefeed states, row by row (reference: TiCDC's feed state manager)."""

from dataclasses import replace

import pytest

from consumers.control.core.changefeeds.errors import GC_CODES, UNRETRYABLE_CODES, FeedError, fails_at_once, is_gc_error
from consumers.control.core.changefeeds.state import (
    Failed,
    Feed,
    Message,
    Patience,
    Pause,
    RemoveFeed,
    Resume,
    Retrying,
    SorterProgress,
    Tick,
    WaitsForTables,
    step,
)
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedState

NOW_S = 1000.0
HEALS = FeedError(code="sorter.kafka_unreachable", message="kafka did not answer in time")
FOR_GOOD = FeedError(code="CDC:ErrDispatcherFailed", message="topic of what?")
GONE = FeedError(code="CDC:ErrSnapshotLostByGC", message="lost")
WAITS = FeedError(code="changefeed.table_held", message="waits for a table of its upstream: shop.orders")
RETRYING = Retrying(since_s=900.0, attempt=0, retry_at_s=NOW_S, reached_ts=Ts(50))
ALL: tuple[ChangefeedState, ...] = ("normal", "warning", "pending", "stopped", "failed", "finished")


def feed(state: ChangefeedState, **changes: object) -> Feed:
    known = Feed(state=state, checkpoint_ts=Ts(50), resolved_ts=Ts(60), start_ts=Ts(40), epoch=7)
    if state == "pending":
        known = replace(known, error=HEALS, retrying=RETRYING)
    return replace(known, **changes)  # type: ignore[arg-type]


def moved(checkpoint: int, resolved: int = 100, epoch: int = 7) -> SorterProgress:
    return SorterProgress(epoch, Ts(checkpoint), Ts(resolved), NOW_S)


TABLE: list[tuple[ChangefeedState, str, Message, ChangefeedState]] = [
    ("normal", "pause", Pause(), "stopped"),
    ("warning", "pause", Pause(), "stopped"),
    ("pending", "pause", Pause(), "stopped"),
    ("stopped", "pause", Pause(), "stopped"),
    ("failed", "pause", Pause(), "failed"),
    ("finished", "pause", Pause(), "finished"),
    ("stopped", "resume", Resume(), "normal"),
    ("failed", "resume", Resume(), "normal"),
    ("finished", "resume", Resume(), "normal"),
    ("normal", "resume", Resume(), "normal"),
    ("warning", "resume", Resume(), "warning"),
    ("pending", "resume", Resume(), "pending"),
    *((state, "remove", RemoveFeed(), "removed") for state in ALL),
    ("normal", "target reached", moved(80), "finished"),
    ("warning", "target reached", moved(80), "finished"),
    ("normal", "target not reached", moved(79), "normal"),
    ("normal", "error that may heal", Failed(HEALS, NOW_S, 7), "pending"),
    ("warning", "error that may heal", Failed(HEALS, NOW_S, 7), "pending"),
    ("stopped", "error that may heal", Failed(HEALS, NOW_S), "stopped"),
    ("pending", "error that may heal", Failed(HEALS, NOW_S), "pending"),
    ("normal", "error for good", Failed(FOR_GOOD, NOW_S, 7), "failed"),
    ("warning", "error for good", Failed(FOR_GOOD, NOW_S, 7), "failed"),
    ("normal", "history gone", Failed(GONE, NOW_S), "failed"),
    ("warning", "history gone", Failed(GONE, NOW_S), "failed"),
    ("pending", "history gone", Failed(GONE, NOW_S), "failed"),
    ("stopped", "history gone", Failed(GONE, NOW_S), "failed"),
    ("finished", "history gone", Failed(GONE, NOW_S), "finished"),
    ("pending", "back-off not over", Tick(NOW_S - 0.1), "pending"),
    ("pending", "back-off over", Tick(NOW_S), "warning"),
    ("pending", "total back-off over", Tick(900.0 + 1800.1), "failed"),
    ("normal", "waits for a table", WaitsForTables(WAITS), "warning"),
    ("warning", "waits for a table", WaitsForTables(WAITS), "warning"),
    ("warning", "waits for none", WaitsForTables(None), "normal"),
    ("normal", "waits for none", WaitsForTables(None), "normal"),
    *(
        (state, "waits for a table", WaitsForTables(WAITS), state)
        for state in ("pending", "stopped", "failed", "finished")
    ),
]


@pytest.mark.parametrize(("before", "event", "message", "after"), TABLE, ids=lambda value: str(value)[:40])
def test_changefeed_each_row_of_the_table_goes_where_it_says(
    before: ChangefeedState, event: str, message: Message, after: ChangefeedState
) -> None:
    assert step(feed(before, target_ts=Ts(80)), message).state == after, event


def test_changefeed_pause_stops_the_sorter_and_gives_a_new_epoch() -> None:
    stopped = step(feed("normal"), Pause())
    assert (stopped.epoch, stopped.checkpoint_ts, stopped.runs) == (8, 50, False)


def test_changefeed_resume_starts_from_the_checkpoint_and_forgets_the_error() -> None:
    failed = feed("failed", error=FOR_GOOD, retrying=RETRYING)
    resumed = step(failed, Resume())
    assert (resumed.runs, resumed.epoch, resumed.checkpoint_ts) == (True, 7, 50)
    assert (resumed.error, resumed.held, resumed.retrying, resumed.start_ts) == (None, None, None, 40)


@pytest.mark.parametrize("ts", [10, 900])
def test_changefeed_resume_with_another_checkpoint_starts_there(ts: int) -> None:
    resumed = step(feed("stopped"), Resume(Ts(ts)))
    assert (resumed.checkpoint_ts, resumed.resolved_ts, resumed.start_ts) == (ts, ts, ts)
    assert (resumed.runs, resumed.epoch) == (True, 7)


def test_changefeed_running_does_not_take_another_checkpoint() -> None:
    assert step(feed("normal"), Resume(Ts(10))) == feed("normal")


def test_changefeed_older_epoch_is_not_heard() -> None:
    for message in (moved(99, epoch=6), Failed(FOR_GOOD, NOW_S, 6)):
        assert step(feed("normal"), message) == feed("normal")


def test_changefeed_back_off_doubles_up_to_ten_minutes_with_its_jitter() -> None:
    patience = Patience()
    assert [patience.interval_s(n, 0.0) for n in range(8)] == [10, 20, 40, 80, 160, 320, 600, 600]
    assert (patience.interval_s(1, 1.0), patience.interval_s(1, -0.5)) == (22.0, 19.0)
    assert patience.interval_s(9, 1.0) == 600


def test_changefeed_errors_in_a_row_wait_longer_each_and_fail_after_half_an_hour() -> None:
    state, now_s, waits = feed("normal"), NOW_S, []
    while state.state != "failed":
        state = step(state, Failed(HEALS, now_s, state.epoch))
        assert state.state == "pending"
        assert state.retrying is not None
        waits.append(state.retrying.retry_at_s - now_s)
        now_s = state.retrying.retry_at_s
        state = step(state, Tick(now_s))
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    assert now_s - NOW_S == sum(waits) > 1800
    assert state.error == HEALS


def test_changefeed_recovered_begins_its_back_off_anew_at_the_next_error() -> None:
    state = step(feed("pending"), Tick(NOW_S))
    assert (state.state, state.error) == ("warning", HEALS)
    state = step(state, moved(50, epoch=state.epoch))
    assert state.state == "warning"
    state = step(state, moved(51, epoch=state.epoch))
    assert (state.state, state.error, state.retrying) == ("normal", None, None)
    state = step(state, Failed(HEALS, NOW_S + 5000, state.epoch))
    assert state.retrying == Retrying(since_s=6000.0, attempt=0, retry_at_s=6010.0, reached_ts=Ts(51))


def test_changefeed_whose_destination_stands_is_not_well_because_its_sorter_goes_on() -> None:
    state, now_s, waits = feed("normal"), NOW_S, list[float]()
    while state.state != "failed":
        state = step(state, replace(moved(state.checkpoint_ts + 10, epoch=state.epoch), applied_ts=Ts(45)))
        assert (state.state, state.error) == (("warning", HEALS) if waits else ("normal", None))
        state = step(state, Failed(HEALS, now_s, state.epoch))
        assert state.retrying is not None
        waits.append(state.retrying.retry_at_s - now_s)
        now_s = state.retrying.retry_at_s
        state = step(state, Tick(now_s))
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]


def test_changefeed_whose_destination_moves_again_is_well() -> None:
    state = step(feed("normal"), replace(moved(60), applied_ts=Ts(45)))
    state = step(step(state, Failed(HEALS, NOW_S, 7)), Tick(NOW_S + 10))
    state = step(state, replace(moved(70, epoch=state.epoch), applied_ts=Ts(46)))
    assert (state.state, state.error, state.retrying) == ("normal", None, None)


def test_changefeed_that_waits_for_a_table_keeps_its_sorter_and_says_why_until_it_waits_no_more() -> None:
    state = step(feed("normal"), WaitsForTables(WAITS))
    assert (state.state, state.held, state.epoch, state.runs) == ("warning", WAITS, 7, True)
    state = step(state, moved(55))  # the table is behind, and moves
    assert (state.state, state.held, state.checkpoint_ts, state.epoch) == ("warning", WAITS, 55, 7)
    assert step(state, WaitsForTables(None)) == feed("normal", checkpoint_ts=Ts(55), resolved_ts=Ts(100))


def test_changefeed_that_waits_for_a_table_after_an_error_is_well_only_when_both_are_over() -> None:
    state = step(feed("pending"), Tick(NOW_S))
    state = step(state, WaitsForTables(WAITS))
    assert (state.state, state.error, state.held) == ("warning", HEALS, WAITS)
    assert step(state, WaitsForTables(None)).state == "warning", "nothing has come since the error"
    state = step(state, moved(51, epoch=state.epoch))
    assert (state.state, state.error, state.held) == ("warning", None, WAITS)
    assert step(state, WaitsForTables(None)).state == "normal"


def test_changefeed_that_waits_for_a_table_and_is_paused_forgets_that() -> None:
    state = step(step(feed("normal"), WaitsForTables(WAITS)), Pause())
    assert (state.state, state.held) == ("stopped", None)


def test_changefeed_stored_as_pending_waits_anew_by_this_clock() -> None:
    state = step(feed("pending", retrying=None), Tick(5.0))
    assert (state.state, state.runs) == ("pending", False)
    assert step(state, Tick(14.9)).state == "pending"
    assert step(state, Tick(15.0)).state == "warning"


def test_changefeed_removed_is_deleted_once_and_hears_nothing_more() -> None:
    removed = step(feed("normal"), RemoveFeed())
    assert (removed.state, removed.runs, removed.epoch) == ("removed", False, 8)
    for message in (RemoveFeed(), Resume(), Pause(), Tick(NOW_S), moved(99, epoch=removed.epoch)):
        assert step(removed, message) == removed


def test_changefeed_taken_up_starts_a_sorter_where_its_state_wants_one() -> None:
    assert {state for state in ALL if feed(state).runs} == {"normal", "warning"}


def test_errors_codes_within_the_text_are_found() -> None:
    wrapped = FeedError(code="CDC:ErrProcessorUnknown", message="[CDC:ErrGCTTLExceeded] ttl is over")
    assert is_gc_error(wrapped)
    assert all(fails_at_once(FeedError(code=f"CDC:{code}", message="")) for code in (*GC_CODES, *UNRETRYABLE_CODES))
    assert fails_at_once(replace(HEALS, may_heal=False))
    assert not fails_at_once(HEALS)
