"""What sorters of a changefeed use of their sink topics, in ZooKeeper beside the epoch that was begun last."""

import contextlib

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.session import ZooKeeperUnreachableError
from schemas.nodes.changefeed import ZkPaths
from sorters.run.nodes.status import ANSWER_S


class CountNodes:
    """A node for each shard. Each is written over only as it was read, so that a sorter which was replaced cannot."""

    def __init__(self, zookeeper: ZooKeeperClient, paths: ZkPaths, namespace: str, changefeed_id: str) -> None:
        """``zookeeper`` is a started KazooClient."""
        self._zookeeper = zookeeper
        self._folder = paths.changefeed_partitions(namespace, changefeed_id)
        self._versions: dict[int, int] = {}

    def read(self) -> list[bytes]:
        """Return what is there.

        Raises:
            ZooKeeperUnreachableError
        """
        try:
            names = [name for name in self._children() if name.isdecimal()]
            asked = [(int(name), self._zookeeper.get_async(f"{self._folder}/{name}")) for name in names]
            answers = [(shard, request.get(timeout=ANSWER_S)) for shard, request in asked]
        except (KazooException, KazooTimeoutError) as failure:
            raise self._unreachable("not readable", failure) from failure
        self._versions = {shard: int(stat.version) for shard, (_, stat) in answers}
        return [bytes(content) for _, (content, _) in answers]

    def write(self, shard: int, counts: bytes) -> None:
        """Replace one shard.

        Raises:
            ZooKeeperUnreachableError: it does not answer, or another sorter has written meanwhile.
        """
        try:
            if shard in self._versions:
                request = self._zookeeper.set_async(f"{self._folder}/{shard}", counts, self._versions[shard])
                self._versions[shard] = int(request.get(timeout=ANSWER_S).version)
            else:
                self._create(f"{self._folder}/{shard}", counts)
                self._versions[shard] = 0
        except NoNodeError:
            pass  # the changefeed was removed, which ends this run
        except (BadVersionError, NodeExistsError, KazooException, KazooTimeoutError) as failure:
            raise self._unreachable("not writable", failure) from failure

    def _children(self) -> list[str]:
        try:
            return list(self._zookeeper.get_children_async(self._folder).get(timeout=ANSWER_S))
        except NoNodeError:
            return []

    def _create(self, path: str, counts: bytes) -> None:
        try:
            self._zookeeper.create_async(path, counts).get(timeout=ANSWER_S)
        except NoNodeError:
            with contextlib.suppress(NodeExistsError):  # made by a try whose answer was lost
                self._zookeeper.create_async(self._folder, b"").get(timeout=ANSWER_S)
            self._zookeeper.create_async(path, counts).get(timeout=ANSWER_S)

    def _unreachable(self, what: str, failure: Exception) -> ZooKeeperUnreachableError:
        return ZooKeeperUnreachableError(f"partitions in use are {what}", path=self._folder, reason=repr(failure))
