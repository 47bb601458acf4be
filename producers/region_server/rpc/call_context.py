"""What a gRPC server tells a service of a call: the type, which the library names for type checkers alone."""

from typing import TYPE_CHECKING, Any, TypeAlias

import grpc.aio

if TYPE_CHECKING:
    CallContext: TypeAlias = grpc.aio.ServicerContext[Any, Any]
else:
    CallContext = grpc.aio.ServicerContext
