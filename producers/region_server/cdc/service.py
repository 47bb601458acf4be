"""The gRPC service ``cdcpb.ChangeData`` of one store: streams in, streams out, nothing decided here."""

import asyncio
import re
from collections.abc import AsyncIterator

import grpc

from producers.region_server.cdc.endpoint import Connection, Endpoint, decode_range
from producers.region_server.rpc.change_data_rpc import ChangeDataContext, ChangeDataRpc
from producers.region_server.rpc.channel import Channel
from schemas.errors import CorruptDataError
from schemas.proto import cdcpb_pb2

WATCHDOG_PATIENCE_S = 300.0
"""Five minutes. Source: tikv ``components/cdc/src/watchdog.rs``, 2026."""
WATCHDOG_LOOK_S = 0.2
_SEMVER = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:[-+].*)?")


def parse_version(text: str) -> tuple[int, int, int]:
    """A client's version; strict, so ``v8.5.0`` is unknown and counts as 0.0.0, as in TiKV.

    >>> parse_version("8.5.0-alpha"), parse_version("v8.5.0")
    ((8, 5, 0), (0, 0, 0))
    """
    match = _SEMVER.fullmatch(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)


class ChangeDataService(ChangeDataRpc):
    """``EventFeed`` and ``EventFeedV2`` of one store.

    ``quota_bytes`` bounds what a slow stream holds in memory. A stream that has been full for ``patience_s`` without
    taking one message is ended by the watchdog.
    """

    def __init__(self, endpoint: Endpoint, quota_bytes: int, patience_s: float = WATCHDOG_PATIENCE_S) -> None:
        self._endpoint = endpoint
        self._quota_bytes = quota_bytes
        self._patience_s = patience_s

    async def _serve(
        self,
        requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest],
        context: ChangeDataContext,
        *,
        multiplexing: bool,
    ) -> None:
        channel = Channel(self._quota_bytes)
        connection = Connection(channel=channel, multiplexing=multiplexing)
        self._endpoint.connect(connection)
        reader = asyncio.create_task(self._read(connection, requests))
        writer = asyncio.create_task(self._write(channel, context))
        try:
            if not await self._watch(channel, writer):
                # First this: the status only goes out once the client has read what is already under way.
                self._endpoint.disconnect(connection)
                await context.abort(grpc.StatusCode.UNKNOWN, "the client reads too slowly, memory quota used up")
            if channel.end is not None:
                await context.abort(*channel.end)
            if reader.done() and (error := reader.exception()) is not None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._endpoint.disconnect(connection)
            writer.cancel()
            reader.cancel()
            # What they end with now is only that the stream is over.
            await asyncio.gather(writer, reader, return_exceptions=True)

    async def _write(self, channel: Channel, context: ChangeDataContext) -> None:
        async for message in channel.messages():
            if self._endpoint.delay_s:
                await asyncio.sleep(self._endpoint.delay_s)
            await context.write(message)

    async def _watch(self, channel: Channel, writer: "asyncio.Task[None]") -> bool:
        """Wait for the writer; False if the client stopped reading. An abort does not wait for a stuck write."""
        now_s = asyncio.get_running_loop().time
        taken, moved_at = -1, now_s()
        while not writer.done():
            await asyncio.wait([writer], timeout=min(WATCHDOG_LOOK_S, self._patience_s))
            if channel.end is not None:
                return True
            if channel.messages_taken != taken or not channel.full:
                taken, moved_at = channel.messages_taken, now_s()
            elif now_s() - moved_at >= self._patience_s:
                return False
        writer.result()
        return True

    async def _read(self, connection: Connection, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest]) -> None:
        first = True
        try:
            async for request in requests:
                if first:
                    connection.version, first = parse_version(request.header.ticdc_version), False
                match request.WhichOneof("request"):
                    case "deregister":
                        self._endpoint.deregister(connection, request.request_id, request.region_id)
                    case "notify_txn_status":
                        raise CorruptDataError("notify_txn_status is not served", region_id=request.region_id)
                    case _:
                        decode_range(request)  # a malformed bound ends the stream, with a clear message
                        self._endpoint.register(connection, request)
        finally:
            # The client is done asking (or gone): send what is queued and end the stream, which is how TiCDC probes V2.
            connection.channel.close()
