"""A ZooKeeper session for who looks on: a test holds it beside all that it starts, and no slow machine may end it."""

from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import SESSION_TIMEOUT_MAX_S, Session


def lasting_session(access: ZooKeeperAccess) -> Session:
    """Connect; the session lasts for as long as a server grants, whatever this process does meanwhile."""
    return Session(access, timeout_s=SESSION_TIMEOUT_MAX_S)
