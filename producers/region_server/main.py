"""Runs the embedded cluster as a process: a recording first, then the generator, then idle until it is stopped.

Each line on stdout is one JSON object with an ``event``:

    {"event": "listening", "pd": "127.0.0.1:4321", "bootstrap_ts": 470…, "cluster_id": …}  first, once all answers
                            (all PD members are in "pds"; with a control port, its address is in "control")
    {"event": "progress", "replayed": 1200, "of": 20939, "generated": 0, "last_ts": …}     about once a second
    {"event": "replayed", "end_ts": …}      the recording is in; a checkpoint at or past end_ts has passed all of it
    {"event": "generated", "rows": …, "last_commit_ts": …}                                 only with a row limit

``bootstrap_ts`` is the start_ts for a client that wants every recorded change (without a recording: PD's ts at the
start). Waiting for a subscriber or not, nothing is missed from there: the store keeps all versions, unless garbage
collection is switched on.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer, RegionServerOptions

PROGRESS_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What one process serves."""

    recording: Path | None = None
    speed: float = 0.0
    wait_for_subscriber: bool = True
    generator: GeneratorOptions | None = None
    control_port: int | None = None
    """Of the HTTP port that takes cluster events; 0: a free one, None: no such port."""
    chaos_seed: int | None = None
    """Let things happen at random, by this seed, from the first subscription on; None: only on command."""
    chaos_every_s: float = 1.0
    server: RegionServerOptions = field(default_factory=lambda: RegionServerOptions(min_ts_interval_ms=200))


def run(options: RunOptions, stop: threading.Event, emit: Callable[[str], None] | None = None) -> None:
    """Serve until ``stop`` is set. ``emit`` takes the lines described above; by default they go to stdout.

    Raises:
        ConfigError: the recording is not there, or an option makes no sense.
        CorruptDataError: a record of the recording does not parse.
    """
    say = emit or _to_stdout
    recording = read_recording(options.recording) if options.recording else None
    server = RegionServer(options.server)
    replay = Replay(server, recording) if recording else None
    with server:
        generator = Generator(server, options.generator) if options.generator else None
        bootstrap_ts = replay.bootstrap_ts if replay else server.tso()
        where: dict[str, Any] = {"pd": server.pd_address, "pds": server.pd_addresses}
        if options.control_port is not None:
            where["control"] = server.call(server.open_control(options.control_port))
        _say(say, "listening", **where, bootstrap_ts=bootstrap_ts, cluster_id=options.server.cluster_id)
        if options.chaos_seed is not None:
            server.spawn(_chaos(server, options.chaos_seed, options.chaos_every_s))

        async def write() -> None:
            if replay and recording:
                await replay.run(options.speed, wait_for_subscriber=options.wait_for_subscriber)
                _say(say, "replayed", end_ts=recording.end_ts)
            if generator:
                await generator.run()
                _say(say, "generated", rows=generator.rows_committed, last_commit_ts=generator.last_commit_ts)

        writing: Future[None] = server.spawn(write())
        while not stop.wait(PROGRESS_INTERVAL_S):
            if writing.done():
                writing.result()  # raises what ended it; a cluster that nobody writes to goes on serving
                stop.wait()
                break
            _say(say, "progress", **_progress(replay, generator))


async def _chaos(server: RegionServer, seed: int, every_s: float) -> None:
    # Not before somebody listens: a replay may have to be loaded still, and trouble without clients is no test.
    while not server.registrations:
        await asyncio.sleep(0.01)
    await server.chaos.run(seed, every_s)


def _progress(replay: Replay | None, generator: Generator | None) -> dict[str, int]:
    replayed = replay.progress if replay else None
    last_ts = generator.last_commit_ts if generator and generator.last_commit_ts else replayed and replayed.last_ts
    return {
        "replayed": replayed.replayed if replayed else 0,
        "of": replayed.total if replayed else 0,
        "generated": generator.rows_committed if generator else 0,
        "last_ts": last_ts or 0,
    }


def _say(say: Callable[[str], None], event: str, **fields: object) -> None:
    say(json.dumps({"event": event, **fields}))


def _to_stdout(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
