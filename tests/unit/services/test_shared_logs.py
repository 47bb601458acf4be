"""Raw logs of a service: opened once for all who ask, closed in the background, and its loop waits for neither."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest

from edges.kafka.errors import KafkaUnreachableError
from schemas.ids import Ts, UpstreamId
from sorters.service import shared_logs
from sorters.service.shared_log import SharedLog
from sorters.service.shared_logs import LOG_IDLE_S, SharedLogs

AWAIT_S = 60.0
ONE, OTHER = UpstreamId("one"), UpstreamId("other")
FEEDS = 4


class Log:
    """Stands for a :class:`SharedLog`, and hands itself out as what is read by."""

    def __init__(self) -> None:
        self.users, self.idle, self.is_broken = 0, 0.0, False
        self.may_close, self.begun_to_close, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.may_close.set()
        self.closed_by: threading.Thread | None = None

    def enter(self) -> None:
        assert not self.begun_to_close.is_set(), "nobody gets what is being closed"
        self.users += 1

    def leave(self) -> None:
        self.users -= 1

    def idle_s(self) -> float:
        return 0.0 if self.users else self.idle

    def sources(self, checkpoint_ts: Ts, protocol: str) -> "Log":
        assert self.users, "whoever asks it is in it"
        self.enter()
        return self

    def close(self) -> None:
        self.closed_by = threading.current_thread()
        self.begun_to_close.set()
        assert self.may_close.wait(AWAIT_S)
        self.closed.set()


class Kafka:
    """Opens logs, those of ``slow`` upstreams once it may, and fails while it is away."""

    def __init__(self, *slow: UpstreamId) -> None:
        self.slow, self.is_away = set(slow), False
        self.opened: list[UpstreamId] = []
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def open(self, upstream: UpstreamId) -> SharedLog:
        self.opened.append(upstream)
        if upstream in self.slow:
            self.asked.set()
            assert self.may_answer.wait(AWAIT_S)
        if self.is_away:
            raise KafkaUnreachableError("kafka did not answer", topic=upstream)
        return cast("SharedLog", Log())


class Waited(Future[None]):
    """Counts who waits for an opening."""

    waiters = threading.Semaphore(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.waiters.release()
        return super().exception(timeout)


def ask(logs: SharedLogs, upstream: UpstreamId = ONE) -> Log:
    return cast("Log", logs.sources(upstream, Ts(1), "canal-json"))


@contextmanager
def feeds_that_wait(logs: SharedLogs, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Future[Log]]]:
    """Let changefeeds begin together: one of them asks Kafka, which has not answered yet, and the others wait."""
    monkeypatch.setattr(Waited, "waiters", threading.Semaphore(0))
    monkeypatch.setattr(shared_logs, "Future", Waited)
    with ThreadPoolExecutor(FEEDS) as pool:
        try:
            asked = [pool.submit(ask, logs) for _ in range(FEEDS)]
            assert kafka.asked.wait(AWAIT_S)
            for _ in range(FEEDS - 1):
                assert Waited.waiters.acquire(timeout=AWAIT_S)
            yield asked
        finally:
            kafka.may_answer.set()


def in_time(logs: SharedLogs) -> None:
    """Look for idle logs as the service's loop does, which must not stand."""
    looking = threading.Thread(target=logs.close_idle, daemon=True)
    looking.start()
    looking.join(AWAIT_S)
    assert not looking.is_alive(), "the loop waits for Kafka"


def test_changefeeds_that_begin_together_wait_for_one_opening_and_the_loop_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = Kafka(ONE)
    logs = SharedLogs(kafka.open)
    with feeds_that_wait(logs, kafka, monkeypatch) as asked:
        in_time(logs)
        other = ask(logs, OTHER)
        assert not any(each.done() for each in asked)
        kafka.may_answer.set()
        got = [each.result(AWAIT_S) for each in asked]
    assert kafka.opened == [ONE, OTHER]
    assert (len(set(got)), got[0].users, other.users) == (1, FEEDS, 1)


def test_opening_that_fails_is_told_to_all_who_waited_and_the_next_one_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = Kafka(ONE)
    kafka.is_away = True
    logs = SharedLogs(kafka.open)
    with feeds_that_wait(logs, kafka, monkeypatch) as asked:
        in_time(logs)
        kafka.may_answer.set()
        failures = [each.exception(AWAIT_S) for each in asked]
    assert {(type(failure), str(failure)) for failure in failures} == {
        (KafkaUnreachableError, "[sorter.kafka_unreachable] kafka did not answer (topic=one)")
    }
    assert len({id(failure) for failure in failures}) == FEEDS, "each logs where it stood itself"
    assert kafka.opened == [ONE]
    kafka.is_away = False
    assert ask(logs).users == 1
    assert kafka.opened == [ONE, ONE]


def test_broken_log_is_replaced_and_closed_once_its_last_changefeed_has_left() -> None:
    kafka = Kafka()
    logs = SharedLogs(kafka.open)
    broken = ask(logs)
    broken.is_broken = True
    assert ask(logs) is not broken
    logs.close_idle()
    assert not broken.begun_to_close.is_set()
    broken.leave()
    broken.idle = 0.1
    logs.close_idle()
    assert broken.closed.wait(AWAIT_S)
    assert kafka.opened == [ONE, ONE]


def test_idle_log_is_closed_after_its_time_by_a_thread_of_its_own_while_the_loop_goes_on() -> None:
    kafka = Kafka()
    logs = SharedLogs(kafka.open)
    first = ask(logs)
    first.idle = LOG_IDLE_S + 1
    logs.close_idle()
    assert not first.begun_to_close.is_set(), "somebody reads by it"
    first.leave()
    first.idle = LOG_IDLE_S - 1
    logs.close_idle()
    assert ask(logs) is first
    first.leave()
    first.idle = LOG_IDLE_S + 1
    first.may_close.clear()
    in_time(logs)
    assert first.begun_to_close.wait(AWAIT_S)
    assert first.closed_by is not threading.current_thread()
    in_time(logs)
    second = ask(logs)
    assert second is not first
    first.may_close.set()
    logs.close()
    assert first.closed.is_set() and second.closed.is_set()


def test_end_waits_for_what_is_being_closed_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = Kafka()
    logs = SharedLogs(kafka.open)
    stuck, sound = ask(logs), ask(logs, OTHER)
    stuck.may_close.clear()
    monkeypatch.setattr(shared_logs, "CLOSE_LATEST_S", 1.0)
    logs.close()
    assert sound.closed.wait(AWAIT_S) and not stuck.closed.is_set()
    (line,) = caplog.records
    said = cast("Any", line)
    assert (said.levelname, said.logs) == ("WARNING", 1)
    stuck.may_close.set()
    assert stuck.closed.wait(AWAIT_S)


def test_log_that_does_not_close_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    logs = SharedLogs(Kafka().open)
    broken, sound = ask(logs), ask(logs, OTHER)

    def fail() -> None:
        raise OSError("no descriptor")

    cast("Any", broken).close = fail
    logs.close()
    assert sound.closed.is_set()
    assert ["no descriptor" in vars(record)["reason"] for record in caplog.records] == [True]
