"""How gRPC channels to PD and TiKV are opened: one function that is handed down, so that TLS is one setting.

Whoever opens a channel says its options (message limits, keepalive); the function says how the peer is proved.
"""

from collections.abc import Callable, Sequence
from typing import Any

import grpc

ChannelOptions = Sequence[tuple[str, Any]]
OpenChannel = Callable[[str, ChannelOptions], grpc.Channel]
"""``(address, options)`` to a channel; connecting goes on in the background."""


def open_plain(address: str, options: ChannelOptions = ()) -> grpc.Channel:
    """Open a channel without TLS."""
    return grpc.insecure_channel(address, options=list(options))
