"""Lands what one scan reads: a record a page, in one partition, and its offsets once all are acknowledged."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from edges.kafka.producer import Delivered, landed_at
from producers.errors import DeliveryFailedError, LandingHaltedError
from producers.pull.images.image_log import OpenImageLog
from producers.pull.images.page_reader import Page
from schemas.ids import TableId
from schemas.rawlog.image_batch import ImageBatch, ScanName, encode_image_batch
from schemas.rawlog.topics import raw_partition

_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedScan:
    """What of a scan is in the topic, acknowledged."""

    reached: bytes
    """Every row of the scan's range below this key."""
    partition: int
    offsets: tuple[int, int]
    rows: int
    bytes: int


class ChunkLanding:
    """Of one try of one scan; one thread adds and finishes. Delivery reports come in whichever thread polls."""

    def __init__(
        self,
        images: OpenImageLog,
        scan: ScanName,
        table_id: TableId,
        start: bytes,
        *,
        in_flight_bytes_max: int,
        may_land: Callable[[], bool],
        stopped: threading.Event,
    ) -> None:
        self._images, self._scan, self._table_id = images, scan, table_id
        self._in_flight_bytes_max = in_flight_bytes_max
        self._may_land, self._stopped = may_land, stopped
        self._partition = raw_partition(table_id, images.partitions)
        self._at = self._reached = start
        self._held: Page | None = None
        self._sequence = 0
        self._rows = self._bytes = 0
        self._acked = threading.Lock()
        self._in_flight = self._in_flight_bytes = 0
        self._offsets: list[int] = []
        self._failure: DeliveryFailedError | None = None

    def add(self, page: Page) -> None:
        """Take the next page; the one before it goes out, for only now is it known not to be the last.

        Raises:
            DeliveryFailedError: Kafka does not take a record.
            LandingHaltedError: this capture may not land any more, or the scan was stopped.
        """
        if len(page.rows.key):
            if self._held is not None:
                self._send(self._held, self._reached, last=False)
            self._held = page
        self._reached = page.next_key

    def finish(self) -> LandedScan:
        """Send the last page, wait for all acknowledgements, and return what is there.

        Raises:
            DeliveryFailedError, LandingHaltedError: as of :meth:`add`.
        """
        if self._held is not None:
            self._send(self._held, self._reached, last=True)
            self._held = None
        self._await_acks(0)
        offsets = (min(self._offsets), max(self._offsets) + 1) if self._offsets else (0, 0)
        return LandedScan(
            reached=self._reached, partition=self._partition, offsets=offsets, rows=self._rows, bytes=self._bytes
        )

    def _send(self, page: Page, end: bytes, *, last: bool) -> None:
        images = self._images
        batch = ImageBatch(
            scan=self._scan,
            table_id=self._table_id,
            sequence=self._sequence,
            last=last,
            start=self._at,
            end=end,
            rows=page.rows,
        )
        for record in encode_image_batch(batch, images.schema_id, images.record_bytes_max):
            self._await_acks(self._in_flight_bytes_max)
            self._produce(record)
        self._at, self._sequence = end, self._sequence + 1
        self._rows += len(page.rows.key)
        self._bytes += page.rows.bytes

    def _produce(self, record: bytes) -> None:
        if not self._may_land():
            raise LandingHaltedError("this capture's lease is over; it has stopped landing", topic=self._images.topic)
        size = len(record)
        with self._acked:
            self._in_flight += 1
            self._in_flight_bytes += size

        def delivered(error: KafkaError | None, message: Delivered) -> None:
            self._delivered(size, error, message)

        while True:
            try:
                self._images.producer.produce(
                    self._images.topic, value=record, partition=self._partition, on_delivery=delivered
                )
            except BufferError:
                self._images.producer.poll(_POLL_S)  # its queue is full; what it delivers makes room
                self._check()
                continue
            except KafkaException as error:
                raise DeliveryFailedError(
                    "Kafka refuses a record", topic=self._images.topic, table_id=self._table_id, reason=error.args[0]
                ) from error
            return

    def _delivered(self, size: int, error: KafkaError | None, message: Delivered) -> None:
        """Take one delivery report, perhaps in another scan's thread: who waits sees all of it or nothing."""
        with self._acked:
            self._in_flight -= 1
            self._in_flight_bytes -= size
            offset, reason = landed_at(error, message)
            if offset is not None:
                self._offsets.append(offset)
            else:
                if error is None:
                    self._images.unsure.set()
                self._failure = DeliveryFailedError(
                    "Kafka did not take a record", topic=self._images.topic, partition=self._partition,
                    reason=reason,
                )  # fmt: skip

    def _await_acks(self, bytes_max: int) -> None:
        """Wait until no more than so many bytes are without an acknowledgement."""
        self._images.producer.poll(0)
        while self._waits(bytes_max):
            self._images.producer.poll(_POLL_S)

    def _waits(self, bytes_max: int) -> bool:
        with self._acked:
            size = self._in_flight_bytes
        self._check()  # afterwards: what is no longer in flight has an offset by now, or is a failure
        return size > bytes_max

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._images.unsure.is_set():
            raise DeliveryFailedError("Kafka does not say where a record stands", topic=self._images.topic)
        if self._stopped.is_set():
            raise LandingHaltedError("the scan was given up", topic=self._images.topic, **self._scan.fields)
