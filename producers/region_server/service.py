"""The gRPC service ``cdcpb.ChangeData`` of one store: streams in, streams out, nothing decided here.

Messages leave as bytes that :mod:`channel` has joined, so the handlers are registered by hand: the generated servicer
would parse and serialise every event a second time.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from producers.region_server.channel import Channel
from producers.region_server.endpoint import Connection, Endpoint, decode_range
from schemas.errors import CorruptDataError
from schemas.proto import cdcpb_pb2

STREAM_MULTIPLEXING = "stream-multiplexing"
_Context: TypeAlias = "grpc.aio.ServicerContext[cdcpb_pb2.ChangeDataRequest, bytes]"
_SEMVER = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:[-+].*)?")


def parse_version(text: str) -> tuple[int, int, int]:
    """A client's version; strict, so ``v8.5.0`` is unknown and counts as 0.0.0, as in TiKV.

    >>> parse_version("8.5.0-alpha"), parse_version("v8.5.0")
    ((8, 5, 0), (0, 0, 0))
    """
    match = _SEMVER.fullmatch(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)


class ChangeDataService:
    """``EventFeed`` and ``EventFeedV2`` of one store. ``quota_bytes`` bounds what a slow stream holds in memory."""

    def __init__(self, endpoint: Endpoint, quota_bytes: int) -> None:
        self._endpoint = endpoint
        self._quota_bytes = quota_bytes

    def handlers(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """The service under its gRPC name."""

        def stream(behaviour: object) -> "grpc.RpcMethodHandler[cdcpb_pb2.ChangeDataRequest, bytes]":
            return grpc.stream_stream_rpc_method_handler(
                behaviour,  # type: ignore[arg-type]  # grpc-stubs knows the synchronous server only
                request_deserializer=cdcpb_pb2.ChangeDataRequest.FromString,
                response_serializer=bytes,
            )

        methods = {"EventFeed": stream(self._event_feed), "EventFeedV2": stream(self._event_feed_v2)}
        return grpc.method_handlers_generic_handler("cdcpb.ChangeData", methods)

    async def _event_feed(self, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest], context: _Context) -> None:
        await self._serve(requests, context, multiplexing=False)

    async def _event_feed_v2(self, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest], context: _Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        asked = {name.strip() for name in str(metadata.get("features", "")).split(",") if name.strip()}
        unknown = asked - {STREAM_MULTIPLEXING}
        if unknown:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, ",".join(sorted(unknown)))
        await self._serve(requests, context, multiplexing=STREAM_MULTIPLEXING in asked)

    async def _serve(
        self,
        requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest],
        context: _Context,
        *,
        multiplexing: bool,
    ) -> None:
        connection = Connection(channel=Channel(self._quota_bytes), multiplexing=multiplexing)
        self._endpoint.connect(connection)
        reader = asyncio.create_task(self._read(connection, requests))
        try:
            async for message in connection.channel.messages():
                await context.write(message)
            if connection.channel.overflowed:
                await context.abort(grpc.StatusCode.UNKNOWN, "the client reads too slowly, memory quota exceeded")
            if reader.done() and (error := reader.exception()) is not None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._endpoint.disconnect(connection)
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, CorruptDataError, grpc.RpcError):
                await reader

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
