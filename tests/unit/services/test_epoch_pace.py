"""When changefeeds of a service begin epochs: alone at once, among many less often, and with nothing landed later."""

import contextlib
import queue
import threading
import time
from dataclasses import replace
from typing import cast

import pytest

from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord
from sorters.core.service import beats
from sorters.core.service.cut_marks import CROWD, CUT_BYTES
from sorters.run.sources import FrontierSource
from sorters.service import epoch_pace, frontier_window
from sorters.service.epoch_pace import EPOCHS_MAX, HOLD_MAX_S, QUIET_S, REST_MAX_S, EpochPace, quiet_s, rest_s
from sorters.service.frontier_window import FrontierWindow, WindowFollower, _is_quiet

RECORD = FrontierRecord(owner_rev=1, resolved_ts=Ts(5), high=(3, 4), low=(3, 4), ddl_high=1, repeat_high=(0, 0))
LATER = replace(RECORD, resolved_ts=Ts(6))


class Window:
    """A window with as many records as are put into it; nothing lands."""

    first = 0

    def __init__(self) -> None:
        self.records: list[FrontierRecord] = []

    def await_beat(self, start: int, timeout_s: float, who: object, protocol: str) -> bool:
        return start < len(self.records)

    def mark(self, start: int) -> int | None:
        return None

    def read(self, start: int, count: int, who: object, protocol: str) -> list[FrontierRecord]:
        return self.records[start : start + count]

    def leave(self, who: object, protocol: str) -> None:
        """Nobody is waited for."""


def follower(window: Window, pace: EpochPace) -> WindowFollower:
    return WindowFollower(cast(FrontierWindow, window), cast(FrontierSource, None), 0, pace)


def test_rest_is_none_for_one_and_bounded_for_many() -> None:
    assert rest_s(1) == 0
    assert 0 < rest_s(2) < rest_s(50) < rest_s(100_000) == REST_MAX_S


def test_more_changefeeds_than_permits_rest_by_what_the_last_round_took() -> None:
    assert rest_s(EPOCHS_MAX, 1.0) == rest_s(EPOCHS_MAX), "none waits for another"
    many = EPOCHS_MAX + 1
    assert rest_s(many, 0.0) == rest_s(many) < rest_s(many, 0.1) < rest_s(many, 0.2) < rest_s(many, 1.0) == REST_MAX_S


def test_beats_of_many_changefeeds_are_twice_as_far_apart_where_nothing_has_landed() -> None:
    assert quiet_s(0.0) == QUIET_S == 0.5
    assert quiet_s(0.2) == 0.5
    assert quiet_s(0.6) == 1.2


def test_permits_come_back_in_the_order_in_which_they_were_asked_for() -> None:
    pace, order = EpochPace(1), list[int]()
    assert pace.take("first", 0.0)
    threads, done = [], threading.Semaphore(0)

    def ask(number: int) -> None:
        assert pace.take(number, 60.0)
        order.append(number)
        assert done.acquire(timeout=60.0)
        pace.give_back(number)

    for number in range(3):
        asked = threading.Thread(target=ask, args=(number,))
        asked.start()
        threads.append(asked)
        while len(pace._waiting) <= number:
            time.sleep(0.001)
    pace.give_back("first")
    for number, thread in enumerate(threads):
        done.release()
        thread.join(60.0)
        assert order[: number + 1] == list(range(number + 1))


def test_who_runs_the_cut_that_was_begun_last_goes_before_others_and_those_in_the_order_in_which_they_asked() -> None:
    pace, order = EpochPace(1), ["first"]
    assert pace.take("first", 0.0, mark=20)
    for who, mark in (("near", None), ("far", 10), ("same", 20), ("as far", 10), ("same too", 20)):
        assert not pace.take(who, 0.0, mark)
    for _ in range(5):
        pace.give_back(order[-1])
        order.extend(map(str, pace._held))
    assert order == ["first", "same", "same too", "near", "far", "as far"]


