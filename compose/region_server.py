"""`tidebus region-server`: the embedded cluster, fed by a recording and then by the generator."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer, RegionServerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionServerPlan:
    """What it plays."""

    server: RegionServerOptions = field(default_factory=RegionServerOptions)
    recording: Path | None = None
    speed: float = 0.0
    wait_for_subscriber: bool = True
    generator: GeneratorOptions | None = None
    """What is written after the recording; None: nothing."""


def serve(plan: RegionServerPlan, stopped: threading.Event) -> int:
    """Play until told to stop; the first line printed is PD's address.

    Raises:
        BusError: the recording or the plan is not usable, or the replay failed.
    """
    server = RegionServer(plan.server)
    recording = read_recording(plan.recording) if plan.recording else None
    replay = Replay(server, recording) if recording else None
    with server:
        if replay is not None:
            server.call(replay.load())
        print(f"pd={server.pd_address}", flush=True)

        async def play() -> None:
            if replay is not None:
                await replay.run(plan.speed, wait_for_subscriber=plan.wait_for_subscriber)
            if plan.generator is not None:
                await Generator(server, plan.generator).run()

        playing = server.spawn(play())
        while not stopped.wait(0.2):
            if playing.done():
                playing.result()
                stopped.wait()
        playing.cancel()
    return 0
