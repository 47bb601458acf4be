"""Runs a small cut on the driver, without a Spark job: the same functions over the same records.

A Spark job has a fixed price, which a small batch never earns back
(docs/decisions/2026-11-22-small-cuts-on-the-driver.md).
"""

import threading
from collections.abc import Callable, Mapping, Set
from typing import Any

from schemas.ids import TableId
from sorters.core.cut.cut import Cut
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.records.order import OutputRecords
from sorters.cut.raw_records import raw_records, tables_of
from sorters.cut.record_window import RecordWindow
from sorters.cut.sink_writer import SinkWriter
from sorters.cut.worker import Program, batch_bytes, in_order, output_records

OUTPUT_BYTES_MAX = 512 * 1024 * 1024
"""Of messages that the driver holds: of a table with hundreds of columns debezium makes many times the raw bytes."""


class SmallCut:
    """A consumer of the raw log and a producer of the sink, for one run of a changefeed."""

    def __init__(self, raw_config: Mapping[str, Any], raw_topic: str, sink_config: Mapping[str, Any]) -> None:
        """Both maps are librdkafka's; the sink's must keep the order (idempotence, or one request in flight)."""
        self._closed = threading.Event()
        self._reader = RecordWindow(raw_config, raw_topic, stopped=self._closed.is_set)
        self._sink_config = sink_config
        self._writer: tuple[int, SinkWriter] | None = None
        """With the batch size that it was made for."""
        self._running = threading.Lock()
        """Held while a cut runs: the clients must not be closed under it, whatever thread asks."""
        self.raw_bytes = 0
        """Of the raw records that the last cut has read."""
        self.corrupt = CorruptRows()
        """What the last cut has written although its checksum does not fit."""

    def give_up(self) -> None:
        """Let what is under way in another thread fail; nothing is sent from here on."""
        self._closed.set()

    def close(self) -> None:
        """Give up what is under way, and close the clients."""
        self._closed.set()
        with self._running:
            if self._writer is not None:
                self._writer[1].abandon()
            self._reader.close()

    def run(
        self,
        cut: Cut,
        program: Callable[[Set[TableId]], Program],
        extras: OutputRecords,
        encoded_at_ms: int,
        *,
        raw_bytes_max: int,
    ) -> tuple[int, int] | None:
        """Write everything of ``cut``, and ``extras``, in order, until it is acknowledged.

        Args:
            program: returns it, fit for rows of these physical tables.

        Returns:
            The row messages, and the bytes of raw records; None if these are more than ``raw_bytes_max``, or their
            messages more than :data:`OUTPUT_BYTES_MAX`, for then nothing is written.

        Raises:
            BusError: a row or a record cannot be sent, or Kafka does not answer. What was not sent never will be, so
                nothing of this try can come after what the next one writes.
        """
        with self._running:
            raw = self._read(cut, raw_bytes_max)
            if raw is None:
                return None
            self.corrupt = CorruptRows()
            rows: list[OutputRecords] = []
            ready = program(tables_of(raw, cut))
            for table in output_records(iter(raw), cut, ready, encoded_at_ms, self._on_corrupt):
                rows.append(table)
                if sum(one.nbytes for one in rows) > OUTPUT_BYTES_MAX:
                    return None
            records = in_order([*rows, extras] if extras.num_rows else rows, cut.may_repeat)
            row_join = ready.feed.row_join
            self._write(records if row_join is None else row_join.whole(records), batch_bytes(ready))
        return sum(table.num_rows for table in rows), self.raw_bytes

    def write(self, records: OutputRecords, largest_batch: int) -> None:
        """Write records that are no cut's, in their order, until they are acknowledged.

        Raises:
            BusError: as :meth:`run`.
        """
        with self._running:
            self._write(records, largest_batch)

    def _read(self, cut: Cut, raw_bytes_max: int) -> list[bytes] | None:
        """Return the raw records; None: they are too many."""
        self.raw_bytes, raw = 0, []
        for record in raw_records(self._reader, cut, self._count):
            raw.append(record)
            if self.raw_bytes > raw_bytes_max:
                return None
        return raw

    def _count(self, raw_bytes: int) -> None:
        self.raw_bytes += raw_bytes

    def _on_corrupt(self, found: CorruptRows) -> None:
        self.corrupt += found

    def _write(self, records: OutputRecords, largest_batch: int) -> None:
        made_for, writer = self._writer or (0, None)
        self._writer = None
        if writer is None or made_for != largest_batch:
            writer = SinkWriter(self._sink_config, batch_bytes=largest_batch, stopped=self._closed.is_set)
        try:
            writer.write(records)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
        self._writer = (largest_batch, writer)
