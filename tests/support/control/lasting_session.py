"""A ZooKeeper session for who looks on: a test holds it beside all that it starts, and no slow machine may end it."""

import time

from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import SESSION_TIMEOUT_MAX_S, Session, ZooKeeperUnreachableError

ANSWER_S = 120.0
"""A server that has just started writes its first session to a disk that others keep busy."""


def lasting_session(access: ZooKeeperAccess) -> Session:
    """Connect; the session lasts for as long as a server grants, whatever this process does meanwhile."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        try:
            return Session(access, timeout_s=SESSION_TIMEOUT_MAX_S)
        except ZooKeeperUnreachableError:
            if time.monotonic() > deadline:
                raise
