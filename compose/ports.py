"""Free ports on loopback that nobody takes while a server restarts."""

import fcntl
import json
import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from schemas.json_text import read_json

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 20_000, 32_000
"""Below the ephemeral range (32768 and up on Linux): a client that keeps dialling a dead broker's port in the ephemeral
range can be given that very port as its own source port, connects to itself, and the broker can never bind it again."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` ports that were free a moment ago, and that no other process of this user is given by this, as
    long as this one lives: some seconds pass before a server binds its port.
    """
    ports: list[int] = []
    span = _LAST - _FIRST
    start = os.getpid() * 37 % span
    for step in range(span):
        if len(ports) == count:
            break
        port = _FIRST + (start + step) % span
        if port not in _GIVEN and is_free(port) and _is_reserved(port):
            ports.append(port)
    _GIVEN.update(ports)
    return ports


def kept_ports(file: Path, names: Sequence[str]) -> dict[str, int]:
    """Return a port for each name: the one that it had when ``file`` was written, where that is free. The file then
    says which they are.
    """
    try:
        known = read_json(file.read_bytes())
    except (OSError, ValueError):
        known = {}
    before = known if isinstance(known, dict) else {}
    ports: dict[str, int] = {}
    for name in names:
        port = before.get(name)
        if isinstance(port, int) and port not in ports.values() and _is_ours(port):
            ports[name] = port
    _GIVEN.update(ports.values())
    others = iter(free_ports(len(names) - len(ports)))
    ports = {name: ports.get(name) or next(others) for name in names}
    file.write_text(json.dumps(ports))
    return ports


def _is_ours(port: int) -> bool:
    return _FIRST <= port < _LAST and is_free(port) and (port in _GIVEN or _is_reserved(port))


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


def _is_reserved(port: int) -> bool:
    """Reserve a port by a lock on a file, which goes with this process; tell whether nobody else had it."""
    folder = Path(tempfile.gettempdir()) / f"tidebus-ports-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return True  # nowhere to say so: then only chance keeps processes apart
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return False
    _LOCKS.append(lock)
    return True


_GIVEN: set[int] = set()
_LOCKS: list[int] = []
