"""Scans of table images are begun once, in whatever order a capture hears of frontier records."""

import threading
from typing import Any, cast

from producers.errors import DeliveryFailedError
from producers.pull.images.image_log import ImageLog, OpenImageLog
from producers.pull.images.scanner import ImageScanner
from producers.pull.images.settings import ImageScanSettings
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.images import ImageBarrier, ImageScan, ImageState, KeyRange

CAPTURE, TABLE, BARRIER_TS = CaptureId("c1"), TableId(45), Ts(100)
TIMEOUT_S = 30.0


class NoLog:
    """Counts the scans that begin."""

    def __init__(self) -> None:
        self.begun = 0

    def open(self) -> OpenImageLog:
        self.begun += 1
        raise DeliveryFailedError("no log")

    def close(self) -> None:
        """Nothing is open."""


def test_record_of_before_that_comes_late_then_no_scan_is_given_up_or_begun_again() -> None:
    images, ended = NoLog(), threading.Event()
    scanner = ImageScanner(
        CAPTURE,
        cast(Any, None),
        cast(Any, None),
        cast(ImageLog, images),
        settings=ImageScanSettings(),
        on_result=ended.set,
    )
    scan = ImageScan(
        number=0, capture=CAPTURE, table_id=TABLE, feeds=("f",), keys=KeyRange.of_table(TABLE), bytes_max=1 << 20
    )
    before = ImageState(version=(1, 1))
    opened = ImageState(version=(1, 2), barriers=(ImageBarrier(ts=BARRIER_TS, feeds=("f",), scans=(scan,), low=(0,)),))
    for state in (before, opened):
        scanner.follow(state)
    assert ended.wait(TIMEOUT_S)
    scanner.follow(before)
    assert [result.barrier_ts for result in scanner.results()] == [BARRIER_TS]
    scanner.follow(opened)
    scanner.close()
    assert images.begun == 1
