"""A capture that scans for table images: it hears of records late, is slow, dies, and lands things twice."""

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from compose.simulation.images.tables import KEYS
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.images import ImageScan, ScanResult
from schemas.tidb.keys import row_key

if TYPE_CHECKING:
    from compose.simulation.images.world import ImageWorld

ROWS_MAX = 3
"""Of a scan, in place of bytes."""
ScanKey = tuple[Ts, int]


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """A record of the images topic."""

    barrier_ts: Ts
    number: int
    attempt: int
    table_id: TableId
    rows: tuple[tuple[bytes, int], ...]


@dataclass(slots=True)
class _Running:
    scan: ImageScan
    ticks_left: int
    attempt: int = 0
    hangs: bool = False


@dataclass(slots=True)
class SimScanner:
    """``heard``: the newest record that it has been told of. Dead ones may still have records on their way."""

    world: "ImageWorld"
    capture: CaptureId
    random: Random
    heard: FrontierRecord | None = None
    running: dict[ScanKey, _Running] = field(default_factory=dict)
    finished: dict[ScanKey, ScanResult] = field(default_factory=dict)
    reported: tuple[ScanResult, ...] = ()
    """As the owner's capture has it."""

    def hear(self, record: FrontierRecord) -> None:
        """Take a record that counts."""
        if self.heard is None or (record.owner_rev, record.resolved_ts) >= (
            self.heard.owner_rev,
            self.heard.resolved_ts,
        ):
            self.heard = record

    def work(self) -> None:
        """Get on for a tick."""
        if self.heard is None:
            return
        wanted = {
            (barrier.ts, scan.number): scan
            for barrier in self.heard.images.barriers
            for scan in barrier.scans
            if scan.capture == self.capture
        }
        for key in [key for key in self.running if key not in wanted]:
            self._give_up(key)
        self.finished = {key: result for key, result in self.finished.items() if key in wanted}
        for key, scan in wanted.items():
            if key not in self.running and key not in self.finished:
                hangs = self.world.has_faults and self.random.random() < self.world.hangs
                self.running[key] = _Running(scan, self.random.randint(0, 6), hangs=hangs)
        for key, running in list(self.running.items()):
            running.ticks_left -= 1
            if running.ticks_left < 0 and not running.hangs:
                self._end(key, running)
        if self.random.random() < 0.6:
            self.reported = tuple(self.finished.values())

    def _give_up(self, key: ScanKey) -> None:
        """Stop; what it had on its way may come at any time."""
        running = self.running.pop(key)
        if self.random.random() < 0.5:
            self.world.late.append(self._read(key, running)[0])

    def _end(self, key: ScanKey, running: _Running) -> None:
        record, reached = self._read(key, running)
        fate = self.random.random() if self.world.has_faults else 1.0
        if fate < 0.1:
            # Nobody knows whether it has landed: once more. The first may come before, after, or in between.
            if self.random.random() < 0.5:
                self.world.land(record)
            else:
                self.world.late.append(record)
            running.attempt += 1
            running.ticks_left = self.random.randint(0, 3)
            return
        del self.running[key]
        if fate < 0.2:
            self.finished[key] = ScanResult(barrier_ts=key[0], number=key[1], failure="tikv.not_leader")
            return
        start = len(self.world.topic)
        rows = record.rows
        if rows:
            middle = self.random.randint(0, len(rows))
            for part in (rows[:middle], rows[middle:]):
                self.world.land(ImageRecord(key[0], key[1], running.attempt, running.scan.table_id, part))
                if self.world.late and self.random.random() < 0.5:
                    self.world.land(self.world.late.pop(0))
        self.finished[key] = ScanResult(
            barrier_ts=key[0],
            number=key[1],
            attempt=running.attempt,
            reached=reached,
            partition=0,
            offsets=(start, len(self.world.topic)),
            rows=len(rows),
        )

    def _read(self, key: ScanKey, running: _Running) -> tuple[ImageRecord, bytes]:
        scan = running.scan
        table = self.world.tables.tables[scan.table_id]
        rows: list[tuple[bytes, int]] = []
        reached = scan.keys.end
        for number in range(KEYS):
            raw = row_key(scan.table_id, number)
            value = table.read(number, key[0])
            if value is None or not scan.keys.start <= raw < scan.keys.end:
                continue
            rows.append((raw, value))
            if len(rows) == ROWS_MAX:
                reached = raw + b"\0"
                break
        return ImageRecord(key[0], key[1], running.attempt, scan.table_id, tuple(rows)), reached
