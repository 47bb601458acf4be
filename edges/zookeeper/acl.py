"""Nodes of a cluster that was open until now become their creator's alone."""

import contextlib

from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, OPEN_ACL_UNSAFE

from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.session import Session


def close_nodes(session: Session, access: ZooKeeperAccess, root: str) -> int:
    """Give every node from ``root`` down that everybody may write the ACL of ``access``; return how many there were.

    Nothing is done for an access that leaves its own nodes open. What is above ``root`` may be other clusters' too.

    Raises:
        BusError: ZooKeeper failed, or some nodes are another user's.
    """
    if access.acl == OPEN_ACL_UNSAFE:
        return 0
    closed, level = 0, [root]
    with session.requests("closing nodes to others") as client:
        while level:
            asked = [(path, client.get_acls_async(path), client.get_children_async(path)) for path in level]
            level = []
            for path, acls, children in asked:
                with contextlib.suppress(NoNodeError):
                    closed += _close(client, path, acls.get()[0], access)
                    level += [f"{path}/{name}" for name in children.get()]
    return closed


def _close(client: ZooKeeperClient, path: str, acl: list[ACL], access: ZooKeeperAccess) -> bool:
    if not any(entry.id.scheme == "world" for entry in acl):
        return False
    client.set_acls(path, access.acl)
    return True
