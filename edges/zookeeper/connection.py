"""A connected client for who keeps no lease of the session's own."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import ZooKeeperUnreachableError

CONNECT_TIMEOUT_S = 30.0
"""For who has nothing else to do: a whole ensemble restarts in less."""


@contextmanager
def zookeeper_client(
    access: ZooKeeperAccess, session_s: float, connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> Iterator[Any]:
    """Connect, and leave with everything that is held by the session.

    Raises:
        ZooKeeperUnreachableError: nobody answers there.
        ConfigError: a file of TLS cannot be used.
    """
    client = access.client(session_s)
    try:
        client.start(timeout=connect_timeout_s)
    except (KazooTimeoutError, KazooException, OSError) as error:
        with suppress(Exception):
            client.close()
        raise ZooKeeperUnreachableError(
            "ZooKeeper does not answer; check --zookeeper and that a server runs there",
            hosts=access.servers,
            waited_s=connect_timeout_s,
            reason=error,
        ) from error
    try:
        yield client
    finally:
        client.stop()
        client.close()
