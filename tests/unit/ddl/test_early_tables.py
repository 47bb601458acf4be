"""The thread that reads the TableInfos of jobs that take effect before they are done."""

import json
import queue
from collections.abc import Callable, Iterator

import pytest

from producers.errors import PdUnreachableError, SnapshotFailedError
from producers.pull.core.ddl.meta_snapshot import KeyValue
from producers.pull.ddl import early_tables
from producers.pull.ddl.early_tables import EarlyTables, ScanAt
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.info_json import JsonObject
from schemas.tidb.keys import meta_hash_key

JOB = DdlRecord(kind="job", ts=Ts(30), payload={"id": 7, "schema_id": 2, "table_id": 100})
KEY = meta_hash_key(b"DB:2", b"Table:100")
INFO = {"id": 100, "name": {"O": "t", "L": "t"}}
Answer = list[KeyValue] | Exception
Answered = tuple[DdlRecord, JsonObject | None]
Over = Callable[[ScanAt], EarlyTables]
Read = Callable[..., Answered]


class Store:
    """Gives one answer after the other; the last one again and again."""

    def __init__(self, *pages: Answer) -> None:
        self.pages = list(pages)
        self.asked: list[tuple[Ts, bytes, bytes]] = []

    def scan(self, ts: Ts, start: bytes, end: bytes) -> list[KeyValue]:
        self.asked.append((ts, start, end))
        answer = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_tables, "RETRY_S", 0.0)


@pytest.fixture
def answers() -> "queue.Queue[Answered]":
    return queue.Queue()


@pytest.fixture
def over(answers: "queue.Queue[Answered]") -> Iterator[Over]:
    """Return what makes one over a store; it is stopped at the test's end."""
    made: list[EarlyTables] = []

    def make(scan: ScanAt) -> EarlyTables:
        made.append(EarlyTables(scan, lambda record, info: answers.put((record, info))))
        return made[-1]

    yield make
    for tables in made:
        tables.stop()


@pytest.fixture
def read(over: Over, answers: "queue.Queue[Answered]") -> Read:
    """Return what has a job's table read, and waits for it."""

    def ask(store: Store, record: DdlRecord = JOB) -> Answered:
        over(store.scan).ask([record])
        return answers.get(timeout=30)

    return ask


def test_table_is_read_by_its_meta_key_at_the_ts_of_the_row(read: Read) -> None:
    store = Store([(KEY, json.dumps(INFO).encode())])
    assert read(store) == (JOB, INFO)
    assert store.asked == [(30, KEY, KEY + b"\0")]


@pytest.mark.parametrize(
    "trouble",
    [SnapshotFailedError("no leader"), PdUnreachableError("nobody answers"), ValueError("channel is closed")],
)
def test_table_that_cannot_be_read_now_is_tried_again(
    trouble: Exception, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(trouble, trouble, [(KEY, json.dumps(INFO).encode())])
    assert read(store) == (JOB, INFO)
    assert [vars(record)["job_id"] for record in caplog.records] == [7, 7]


@pytest.mark.parametrize("answer", [[], [(KEY, b"no json")]])
def test_table_that_is_not_there_or_does_not_decode_is_none(answer: list[KeyValue], read: Read) -> None:
    assert read(Store(answer)) == (JOB, None)


def test_job_without_ids_of_a_table_has_none(read: Read) -> None:
    record = DdlRecord(kind="job", ts=Ts(30), payload={"id": 7, "schema_id": "2", "table_id": None})
    assert read(Store([]), record) == (record, None)


def test_after_a_trouble_that_is_over_there_is_none(over: Over, answers: "queue.Queue[Answered]") -> None:
    store = Store(SnapshotFailedError("no leader"), [])
    tables = over(store.scan)
    tables.ask([JOB])
    assert answers.get(timeout=30) == (JOB, None)
    assert tables.trouble == ""
    tables.stop()


def test_record_that_was_read_is_read_again_when_it_is_asked_for_again(
    over: Over, answers: "queue.Queue[Answered]"
) -> None:
    store = Store([])
    tables = over(store.scan)
    for _ in range(2):
        tables.ask([JOB])
        assert answers.get(timeout=30) == (JOB, None)
    tables.stop()
    assert len(store.asked) == 2


def test_after_the_stop_nothing_is_found_any_more(over: Over, answers: "queue.Queue[Answered]") -> None:
    tried = queue.Queue[Ts]()

    def away(ts: Ts, start: bytes, end: bytes) -> list[KeyValue]:
        tried.put(ts)
        raise SnapshotFailedError("no leader")

    tables = over(away)
    tables.ask([JOB])
    assert [tried.get(timeout=30) for _ in range(2)] == [30, 30]
    assert "job 7 cannot be read yet" in tables.trouble and "no leader" in tables.trouble
    tables.stop()
    tables.stop()
    assert answers.empty()
