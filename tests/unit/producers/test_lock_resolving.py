"""The lock-resolving machine, case by case (docs/formats/cdcpb.md §7)."""

from dataclasses import replace
from typing import Any

import pytest

from producers.pull.core.locks.messages import (
    BeginScan,
    CheckSecondaries,
    CheckTxn,
    Determined,
    Message,
    PrimaryMismatch,
    Refused,
    Request,
    Resolve,
    Resolved,
    Scan,
    Scanned,
    Secondaries,
    SeenLock,
    Status,
    TxnNotFound,
    Unreached,
    WaitMs,
    Woken,
)
from producers.pull.core.locks.resolving import (
    GIVE_UP_MS,
    TS_MAX,
    Phase,
    Task,
    locks_task,
    range_task,
    reader_task,
    step,
)
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts, compose_ts

NOW = compose_ts(1_000_000)
OLD = compose_ts(900_000)
"""Of a transaction that started 100 s ago: its TTL of 3 s has run out."""
YOUNG = compose_ts(999_000)
FIRST_SCAN = Scan(b"a", b"z", NOW)


def a_lock(key: bytes, start_ts: Ts = OLD, **more: object) -> SeenLock:
    """Return a lock with primary `p` and a TTL of 3 s."""
    return replace(SeenLock(key=key, primary=b"p", start_ts=start_ts, ttl_ms=3_000, txn_size=2), **more)  # type: ignore[arg-type]


def drive(task: Task, *messages: Message) -> tuple[Task, tuple[Request, ...]]:
    """Step through messages; return the state and the last requests."""
    out: tuple[Request, ...] = ()
    for message in messages:
        task, out = step(task, message)
    return task, out


def scanned(*locks: SeenLock, next_start: bytes | None = None) -> tuple[Task, tuple[Request, ...]]:
    """Return a range's task after its first page."""
    return drive(range_task(b"a", b"z", NOW), BeginScan(NOW), Scanned(FIRST_SCAN, locks, next_start))


def check(lock: SeenLock, **more: Any) -> CheckTxn:
    """Return the question about a lock's transaction."""
    return CheckTxn(primary=lock.primary, start_ts=lock.start_ts, current_ts=NOW, **more)


def test_resolving_starts_then_the_range_is_scanned_up_to_the_target() -> None:
    _, out = step(range_task(b"a", b"z", NOW), BeginScan(NOW))
    assert out == (FIRST_SCAN,)


def test_resolving_no_locks_then_it_is_done() -> None:
    task, out = scanned()
    assert task.phase is Phase.DONE
    assert out == ()


def test_resolving_committed_primary_then_its_locks_here_are_committed_by_key() -> None:
    first, second = a_lock(b"k1"), a_lock(b"k2")
    task, out = scanned(first, second)
    assert out == (check(first),)
    task, out = step(task, Status(check(first), 0, Ts(OLD + 5)))
    wanted = Resolve(keys=(b"k1", b"k2"), start_ts=OLD, commit_ts=Ts(OLD + 5), lite=True)
    assert out == (Determined(OLD, Ts(OLD + 5)), wanted)
    task, out = step(task, Resolved(wanted, (b"k1", b"k2")))
    assert (task.phase, task.committed, task.rolled_back) == (Phase.DONE, 1, 0)


def test_resolving_primary_rolled_back_then_its_locks_are_rolled_back() -> None:
    lock = a_lock(b"k1")
    _, out = drive(scanned(lock)[0], Status(check(lock), 0, Ts(0)))
    assert out[-1] == Resolve(keys=(b"k1",), start_ts=OLD, commit_ts=Ts(0), lite=True)


def test_resolving_transaction_alive_then_it_is_left_alone_and_named() -> None:
    lock = a_lock(b"k1", YOUNG)
    task, out = drive(scanned(lock)[0], Status(check(lock), 2_500, Ts(0)))
    assert out == ()
    assert task.phase is Phase.DONE
    assert [(live.key, live.primary, live.start_ts, live.ttl_ms) for live in task.held] == [(b"k1", b"p", YOUNG, 2_500)]


