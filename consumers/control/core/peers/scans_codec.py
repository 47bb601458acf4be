"""What came of scans of table images, in a landing report."""

from schemas.ids import Ts
from schemas.proto.landingpb_pb2 import LandingReport as RawReport
from schemas.rawlog.images import ScanResult


def put_scans(raw: RawReport, scans: tuple[ScanResult, ...] | None) -> None:
    """Write them into a report."""
    raw.knows_images = scans is not None
    for scan in scans or ():
        raw.scans.add(
            barrier_ts=scan.barrier_ts,
            number=scan.number,
            attempt=scan.attempt,
            reached=scan.reached,
            partition=scan.partition,
            start_offset=scan.offsets[0],
            end_offset=scan.offsets[1],
            rows=scan.rows,
            bytes=scan.bytes,
            failure=scan.failure,
            reason=scan.reason,
        )


def scans_of(raw: RawReport) -> tuple[ScanResult, ...] | None:
    """Read them; None: the sender knows of no images."""
    if not raw.knows_images:
        return None
    return tuple(
        ScanResult(
            barrier_ts=Ts(scan.barrier_ts),
            number=scan.number,
            attempt=scan.attempt,
            reached=scan.reached,
            partition=scan.partition,
            offsets=(scan.start_offset, scan.end_offset),
            rows=scan.rows,
            bytes=scan.bytes,
            failure=scan.failure,
            reason=scan.reason,
        )
        for scan in raw.scans
    )
