"""The changefeed's nodes as a processor sees them: what is wanted, its own lock, how far it is, what it failed with.

``status`` belongs to the sorter and the owner: its checkpoint is how far the topic between is written. What processors
have applied stands in a node of its own, ``applied``; a failure goes into ``status``, where the owner judges it as it
judges a sorter's.
"""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

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
from edges.zookeeper.session import Session
from schemas.errors import Action, BusError
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
)
from schemas.sink.topic import life_of


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

    def read(self) -> Wanted | None:
        """Return the changefeed; None: there is none.

        Raises:
            ZooKeeperError, LeaseLostError, CorruptDataError
        """
        with self._session.requests("reading a changefeed") as client:
            try:
                node, stat = client.get(self._info_path)
            except NoNodeError:
                return None
            status, applied = _content(client, self._status_path), _content(client, self._applied_path)
        return Wanted(
            decode_info(node),
            (int(stat.czxid), int(stat.version)),
            None if status is None else decode_changefeed_status(status),
            None if applied is None else decode_applied(applied),
        )

    def lock(self, holder: str) -> int | None:
        """Take the changefeed's processor lock; return a number that grows with each holder; None: another has it.

        Raises:
            ZooKeeperError, LeaseLostError
        """
        with self._session.requests("taking a processor's lock") as client:
            try:
                client.create(self._lock_path, holder.encode(), ephemeral=True)
            except NodeExistsError:
                pass  # perhaps ours
            except NoNodeError:
                return None  # the changefeed was removed
            stat = client.exists(self._lock_path)
            ours = stat is not None and client.client_id and stat.ephemeralOwner == client.client_id[0]
            return int(stat.czxid) if ours else None

    def release(self) -> None:
        """Let the next processor begin at once.

        Raises:
            ZooKeeperError, LeaseLostError
        """
        with self._session.requests("giving a processor's lock back") as client:
            stat = client.exists(self._lock_path)
            if stat is not None and client.client_id and stat.ephemeralOwner == client.client_id[0]:
                client.delete(self._lock_path)

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
            known: those of an earlier call, whose nodes are not read again.
            is_exact: nobody may be missing who was registered before the call.

        Raises:
            ZooKeeperError, LeaseLostError, CorruptDataError
        """
        with self._session.requests("listing processors") as client:
            if is_exact:
                client.sync(self._processors_path)
            try:
                names = client.get_children(self._processors_path)
            except NoNodeError:
                return {}
            infos = {}
            for name in sorted(names):
                info = known.get(CaptureId(name))
                if info is None and (node := _content(client, f"{self._processors_path}/{name}")) is not None:
                    info = decode_processor(node)
                if info is not None:
                    infos[info.processor] = info
            return infos

    def leader_revision(self) -> int | None:
        """Return the number of who has the lock; None: nobody.

        Raises:
            ZooKeeperError, LeaseLostError
        """
        with self._session.requests("looking for a leader") as client:
            stat = client.exists(self._lock_path)
            return None if stat is None else int(stat.czxid)

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
        with self._session.requests("writing what is applied") as client:
            try:
                client.set(self._applied_path, encode_applied(applied))
            except NoNodeError:
                try:
                    client.create(self._applied_path, encode_applied(applied))
                except NoNodeError:
                    return  # the changefeed was removed

    def fail(self, error: BusError, epoch: int) -> None:
        """Write what the run under ``epoch`` has ended with.

        Raises:
            ZooKeeperError, LeaseLostError: nobody knows of it yet.
        """
        failure = SorterFailure(
            epoch=epoch,
            code=error.code,
            message=str(error),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            may_heal=error.action is Action.RETRY,
        )
        with self._session.requests("writing a failure") as client:
            while True:
                try:
                    node, stat = client.get(self._status_path)
                    status = replace(decode_changefeed_status(node), failure=failure)
                    client.set(self._status_path, encode_changefeed_status(status), version=stat.version)
                    return
                except BadVersionError:
                    continue
                except NoNodeError:
                    return  # removed, or the sorter has not begun: then there is nothing to judge


def _content(client: Any, path: str) -> bytes | None:
    try:
        return bytes(client.get(path)[0])
    except NoNodeError:
        return None
