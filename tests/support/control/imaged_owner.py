"""The owner's shell of table images, with all that it asks in memory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from consumers.control.changefeeds.asked_images import AskedImages, AskedTable
from consumers.control.core.frontier.frontier import FrontierInputs
from consumers.control.owner.images.image_wishes import ImageWish
from consumers.control.owner.images.imaged_tables import ImagedTables
from consumers.control.owner.owner import Owner
from schemas.ddl.job import DdlType, JobScope
from schemas.ids import CaptureId, TableId, Ts, compose_ts
from schemas.rawlog.frontier import (
    DdlReport,
    FrontierRecord,
    LandingReport,
    decode_frontier,
    encode_frontier,
)
from schemas.rawlog.images import ImageMode, ImageState, ScanResult
from schemas.tidb.spans import TableSpan
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

CAPTURE, FEED, SPAN = CaptureId("c"), "default/a@1", TableSpan.of_table(TableId(5))
WISH = ImageWish(key=1, contains=lambda table: table.table.startswith("a"), wants=lambda _: True, wants_initial=True)


def at(seconds: float) -> Ts:
    return compose_ts(round(seconds * 1000))


class World:
    """A frontier topic, PD's clock, one capture and a schema; R is 10 ms behind PD."""

    def __init__(self, wished: Mapping[str, ImageWish] | None) -> None:
        self.records: list[FrontierRecord] = []
        self.seconds, self.asked, self.all_know = 1.0, 0, True
        self.landed_ts, self.is_stuck = at(1), False
        self.bad_ddl: Sequence[JobScope] = ()
        self.wished = wished
        self.checkpoint_ts: Ts | None = None
        self.withdrawn: set[tuple[str, TableId]] = set()
        self.results: tuple[ScanResult, ...] | None = ()
        self.store = snapshot(("d", 1, [table_info(5, "a1"), table_info(6, "b1"), table_info(9, "a2")]))
        self.images = ImagedTables(7, self, self.new_ts, clock=lambda: self.seconds)
        self.owner = Owner(self, self, 7, 1, images=self.images.next_images, clock=lambda: self.seconds)
        self.owner.start(lambda: at(1))

    def new_ts(self) -> Ts:
        self.asked += 1
        return at(self.seconds)

    def wishes(self) -> Mapping[str, ImageWish] | None:
        return self.wished

    def services_know(self) -> bool:
        return self.all_know

    def checkpoint(self, name: str) -> Ts | None:
        return self.checkpoint_ts

    def answered(self, name: str, asked: Collection[AskedTable]) -> None:
        self.withdrawn.update((name, each.table_id) for each in asked)

    def check_lease(self) -> None:
        pass

    def publish(self, record: FrontierRecord) -> int:
        self.records.append(decode_frontier(encode_frontier(record)))
        return len(self.records) - 1

    def newest(self) -> FrontierRecord | None:
        return self.records[-1] if self.records else None

    def ddl(self, ts: Ts, type_: DdlType, table_id: int, name: str) -> None:
        change = self.store.apply(job(ts, type_, schema_id=1, table_id=table_id, table_info=table_info(table_id, name)))
        assert change is not None
        self.images.take(change)

    def tick(self) -> ImageState:
        self.seconds += 0.2
        if not self.is_stuck:
            self.landed_ts = at(self.seconds - 0.01)
        landed_ts = self.landed_ts
        report = LandingReport(
            capture=CAPTURE, landed_ts={SPAN: landed_ts}, ends=(0,), chunks=(), floors=(0,), repeat_ends=(0,),
            scans=self.results,
        )  # fmt: skip
        reports = {CAPTURE: report}
        self.images.look(self.store, self.owner.published, reports)
        ddl = DdlReport(landed_ts=landed_ts, end=0)
        self.owner.tick(FrontierInputs(reports, ddl, [SPAN], landing=[CAPTURE], bad_ddl=self.bad_ddl))
        return self.records[-1].images

    def other_owner(self) -> None:
        """Let another owner take over."""
        owner_rev = self.owner.published.owner_rev + 1
        self.images = ImagedTables(owner_rev, self, self.new_ts, clock=lambda: self.seconds)
        self.owner = Owner(self, self, owner_rev, 1, images=self.images.next_images, clock=lambda: self.seconds)
        self.owner.start(lambda: at(1))

    def land_all(self) -> None:
        self.results = tuple(
            ScanResult(barrier_ts=barrier.ts, number=scan.number, reached=scan.keys.end)
            for barrier in self.records[-1].images.barriers
            for scan in barrier.scans
        )


ASKING = replace(
    WISH,
    wants_initial=False,
    asked=AskedImages(
        requested={
            ImageMode.BACKFILL: frozenset({TableId(5), TableId(6)}),
            ImageMode.RESYNC: frozenset({TableId(9)}),
        }
    ),
)


def asking(**requested: int) -> ImageWish:
    """Return the wish with one table asked for in each mode that is named."""
    tables = {ImageMode(mode): frozenset({TableId(table)}) for mode, table in requested.items()}
    return replace(ASKING, asked=AskedImages(requested=tables))
