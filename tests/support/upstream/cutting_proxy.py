"""A TCP proxy that cuts each connection at a random byte, and delays what goes through: chosen by a seed."""

import asyncio
import contextlib
import random
import threading
from typing import Self

CHUNK_BYTES = 16 * 1024


class CuttingProxy:
    """Stands before one server on loopback. Cut connections just end, in the middle of whatever was being sent."""

    def __init__(
        self, target: str, seed: int, *, bytes_min: int = 50, bytes_max: int = 100_000, delay_max_s: float = 0.003
    ) -> None:
        """Prepare; entering the context starts it.

        Args:
            target: ``host:port`` of the server.
            seed: of all that is random; the n-th connection is cut at the same byte every time.
            bytes_min: the least number of bytes, of both directions together, that a connection lives for.
            bytes_max: the largest. The number's logarithm is uniform, so short lives are as common as long ones.
            delay_max_s: the longest that a piece is held back.
        """
        self.address = ""
        self.cuts = 0
        self._target = target
        self._seed = seed
        self._bytes_min, self._bytes_max, self._delay_max_s = bytes_min, bytes_max, delay_max_s
        self._connections = 0
        self._calm = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cutting-proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def calm(self) -> None:
        """Cut nothing any more; connections that are open stay so."""
        self._calm = True

    def cut(self) -> None:
        """Cut all connections that are open."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(30)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        dice = random.Random(f"{self._seed} {self._connections}")
        left = [int(self._bytes_min * (self._bytes_max / self._bytes_min) ** dice.random())]
        host, _, port = self._target.rpartition(":")
        far: asyncio.StreamWriter | None = None
        try:
            far_reader, far = await asyncio.open_connection(host, int(port))
            ways = [
                asyncio.ensure_future(self._relay(reader, far, left, dice)),
                asyncio.ensure_future(self._relay(far_reader, writer, left, dice)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass  # the server is away: the client sees its connection end
        except asyncio.CancelledError:
            pass  # the proxy stops; asyncio's server would report a handler that was cancelled as an error
        finally:
            writer.transport.abort()
            if far is not None:
                far.transport.abort()
            self._tasks.discard(task)

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int], dice: random.Random
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(dice.randrange(1, CHUNK_BYTES)):
                if not self._calm:
                    await asyncio.sleep(dice.random() * self._delay_max_s)
                    cut = len(piece) >= left[0]
                    piece = piece[: left[0]] if cut else piece
                    left[0] -= len(piece)
                    writer.write(piece)
                    if cut:
                        await writer.drain()
                        self.cuts += 1
                        return
                else:
                    writer.write(piece)
                await writer.drain()
