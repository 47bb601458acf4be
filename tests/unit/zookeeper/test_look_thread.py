"""The thread of a reign that looks again and again: what ends it, what it passes over, and what it says."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from consumers.control.cluster.look_thread import LookThread
from edges.zookeeper.session import LeaseLostError
from schemas.errors import Action, BusError, InvariantBrokenError

WAIT_S = 10.0


class PassingError(BusError):
    code = "test.passing"
    action = Action.RETRY


class Looked:
    """Does what it is told look by look, and then nothing; counts."""

    def __init__(self, *does: Callable[[], None]) -> None:
        self._does, self.times = list(does), 0
        self._more = threading.Condition()

    def look(self) -> None:
        with self._more:
            self.times += 1
            self._more.notify_all()
        if self._does:
            self._does.pop(0)()

    def wait(self, times: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: self.times >= times, WAIT_S)


@contextmanager
def looking(looked: Looked, fatal: list[BusError]) -> Iterator[LookThread]:
    thread = LookThread("test things", looked.look, fatal.append, rest_s=0.001)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def fail(error: Exception) -> Callable[[], None]:
    def raised() -> None:
        raise error

    return raised


def ended() -> bool:
    return not any(thread.name == "test-things" for thread in threading.enumerate())


def wait_ended() -> None:
    for thread in threading.enumerate():
        if thread.name == "test-things":
            thread.join(WAIT_S)
    assert ended()


def test_error_that_may_pass_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    looked, fatal = Looked(fail(PassingError("no answer")), fail(PassingError("no answer"))), list[BusError]()
    with caplog.at_level(logging.INFO), looking(looked, fatal):
        looked.wait(4)
    assert fatal == []
    assert [record.getMessage() for record in caplog.records] == [
        "test things cannot be looked at",
        "test things can be looked at again",
    ]


def test_lost_lease_ends_it_and_is_nobodys_failure(caplog: pytest.LogCaptureFixture) -> None:
    looked, fatal = Looked(fail(LeaseLostError("the session is over"))), list[BusError]()
    with looking(looked, fatal):
        wait_ended()
    assert (looked.times, fatal) == (1, [])
    assert [record.getMessage() for record in caplog.records] == ["test things are not looked at any more"]


@pytest.mark.parametrize("bug", [KeyError("table"), InvariantBrokenError("two owners")])
def test_bug_ends_it_and_is_told(bug: Exception) -> None:
    looked, fatal = Looked(fail(bug)), list[BusError]()
    with looking(looked, fatal):
        wait_ended()
    assert looked.times == 1
    [error] = fatal
    assert isinstance(error, InvariantBrokenError)
    assert ("table" in str(error)) == isinstance(bug, KeyError)


def test_stop_waits_for_the_look_that_is_under_way() -> None:
    going_on, begun, over = threading.Event(), threading.Event(), list[bool]()

    def long() -> None:
        begun.set()
        going_on.wait(WAIT_S)
        over.append(True)

    looked = Looked(long)
    with looking(looked, []):
        assert begun.wait(WAIT_S)
        threading.Timer(0.05, going_on.set).start()
    assert over
    assert ended()


def test_one_that_was_never_started_can_be_stopped() -> None:
    LookThread("test things", lambda: None, lambda _: None, rest_s=0.001).stop()
