"""What goes through a writer of records, counted a write: messages, their bytes, and how long the broker took."""

import time
from dataclasses import replace

from schemas.sink.fence import NO_FENCE
from schemas.sink.image_note import WatermarkNote
from schemas.sink_figures import LEAST_BATCH, LEAST_US, NO_FIGURES, NO_SPREAD, SinkFigures, microseconds
from sorters.core.records.order import OutputRecords, bytes_of
from sorters.cut.record_writer import RecordWriter


class Sending:
    """One cut's, or one task's part of it. What is computed between two writes is not counted."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._messages, self._bytes, self._s = 0, 0, 0.0

    def write(self, records: OutputRecords, fence: bytes = NO_FENCE, note: WatermarkNote | None = None) -> None:
        """Queue records, as :class:`RecordWriter` does."""
        began_s = time.monotonic()
        self._writer.write(records, fence, note)
        self._s += time.monotonic() - began_s
        self._messages += records.num_rows
        self._bytes += bytes_of(records, "key") + bytes_of(records, "value")

    def finish(self) -> SinkFigures:
        """Return when everything is acknowledged, with what was sent, if anything was, and what the writer's producer
        has said of itself.
        """
        began_s = time.monotonic()
        self._writer.finish()
        self._s += time.monotonic() - began_s
        producer = self._writer.figures()
        if not self._messages:
            return replace(NO_FIGURES, producer=producer)
        return SinkFigures(
            flushes_us=NO_SPREAD.of(microseconds(self._s), LEAST_US),
            batch_rows=NO_SPREAD.of(self._messages, LEAST_BATCH),
            file_bytes=self._bytes,
            producer=producer,
        )
