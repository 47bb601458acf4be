"""The upstream's node in ZooKeeper: what its owner says of it for people, and the epoch that outlives owners."""

import contextlib
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError

from edges.zookeeper.nodes import put_node
from edges.zookeeper.session import Session
from schemas.ids import UpstreamId
from schemas.json_text import read_json
from schemas.nodes.changefeed import ZkPaths

log = logging.getLogger(__name__)

FIRST_EPOCH: Final = 1


class UpstreamNode:
    """Not thread-safe: it is of whichever thread has the reign."""

    def __init__(self, session: Session, paths: ZkPaths, upstream: UpstreamId) -> None:
        self._session, self._path = session, paths.upstream(upstream)
        self._value: Mapping[str, object] = {}
        self._pending: Any = None
        self._exists = True

    def read(self) -> Mapping[str, object]:
        """Return what was written last, {} if nothing was or nobody can read it.

        Raises:
            BusError: ZooKeeper failed.
        """
        with self._session.requests("reading the upstream's node") as client:
            client.sync(self._path)
            try:
                value = read_json(client.get(self._path)[0] or b"{}")
            except NoNodeError:
                return {}
            except ValueError:
                log.warning("upstream's node does not decode; it is written anew", extra={"node": self._path})
                return {}
        return value if isinstance(value, dict) else {}

    def epoch(self) -> int:
        """Return the changefeed epoch of the newest owner.

        Raises:
            BusError: ZooKeeper failed.
        """
        epoch = self.read().get("epoch")
        return epoch if type(epoch) is int and FIRST_EPOCH <= epoch < 1 << 63 else FIRST_EPOCH

    def write(self, value: Mapping[str, object]) -> None:
        """Write, and wait until it stands.

        Raises:
            BusError: ZooKeeper failed.
        """
        self._value = value
        with self._session.requests("writing the upstream's node") as client:
            put_node(client, self._path, json.dumps(value).encode(), with_folders=True)

    def write_epoch(self, epoch: int) -> None:
        """Keep an epoch, beside what was written last, before anybody hears of it.

        Raises:
            BusError: ZooKeeper failed.
        """
        self.write({**(self._value or self.read()), "epoch": epoch})

    def tell(self, value: Mapping[str, object]) -> None:
        """Write when ZooKeeper has time: a status must not stop the owner. One that is under way is waited for first,
        so of many only the newest is written."""
        if self._pending is not None:
            if not self._pending.ready():
                return
            failure, self._pending = self._pending.exception, None
            if isinstance(failure, NoNodeError):
                self._exists = False
            elif failure is not None and not isinstance(failure, NodeExistsError):
                log.debug("upstream's node was not written", extra={"reason": repr(failure)})
        self._value, encoded = value, json.dumps(value).encode()
        with contextlib.suppress(KazooException):
            client = self._session.client
            if self._exists:
                self._pending = client.set_async(self._path, encoded)
            else:
                self._pending, self._exists = client.create_async(self._path, encoded, makepath=True), True
