"""Rows whose message is larger than the topic between sorter and processors takes: put there in parts."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from schemas.config.sink.kafka import MESSAGE_OVERHEAD_BYTES
from schemas.sink.parts import cut_message
from sorters.core.columnar.spans import spans_of
from sorters.core.records.order import (
    OUTPUT_SCHEMA,
    OutputRecords,
    column_of,
    make_records,
    one_behind_other,
    topics_of,
)


def in_parts(records: OutputRecords, limit: Callable[[str], int]) -> OutputRecords:
    """Return the records in their order, each one of a row that is too large as its parts (:mod:`schemas.sink.parts`).

    Args:
        limit: the largest message that a topic takes: key, value and overhead.
    """
    sizes = sum(spans_of(column_of(records, name)).length for name in ("key", "value", "position"))
    number, topics = topics_of(records)
    room = np.array([limit(topic) for topic in topics], np.int64)[number] - MESSAGE_OVERHEAD_BYTES
    tables, at = list[OutputRecords](), 0
    for row in np.flatnonzero(sizes > room).tolist():
        if not records.column("key")[row].is_valid:
            continue  # no row: a DDL event is never in parts
        tables += [records.slice(at, row - at), _cut(records.slice(row, 1), int(room[row]))]
        at = row + 1
    return one_behind_other([*tables, records.slice(at)]) if tables else records


def _cut(record: OutputRecords, room: int) -> OutputRecords:
    topic, partition, key, value, position = (column[0] for column in record.columns)
    parts = list(cut_message(key.as_py(), memoryview(value.as_buffer()), room - len(position.as_py())))
    keys, values = zip(*parts, strict=True)
    repeated = (pa.repeat(column, len(parts)) for column in (topic, partition, position))
    columns = dict(zip(("topic", "partition", "position"), repeated, strict=True))
    columns |= {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    return make_records([columns[name] for name in OUTPUT_SCHEMA.names])
