"""Flow marks: what the watermarks of a cut tell processors of the rows that stand before them in their partition.

Sums are taken of the records in their final order and without repeats, before rows are joined to messages, so that a
processor which holds its rows against them (consumers/processors) has joining, the topic and its own reading in
between. All rows of a partition go through one marker, and its watermark is the last of them.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from schemas.flow.flow_sum import NOTHING, FlowSum
from schemas.ids import Ts
from schemas.sink.flow_mark import FlowMark, marked_watermark
from schemas.sink.message_rows import message_row_ids, sums_of, word_of_form
from schemas.sink.position import POSITION_CLASS_AT, PositionClass
from schemas.sink.sql_rows import HEAD_BYTES, HEADS
from sorters.core.columnar.spans import Bytes, gather, spans_of
from sorters.core.records.order import OutputRecords, column_of, make_records, one_behind_other

_ROWS_AT_ONCE: Final = 8_192
"""So that what numpy makes on the way stays in a processor's cache."""


class FlowMarker:
    """Marks the watermarks of one cut, or of those of its partitions that one task writes; all are of one topic."""

    def __init__(self, after_ts: Ts, writer: str) -> None:
        """The cut begins at ``after_ts``; ``writer`` tells whose rows they are (:mod:`schemas.sink.flow_mark`)."""
        self._after_ts, self._writer = after_ts, writer
        self._sums: dict[int, FlowSum] = {}

    def stream(self, windows: Iterable[OutputRecords]) -> Iterator[OutputRecords]:
        """Yield records that come in their order, and note them."""
        for records in windows:
            self.note(records)
            yield records

    def note(self, records: OutputRecords) -> None:
        """Note the next records of the cut in their order, one row each."""
        if not records.num_rows:
            return
        is_row = _classes(records) == PositionClass.ROW
        count = int(np.count_nonzero(is_row))
        # As good as always what else there is stands behind the rows, and nothing is copied.
        records = records.slice(0, count) if is_row[:count].all() else records.filter(pa.array(is_row))
        for start in range(0, count, _ROWS_AT_ONCE):
            self._add(records.slice(start, _ROWS_AT_ONCE))

    def marked(self, records: OutputRecords) -> OutputRecords:
        """Return messages that rows were joined to, with their watermarks marked: those of whose partition all rows
        are noted.
        """
        if not records.num_rows:
            return records
        marks = np.flatnonzero(_classes(records) == PositionClass.WATERMARK)
        if not len(marks):
            return records
        first, end = int(marks[0]), int(marks[-1]) + 1  # of one position, so side by side in their order
        parts = [records.slice(0, first), self._mark(records.slice(first, end - first)), records.slice(end)]
        return one_behind_other(parts)

    def _add(self, records: OutputRecords) -> None:
        values, forms = spans_of(column_of(records, "value")), column_of(records, "key").dictionary_encode()
        words = np.array([word_of_form(form) for form in forms.dictionary.to_pylist()], np.uint64)
        heads = gather(values.buffer, values.start, HEAD_BYTES).reshape(-1).view(HEADS)
        ids = message_row_ids(heads, values.buffer, values.start + HEAD_BYTES, words[forms.indices.to_numpy()])
        for partition, more in sums_of(ids, column_of(records, "partition").to_numpy()).items():
            self._sums[partition] = self._sums.get(partition, NOTHING) + more

    def _mark(self, watermarks: OutputRecords) -> OutputRecords:
        topics, partitions, keys, _, positions = (column.to_pylist() for column in watermarks.columns)
        ts = Ts(int.from_bytes(positions[0][:POSITION_CLASS_AT], "big"))
        values = [
            marked_watermark(ts, FlowMark(self._after_ts, self._sums.get(partition, NOTHING), self._writer))
            for partition in partitions
        ]
        columns = (
            pa.array(topics, pa.string()),
            pa.array(partitions, pa.int32()),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(positions, pa.binary()),
        )
        return make_records(columns)


def _classes(records: OutputRecords) -> Bytes:
    positions = spans_of(column_of(records, "position"))
    classes: Bytes = positions.buffer[positions.start + POSITION_CLASS_AT]
    return classes
