"""``cdcpb.ChangeData`` under its gRPC name, and what its two methods agree on with a client before they serve it.

Messages leave as joined bytes, so the handlers are registered by hand: the generated servicer would parse and serialise
every event a second time.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from schemas.proto import cdcpb_pb2

STREAM_MULTIPLEXING = "stream-multiplexing"
ChangeDataContext: TypeAlias = "grpc.aio.ServicerContext[cdcpb_pb2.ChangeDataRequest, bytes]"


class ChangeDataRpc(ABC):
    """``EventFeed`` and ``EventFeedV2``."""

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

    async def _event_feed(
        self, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest], context: ChangeDataContext
    ) -> None:
        await self._serve(requests, context, multiplexing=False)

    async def _event_feed_v2(
        self, requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest], context: ChangeDataContext
    ) -> None:
        metadata = dict(context.invocation_metadata() or ())
        asked = {name.strip() for name in str(metadata.get("features", "")).split(",") if name.strip()}
        unknown = asked - {STREAM_MULTIPLEXING}
        if unknown:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, ",".join(sorted(unknown)))
        await self._serve(requests, context, multiplexing=STREAM_MULTIPLEXING in asked)

    @abstractmethod
    async def _serve(
        self,
        requests: AsyncIterator[cdcpb_pb2.ChangeDataRequest],
        context: ChangeDataContext,
        *,
        multiplexing: bool,
    ) -> None:
        """Serve one stream to its end."""
