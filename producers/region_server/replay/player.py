"""The replaying server: a recorded event feed of a real TiKV cluster, served again on real sockets.

One PD and the recorded number of stores, each on a loopback port of its own, on one event loop in one thread:

    with FeedReplayServer(read_feed_folder(folder)) as server:
        server.pd_address          # "127.0.0.1:43210"

What is sent, and when, is :class:`producers.region_server.core.replay.player.FeedReplay`'s to say.
"""

import asyncio
import io
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import grpc
import grpc.aio
import zstandard

from producers.region_server.core.replay.recording import FeedRecording, Note, read_feed
from producers.region_server.replay.services import ReplayChangeData, ReplayHub, ReplayPd
from producers.region_server.rpc.server_options import SERVER_OPTIONS
from schemas.errors import ConfigError
from schemas.ids import StoreId
from schemas.proto import pdpb_pb2_grpc

FEED_FILE: Final = "feed.jsonl.zst"
TICK_S: Final = 0.005
"""Between two looks at the clock, where the recording runs by the clock."""
_HOST: Final = "127.0.0.1"


def read_feed_folder(folder: Path) -> FeedRecording:
    """Read the recording in a folder.

    Raises:
        ConfigError: the folder has no ``feed.jsonl.zst``.
        CorruptDataError: it does not parse.
    """
    path = folder / FEED_FILE
    if not path.is_file():
        raise ConfigError("folder has no recorded event feed", folder=str(folder), wanted=FEED_FILE)
    with path.open("rb") as file:
        return read_feed(io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8"))


class FeedReplayServer:
    """See the module's text."""

    def __init__(
        self,
        recording: FeedRecording,
        *,
        speed: float = math.inf,
        on_note: Callable[[Note], None] | None = None,
    ) -> None:
        """Prepare; :meth:`start` binds the ports.

        Args:
            recording: what to serve.
            speed: recorded seconds in one second; the clock stands while a gate is closed. Infinite: as fast as the
                client registers.
            on_note: told of the recorder's notes as the cursor passes them (``subscribe``, ``deregister``: what an
                owner would order); runs on the server's thread and must not block. With it, the recording stands still
                at each ``deregister`` until :meth:`go_on`.
        """
        self._recording = recording
        self._speed = speed
        self._hub = ReplayHub(recording, math.inf if math.isinf(speed) else 0.0, on_note)
        self._loop: asyncio.AbstractEventLoop  # made by start: who never starts has nothing to give back
        self._thread = threading.Thread(target=self._run, name="feed-replay", daemon=True)
        self._servers: list[grpc.aio.Server] = []
        self._ticking: asyncio.Task[None] | None = None
        self.addresses: dict[StoreId, str] = {}
        """What PD says of the stores; whoever puts something before one changes it here."""
        self.pd_address = ""

    def start(self) -> Self:
        """Bind all ports and serve; the recording begins when the client asks for something."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def stop(self) -> None:
        """End every stream and give the ports back. A second call does nothing."""
        if self._thread.ident is None or self._loop.is_closed():
            return
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def go_on(self) -> None:
        """The span of the newest ``deregister`` note has come whole, and is given up."""
        self._loop.call_soon_threadsafe(self._hub.go_on)

    @property
    def waits_for(self) -> str:
        """What the recording waits for; '' if nothing but time. For people."""
        return self._hub.replay.waits_for

    @property
    def line(self) -> int:
        """The recording's line of the next step."""
        return self._hub.replay.line

    @property
    def finished(self) -> bool:
        """Whether the last recorded message has been handed on."""
        return self._hub.replay.finished

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _start(self) -> None:
        for store in self._recording.stores.stores:
            server = self._new_server()
            server.add_generic_rpc_handlers((ReplayChangeData(self._hub, StoreId(store.id)).handlers(),))
            self.addresses[StoreId(store.id)] = f"{_HOST}:{server.add_insecure_port(f'{_HOST}:0')}"
            await server.start()
        pd_server = self._new_server()
        self.pd_address = f"{_HOST}:{pd_server.add_insecure_port(f'{_HOST}:0')}"
        # The generated base answers UNIMPLEMENTED to what ReplayPd leaves out.
        pd = ReplayPd(self._hub, self._recording, self.pd_address, self.addresses)  # type: ignore[abstract]
        pdpb_pb2_grpc.add_PDServicer_to_server(pd, pd_server)
        await pd_server.start()
        if not math.isinf(self._speed):
            self._ticking = self._loop.create_task(self._tick())
        self._hub.pump()

    async def _stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        await asyncio.gather(*(server.stop(grace=None) for server in self._servers))

    def _new_server(self) -> "grpc.aio.Server":
        server = grpc.aio.server(options=SERVER_OPTIONS)
        self._servers.append(server)
        return server

    async def _tick(self) -> None:
        before_s = time.monotonic()
        while not self.finished:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            if not self._hub.held:  # a closed gate ahead is no reason to stand: a note is told only when its time comes
                self._hub.now_ms += (now_s - before_s) * self._speed * 1000
            before_s = now_s
            self._hub.pump()
