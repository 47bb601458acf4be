"""Shares of a service, by real threads: turns, notes of who works, and what is given up when a run is told to stop."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from schemas.running_feeds import RunningFeeds, read_threads, running_file
from sorters.core.service.quotas import BYTES_IN_HAND_MAX, Pace
from sorters.service.feed_shares import MANY, FeedShares, HostedShare

WAIT_S = 20.0


def never() -> bool:
    return False


def eventually(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class World:
    """Shares of a service of one core."""

    def __init__(self, folder: Path) -> None:
        self.path = running_file(folder, "s")
        self.running = RunningFeeds(self.path, 8)
        self.shares = FeedShares(self.running, 1)

    def share(self, name: str, pace: Pace | None = None) -> HostedShare:
        return self.shares.share(("default", name), pace or Pace())

    @property
    def noted(self) -> set[str]:
        return {work.name[1] for work in read_threads(self.path)}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with world.running:
        yield world


class Computing:
    """A thread that computes until it is let go."""

    def __init__(self, share: HostedShare, stopped: Callable[[], bool] = never) -> None:
        self.has_begun, self.let_go, self.waits, self.resume = (threading.Event() for _ in range(4))
        self._share, self._stopped = share, stopped
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with self._share.computing(self._stopped):
            self.has_begun.set()
            assert self.let_go.wait(WAIT_S)
            if self.waits.is_set():
                with self._share.waiting():
                    assert self.resume.wait(WAIT_S)

    def end(self) -> None:
        self.let_go.set()
        self.resume.set()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


def test_one_computes_at_a_time_and_only_that_one_is_noted(world: World) -> None:
    first, second = Computing(world.share("a")), None
    try:
        assert first.has_begun.wait(WAIT_S)
        second = Computing(world.share("b"))
        assert not second.has_begun.wait(0.3)
        assert world.noted == {"a"}, "who waits for a turn does not work"
        first.let_go.set()
        assert second.has_begun.wait(WAIT_S)
        eventually(lambda: world.noted == {"b"})
    finally:
        for computing in (first, second):
            if computing is not None:
                computing.end()
    assert world.noted == set()
    assert world.shares.longest() is None


def test_as_many_compute_as_there_are_cores_and_where_changefeeds_are_many_one(tmp_path: Path) -> None:
    with RunningFeeds(running_file(tmp_path, "s"), MANY + 1) as running:
        shares = FeedShares(running, 2)
        each = [shares.share(("default", str(number)), Pace()) for number in range(MANY)]
        computing = [Computing(share) for share in each[:2]]
        assert all(thread.has_begun.wait(WAIT_S) for thread in computing)
        last = shares.share(("default", "last"), Pace())
        computing += [Computing(share) for share in (each[2], last)]
        eventually(shares.others_wait)
        computing[0].end()
        assert not any(thread.has_begun.wait(0.2) for thread in computing[2:]), "the second one still computes"
        computing[1].end()
        eventually(lambda: sum(thread.has_begun.is_set() for thread in computing[2:]) == 1)
        assert shares.others_wait()
        each[3].close()
        assert all(thread.has_begun.wait(WAIT_S) for thread in computing), "there are few again"
        for thread in computing[2:]:
            thread.end()


def test_a_turn_is_given_up_while_its_thread_waits_for_kafka(world: World) -> None:
    first = Computing(world.share("a"))
    first.waits.set()
    assert first.has_begun.wait(WAIT_S)
    second = Computing(world.share("b"))
    first.let_go.set()
    assert second.has_begun.wait(WAIT_S), "the first one waits for its broker"
    assert world.noted == {"b"}
    first.resume.set()
    second.end()
    first.end()
    assert world.noted == set()


def test_a_turn_goes_round_between_the_pieces_of_a_cut(world: World) -> None:
    first = world.share("a")
    with first.computing(never):
        first.let_others()
        assert world.noted == {"a"}, "nobody else waits"
        second = Computing(world.share("b"))
        eventually(world.shares.others_wait)
        second.let_go.set()
        first.let_others()
        assert second.has_begun.is_set()
        assert world.noted == {"a"}
    second.end()
    first.let_others()


def test_one_that_is_told_to_stop_waits_for_no_turn_and_leaves_none_behind(world: World) -> None:
    stop = threading.Event()
    first = Computing(world.share("a"))
    assert first.has_begun.wait(WAIT_S)
    second_share = world.share("b")
    second = Computing(second_share, stop.is_set)
    stop.set()
    assert second.has_begun.wait(WAIT_S)
    second.end()
    second_share.close()
    first.end()
    third = Computing(world.share("c"))
    assert third.has_begun.wait(WAIT_S)
    third.end()


def test_who_computes_longest_is_told(world: World) -> None:
    first = Computing(world.share("a"))
    assert first.has_begun.wait(WAIT_S)
    eventually(lambda: (longest := world.shares.longest()) is not None and longest[1] > 0.1)
    longest = world.shares.longest()
    assert longest is not None
    assert longest[0] == ("default", "a")
    first.end()


def test_cuts_over_the_bytes_in_hand_wait_and_small_ones_do_not(world: World) -> None:
    large, other, small = (world.share(name) for name in ("large", "other", "small"))
    entered = threading.Event()

    def hold() -> None:
        with other.holding(BYTES_IN_HAND_MAX, never):
            entered.set()

    with large.holding(BYTES_IN_HAND_MAX, never):
        thread = threading.Thread(target=hold)
        thread.start()
        with small.holding(10, never):
            assert not entered.wait(0.3)
    assert entered.wait(WAIT_S)
    thread.join(WAIT_S)


def test_a_changefeed_over_its_rows_is_deferred_unless_it_is_told_to_stop(world: World) -> None:
    share = world.share("a", Pace(rows_per_second_max=100))
    share.begin_cut(never)
    share.end_cut(150)
    began_at = time.monotonic()
    share.begin_cut(never)
    assert 0.4 <= time.monotonic() - began_at <= 5.0
    share.end_cut(1_000_000)
    share.begin_cut(lambda: True)


def test_more_changefeeds_than_slots_run_unnoted(world: World) -> None:
    shares = [world.share(str(number)) for number in range(9)]
    with shares[8].preparing():
        assert world.noted == set()
    shares[3].close()
    with world.share("new").preparing():
        assert world.noted == {"new"}
