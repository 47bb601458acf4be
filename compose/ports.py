"""Free ports on loopback that nobody takes while a server restarts."""

import os
import socket

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 20_000, 32_000
"""Below the ephemeral range (32768 and up on Linux): a client that keeps dialling a dead broker's port in the ephemeral
range can be given that very port as its own source port, connects to itself, and the broker can never bind it again."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` ports that were free a moment ago; the process id spreads processes that ask at once."""
    ports: list[int] = []
    span = _LAST - _FIRST
    start = os.getpid() * 37 % span
    for step in range(span):
        port = _FIRST + (start + step) % span
        if port not in _GIVEN and is_free(port):
            ports.append(port)
            if len(ports) == count:
                break
    _GIVEN.update(ports)
    return ports


def is_free(port: int) -> bool:
    """Tell whether a server could bind ``port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def is_listening(port: int) -> bool:
    """Tell whether something accepts connections on ``port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0


_GIVEN: set[int] = set()
