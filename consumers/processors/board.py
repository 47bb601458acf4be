"""The changefeed's nodes as a processor sees them: what is wanted, its own lock, how far it is, what it failed with.

``status`` belongs to the sorter and the owner: its checkpoint is how far the topic between is written. What processors
have applied stands in a node of its own, ``applied``; a failure goes into ``status``, where the owner judges it as it
judges a sorter's.
"""

import contextlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType

from kazoo.exceptions import NodeExistsError, NoNodeError

from consumers.control.changefeeds.processor_nodes import (
    AppliedNode,
    ProcessorInfo,
    Share,
    decode_applied,
    decode_processor,
    encode_applied,
    encode_processor,
    encode_shares,
)
from edges.secrets import decode_info
from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.node_cache import Node, NodeCache
from edges.zookeeper.nodes import free_node, put_node, read_node, replace_node, take_node
from edges.zookeeper.session import Session
from schemas.errors import Action, BusError, CorruptDataError
from schemas.ids import CaptureId
from schemas.nodes.changefeed import (
    RUNNING,
    ChangefeedInfo,
    ChangefeedStatus,
    SorterFailure,
    ZkPaths,
    decode_changefeed_status,
    encode_changefeed_status,
    state_of,
    status_of,
)
from schemas.sink.topic import life_of

log = logging.getLogger(__name__)


class ChangefeedGoneError(BusError):
    """The changefeed was removed: nothing is to be applied any more."""

    code, action = "processor.changefeed_gone", Action.RETRY


@dataclass(frozen=True, slots=True)
class Wanted:
    """The changefeed as it was read."""

    info: ChangefeedInfo
    edition: tuple[int, int]
    """Changes when a user or the owner changes the changefeed."""
    status: ChangefeedStatus | None
    applied: AppliedNode | None

    @property
    def runs(self) -> bool:
        """Whether a processor should run: while a sorter should, and until all is applied that one has finished."""
        status = self.status
        unjudged = status is not None and status.failure is not None and status.failure.epoch == self.info.epoch
        state = state_of(self.info, status)
        return not unjudged and (state in RUNNING or (state == "finished" and not self.finished))

    @property
    def finished(self) -> bool:
        """Whether all up to the target is applied."""
        target, applied = self.info.target_ts, self.applied
        return (
            target is not None
            and applied is not None
            and applied.life == life_of(self.info)
            and applied.checkpoint_ts >= target
        )