def test_resolving_several_transactions_then_each_is_asked_once_oldest_first() -> None:
    locks = [a_lock(b"k1", YOUNG), a_lock(b"k2", OLD), a_lock(b"k3", YOUNG)]
    task, out = scanned(*locks)
    assert out == (check(locks[1]),)
    task, out = step(task, Status(check(locks[1]), 9_000, Ts(0)))
    assert out == (check(locks[0]),)
    task, out = step(task, Status(check(locks[0]), 9_000, Ts(0)))
    assert task.phase is Phase.DONE
    assert [live.start_ts for live in task.held] == [OLD, YOUNG]


def test_resolving_large_transaction_then_the_whole_region_is_resolved() -> None:
    lock = a_lock(b"k1", txn_size=16)
    _, out = drive(scanned(lock)[0], Status(check(lock), 0, Ts(OLD + 5)))
    assert out[-1] == Resolve(keys=(b"k1",), start_ts=OLD, commit_ts=Ts(OLD + 5), lite=False)


def test_resolving_lock_without_ttl_then_it_is_resolved_whatever_the_clock_says() -> None:
    _, out = scanned(a_lock(b"k1", YOUNG, ttl_ms=0))
    assert out == (CheckTxn(primary=b"p", start_ts=YOUNG, current_ts=TS_MAX),)


def test_resolving_pessimistic_locks_then_they_are_skipped() -> None:
    task, out = scanned(a_lock(b"k1", holds=False))
    assert task.phase is Phase.DONE
    assert out == ()


def test_resolving_page_is_full_then_the_next_page_is_scanned_after_its_transactions() -> None:
    lock = a_lock(b"k1", YOUNG)
    task, _ = scanned(lock, next_start=b"k1\0")
    task, out = step(task, Status(check(lock), 2_500, Ts(0)))
    assert out == (Scan(b"k1\0", b"z", NOW),)


# -- async commit -----------------------------------------------------------------------------------------------------

PRIMARY = a_lock(b"p", use_async_commit=True, min_commit_ts=Ts(OLD + 7), secondaries=(b"k1", b"k2"))
SECOND = CheckSecondaries((b"k1", b"k2"), OLD)


def asked_secondaries() -> Task:
    """Return the task of an async commit whose primary's TTL has run out."""
    lock = a_lock(b"k1", use_async_commit=True)
    task, out = drive(scanned(lock)[0], Status(check(lock), 3_000, Ts(0), PRIMARY))
    assert out == (SECOND,)
    return task


def secondary(key: bytes, min_commit_ts: int) -> SeenLock:
    """Return the lock of a secondary."""
    return a_lock(key, use_async_commit=True, min_commit_ts=Ts(min_commit_ts))


def test_async_commit_all_locks_stand_then_the_greatest_min_commit_ts_commits_all_keys() -> None:
    answers = (
        Secondaries(SECOND, (b"k1",), (secondary(b"k1", OLD + 9),), Ts(0)),
        Secondaries(SECOND, (b"k2",), (secondary(b"k2", OLD + 8),), Ts(0)),
    )
    _, out = drive(asked_secondaries(), *answers)
    wanted = Resolve(keys=(b"k1", b"p", b"k2"), start_ts=OLD, commit_ts=Ts(OLD + 9), lite=True)
    assert out == (Determined(OLD, Ts(OLD + 9)), wanted)


@pytest.mark.parametrize("end", [Ts(OLD + 20), Ts(0)])
def test_async_commit_one_lock_is_gone_then_the_stores_say_how_it_ended(end: Ts) -> None:
    answers = (
        Secondaries(SECOND, (b"k1",), (secondary(b"k1", OLD + 9),), Ts(0)),
        Secondaries(SECOND, (b"k2",), (), end),
    )
    for order in (answers, answers[::-1]):
        _, out = drive(asked_secondaries(), *order)
        assert out[0] == Determined(OLD, end)


def test_async_commit_a_lock_is_not_async_then_the_primary_is_asked_again_and_forced() -> None:
    plain = a_lock(b"k1")
    task, out = step(asked_secondaries(), Secondaries(SECOND, (b"k1",), (plain,), Ts(0)))
    forced = check(plain, force_sync_commit=True)
    assert out == (forced,)
    # The answer of the other region comes late; the forced answer is the end of it, async lock or not.
    task, out = step(task, Secondaries(SECOND, (b"k2",), (secondary(b"k2", OLD + 8),), Ts(0)))
    assert out == ()
    _, out = step(task, Status(forced, 0, Ts(0), None))
    assert out[-1] == Resolve(keys=(b"k1",), start_ts=OLD, commit_ts=Ts(0), lite=True)


