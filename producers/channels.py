"""How gRPC channels to PD and TiKV are opened: one function that is handed down, so that TLS is one setting.

Whoever opens a channel says its options (message limits, keepalive); the function says how the peer is proved.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from schemas.addresses import host_of, is_loopback

ChannelOptions = Sequence[tuple[str, Any]]
OpenChannel = Callable[[str, ChannelOptions], grpc.Channel]
"""``(address, options)`` to a channel; connecting goes on in the background."""


def open_plain(address: str, options: ChannelOptions = ()) -> grpc.Channel:
    """Open a channel without TLS."""
    return grpc.insecure_channel(address, options=reaching(address, options))


def reaching(address: str, options: ChannelOptions) -> list[tuple[str, Any]]:
    """Return a channel's options: no proxy of the environment (``http_proxy``) stands between this machine and itself,
    as in Go's clients.
    """
    return [*options, ("grpc.enable_http_proxy", 0)] if is_loopback(host_of(address)) else list(options)


class KeptChannels:
    """A client's channels by address, from any thread. :meth:`close` must be called."""

    def __init__(self, open_channel: OpenChannel, options: ChannelOptions) -> None:
        """``options`` are those of each channel."""
        self._open_channel, self._options = open_channel, options
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._closed = False

    def __contains__(self, address: str) -> bool:
        with self._lock:
            return address in self._channels

    def of(self, address: str) -> grpc.Channel:
        """Return the channel to an address, which is opened if there is none.

        Raises:
            ValueError: all have been closed.
        """
        with self._lock:
            if self._closed:
                raise ValueError("the client is closed")
            if address not in self._channels:
                self._channels[address] = self._open_channel(address, self._options)
            return self._channels[address]

    def forget(self, address: str, channel: grpc.Channel | None) -> None:
        """Close a channel that has failed, if it is still the one of its address. The next one is made of what files
        hold then: a channel keeps the certificates of its making.
        """
        with self._lock:
            if channel is None or self._channels.get(address) is not channel:
                return  # another call has forgotten it
            del self._channels[address]
        channel.close()

    def close(self) -> None:
        """Close all; calls under way fail."""
        with self._lock:
            self._closed = True
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()
