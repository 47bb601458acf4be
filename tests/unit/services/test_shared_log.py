"""One upstream's raw log in a service: who begins or ends waits for no check, and a failed one is not repeated."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from edges.kafka.errors import KafkaUnreachableError
from schemas.errors import BusError
from schemas.ids import Ts, UpstreamId
from schemas.rawlog.topics import raw_topics
from sorters.log.failures import HistoryLostError
from sorters.service import shared_log
from sorters.service.shared_log import CHECKED_S, UNREACHABLE_S, SharedLog
from sorters.service.shared_schemas import SharedSchemas

AWAIT_S = 60.0
TOPICS = raw_topics(UpstreamId("u"), "tidebus")


class Store:
    """Schemas, of which only the ts matters from which on they are kept."""

    def __init__(self, snapshot_ts: Ts | None = None) -> None:
        self.snapshot_ts = snapshot_ts

    def copy(self) -> "Store":
        return Store(self.snapshot_ts)

    def gc(self, ts: Ts) -> None:
        assert self.snapshot_ts is not None
        self.snapshot_ts = max(self.snapshot_ts, ts)


class Feed:
    """A ddl topic whose broker answers once it may."""

    def __init__(self) -> None:
        self.store, self.bad = Store(Ts(5)), ()
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.may_answer.set()

    def advance(self, ddl_end: int) -> bool:
        self.asked.set()
        assert self.may_answer.wait(AWAIT_S)
        return True


class Kafka:
    """Answers checks with ``failure``, if there is one, once it may."""

    def __init__(self) -> None:
        self.checks, self.now_s = 0, 1000.0
        self.failure: BusError | None = None
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.may_answer.set()

    def check(self, *_: object) -> None:
        self.checks += 1
        self.asked.set()
        assert self.may_answer.wait(AWAIT_S)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka()
    for name in ("FrontierReader", "FrontierWindow", "RawWindow", "ProofLog", "StateLog"):
        monkeypatch.setattr(shared_log, name, MagicMock())
    monkeypatch.setattr(shared_log, "FrontierReader", lambda *_: SimpleNamespace(first=lambda: 0, end=lambda: 0))
    monkeypatch.setattr("sorters.service.shared_schemas.SchemaFeed", lambda *_: Feed())
    monkeypatch.setattr(shared_log, "SchemaFeed", lambda *_: "own schemas")
    monkeypatch.setattr(shared_log, "check_log_state", kafka.check)
    monkeypatch.setattr(shared_log, "time", SimpleNamespace(monotonic=lambda: kafka.now_s))
    return kafka


def feed_of(schemas: SharedSchemas) -> Feed:
    return cast("Feed", schemas._feed)


@contextmanager
def meanwhile(work: Any, *args: object, asks: Kafka | Feed) -> Iterator[None]:
    """Let another thread work that asks Kafka, which answers at the end."""
    asks.may_answer.clear()
    with ThreadPoolExecutor(1) as pool:
        try:
            working = pool.submit(work, *args)
            assert asks.asked.wait(AWAIT_S)
            yield
            assert not working.done()
        finally:
            asks.may_answer.set()


def in_time(work: Any, *args: object) -> Any:
    """Return what ``work`` comes to, which must not stand."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(work(*args)), daemon=True)
    thread.start()
    thread.join(AWAIT_S / 6)
    assert done, "it waits for Kafka"
    return done[0]


def test_who_begins_and_who_ends_waits_for_no_check(kafka: Kafka) -> None:
    log = SharedLog({}, TOPICS)
    sources = log.sources(Ts(5), "canal-json")
    with meanwhile(log.check, asks=kafka):
        other = in_time(log.sources, Ts(5), "canal-json")
        in_time(sources.close)
        in_time(other.close)
        kafka.now_s += 7
        assert in_time(log.idle_s) == 7


def test_who_begins_and_who_ends_waits_for_nobodys_schemas(kafka: Kafka) -> None:
    log = SharedLog({}, TOPICS)
    first = log.sources(Ts(8), "canal-json")
    feed = feed_of(log._schemas)
    with meanwhile(first.schemas.advance, 3, asks=feed):
        late = in_time(log.sources, Ts(7), "canal-json")
        other = in_time(log.sources, Ts(9), "canal-json")
        assert late.schemas == "own schemas", "what it needs is about to be forgotten"
        assert other.schemas.store.snapshot_ts == 5
        in_time(first.schemas.forget, Ts(20))
        in_time(first.close)
    assert other.schemas.advance(4)
    assert other.schemas.store.snapshot_ts == 9, "as far as the one that came meanwhile lets it"


def test_kafka_that_has_just_not_answered_a_check_is_not_asked_again_for_a_while(kafka: Kafka) -> None:
    log = SharedLog({}, TOPICS)
    kafka.failure = KafkaUnreachableError("no answer", topic="t")
    for _ in range(3):
        with pytest.raises(KafkaUnreachableError, match=r"no answer \(topic=t\)"):
            log.check()
    assert kafka.checks == 1
    kafka.now_s += UNREACHABLE_S
    with pytest.raises(KafkaUnreachableError):
        log.check()
    assert kafka.checks == 2
    kafka.failure = None
    kafka.now_s += UNREACHABLE_S
    log.check()
    log.check()
    assert kafka.checks == 3
    kafka.now_s += CHECKED_S
    log.check()
    assert kafka.checks == 4


def test_check_that_kafka_has_answered_is_made_again_if_it_has_failed(kafka: Kafka) -> None:
    """An operator may have mended meanwhile what it found, and asking takes no time."""
    log = SharedLog({}, TOPICS)
    kafka.failure = HistoryLostError("records are gone")
    for _ in range(2):
        with pytest.raises(HistoryLostError):
            log.check()
    assert kafka.checks == 2