def test_async_commit_alive_then_its_secondaries_are_not_asked() -> None:
    lock = a_lock(b"k1", YOUNG, use_async_commit=True)
    task, out = drive(scanned(lock)[0], Status(check(lock), 3_000, Ts(0), replace(PRIMARY, start_ts=YOUNG)))
    assert out == ()
    assert [live.start_ts for live in task.held] == [YOUNG]


def test_async_commit_regions_contradict_each_other_then_it_is_refused_loudly() -> None:
    task, _ = step(asked_secondaries(), Secondaries(SECOND, (b"k1",), (), Ts(OLD + 20)))
    with pytest.raises(InvariantBrokenError, match="two ends"):
        step(task, Secondaries(SECOND, (b"k2",), (), Ts(0)))
    with pytest.raises(InvariantBrokenError, match="below its min_commit_ts"):
        step(asked_secondaries(), Secondaries(SECOND, (b"k1",), (), Ts(OLD + 1)))


# -- no clear answer --------------------------------------------------------------------------------------------------


def test_transaction_not_found_and_expired_then_its_rollback_is_ordered() -> None:
    lock = a_lock(b"k1")
    _, out = drive(scanned(lock)[0], TxnNotFound(check(lock)))
    assert out == (check(lock, rollback_if_not_exist=True),)


def test_transaction_not_found_and_young_then_it_is_alive_and_the_next_goes_on() -> None:
    first, second = a_lock(b"k1", YOUNG), a_lock(b"k2", Ts(YOUNG + 1))
    task, out = drive(scanned(first, second)[0], TxnNotFound(check(first)))
    assert out == (check(second),)
    assert [live.start_ts for live in task.held] == [YOUNG]


def test_primary_is_not_reached_for_long_then_its_transaction_is_left_and_the_next_gets_its_try() -> None:
    first, second = a_lock(b"k1", OLD), a_lock(b"k2", YOUNG)
    task, out = scanned(first, second)
    tries = {first.start_ts: 0, second.start_ts: 0}
    while task.phase is not Phase.DONE:
        (request,) = out
        if isinstance(request, WaitMs):
            task, out = step(task, Woken(NOW))
            continue
        assert isinstance(request, CheckTxn)
        tries[request.start_ts] += 1
        task, out = step(task, Unreached(request, (b"p",), "store is away"))
    assert tries[first.start_ts] > 10
    assert tries[second.start_ts] >= 1
    assert task.troubles == ("gave up: store is away",) * 2
    assert task.waited_ms <= GIVE_UP_MS


def test_primary_mismatch_then_the_lock_stays_and_both_keys_are_named() -> None:
    lock = a_lock(b"k1")
    task, out = drive(scanned(lock)[0], PrimaryMismatch(check(lock), b"q"))
    assert (task.phase, out) == (Phase.DONE, ())
    assert task.troubles == (f"transaction {OLD} names primary 70, which names 71",)


def test_answer_is_refused_then_the_next_transaction_goes_on() -> None:
    first, second = a_lock(b"k1"), a_lock(b"k2", YOUNG)
    task, out = drive(scanned(first, second)[0], Refused(check(first), "abort"))
    assert task.troubles == ("abort",)
    assert out == (check(second),)


def test_region_moves_then_the_scan_is_asked_again_with_growing_waits_and_given_up_in_the_end() -> None:
    task, waits = drive(range_task(b"a", b"z", NOW), BeginScan(NOW))[0], []
    while task.phase is not Phase.DONE:
        task, out = step(task, Unreached(FIRST_SCAN, (b"a",), "region 4: epoch not match"))
        for request in out:
            assert isinstance(request, WaitMs)
            waits.append(request.ms)
            task, out = step(task, Woken(NOW))
            assert out == (FIRST_SCAN,)
    assert waits[:7] == [50, 100, 200, 400, 800, 1600, 2000]
    assert GIVE_UP_MS - 2_000 < sum(waits) <= GIVE_UP_MS
    assert task.troubles == ("gave up: region 4: epoch not match",)