class ProcessorBoard:
    """Reads and writes the nodes of one changefeed."""

    def __init__(self, session: Session, paths: ZkPaths, namespace: str, changefeed_id: str) -> None:
        self._session = session
        self._info_path = paths.changefeed_info(namespace, changefeed_id)
        self._status_path = paths.changefeed_status(namespace, changefeed_id)
        self._applied_path = paths.changefeed_applied(namespace, changefeed_id)
        self._lock_path = paths.changefeed_processor(namespace, changefeed_id)
        self._processors_path = paths.changefeed_processors(namespace, changefeed_id)
        self._cache: NodeCache | None = None
        """Of a process that looks again and again."""
        self._applied_cache: NodeCache | None = None
        self._seen: tuple[Mapping[str, Node], Wanted | None] = {}, None
        self._strays: set[str] = set()
        """Nodes among the processors' that were passed over."""

    def look(self) -> Wanted | None:
        """Return the changefeed as :meth:`read` does; ZooKeeper is asked for what has changed since the last look.

        What is applied is told only where the changefeed has a target: it changes all the time, and is of no interest
        elsewhere.

        Raises:
            ZooKeeperError, LeaseLostError, CorruptDataError
        """
        nodes = self._nodes()
        if nodes is not self._seen[0]:
            info, status = nodes.get(self._info_path), nodes.get(self._status_path)
            wanted = None
            if info is not None:
                said = None if status is None else decode_changefeed_status(status.value)
                wanted = Wanted(
                    decode_info(info.value),
                    (info.created_zxid, info.version),
                    status_of(said, info.created_zxid),
                    None,
                )
            self._seen = nodes, wanted
        wanted = self._seen[1]
        return wanted if wanted is None or wanted.info.target_ts is None else replace(wanted, applied=self._applied())

    def read(self) -> Wanted | None:
        """Return the changefeed; None: there is none.

        Raises:
            ZooKeeperError, LeaseLostError, CorruptDataError
        """
        with self._session.requests("reading a changefeed") as client:
            current = read_node(client, self._info_path)
            if current is None:
                return None
            node, stat = current
            status, applied = _content(client, self._status_path), _content(client, self._applied_path)
        created_zxid = int(stat.czxid)
        return Wanted(
            decode_info(node),
            (created_zxid, int(stat.version)),
            status_of(None if status is None else decode_changefeed_status(status), created_zxid),
            None if applied is None else self._readable_applied(applied),
        )

    def lock(self, holder: str) -> int | None:
        """Take the changefeed's processor lock; return a number that grows with each holder; None: another has it.

        Raises:
            ZooKeeperError, LeaseLostError
        """
        with self._session.requests("taking a processor's lock") as client:
            stat = take_node(client, self._lock_path, holder.encode())
            return None if stat is None else int(stat.czxid)

    def release(self) -> None:
        """Let the next processor begin at once.

        Raises:
            ZooKeeperError, LeaseLostError
        """
        with self._session.requests("giving a processor's lock back") as client:
            free_node(client, self._lock_path)

    def register(self, info: ProcessorInfo) -> int:
        """Make a processor known for as long as the session lives; return a number that grows with each.

        Raises:
            ChangefeedGoneError: the changefeed was removed.
            ZooKeeperError, LeaseLostError
        """
        with self._session.requests("registering a processor") as client:
            node = f"{self._processors_path}/{info.processor}"
            try:
                with contextlib.suppress(NodeExistsError):
                    client.create(self._processors_path)
                client.create(node, encode_processor(info), ephemeral=True)
                return int(client.get(node)[1].czxid)
            except NoNodeError as error:
                raise ChangefeedGoneError("changefeed was removed", path=self._processors_path) from error

    def mark_stopping(self, info: ProcessorInfo) -> None:
        """Let the others know that a processor is leaving.

        Raises:
            ZooKeeperError, LeaseLostError
        """
        with self._session.requests("marking a processor as stopping") as client, contextlib.suppress(NoNodeError):
            client.set(f"{self._processors_path}/{info.processor}", encode_processor(replace(info, is_stopping=True)))

    def unregister(self, processor: CaptureId) -> None:
        """Forget a processor.

        Raises:
            ZooKeeperError, LeaseLostError
        """
        with self._session.requests("unregistering a processor") as client, contextlib.suppress(NoNodeError):
            client.delete(f"{self._processors_path}/{processor}")

    def processors(
        self, known: Mapping[CaptureId, ProcessorInfo] = MappingProxyType({}), *, is_exact: bool = True
    ) -> dict[CaptureId, ProcessorInfo]:
        """Return the registered processors.

        Args:
            known: those of an earlier call, who stay as they were.
            is_exact: nobody may be missing who was registered before the call.

        Raises:
            ZooKeeperError, LeaseLostError, CorruptDataError
        """
        folder, infos = f"{self._processors_path}/", {}
        for path, node in self._nodes(is_exact=is_exact).items():
            if path.startswith(folder):
                info = known.get(CaptureId(path.removeprefix(folder))) or self._read_processor(path, node)
                if info is not None:
                    infos[info.processor] = info
        return dict(sorted(infos.items()))

    def leader_revision(self) -> int | None:
        """Return the number of who has the lock; None: nobody.

        Raises:
            ZooKeeperError, LeaseLostError
        """
        lock = self._nodes().get(self._lock_path)
        return None if lock is None else lock.created_zxid

    def tell(self, shares: Collection[Share]) -> None:
        """Write who applies which partition.

        Raises:
            ZooKeeperError, LeaseLostError
        """
        with self._session.requests("writing who applies what") as client, contextlib.suppress(NoNodeError):
            client.set(self._processors_path, encode_shares(shares))

    def report(self, applied: AppliedNode) -> None:
        """Write how far the processor is.

        Raises:
            ZooKeeperError, LeaseLostError
        """
        with self._session.requests("writing what is applied") as client, contextlib.suppress(NoNodeError):  # removed
            put_node(client, self._applied_path, encode_applied(applied))

    def fail(self, error: BusError, wanted: Wanted) -> None:
        """Write what the run of the changefeed as it was read has ended with.

        Raises:
            ZooKeeperError, LeaseLostError: nobody knows of it yet.
        """
        failure = SorterFailure(
            epoch=wanted.info.epoch,
            code=error.code,
            message=str(error),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            may_heal=error.action is Action.RETRY,
        )
        with self._session.requests("writing a failure") as client:
            # No node: removed, or the sorter has not begun; then there is nothing to judge.
            while (node := read_node(client, self._status_path)) is not None:
                created_zxid, status = wanted.edition[0], decode_changefeed_status(node[0])
                current = read_node(client, self._info_path)
                if current is None or int(current[1].czxid) != created_zxid or status_of(status, created_zxid) is None:
                    return  # another changefeed of its name
                failed = encode_changefeed_status(replace(status, failure=failure, created_zxid=created_zxid))
                if replace_node(client, self._status_path, failed, node[1].version) is not None:
                    return

    def _nodes(self, *, is_exact: bool = False) -> Mapping[str, Node]:
        if self._cache is None:
            folder = f"{self._processors_path}/*"
            self._cache = NodeCache(self._session, (self._info_path, self._status_path, self._lock_path, folder))
            is_exact = True  # the server may not have heard yet of a changefeed that this process was started for
        self._cache.refresh(is_exact=is_exact)
        return self._cache.nodes

    def _applied(self) -> AppliedNode | None:
        if self._applied_cache is None:
            self._applied_cache = NodeCache(self._session, (self._applied_path,))
        self._applied_cache.refresh()
        node = self._applied_cache.nodes.get(self._applied_path)
        return None if node is None else self._readable_applied(node.value)

    def _readable_applied(self, node: bytes) -> AppliedNode | None:
        """Return what a node says; None, and a word in the log, of one that does not decode: the next report writes it
        anew, and rows are applied by where the destination says that it stands.
        """
        try:
            return decode_applied(node)
        except CorruptDataError as error:
            extra = {"path": self._applied_path, "code": error.code, "error": str(error)}
            log.error("what is applied is not readable, and is written anew", extra=extra)
            return None

    def _read_processor(self, path: str, node: Node) -> ProcessorInfo | None:
        """Return a processor; None, and a word in the log: the node is no session's, so no processor's.

        Raises:
            CorruptDataError: it does not decode, and somebody lives behind it who may have partitions.
        """
        try:
            return decode_processor(node.value)
        except CorruptDataError as error:
            if node.session_id:
                raise CorruptDataError(error.message, path=path, **error.fields) from error
            if path not in self._strays:
                extra = {"path": path, "code": error.code, "error": str(error)}
                log.error("node among processors is no processor's, and is passed over", extra=extra)
            self._strays.add(path)
            return None


def _content(client: ZooKeeperClient, path: str) -> bytes | None:
    node = read_node(client, path)
    return node and node[0]
