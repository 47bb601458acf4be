"""Replays recorded traffic into the embedded cluster: the bootstrap at once, the rest in order, at a chosen speed."""

import asyncio
import io
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import zstandard

from producers.region_server.core.replay.recorded import RecordedStep, Recording, SplitRegions, parse_recording
from producers.region_server.core.store.commands import ResolveLock
from producers.region_server.server import RegionServer, wall_clock_ms
from schemas.errors import ConfigError, InvariantBrokenError
from schemas.ids import Ts, physical_ms

log = logging.getLogger(__name__)

FILE_NAME = "kv.jsonl.zst"
_STEPS_A_BREATH = 64
_FAR_FUTURE_MS = 1 << 45


def read_recording(path: Path) -> Recording:
    """Read a recording: its folder, or the ``kv.jsonl.zst`` in it.

    Raises:
        ConfigError: there is no such file.
        CorruptDataError: it is not zstandard, or a record does not parse.
    """
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise ConfigError("recording not found", path=str(file))
    with file.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        return parse_recording(io.TextIOWrapper(stream, encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Where a replay stands. ``last_ts``: the newest ts of the applied part; ``finished``: all of it is applied."""

    replayed: int
    total: int
    last_ts: Ts
    finished: bool


class Replay:
    """One replay into one server: made before the server starts it loads the bootstrap at once, else with :meth:`load`.

    PD's clock follows the recording meanwhile and afterwards runs on from its end, or from the wall clock if that is
    later.
    """

    def __init__(self, server: RegionServer, recording: Recording) -> None:
        self._server = server
        self._recording = recording
        self._done = 0
        if not server.started:
            # Nobody can have asked for a ts or a key yet: the first client finds the whole bootstrap.
            self._load()

    @property
    def progress(self) -> ReplayProgress:
        """Where it stands now; may be asked from any thread."""
        steps, done = self._recording.steps, self._done
        last_ts = steps[done - 1].ts if done else Ts(0)
        return ReplayProgress(done, len(steps), last_ts, done == len(steps))

    @property
    def bootstrap_ts(self) -> Ts:
        """Start here for every recorded change: exactly the bootstrap is visible at this ts."""
        return self._recording.bootstrap_ts

    async def load(self) -> None:
        """Apply the bootstrap and stop PD's clock at its end, unless that is done.

        Raises:
            InvariantBrokenError: PD has given out a later ts already, so resolved ts of the replay could lie.
        """
        if not self._done:
            self._load()

    async def run(self, speed: float = 0.0, *, until: float = 1.0, wait_for_subscriber: bool = False) -> None:
        """Apply the rest. ``speed`` 1 keeps recorded time (by the TSO's milliseconds), 0 goes as fast as clients read.

        ``until``, a part of all steps from 0 to 1, ends it in the midst of the recording: PD's clock waits there for
        the run that goes on. With ``wait_for_subscriber`` it begins when the first subscription is made, so that a
        client sees the recording live.

        Raises:
            ConfigError: the speed is negative.
        """
        if speed < 0:
            raise ConfigError("speed is a factor of recorded time, 0 for as fast as possible", speed=speed)
        while wait_for_subscriber and not self._server.registrations:
            await asyncio.sleep(0.01)
        steps = self._recording.steps
        base_ms, began = physical_ms(max(self.bootstrap_ts, self.progress.last_ts)), time.monotonic()

        def recorded_now_ms() -> int:
            return base_ms + int((time.monotonic() - began) * 1000 * speed) if speed else _FAR_FUTURE_MS

        for step in steps[max(self._done, self._recording.bootstrap) : int(until * len(steps))]:
            # Before anything can wait: whoever asks for a ts from here on gets none that this step could break.
            self._server.oracle.hold(step.ceiling, recorded_now_ms)
            if speed:
                wait_s = (physical_ms(step.ts) - base_ms) / 1000 / speed - (time.monotonic() - began)
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
            if self._done % _STEPS_A_BREATH == 0:
                await self._server.let_streams_go_on()
            self._apply(step)
        if not self.progress.finished:
            return
        self._settle()
        end_ms, ended = physical_ms(self._recording.end_ts), time.monotonic()

        def now_ms() -> int:
            # A recording may come from later than this machine's clock: then its time runs on, at the usual pace.
            return max(wall_clock_ms(), end_ms + int((time.monotonic() - ended) * 1000))

        self._server.oracle.release(self._recording.end_ts, now_ms)
        log.info("recording replayed", extra={"steps": self._done, "end_ts": self._recording.end_ts})

    def _load(self) -> None:
        oracle = self._server.oracle
        if oracle.last > self.bootstrap_ts:
            raise InvariantBrokenError(
                "a ts above the recording's bootstrap was given out before the replay", last=oracle.last
            )
        oracle.hold(self.bootstrap_ts, lambda: _FAR_FUTURE_MS)
        for step in self._recording.steps[: self._recording.bootstrap]:
            self._apply(step)

    def _apply(self, step: RecordedStep) -> None:
        store = self._server.store
        if isinstance(step.work, SplitRegions):
            for key in step.work.keys:
                store.split(key)
        else:
            store.apply(step.work)
        self._done += 1

    def _settle(self) -> None:
        """End what the recording left open as TiDB's lock resolver does: by what became of the primary key.

        Otherwise these locks would hold resolved ts back for ever: nobody is left to end their transactions.
        """
        store = self._server.store
        for start_ts, primary in store.open_transactions().items():
            committed = store.regions.of_key(primary).data.committed_by(primary, start_ts)
            store.apply(ResolveLock(start_ts=start_ts, commit_ts=committed.commit_ts if committed else Ts(0)))
