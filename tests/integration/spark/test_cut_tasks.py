"""The writing step of a cut's Spark job, without Spark: what it leaves in a topic when it is given up midway."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from compose.stack.local import Addresses
from sorters.core.records.order import OUTPUT_SCHEMA
from sorters.core.records.runs import pack_run, split_runs
from sorters.spark.tasks.two_steps import WriteTask, write_runs
from tests.support.rawlog.raw_log import create_topic, read_topic

ROWS = 60_000


def _task(kafka: str) -> WriteTask:
    config = {"bootstrap.servers": kafka, "acks": -1, "enable.idempotence": True}
    return WriteTask(
        may_repeat=False,
        folder=None,
        row_join=None,
        sink_config=config,
        batch_bytes=100_000,
        memory_bytes_max=1_000_000,
    )


def _blocks(topic: str) -> Iterator[bytes]:
    numbers = [number.to_bytes(8, "big") for number in range(ROWS)]
    columns = [[topic] * ROWS, [0] * ROWS, numbers, [b"v" * 100] * ROWS, numbers]
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, OUTPUT_SCHEMA, strict=True)],
        schema=OUTPUT_SCHEMA,
    )
    for _, run in split_runs(table, 1):
        yield pack_run(run).to_pybytes()


def test_write_runs_given_up_midway_leaves_a_start_that_the_next_try_repeats(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("sink")
    create_topic(stack.kafka, topic, 1)
    signs = write_runs(_blocks(topic), _task(stack.kafka))
    next(signs)
    signs.close()  # as Spark does with a task that was killed
    for _ in write_runs(_blocks(topic), _task(stack.kafka)):
        pass
    written = [int.from_bytes(record.position, "big") for record in read_topic(stack.kafka, topic)]
    given_up = len(written) - ROWS
    assert given_up < ROWS
    assert written == [*range(given_up), *range(ROWS)]
