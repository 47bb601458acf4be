"""What a scan of a table image has landed, where another scan's thread serves its delivery reports."""

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from producers.errors import DeliveryFailedError
from producers.pull.images.chunk_landing import ChunkLanding, LandedScan
from producers.pull.images.image_log import OpenImageLog
from producers.pull.images.page_reader import Page
from schemas.ids import TableId, Ts
from schemas.rawlog.image_batch import ImageRows, ScanName

TIMEOUT_S = 30.0
WINDOW_S = 0.3
"""How long the waiting scan has for what it must not do."""


class FakeProducer:
    """Takes records; a test calls back."""

    def __init__(self) -> None:
        self.reports: list[Callable[[Any, Any], None]] = []
        self.produced = threading.Event()

    def produce(self, topic: str, *, value: bytes, partition: int, on_delivery: Callable[[Any, Any], None]) -> None:
        self.reports.append(on_delivery)
        self.produced.set()

    def poll(self, timeout: float) -> int:
        return 0


class Slow:
    """A delivery report that is being taken for as long as a test wants: the interpreter may switch threads there."""

    def __init__(self, offset: int | None) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self._offset = offset

    def offset(self) -> int | None:
        self._wait()
        return self._offset

    def str(self) -> str:
        self._wait()
        return "MSG_SIZE_TOO_LARGE"

    def _wait(self) -> None:
        self.begun.set()
        assert self.goes_on.wait(TIMEOUT_S)


def opened(producer: FakeProducer) -> OpenImageLog:
    return OpenImageLog(topic="images", partitions=1, record_bytes_max=1 << 20, schema_id=1, producer=producer)


def landing_on(images: OpenImageLog) -> ChunkLanding:
    """Return the landing of a scan of one row, which waits to be finished."""
    landing = ChunkLanding(
        images,
        ScanName(Ts(5), 0, 0),
        TableId(45),
        b"a",
        in_flight_bytes_max=1 << 20,
        may_land=lambda: True,
        stopped=threading.Event(),
    )
    rows = ImageRows(key=pa.array([b"b"], pa.binary()), value=pa.array([b"v"], pa.binary()))
    landing.add(Page(rows, b"a", b"z"))
    return landing


def finished_while(
    report: Callable[[Callable[[Any, Any], None], Slow], None], offset: int | None = 7
) -> LandedScan | Exception:
    """Finish a scan while another thread takes its only report; return what came of it."""
    producer, slow, ends = FakeProducer(), Slow(offset), list[LandedScan | Exception]()
    landing = landing_on(opened(producer))

    def finish() -> None:
        try:
            ends.append(landing.finish())
        except DeliveryFailedError as error:
            ends.append(error)

    scan = threading.Thread(target=finish)
    scan.start()
    assert producer.produced.wait(TIMEOUT_S)
    other = threading.Thread(target=report, args=(producer.reports[0], slow))
    other.start()
    assert slow.begun.wait(TIMEOUT_S)
    scan.join(WINDOW_S)
    slow.goes_on.set()
    for thread in (other, scan):
        thread.join(TIMEOUT_S)
    return ends[0]


def test_scan_whose_last_report_another_thread_is_just_taking_then_its_offset_is_waited_for() -> None:
    landed = finished_while(lambda report, slow: report(None, slow))
    assert isinstance(landed, LandedScan)
    assert (landed.rows, landed.offsets) == (1, (7, 8))


def test_scan_whose_refusal_another_thread_is_just_taking_then_it_does_not_count_as_landed() -> None:
    assert isinstance(finished_while(lambda report, slow: report(slow, None)), DeliveryFailedError)


def test_scan_whose_record_a_broker_has_had_and_does_not_say_where_then_it_does_not_count_as_landed() -> None:
    assert isinstance(finished_while(lambda report, slow: report(None, slow), None), DeliveryFailedError)


class At:
    """A record that was acknowledged."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


def test_scans_whose_reports_come_behind_one_that_does_not_say_where_then_none_counts_as_landed() -> None:
    producer = FakeProducer()
    images = opened(producer)
    landings = [landing_on(images) for _ in range(2)]
    offsets: list[int | None] = [None, 0]

    def produce_and_report(
        topic: str, *, value: bytes, partition: int, on_delivery: Callable[[Any, Any], None]
    ) -> None:
        producer.reports.append(on_delivery)
        if len(producer.reports) == 2:  # both were in one batch
            for report, offset in zip(producer.reports, offsets, strict=True):
                report(None, At(offset))

    producer.produce = produce_and_report  # type: ignore[method-assign]
    landings[0]._send(landings[0]._held, b"z", last=True)  # type: ignore[arg-type]
    with pytest.raises(DeliveryFailedError):
        landings[1].finish()
    with pytest.raises(DeliveryFailedError):
        landings[0].finish()
    assert images.unsure.is_set()
