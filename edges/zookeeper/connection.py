"""A connected client for who may come back with another session, and takes anew what hung on the last."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.lease import Lease
from edges.zookeeper.session import start_with_lease

CONNECT_TIMEOUT_S = 30.0
"""For who has nothing else to do: a whole ensemble restarts in less."""


@dataclass(frozen=True, slots=True)
class LeasedClient:
    """A started KazooClient, and the lease of whichever session it has."""

    client: ZooKeeperClient
    lease: Lease


@contextmanager
def zookeeper_client(
    access: ZooKeeperAccess, session_s: float, connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> Iterator[LeasedClient]:
    """Connect, and leave with everything that is held by the session.

    Raises:
        ZooKeeperUnreachableError: nobody answers there.
        ConfigError: a file of TLS cannot be used.
    """
    client = access.client(session_s)
    lease = start_with_lease(client, access.servers, session_s, connect_timeout_s)
    try:
        yield LeasedClient(client, lease)
    finally:
        lease.stop()
        client.stop()
        client.close()
        lease.join()
