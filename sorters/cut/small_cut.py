"""Runs a small cut on the driver, without a Spark job: the same functions over the same records.

A Spark job has a fixed price, which a small cut never earns back
(docs/decisions/2026-11-22-small-cuts-on-the-driver.md).
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sorters.core.cut.cut import Cut
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.records.order import OutputRecords
from sorters.cut.raw_records import raw_records
from sorters.cut.record_window import RecordWindow
from sorters.cut.sink_writer import SinkWriter
from sorters.cut.worker import CutCounts, FeedProgram, batch_bytes, in_order, output_records
from sorters.log.failures import KafkaUnreachableError

OUTPUT_BYTES_MAX = 512 * 1024 * 1024
"""Bytes of messages that the driver holds: of a wide table debezium makes many times the raw bytes."""


@dataclass(frozen=True, slots=True)
class RawCut:
    """The raw records of one cut, and the bytes that were read to get them."""

    records: list[bytes]
    raw_bytes: int


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
        """Held while a cut is read or written: the clients must not be closed under it, whatever thread asks."""

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

    def read(self, cut: Cut, raw_bytes_max: int) -> RawCut | None:
        """Return the raw records of ``cut``; None: they are more than ``raw_bytes_max``.

        Raises:
            KafkaUnreachableError, HistoryLostError: Kafka does not hand them out.
            CorruptDataError: a record is not one of the raw log.
        """
        records, raw_bytes = list[bytes](), 0

        def count(size: int) -> None:
            nonlocal raw_bytes
            raw_bytes += size

        with self._running:
            for record in raw_records(self._reader, cut, count):
                records.append(record)
                if raw_bytes > raw_bytes_max:
                    return None
        return RawCut(records, raw_bytes)

    def run(
        self, cut: Cut, raw: RawCut, program: FeedProgram, extras: OutputRecords, encoded_at_ms: int
    ) -> CutCounts | None:
        """Write everything of ``cut``, and ``extras``, in order, until it is acknowledged.

        Args:
            raw: what :meth:`read` gave for the cut.
            program: fit for all rows in it.

        Returns:
            None if the messages are more than :data:`OUTPUT_BYTES_MAX`, for then nothing is written.

        Raises:
            BusError: a row or a record cannot be sent, or Kafka does not answer. What was not sent never will be, so
                nothing of this try can come after what the next one writes.
        """
        corrupt, rows = list[CorruptRows](), list[OutputRecords]()
        for table in output_records(iter(raw.records), cut, program, encoded_at_ms, corrupt.append):
            rows.append(table)
            if sum(part.nbytes for part in rows) > OUTPUT_BYTES_MAX:
                return None
        records = in_order([*rows, extras] if extras.num_rows else rows, cut.may_repeat)
        row_join = program.feed.row_join
        self.write(records if row_join is None else row_join.whole(records), batch_bytes(program))
        return CutCounts(
            rows=sum(table.num_rows for table in rows),
            raw_bytes=raw.raw_bytes,
            corrupt=sum(corrupt, CorruptRows()),
        )

    def write(self, records: OutputRecords, largest_batch: int) -> None:
        """Write records in their order, until they are acknowledged, in batches of at most ``largest_batch`` bytes.

        Raises:
            BusError: as :meth:`run`.
        """
        with self._running:
            self._write(records, largest_batch)

    def _write(self, records: OutputRecords, largest_batch: int) -> None:
        if self._closed.is_set():  # between the reading and here: the writer that there was is closed
            raise KafkaUnreachableError("kafka did not take a record", reason="stopped")
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