def test_one_of_two_regions_is_not_reached_then_only_its_keys_are_asked_again() -> None:
    first, second = a_lock(b"k1"), a_lock(b"k2")
    task, out = drive(scanned(first, second)[0], Status(check(first), 0, Ts(0)))
    resolve = out[-1]
    assert isinstance(resolve, Resolve)
    task, out = drive(task, Unreached(resolve, (b"k1",), "moved"), Resolved(resolve, (b"k2",)))
    assert out == (WaitMs(50),)
    task, out = step(task, Woken(NOW))
    again = replace(resolve, keys=(b"k1",))
    assert out == (again,)
    assert step(task, Resolved(resolve, (b"k1",)))[1] == (), "an answer to the request before is a repeat"
    task, _ = step(task, Resolved(again, (b"k1",)))
    assert (task.phase, task.rolled_back) == (Phase.DONE, 1)


def test_answers_come_twice_then_nothing_changes() -> None:
    lock = a_lock(b"k1")
    task, _ = scanned(lock)
    for message in (BeginScan(NOW), Scanned(FIRST_SCAN, (lock,), None), Woken(NOW)):
        assert step(task, message) == (task, ())
    task, _ = step(task, Status(check(lock), 0, Ts(0)))
    assert step(task, Status(check(lock), 0, Ts(OLD + 5))) == (task, ())


def test_reader_met_locks_then_they_are_resolved_without_a_scan() -> None:
    lock = a_lock(b"m1")
    task, out = step(locks_task([lock]), BeginScan(NOW))
    assert out == (check(lock),)
    task, out = step(task, Status(check(lock), 0, Ts(OLD + 3)))
    assert isinstance(out[-1], Resolve)
    task, out = step(task, Resolved(out[-1], (b"m1",)))
    assert (task.phase, task.committed) == (Phase.DONE, 1)


# -- for a reader -----------------------------------------------------------------------------------------------------

READER = compose_ts(999_500)


def reading(*locks: SeenLock) -> tuple[Task, CheckTxn]:
    """Return a reader's task at its first question."""
    task, (asked,) = step(reader_task(locks, READER), BeginScan(NOW))
    assert isinstance(asked, CheckTxn)
    return task, asked


def test_reader_pushes_a_living_transaction_and_passes_it_by_without_ending_it() -> None:
    task, asked = reading(a_lock(b"k1", YOUNG))
    assert asked.caller_start_ts == READER
    task, out = step(task, Status(asked, 600_000, Ts(0), a_lock(b"p", YOUNG), pushed=True))
    assert (task.phase, out, task.passable, task.readable, task.held) == (Phase.DONE, (), (YOUNG,), (), ())


def test_reader_meets_a_transaction_that_cannot_be_pushed_then_it_is_held() -> None:
    task, asked = reading(a_lock(b"k1", YOUNG))
    task, _ = step(task, Status(asked, 600_000, Ts(0), a_lock(b"p", YOUNG)))
    assert (task.passable, [live.start_ts for live in task.held]) == ((), [YOUNG])


@pytest.mark.parametrize(
    ("commit_ts", "passable", "readable"),
    [(Ts(0), (OLD,), ()), (READER, (), (OLD,)), (Ts(READER + 1), (OLD,), ())],
)
def test_reader_transaction_has_ended_then_its_version_says_whether_it_is_read_through(
    commit_ts: Ts, passable: tuple[Ts, ...], readable: tuple[Ts, ...]
) -> None:
    task, asked = reading(a_lock(b"k1"))
    task, out = step(task, Status(asked, 0, commit_ts))
    assert (task.passable, task.readable) == (passable, readable)
    assert out[-1] == Resolve(keys=(b"k1",), start_ts=OLD, commit_ts=commit_ts, lite=True)


def test_nobody_reads_then_a_push_by_others_leaves_the_transaction_held() -> None:
    task, (asked,) = step(locks_task([a_lock(b"k1", YOUNG)]), BeginScan(NOW))
    assert isinstance(asked, CheckTxn)
    task, _ = step(task, Status(asked, 600_000, Ts(0), a_lock(b"p", YOUNG), pushed=True))
    assert (asked.caller_start_ts, task.passable, len(task.held)) == (0, (), 1)
