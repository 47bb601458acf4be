"""Runs a small cut on the driver, without a Spark job: the same functions over the same records.

A Spark job has a fixed price of some 0.4 s (planning, two steps, four tasks), which a small batch never earns back.
"""

import threading
from collections.abc import Mapping
from typing import Any

from sorters.core.cut import Cut
from sorters.core.order import OutputRecords
from sorters.sink_writer import SinkWriter
from sorters.topic_reader import TopicReader
from sorters.worker import Program, in_order, output_records


class SmallCut:
    """A consumer of the raw log and a producer of the sink, for one run of a changefeed."""

    def __init__(self, raw_config: Mapping[str, Any], raw_topic: str, sink_config: Mapping[str, Any]) -> None:
        """Both maps are librdkafka's; the sink's must keep the order (idempotence, or one request in flight)."""
        self._closed = threading.Event()
        self._reader = TopicReader(raw_config, raw_topic, stopped=self._closed.is_set)
        self._sink_config = sink_config
        self._writer: tuple[int, SinkWriter] | None = None
        """With the batch size that it was made for."""
        self._running = threading.Lock()
        """Held while a cut runs: the clients must not be closed under it, whatever thread asks."""
        self.raw_bytes = 0
        """Of the raw records that the last cut read."""

    def close(self) -> None:
        """Give up what is under way; nothing is sent from here on."""
        self._closed.set()
        with self._running:
            if self._writer is not None:
                self._writer[1].abandon()
            self._reader.close()

    def run(self, cut: Cut, program: Program, extras: OutputRecords, encoded_at_ms: int, batch_bytes: int) -> int:
        """Write everything of ``cut``, and ``extras``, in order; return the row messages once they are acknowledged.

        Raises:
            BusError: a row or a record cannot be sent, or Kafka does not answer. What was not sent never will be, so
                nothing of this try can come after what the next one writes.
        """
        with self._running:
            raw = [value for _, _, value in self._reader.read_all(cut.share(0, 1))]
            self.raw_bytes = sum(map(len, raw))
            rows = list(output_records(iter(raw), cut, program, encoded_at_ms))
            records = in_order([*rows, extras] if extras.num_rows else rows, cut.may_repeat)
            row_join = program.feed.row_join
            records = records if row_join is None else row_join.whole(records)
            writer, self._writer = self._taken_writer(batch_bytes), None
            try:
                writer.write(records)
                writer.finish()
            except BaseException:
                writer.abandon()
                raise
            self._writer = (batch_bytes, writer)
        return sum(table.num_rows for table in rows)

    def _taken_writer(self, batch_bytes: int) -> SinkWriter:
        if self._writer is not None and self._writer[0] == batch_bytes:
            return self._writer[1]
        return SinkWriter(self._sink_config, batch_bytes=batch_bytes, stopped=self._closed.is_set)
