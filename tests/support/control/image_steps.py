"""The owner's part of table images, one published record after another."""

from consumers.control.core.images.images import step
from consumers.control.core.images.inputs import ImageInputs, ImageLimits, Replaced, WantingFeed
from schemas.ids import CaptureId, TableId, Ts, compose_ts
from schemas.rawlog.frontier import FrontierRecord, HeldTables
from schemas.rawlog.images import (
    NO_IMAGES,
    ImageState,
    ScanResult,
)

A, B, C = "default/a@1", "default/b@2", "default/c@3"
CAPTURE = CaptureId("c")
SEVEN, NINE = TableId(7), TableId(9)
WANTS = WantingFeed(tables=[SEVEN, NINE], wants_initial=True)


def at(seconds: float) -> Ts:
    return compose_ts(round(seconds * 1000))


class Steps:
    """Publishes each step: R follows the clock, and S is drawn a moment later."""

    def __init__(self, **feeds: WantingFeed) -> None:
        self.state: ImageState = NO_IMAGES
        self.resolved_ts = at(1)
        self.feeds = {f"default/{name}": feed for name, feed in feeds.items()}
        self.results: tuple[ScanResult, ...] | None = ()
        self.held: tuple[HeldTables, ...] = ()
        self.limits = ImageLimits(scans_max=2)
        self.all_know = True
        self.replaced: tuple[Replaced, ...] = ()
        self.replaced_before: tuple[Replaced, ...] = ()

    def go(self, seconds: float, *, lag: float = 0.0) -> ImageState:
        resolved_ts = at(seconds - lag)
        before = FrontierRecord(
            owner_rev=1, resolved_ts=self.resolved_ts, high=(0,), low=(0,), ddl_high=0, repeat_high=(0,),
            held=self.held, images=self.state,
        )  # fmt: skip
        seen = ImageInputs(
            owner_rev=1, before=before, resolved_ts=resolved_ts, low=(7,),
            now_ts=at(seconds), new_ts=Ts(at(seconds) + 1),
            feeds=self.feeds, scanners={} if self.results is None else {CAPTURE: self.results}, limits=self.limits,
            all_know=self.all_know, replaced=self.replaced, replaced_before=self.replaced_before,
        )  # fmt: skip
        self.state, self.resolved_ts = step(self.state, seen), resolved_ts
        return self.state

    def lands(self, number: int = 0, *, reached: bytes | None = None) -> None:
        barrier = self.state.barriers[0]
        scan = barrier.scans[number]
        result = ScanResult(
            barrier_ts=barrier.ts, number=number, reached=reached or scan.keys.end, offsets=(3, 5), rows=2, bytes=9
        )
        self.results = (*(self.results or ()), result)


def wanting(*feeds: str, **options: WantingFeed) -> Steps:
    steps = Steps(**options)
    steps.feeds.update(dict.fromkeys(feeds, WANTS))
    return steps
