"""A raw log, written by hand, of one table and its image: what captures land, what the owner says, and changes."""

from dataclasses import dataclass, field
from typing import Any

from schemas.ddl.job import DdlType
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.image_batch import ScanName
from schemas.rawlog.images import (
    IdRange,
    ImageBarrier,
    ImageChunk,
    ImageFeed,
    ImageScan,
    ImageState,
    KeyRange,
    TableImage,
    image_feed,
)
from tests.support.rawlog.raw_log import START_TS, Change, RawLog, recorded, row_key
from tests.support.recorded.ddl_jobs import job

TABLE = TableId(114)
KEYS, HALF = 60, 30
FIRST, SECOND, END = (Ts(START_TS + after) for after in (1_000, 2_000, 3_000))
"""Where the lower half of the table goes out, and the upper half; where the log ends."""
FEED = image_feed("default", "images", 7)
WHOLE, LOWER, UPPER = (
    KeyRange.of_table(TABLE),
    KeyRange(KeyRange.of_table(TABLE).start, row_key(TABLE, HALF)),
    KeyRange(row_key(TABLE, HALF), KeyRange.of_table(TABLE).end),
)


def value(number: int) -> bytes:
    """Return one of the recorded rows' values."""
    return recorded("sbtest1")[1][number].value


@dataclass
class ImagedLog:
    """A raw log, and what the owner says of images in it."""

    log: RawLog
    feed: str
    mode: str = "initial"
    version: int = 0
    changed: dict[int, int] = field(default_factory=dict)
    """Rows that were changed, and when first."""

    def say(self, ts: int, **images: Any) -> None:
        """Publish a frontier record at START_TS + ts, with other images than before."""
        self.version += 1
        state = ImageState(version=(1, self.version), **images)
        self.log.advance(START_TS + ts, images=state)

    def rows_at(self, ts: Ts, start: int, end: int) -> dict[bytes, bytes]:
        """Return rows of the table as they are at ``ts``."""
        return {
            row_key(TABLE, number): value(1 if self.changed.get(number, END) <= ts else number)
            for number in range(start, end)
        }

    def waits(self) -> tuple[ImageFeed, ...]:
        """Return the changefeed as it waits for the table."""
        return (ImageFeed(feed=self.feed, **{self.mode: (IdRange(TABLE, TABLE),)}),)

    def barrier(self, ts: Ts, of: KeyRange) -> tuple[ImageBarrier, ...]:
        """Return an open barrier, announced by the next record."""
        scan = ImageScan(
            number=0, capture=CaptureId("c"), table_id=TABLE, feeds=(self.feed,), keys=of, bytes_max=1 << 24
        )
        return (ImageBarrier(ts=ts, feeds=(self.feed,), scans=(scan,), low=tuple(self.log.ends)),)

    def change(self, after: int, handle: int) -> None:
        """Land an update of a row at START_TS + after."""
        before = self.rows_at(Ts(START_TS + after), handle, handle + 1)[row_key(TABLE, handle)]
        change = Change(START_TS + after, row_key(TABLE, handle), value(1), before)
        self.changed.setdefault(handle, START_TS + after)
        self.log.rows(TABLE, [change], partition=handle % 2)

    def chunk(self, ts: Ts, of: KeyRange, rows: dict[bytes, bytes]) -> tuple[ImageChunk, ...]:
        """Land a chunk, in records of seven rows."""
        return (self.log.image(ScanName(ts, 0, 0), of, rows, feeds=(self.feed,), batch_rows=7),)

    def write(self) -> None:
        """Write all of it: two barriers, each of which the frontier passes before it is closed."""
        lower = (TableImage(table_id=TABLE, feeds=(self.feed,), done=(LOWER,)),)
        self.log.snapshot([recorded("sbtest1")[0]])
        self.change(100, 1)
        self.log.advance(START_TS + 150)
        self.say(200, feeds=self.waits())
        self.change(300, 40)
        barriers = self.barrier(FIRST, LOWER)
        self.say(400, feeds=self.waits(), barriers=barriers)
        self.change(500, 2)
        self.change(1_100, 2)
        self.change(1_200, 40)
        self.say(1_300, feeds=self.waits(), barriers=barriers)
        self.say(1_400, feeds=self.waits(), chunks=self.chunk(FIRST, LOWER, self.rows_at(FIRST, 0, HALF)))
        self.change(1_500, 3)
        self.change(1_600, 41)
        barriers = self.barrier(SECOND, UPPER)
        self.say(1_700, feeds=self.waits(), tables=lower, barriers=barriers)
        self.change(2_100, 4)
        self.change(2_200, 42)
        self.say(2_300, feeds=self.waits(), tables=lower, barriers=barriers)
        self.say(
            2_400, feeds=self.waits(), tables=lower, chunks=self.chunk(SECOND, UPPER, self.rows_at(SECOND, HALF, KEYS))
        )
        self.say(2_500, feeds=(ImageFeed(feed=self.feed),))
        self.change(2_600, 43)
        self.say(3_000, feeds=(ImageFeed(feed=self.feed),))

    def write_rename(self) -> None:
        """Write a table that gets a name at START_TS + 200 which the filter takes in, and then one image of all."""
        info = recorded("sbtest1")[0]
        self.log.snapshot([{**info, "name": {"O": "away", "L": "away"}}])
        self.change(100, 1)
        self.log.advance(START_TS + 150)
        self.log.ddl(job(START_TS + 200, DdlType.RENAME_TABLE, schema_id=1, table_id=TABLE, table_info=info))
        self.say(200, feeds=self.waits())
        self.change(300, 2)
        self.say(400, feeds=self.waits(), barriers=self.barrier(FIRST, WHOLE))
        self.change(1_100, 3)
        self.say(1_400, feeds=self.waits(), chunks=self.chunk(FIRST, WHOLE, self.rows_at(FIRST, 0, KEYS)))
        self.say(3_000, feeds=(ImageFeed(feed=self.feed),))

    def write_resync(self) -> None:
        """Write a resync: its opening, at a barrier of its own, then all rows at another."""
        start = KeyRange.of_table(TABLE).start
        opening, rest = KeyRange(start, start + b"\0"), KeyRange(start + b"\0", KeyRange.of_table(TABLE).end)
        begun = (TableImage(table_id=TABLE, feeds=(self.feed,), done=(opening,)),)
        self.log.snapshot([recorded("sbtest1")[0]])
        self.change(100, 1)
        self.log.advance(START_TS + 150)
        self.say(400, feeds=self.waits(), barriers=self.barrier(FIRST, opening))
        self.change(500, 2)
        self.say(1_400, feeds=self.waits(), chunks=self.chunk(FIRST, opening, {}))
        self.change(1_500, 3)
        self.say(1_700, feeds=self.waits(), tables=begun, barriers=self.barrier(SECOND, rest))
        self.change(2_100, 4)
        self.say(
            2_400, feeds=self.waits(), tables=begun, chunks=self.chunk(SECOND, rest, self.rows_at(SECOND, 0, KEYS))
        )
        self.say(3_000, feeds=(ImageFeed(feed=self.feed),))
