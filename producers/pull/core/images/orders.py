"""Which scans a capture begins and which it gives up, by the newest frontier record that it has heard of. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from schemas.ids import CaptureId, Ts
from schemas.rawlog.images import ImageScan, ImageState


class OrderKey(NamedTuple):
    """What names a scan for ever."""

    barrier_ts: Ts
    number: int


@dataclass(frozen=True, slots=True)
class ScanOrder:
    """One scan of this capture."""

    key: OrderKey
    scan: ImageScan


def orders_of(images: ImageState, capture: CaptureId) -> dict[OrderKey, ScanOrder]:
    """Return a capture's scans at barriers that are open."""
    return {
        (key := OrderKey(barrier.ts, scan.number)): ScanOrder(key, scan)
        for barrier in images.barriers
        for scan in barrier.scans
        if scan.capture == capture
    }


def changes(
    known: Collection[OrderKey], images: ImageState, capture: CaptureId
) -> tuple[list[ScanOrder], list[OrderKey]]:
    """Return what to begin, in the order of barriers and numbers, and what to give up and forget.

    A scan that is known, under way or ended, is never begun once more: its result stands until its barrier is gone.
    """
    wanted = orders_of(images, capture)
    begin = [wanted[key] for key in sorted(wanted.keys() - set(known))]
    return begin, sorted(set(known) - wanted.keys())