def test_a_permit_that_is_held_for_too_long_counts_for_another() -> None:
    """Eight changefeeds whose broker is gone wait for two minutes; the ninth has nothing to do with that."""
    now_s = [0.0]
    pace = EpochPace(1, clock=lambda: now_s[0])
    assert pace.take("stuck", 0.0)
    assert not pace.take("other", 0.0)
    now_s[0] = HOLD_MAX_S + 0.1
    assert pace.take("other", 0.0)
    pace.give_back("stuck")
    assert not pace.take("third", 0.0), "a permit that is given back too late is another's by then"
    pace.give_back("other")
    pace.give_back("other")
    assert pace.take("third", 0.0)
    assert not pace.take("fourth", 0.0), "a permit that is given back twice is one"


def test_who_gets_no_permit_in_time_keeps_its_place() -> None:
    """Followers look elsewhere twice a second, and a round of many takes longer."""
    pace = EpochPace(1)
    assert pace.take("first", 0.0)
    assert not pace.take("second", 0.0)
    assert not pace.take("third", 0.0)
    assert not pace.take("second", 0.0)
    pace.give_back("first")
    assert not pace.take("first", 0.0)
    assert not pace.take("third", 0.0)
    assert pace.take("second", 0.0), "it was given the permit while it looked elsewhere"
    pace.give_back("second")
    pace.enter()
    pace.leave("third")
    assert pace.take("first", 0.0), "who leaves has neither place nor permit"


def test_follower_that_waited_for_its_permit_takes_what_has_come_meanwhile() -> None:
    window, pace = Window(), EpochPace(1)
    window.records.append(RECORD)
    with follower(window, pace) as first, follower(window, pace) as second:
        assert first.read(10, 0.0) == [RECORD]
        assert second.read(10, 0.0) == []
        window.records.append(LATER)
        assert first.read(1, 0.05) == [], "the second has asked before it"
        assert second.read(10, 0.0) == [RECORD, LATER]


def test_follower_that_leaves_gives_its_permit_back() -> None:
    window, pace = Window(), EpochPace(1)
    window.records.append(RECORD)
    with follower(window, pace) as stays:
        with follower(window, pace) as leaves:
            assert pace.is_shared()
            assert leaves.read(1, 0.0)
            assert not stays.read(1, 0.0)
        assert not pace.is_shared()
        assert stays.read(1, 0.0)


def test_quiet_is_a_record_that_neither_brings_nor_releases_anything() -> None:
    assert _is_quiet(RECORD, LATER)
    assert not _is_quiet(RECORD, replace(LATER, high=(3, 5)))
    assert not _is_quiet(RECORD, replace(LATER, ddl_high=2))
    landed_above = replace(RECORD, low=(3, 3))
    assert not _is_quiet(landed_above, replace(LATER, low=(3, 4)))


class Tail:
    """Hands out the records that are put into it."""

    def __init__(self) -> None:
        self.records = queue.Queue[FrontierRecord]()
        self.waits_s: list[float] = []

    def read(self, count: int, timeout_s: float) -> list[FrontierRecord]:
        self.waits_s.append(timeout_s)
        try:
            return [self.records.get(timeout=min(timeout_s, 0.02))]
        except queue.Empty:
            return []


@pytest.fixture
def tail(monkeypatch: pytest.MonkeyPatch) -> Tail:
    tail = Tail()
    monkeypatch.setattr(frontier_window, "FrontierTail", lambda *_: contextlib.nullcontext(tail))
    return tail


def landed(number: int) -> FrontierRecord:
    return replace(RECORD, resolved_ts=Ts(number), low=(3, number), high=(3, number))


def test_epochs_of_all_end_at_the_beats_of_the_window_which_are_as_far_apart_as_it_is_told(tail: Tail) -> None:
    rest_s = [3600.0]
    window = FrontierWindow({}, "frontier", 0, lambda _: rest_s[0])
    try:
        tail.records.put(landed(10))
        assert window.await_beat(0, 60.0, "one")
        assert window.read(0, 100, "one") == [landed(10)]
        for number in (11, 12):
            tail.records.put(landed(number))
        while not tail.records.empty():
            time.sleep(0.001)
        assert not window.await_beat(1, 0.1, "one")
        assert window.read(1, 100, "one") == []
        rest_s[0] = 0.0
        assert window.await_beat(1, 60.0, "one"), "though no other record comes"
        assert window.read(1, 100, "one") == [landed(11), landed(12)]
        assert window.read(1, 1, "one") == [landed(11)]
    finally:
        window.close()


