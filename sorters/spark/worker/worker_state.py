"""What a Python worker keeps from one task to the next: Kafka clients, and programs of changefeeds."""

import gc
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from edges.kafka.offsets import TopicReader
from sorters.cut.record_writer import RecordWriter, record_writer
from sorters.cut.worker import FeedProgram
from sorters.log.raw_topic_reader import raw_topic_reader
from sorters.spark.worker.program_sender import SentProgram
from sorters.spark.worker.warm_clients import WarmClients

PROGRAMS_MAX = 128
"""Changefeeds whose program a worker keeps, one each."""

_READERS = WarmClients[TopicReader](TopicReader.close)
_WRITERS = WarmClients[RecordWriter](lambda writer: writer.abandon())


def lend_reader(config: Mapping[str, object], topic: str) -> AbstractContextManager[TopicReader]:
    """Lend a reader of a raw topic; ``config`` is librdkafka's. Writers that wait take in what their clients say: each
    task reads, and Spark gives tasks to the worker that waited longest, or ends it after a minute.
    """
    for writer in _WRITERS.waiting():
        writer.tend()
    return _READERS.lend((_key(config), topic), lambda: raw_topic_reader(dict(config), topic))


def lend_writer(config: Mapping[str, object], batch_bytes: int) -> AbstractContextManager[RecordWriter]:
    """Lend a writer; ``config`` is librdkafka's, of a producer that keeps the order, or of no sink at all."""
    return _WRITERS.lend((_key(config), batch_bytes), lambda: record_writer(config, batch_bytes=batch_bytes))


def _key(config: Mapping[str, object]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(config.items()))


@dataclass(frozen=True, slots=True)
class _Kept:
    numbers: tuple[int, int]
    """Of the broadcasts that it was made of."""
    schemas: Any
    program: FeedProgram


_PROGRAMS: OrderedDict[str, _Kept] = OrderedDict()


def unpacked(sent: SentProgram) -> FeedProgram:
    """Return a changefeed's program, which is unpickled only where this worker has another one of it, or none.

    pyspark drops each broadcast that the next task does not name, and the next task may be another changefeed's.
    Python's collector does not go through it; what it would cost with very many tables:
    docs/decisions/2026-11-22-small-cuts-on-the-driver.md.
    """
    numbers = sent.base.number, sent.rest.number
    kept = _PROGRAMS.pop(sent.owner, None)
    if kept is None or kept.numbers != numbers:
        is_new_base = kept is None or kept.numbers[0] != numbers[0]
        gc.disable()
        try:
            schemas = sent.base.value if kept is None or is_new_base else kept.schemas
            kept = _Kept(numbers, schemas, sent.load(schemas))
        finally:
            gc.enable()
        if is_new_base:
            gc.freeze()  # nothing of schemas refers to itself, so they can still go
    _PROGRAMS[sent.owner] = kept
    while len(_PROGRAMS) > PROGRAMS_MAX:
        _PROGRAMS.popitem(last=False)
    return kept.program
