"""How a node is written, whoever writes it, and how one that only its holder may have is taken.

Nodes get the client's default ACL: their creator's alone where it has a user or certificate. Each request is waited for
``answer_s``, or as long as the client's own handler waits (:class:`edges.zookeeper.session.Session`). What kazoo raises
beside the cases named here is the caller's, with the node's name and what was being done.
"""

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from edges.zookeeper.client import NodeStat, Watch, ZooKeeperClient


def read_node(
    client: ZooKeeperClient, path: str, answer_s: float | None = None, watch: Watch | None = None
) -> tuple[bytes, NodeStat] | None:
    """Return a node's bytes, and what ZooKeeper says of it (``version``, ``czxid``); None: there is none, and nothing
    is watched.
    """
    try:
        asked = client.get_async(path) if watch is None else client.get_async(path, watch=watch)
        value, stat = asked.get(timeout=answer_s)
    except NoNodeError:
        return None
    return bytes(value), stat


def put_node(
    client: ZooKeeperClient, path: str, value: bytes, answer_s: float | None = None, *, with_folders: bool = False
) -> None:
    """Write a node whatever stands there; it is created where it is not there yet, so that nobody reads it empty.

    Raises:
        NoNodeError: the node above is not there, so what this one belongs to was removed (never ``with_folders``,
            which makes those).
    """
    while True:
        try:
            client.set_async(path, value).get(timeout=answer_s)
            return
        except NoNodeError:
            pass
        try:
            if with_folders:
                client.create_async(path, value, makepath=True).get(timeout=answer_s)
            else:
                client.create_async(path, value).get(timeout=answer_s)
            return
        except NodeExistsError:
            continue  # another has created it in between


def replace_node(
    client: ZooKeeperClient, path: str, value: bytes, version: int | None, answer_s: float | None = None
) -> int | None:
    """Write a node on the condition that it is of ``version`` (None: not there); return its version then.

    None: it is another's word by now, or it is gone, or the node above is; or it is ours, and an answer was lost.
    """
    try:
        if version is None:
            client.create_async(path, value).get(timeout=answer_s)
            return 0
        return int(client.set_async(path, value, version).get(timeout=answer_s).version)
    except (BadVersionError, NodeExistsError, NoNodeError):
        return None


def take_node(client: ZooKeeperClient, path: str, holder: bytes, answer_s: float | None = None) -> NodeStat | None:
    """Create an ephemeral node if there is none; return what ZooKeeper says of the one that is our session's.

    None: another's stands there, or the node above is not there.
    """
    try:
        client.create_async(path, holder, ephemeral=True).get(timeout=answer_s)
    except NodeExistsError:
        pass  # perhaps ours: an answer may have been lost
    except NoNodeError:
        return None
    return own_node(client, path, answer_s)


def own_node(client: ZooKeeperClient, path: str, answer_s: float | None = None) -> NodeStat | None:
    """Return what ZooKeeper says of an ephemeral node; None: it is not our session's."""
    stat = client.exists_async(path).get(timeout=answer_s)
    return stat if is_own(client, stat) else None


def is_own(client: ZooKeeperClient, stat: NodeStat | None) -> bool:
    """Tell whether an ephemeral node, of which ZooKeeper says ``stat`` (None: it is not there), is our session's."""
    ours = client.client_id
    return stat is not None and ours is not None and stat.ephemeralOwner == ours[0]


def free_node(client: ZooKeeperClient, path: str, answer_s: float | None = None) -> None:
    """Delete an ephemeral node if it is our session's, so that the next need not wait for the session's end."""
    stat = own_node(client, path, answer_s)
    if stat is not None:
        client.delete_async(path, stat.version).get(timeout=answer_s)