def test_alone_a_record_that_has_landed_is_a_beat_at_once_and_the_quiet_one_a_while_after_the_last(tail: Tail) -> None:
    window = FrontierWindow({}, "frontier", 0)
    try:
        for number in range(3):
            tail.records.put(landed(10 + number))
            assert window.await_beat(number, 60.0, "one")
            assert window.read(number, 9, "one") == [landed(10 + number)]
        kept, _ = window._beats[""]
        beat_at_s = kept.set_at_s
        quiet = replace(landed(12), resolved_ts=Ts(13))
        tail.records.put(quiet)
        assert window.await_beat(3, 60.0, "one")
        assert window.read(3, 9, "one") == [quiet]
        assert kept.set_at_s - beat_at_s >= QUIET_S
    finally:
        window.close()


def taken(tail: Tail, *numbers: int) -> None:
    """Let the window take records that have landed."""
    for number in numbers:
        tail.records.put(landed(number))
    asked = len(tail.waits_s)
    while not tail.records.empty() or len(tail.waits_s) < asked + 2:
        time.sleep(0.001)


def test_window_knows_places_between_the_first_and_the_last_record_that_it_keeps(tail: Tail) -> None:
    window = FrontierWindow({}, "frontier", 7)
    try:
        taken(tail, *range(10, 310))
        assert [window.find(Ts(ts)) for ts in (9, 264, 265, 308)] == [None, None, 263, 306]
        assert window.find(Ts(309)) is None, "what has come since may be no later"
        before = [window.record_before(offset) for offset in (7 + 255, 7 + 256, 7 + 300)]
        assert [None if record is None else record.resolved_ts for record in before] == [None, 265, 309]
        assert window.record_before(7 + 301) is None
    finally:
        window.close()


def test_window_of_a_topic_that_went_back_gives_the_place_below_the_higher_record(tail: Tail) -> None:
    window = FrontierWindow({}, "frontier", 7)
    try:
        taken(tail, *range(10, 310))
        for ts in (315, 311):  # nobody acknowledged the first of these, so its owner said once more where it stood
            tail.records.put(replace(landed(310), resolved_ts=Ts(ts)))
        taken(tail, *range(316, 320))
        assert window.find(Ts(311)) == 307, "behind the second, a reader would stand at 315"
        assert window.find(Ts(315)) == 309
    finally:
        window.close()


def test_beat_waits_for_all_who_were_told_of_the_last_one_so_that_they_run_the_same_cuts(tail: Tail) -> None:
    window = FrontierWindow({}, "frontier", 0)
    try:
        taken(tail, 10)
        assert all(window.await_beat(0, 60.0, who) for who in ("first", "second", "third"))
        assert window.read(0, 100, "first") == [landed(10)]
        taken(tail, 11, 12)
        assert not window.await_beat(1, 0.0, "first"), "two have not read it, and wait for a permit perhaps"
        assert window.read(0, 100, "second") == [landed(10)]
        window.leave("third")
        assert window.await_beat(1, 0.0, "first"), "with no other record to come"
        assert window.read(1, 100, "first") == [landed(11), landed(12)]
    finally:
        window.close()


def test_beat_is_set_by_the_first_who_reads_so_that_it_is_of_what_is_there_then(tail: Tail) -> None:
    window = FrontierWindow({}, "frontier", 0)
    try:
        taken(tail, 10)
        assert all(window.await_beat(0, 60.0, who) for who in ("first", "second"))
        taken(tail, 11)  # while both wait for a permit
        assert window.read(0, 100, "first") == [landed(10), landed(11)]
        taken(tail, 12)
        assert window.read(0, 100, "second") == [landed(10), landed(11)]
    finally:
        window.close()


