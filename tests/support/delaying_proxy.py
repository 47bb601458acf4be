"""A server that is some way off: a TCP proxy in a process of its own that holds all bytes back by a fixed time.

What is sent together arrives together, however much it is: the way is long and wide.
"""

import asyncio
import subprocess
import sys
from typing import Self

CHUNK_BYTES = 256 * 1024


class DelayingProxy:
    """Stands before one server on loopback; each direction takes ``delay_s``, so a round trip takes twice that."""

    def __init__(self, port: int, delay_s: float) -> None:
        command = [sys.executable, "-m", "tests.support.delaying_proxy", str(port), str(delay_s)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(CHUNK_BYTES):
        loop.call_later(delay_s, writer.write, data)
    loop.call_later(delay_s, writer.close)


async def _serve(port: int, delay_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(_carry(reader, there[1], delay_s), _carry(there[0], writer, delay_s))
        except OSError:
            writer.close()
            there[1].close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
