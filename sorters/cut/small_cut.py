"""Runs a small cut on the driver, without a Spark job: the same functions over the same records.

A Spark job has a fixed price, which a small cut never earns back
(docs/decisions/2026-11-22-small-cuts-on-the-driver.md).
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from edges.kafka.offsets import TopicReader
from schemas.sink.fence import NO_FENCE
from schemas.sink.image_note import WatermarkNote
from schemas.sink_figures import SinkFigures
from sorters.core.cut.cut import Cut
from sorters.core.records.order import OutputRecords
from sorters.cut.feed_share import FeedShare, WholeProcess
from sorters.cut.leave import GIVEN, Leave
from sorters.cut.raw_cut import RawCut, RawReader, with_chunks
from sorters.cut.record_writer import RecordWriter, record_writer
from sorters.cut.sending import Sending
from sorters.cut.whole_cut import whole_cut
from sorters.cut.worker import CutCounts, FeedProgram, batch_bytes, writer_options
from sorters.log.failures import KafkaUnreachableError

OUTPUT_BYTES_MAX = 512 * 1024 * 1024
"""Bytes of messages that the driver holds: of a wide table debezium makes many times the raw bytes."""


class SmallCut:
    """A reader of the raw log and a producer of the sink, for one run of a changefeed."""

    def __init__(
        self,
        raw_reader: Callable[[Callable[[], bool]], RawReader],
        image_reader: Callable[[Callable[[], bool]], TopicReader],
        sink_config: Mapping[str, object],
        share: FeedShare | None = None,
    ) -> None:
        """Both readers read until the function that they get says stop; ``image_reader`` returns one of the images
        topic for a cut that has chunks of table images. ``sink_config`` is librdkafka's, and must keep the order
        (idempotence, or one request in flight), or ``record_writer.NOWHERE``. ``share`` is told what cuts take of the
        process.
        """
        self._image_reader = image_reader
        self._share = share or WholeProcess()
        self._closed = threading.Event()
        self._reader = raw_reader(self._closed.is_set)
        self._sink_config = sink_config
        self._writer: tuple[tuple[int, Mapping[str, object]], RecordWriter] | None = None
        """With the batch size and the options that it was made for."""
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

    def tend(self) -> None:
        """Called now and then where no cut is written: the writer takes in what its client has to say."""
        with self._running:
            if self._writer is not None:
                self._writer[1].tend()

    def is_given_up(self) -> bool:
        """Tell whether what is under way is to fail."""
        return self._closed.is_set()

    def read(self, cut: Cut, raw_bytes_max: int) -> RawCut | None:
        """Return the raw records of ``cut``, and its chunks; None: they are more than ``raw_bytes_max``.

        Raises:
            KafkaUnreachableError, HistoryLostError: Kafka does not hand them out.
            CorruptDataError: a record is not one of the raw log.
        """
        with self._running:
            raw = self._reader.read_cut(cut, raw_bytes_max)
            if raw is None or not cut.chunks:
                return raw
            # Images come once in a table's life: no client is kept for them.
            with contextlib.closing(self._image_reader(self._closed.is_set)) as images:
                return with_chunks(raw, images, cut, raw_bytes_max)

    def run(
        self,
        cut: Cut,
        raw: RawCut,
        program: FeedProgram,
        extras: OutputRecords,
        encoded_at_ms: int,
        fence: bytes = NO_FENCE,
        leave: Leave = GIVEN,
    ) -> CutCounts | None:
        """Write everything of ``cut``, and ``extras``, in order, until it is acknowledged.

        Args:
            raw: what :meth:`read` gave for the cut.
            program: fit for all rows in it.
            fence: of this attempt.
            leave: to write; waited for when the messages are there.

        Returns:
            None if the messages are more than :data:`OUTPUT_BYTES_MAX`, for then nothing is written.

        Raises:
            BusError: a row or a record cannot be sent, or Kafka does not answer. What was not sent never will be, so
                nothing of this try can come after what the next one writes.
        """
        with contextlib.ExitStack() as turn:
            turn.enter_context(self._share.computing(self._closed.is_set))
            whole = whole_cut(cut, raw, program, extras, encoded_at_ms, OUTPUT_BYTES_MAX, self._share.let_others)
            if whole is None:
                return None
            if not leave.is_given:
                with self._share.waiting():
                    leave.wait()
            with self._running:
                sent = self._write(whole.records, program, fence, cut.note, on_queued=turn.close)
        return replace(whole.counts(raw.raw_bytes), sent=sent)

    def write(self, records: OutputRecords, program: FeedProgram, fence: bytes = NO_FENCE) -> None:
        """Write records in their order, until they are acknowledged.

        Raises:
            BusError: as :meth:`run`.
        """
        with self._running:
            self._write(records, program, fence)

    def _write(
        self,
        records: OutputRecords,
        program: FeedProgram,
        fence: bytes,
        note: WatermarkNote | None = None,
        *,
        on_queued: Callable[[], None] = lambda: None,
    ) -> SinkFigures:
        if self._closed.is_set():  # between the reading and here: the writer that there was is closed
            raise KafkaUnreachableError("kafka did not take a record", reason="stopped")
        largest_batch, options = batch_bytes(program), writer_options(self._sink_config, program)
        wanted = largest_batch, options
        made_for, writer = self._writer or (None, None)
        self._writer = None
        if writer is None or made_for != wanted:
            if writer is not None:  # all that it was given is acknowledged
                writer.abandon()
            stopped, waiting = self._closed.is_set, self._share.waiting
            writer = record_writer(options, batch_bytes=largest_batch, stopped=stopped, waiting=waiting)
        try:
            sending = Sending(writer)
            sending.write(records, fence, note)
            on_queued()
            sent = sending.finish()
        except BaseException:
            writer.abandon()
            raise
        self._writer = (wanted, writer)
        return sent
