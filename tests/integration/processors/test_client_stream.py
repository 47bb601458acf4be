"""The client library over a real Kafka: repeats, a crash before the commit, and members that come and go."""

import hashlib
import threading
import time
from collections.abc import Callable
from functools import reduce
from operator import xor
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from compose.stack.local import Addresses
from consumers.client import ChangeBatch, ChangeStream, Row
from consumers.client import stream as client_stream
from consumers.client.conformance import TOPIC, RowKey, example_stream
from consumers.client.core.partition import StreamRecord
from consumers.client.errors import NoPositionError, StreamUnavailableError
from consumers.client.materialised import MaterialisedTable, TableProof
from schemas.ids import Ts
from schemas.sink.position import POSITION_HEADER
from tests.support.rawlog.raw_log import create_topic

DEADLINE_S = 240.0


def write(kafka: str, topic: str, records: list[StreamRecord]) -> None:
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5, "enable.idempotence": True})
    for record in records:
        headers: dict[str, str | bytes | None] = {POSITION_HEADER: record.position}
        producer.produce(topic, record.value, record.key, record.topic_partition.partition, headers=headers)
    assert producer.flush(120) == 0


class Shown:
    """Rows of a destination that refuses a second insert."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, str] = {}

    def apply(self, batch: ChangeBatch) -> None:
        for change in batch.changes:
            assert isinstance(change, Row)
            key = change.table, str(change.columns["id"])
            assert (key in self.rows) == (change.op != "insert"), change
            if change.op == "delete":
                del self.rows[key]
            else:
                self.rows[key] = change.columns["v"]


def test_change_stream_of_repeats_when_readers_crash_before_their_commits_gives_each_change_once(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    for seed in (3, 11, 42):
        topic, example = fresh_name(TOPIC), example_stream(seed)
        create_topic(stack.kafka, topic, len(example.logs))
        write(stack.kafka, topic, [record for log in example.logs.values() for record in log])
        shown, crashes = Shown(), 2
        deadline, reached = time.monotonic() + DEADLINE_S, 0
        while reached < example.last_ts:
            assert time.monotonic() < deadline
            with ChangeStream(stack.kafka, [topic], group=f"{topic}-group") as stream:
                while reached < example.last_ts and time.monotonic() < deadline:
                    batch = stream.poll(5.0)
                    if batch is None:
                        continue
                    if crashes:
                        crashes -= 1
                        break  # got, not applied, not committed
                    shown.apply(batch)
                    stream.commit(batch)
                    reached = batch.watermark_ts
                    assert shown.rows == example.contents(reached)
        assert crashes == 0


def test_materialised_tables_of_a_stream_with_repeats_have_the_proof_of_what_upstream_holds(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    topic, example = fresh_name(TOPIC), example_stream(11)
    create_topic(stack.kafka, topic, len(example.logs))
    write(stack.kafka, topic, [record for log in example.logs.values() for record in log])
    held = example.contents(example.last_ts)
    names = {name for name, _ in held}
    assert len(names) == 2
    for number, name in enumerate(names):
        with ChangeStream(stack.kafka, [topic], group=f"{topic}-{number}") as stream:
            table = MaterialisedTable("test", name).read(stream, Ts(example.last_ts))
        texts = [f"{key.encode().hex()},{value.encode().hex()}" for (of, key), value in held.items() if of == name]
        hashes = [int(hashlib.md5(text.upper().encode()).hexdigest()[:16], 16) for text in texts]
        assert table.watermark_ts >= example.last_ts
        assert table.proof() == TableProof(len(texts), reduce(xor, hashes))


def test_change_stream_of_a_group_when_a_member_leaves_is_read_on_by_the_other_from_what_was_committed(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name(TOPIC)
    example = next(stream for stream in map(example_stream, range(100)) if len(stream.logs) == 4)
    create_topic(stack.kafka, topic, 4)
    lock, rows = threading.Lock(), Shown()
    shares: dict[str, int] = {}
    stop = {"one": threading.Event(), "two": threading.Event()}

    def member(name: str) -> None:
        with ChangeStream(stack.kafka, [topic], group=f"{topic}-group") as stream:
            while not stop[name].is_set():
                batch = stream.poll(0.2)
                shares[name] = len(stream.partitions)
                if batch is not None:
                    with lock:
                        rows.apply(batch)
                    stream.commit(batch)
        shares[name] = 0

    threads = [threading.Thread(target=member, args=(name,), daemon=True) for name in stop]
    for thread in threads:
        thread.start()
    wait_until(lambda: shares == {"one": 2, "two": 2})
    halves = [(log[: len(log) // 2], log[len(log) // 2 :]) for log in example.logs.values()]
    write(stack.kafka, topic, [record for first, _ in halves for record in first])
    wait_until(lambda: bool(rows.rows))
    stop["one"].set()
    wait_until(lambda: shares == {"one": 0, "two": 4})
    write(stack.kafka, topic, [record for _, rest in halves for record in rest])
    wait_until(lambda: rows.rows == example.contents(example.last_ts))
    stop["two"].set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)


def test_change_stream_of_a_topic_without_position_headers_names_the_record(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name(TOPIC)
    create_topic(stack.kafka, topic, 1)
    producer = Producer({"bootstrap.servers": stack.kafka, "enable.idempotence": True})
    producer.produce(topic, b"{}")
    assert producer.flush(120) == 0
    with (
        ChangeStream(stack.kafka, [topic], group=f"{topic}-group") as stream,
        pytest.raises(NoPositionError, match=f"topic={topic}, partition=0, offset=0"),
    ):
        stream.poll(DEADLINE_S)


class AnswersLate(Consumer):
    """Does not tell at first what its group has committed."""

    asked = 0

    def committed(self, *args: Any, **settings: Any) -> Any:
        self.asked += 1
        if self.asked <= 3:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return super().committed(*args, **settings)


def test_change_stream_of_a_group_whose_commits_are_not_told_at_once_begins_once_they_are(
    stack: Addresses, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, example = fresh_name(TOPIC), example_stream(3)
    create_topic(stack.kafka, topic, len(example.logs))
    write(stack.kafka, topic, [record for log in example.logs.values() for record in log])
    monkeypatch.setattr(client_stream, "kafka_consumer", AnswersLate)
    shown, reached, failures = Shown(), 0, 0
    deadline = time.monotonic() + DEADLINE_S
    with ChangeStream(stack.kafka, [topic], group=f"{topic}-group") as stream:
        while reached < example.last_ts:
            assert time.monotonic() < deadline
            try:
                batch = stream.poll(1.0)
            except StreamUnavailableError:
                failures += 1
                continue
            if batch is not None:
                shown.apply(batch)
                reached = batch.watermark_ts
    assert failures > 0
    assert shown.rows == example.contents(reached)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