def test_protocols_wait_for_none_of_each_other(tail: Tail) -> None:
    window = FrontierWindow({}, "frontier", 0)
    try:
        taken(tail, 10)
        for protocol in ("avro", "simple"):
            assert window.await_beat(0, 60.0, protocol, protocol)
        assert window.read(0, 100, "avro", "avro") == [landed(10)]
        taken(tail, 11)
        assert window.await_beat(1, 0.0, "avro", "avro")
        assert window.read(1, 100, "avro", "avro") == [landed(11)]
        assert window.read(0, 100, "simple", "simple") == [landed(10), landed(11)]
    finally:
        window.close()


def test_crowd_follows_the_beats_of_each_ones_protocol_and_waits_for_none_of_before(
    tail: Tail, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, pace = FrontierWindow({}, "frontier", 0), EpochPace(1)
    following = [WindowFollower(window, cast(FrontierSource, None), 0, pace, name) for name in ("avro", "simple")]
    try:
        taken(tail, 10)
        with following[0] as runs, following[1] as waits:
            assert runs.read(100, 60.0) == [landed(10)]
            assert waits.read(100, 0.0) == [], "it is told of everybody's beat"
            monkeypatch.setattr(epoch_pace, "CROWD", 1)
            taken(tail, 11)
            assert waits.read(100, 0.0) == []
            assert runs.read(100, 0.0) == [], "its permit is the other's"
            assert waits.read(100, 60.0) == [landed(10), landed(11)]
            assert set(window._beats) == {"", "avro", "simple"}
            assert not window._beats[""][0].is_wanted()
    finally:
        window.close()


def test_who_runs_a_cut_is_not_waited_for(tail: Tail) -> None:
    window = FrontierWindow({}, "frontier", 0)
    try:
        taken(tail, 10)
        for who in ("runs long", "keeps up"):
            assert window.await_beat(0, 60.0, who)
            assert window.read(0, 100, who) == [landed(10)]
        for at in (1, 2):
            taken(tail, 10 + at)
            assert window.await_beat(at, 0.0, "keeps up")
            assert window.read(at, 100, "keeps up") == [landed(10 + at)]
        assert window.read(1, 100, "runs long") == [landed(11), landed(12)]
    finally:
        window.close()


def test_beat_waits_for_a_bounded_time(tail: Tail, monkeypatch: pytest.MonkeyPatch) -> None:
    window = FrontierWindow({}, "frontier", 0)
    try:
        taken(tail, 10)
        assert all(window.await_beat(0, 60.0, who) for who in ("never reads", "one"))
        assert window.read(0, 100, "one") == [landed(10)]
        taken(tail, 11)
        assert not window.await_beat(1, 0.0, "one")
        monkeypatch.setattr(beats, "BEAT_WAIT_MAX_S", 0.0)
        assert window.await_beat(1, 60.0, "one"), "with no other record to come"
    finally:
        window.close()


def test_follower_that_finds_no_permit_holds_the_beat_until_it_leaves(tail: Tail) -> None:
    window, pace = FrontierWindow({}, "frontier", 0), EpochPace(1)
    following = [WindowFollower(window, cast(FrontierSource, None), 0, pace) for _ in range(2)]
    try:
        taken(tail, 10)
        with following[0] as runs:
            assert runs.read(100, 60.0) == [landed(10)]
            with following[1] as waits:
                assert waits.read(100, 0.0) == []
                taken(tail, 11)
                assert not window.await_beat(1, 0.0, "one")
            assert window.await_beat(1, 0.0, "one")
    finally:
        window.close()


def test_epochs_of_many_that_are_behind_end_at_marks_and_of_those_that_are_not_at_the_beat(tail: Tail) -> None:
    """So they run the same cuts, and each of them a cut that is small enough to be kept for the others."""
    window = FrontierWindow({}, "frontier", 0, record_bytes=lambda: CUT_BYTES / 2)
    try:
        taken(tail, *range(10, 17))
        for number in range(CROWD):
            assert window.await_beat(number % 2, 60.0, number)
        assert window.read(0, 100, 0) == [landed(number) for number in (10, 11, 12)]
        assert window.read(1, 100, 1) == [landed(number) for number in (11, 12)]
        assert window.read(6, 100, 2) == [landed(16)]
        window.leave(3)
        assert window.read(1, 100, 1) == [landed(number) for number in range(11, 17)], "they are no crowd any more"
    finally:
        window.close()
