"""The sink's writer waits for a slow broker without using CPU, and for no batch to fill; the broker is librdkafka's."""

import contextlib
import gc
import time
from pathlib import Path

import pyarrow as pa
import pytest

from sorters.core.records.order import OUTPUT_SCHEMA
from sorters.cut import sink_writer
from sorters.cut.sink_writer import SinkWriter

ANSWER_MS = 100
ROW_BYTES = 1_000
PARTITIONS = 4
"""Of each topic of librdkafka's own broker."""


def _writer(answer_ms: int) -> SinkWriter:
    return SinkWriter(
        {
            "bootstrap.servers": "",
            "test.mock.num.brokers": 1,
            "test.mock.broker.rtt": answer_ms,
            "acks": -1,
            "enable.idempotence": True,
        }
    )


def _records(topics: list[str], rows: int) -> pa.Table:
    """Return rows dealt out over all partitions of the topics."""
    columns = [
        [topics[row % len(topics)] for row in range(rows)],
        [row // len(topics) % PARTITIONS for row in range(rows)],
        [None] * rows,
        [bytes(ROW_BYTES)] * rows,
        [row.to_bytes(8, "big") for row in range(rows)],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OUTPUT_SCHEMA, strict=True)]
    return pa.table(arrays, schema=OUTPUT_SCHEMA)


def test_sink_writer_takes_no_core_while_a_slow_broker_has_all_it_may_have() -> None:
    writer = _writer(ANSWER_MS)
    writer.write(_records(["warm"], 1))
    writer.finish()
    records = _records(["rows"], 5 * sink_writer.QUEUE_KIB * 1024 // ROW_BYTES // 4)
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    writer.write(records)
    writer.finish()
    elapsed_s, cpu_s = time.monotonic() - started_s, time.process_time() - started_cpu_s
    assert elapsed_s > 5 * ANSWER_MS / 1_000, "the broker was not slow"
    assert cpu_s < elapsed_s / 4


def test_sink_writer_with_a_queue_full_of_partial_batches_sends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_writer, "LINGER_MS", 600_000)
    writer = _writer(0)
    topics = [f"rows{number}" for number in range(16)]
    rows = 3 * sink_writer.QUEUE_KIB * 1024 // ROW_BYTES // 2
    assert rows * ROW_BYTES // len(topics) // PARTITIONS < sink_writer.BATCH_BYTES, "no batch is full"
    started_s = time.monotonic()
    writer.write(_records(topics, rows))
    writer.finish()
    assert time.monotonic() - started_s < 60


def test_sink_writer_that_is_abandoned_leaves_no_thread_of_its_client() -> None:
    gc.collect()  # clients of other tests
    before = _client_threads()
    writer = _writer(ANSWER_MS)
    writer.write(_records(["rows"], 100))
    assert _client_threads() > before
    for _ in range(2):
        writer.abandon()
        assert _client_threads() <= before


def _client_threads() -> int:
    """Return how many librdkafka has in this process; each client has one of this name."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            count += task.joinpath("comm").read_text() == "rdk:main\n"
    return count
