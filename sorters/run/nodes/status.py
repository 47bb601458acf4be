"""The changefeed's nodes in ZooKeeper: reads what the user wants, writes how far it is and what it has failed with."""

import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from edges.secrets import decode_info
from edges.zookeeper.client import NodeStat, Watch, ZooKeeperClient
from edges.zookeeper.nodes import put_node, read_node, replace_node
from edges.zookeeper.progress import all_entries
from edges.zookeeper.session import ZooKeeperUnreachableError
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.nodes.changefeed import (
    SET_EPOCH_UNKNOWN,
    ChangefeedInfo,
    ChangefeedStatus,
    SorterFailure,
    ZkPaths,
    decode_changefeed_status,
    encode_changefeed_status,
    status_of,
)
from schemas.nodes.failures import stopping_ddl
from schemas.nodes.prologue import Prologue, decode_prologue
from schemas.nodes.sorter_service import FeedEntry, newest_entries, with_progress
from sorters.core.cut.beginning import decode_begun

_NO_TS = Ts(0)
ANSWER_S = 2.0
"""kazoo keeps a request until the connection is back, however long that takes; nobody here may hang so long."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Edition:
    """Which text of a changefeed's node it is; a changefeed that was removed and created again has another."""

    created_zxid: int
    version: int


class StatusBoard:
    """``info`` and ``status`` of one changefeed. ``checkpoint_ts`` never goes back, whatever is reported.

    The owner writes the status too (state, error), so every write is a compare-and-set that keeps what it has written.
    """

    def __init__(self, zookeeper: ZooKeeperClient, paths: ZkPaths, namespace: str, changefeed_id: str) -> None:
        """``zookeeper`` is a started KazooClient."""
        self._zookeeper, self._paths, self._name = zookeeper, paths, (namespace, changefeed_id)
        self._info_path = paths.changefeed_info(namespace, changefeed_id)
        self._status_path = paths.changefeed_status(namespace, changefeed_id)
        self._begun_path = paths.changefeed_begun(namespace, changefeed_id)
        self._prologue_path = paths.changefeed_prologue(namespace, changefeed_id)
        self._last: ChangefeedStatus | None = None
        self._version: int | None = None
        """The version of the status node as we know it; None: it is not there."""
        self._opened: tuple[int, int] | None = None
        """The changefeed's creation and epoch at :meth:`open`: a checkpoint that was set since is of a higher epoch.
        None: not opened, or no more ours to write."""
        self._is_gone = False
        """The changefeed that was opened is not there any more, though there may be another of its name."""
        self._checkpoint_ts = _NO_TS
        self._entries: list[FeedEntry] = []
        """What sorter services had said of the changefeed at :meth:`open`."""

    def info(self, watch: Watch | None = None) -> tuple[ChangefeedInfo, Edition] | None:
        """Return the changefeed, and an edition that changes when the user or the owner changes it; None: no such.

        Args:
            watch: called once, in kazoo's thread, when it has changed or is gone.

        Raises:
            ZooKeeperUnreachableError, CorruptDataError
        """
        node = self._found(self._info_path, watch)
        return node and (decode_info(node[0]), Edition(int(node[1].czxid), int(node[1].version)))

    def prologue(self) -> Prologue | None:
        """Return the changefeed's prologue; None: it has none, or none any more.

        Raises:
            ZooKeeperUnreachableError, CorruptDataError
        """
        node = self._found(self._prologue_path)
        return node and decode_prologue(node[0])

    def status(self, edition: Edition) -> ChangefeedStatus | None:
        """Return the last status of this creation of the changefeed that was written, by whom ever.

        Raises:
            ZooKeeperUnreachableError, CorruptDataError
        """
        return self._read(edition.created_zxid)

    @property
    def opened(self) -> ChangefeedStatus | None:
        """How far it was at :meth:`open`, by whoever says most, and what was written of it here since."""
        return self._last

    @property
    def checkpoint_ts(self) -> Ts:
        """What has been reported, or 0 before :meth:`open`."""
        return self._checkpoint_ts

    def open(self, info: ChangefeedInfo, edition: Edition) -> Ts:
        """Return the checkpoint to go on from: the written one, or the start ts of a new changefeed.

        A sorter service that ran the changefeed may have brought it further than the status says.

        Raises:
            ZooKeeperUnreachableError, CorruptDataError
        """
        self._opened, self._is_gone = (edition.created_zxid, info.epoch), False
        said = self._said(edition.created_zxid)
        written = self.status(edition)
        if written is not None and written.set_epoch == SET_EPOCH_UNKNOWN:
            # The version that wrote it may have set the checkpoint, under any epoch up to this one.
            written = replace(written, set_epoch=info.epoch)
        set_epoch = 0 if written is None else written.set_epoch
        self._entries = [entry for entry in said if entry.epoch >= set_epoch]
        status = with_progress(written, newest_entries(said).get((self._name, edition.created_zxid)))
        if status is not None and status.checkpoint_ts >= info.start_ts:
            self._last = status
        else:
            self._last = ChangefeedStatus(state="normal", checkpoint_ts=info.start_ts, resolved_ts=info.start_ts)
        self._checkpoint_ts = self._last.checkpoint_ts
        return self._checkpoint_ts

    def report(self, *, checkpoint_ts: Ts = _NO_TS, resolved_ts: Ts = _NO_TS, **figures: Any) -> bool:
        """Write how far it is; False: ZooKeeper does not answer, and what was said elsewhere of it must stay.
        ``figures`` are further fields of :class:`ChangefeedStatus`, by name.

        A status that ZooKeeper does not take is only a late one: the next brings the same news, and a checkpoint that
        is behind repeats rows and loses none. One that a user has resumed from another checkpoint since :meth:`open`
        is not ours to write any more; after a pause it is, for the end of the last cut.
        """
        self._checkpoint_ts = max(self._checkpoint_ts, checkpoint_ts)
        try:
            if not self._write(
                lambda status: replace(status, resolved_ts=max(status.resolved_ts, resolved_ts), **figures)
            ):
                # As where a user has resumed from another checkpoint.
                log.info("status was written by another", extra={"path": self._status_path})
        except ZooKeeperUnreachableError as failure:
            log.warning("status not written", extra={"path": self._status_path, "reason": str(failure)})
            return False
        return True

    def begun(self) -> bytes | None:
        """Return what the changefeed's sorters have begun last, by the checkpoint that it leans on; None: nothing yet.

        Of two that lean on the same one, the word of the service that had the changefeed later counts.

        Raises:
            ZooKeeperUnreachableError
        """
        node = self._found(self._begun_path)
        begun = [(entry.revision, entry.begun.encode()) for entry in self._entries if entry.begun]
        begun += [(0, node[0])] if node else []
        fitting = [
            (epoch.after_ts, revision, epoch.end, text)
            for revision, text in begun
            if (epoch := decode_begun(text)) is not None and epoch.after_ts <= self._checkpoint_ts
        ]
        return max(fitting)[3] if fitting else node and node[0]

    def begin(self, epoch: bytes, after_ts: Ts) -> None:
        """Write down what is begun, for a sorter that comes after this one, and before it the checkpoint it leans on.

        A report may have been lost, or left out while ZooKeeper did not answer. With the begun epoch alone the next
        sorter would find that the two do not fit, and repeat rows in other cuts.
        One that has lost its lock, and does not know yet, may write over its successor's, and is found out likewise.

        Args:
            after_ts: everything up to it is downstream, and nothing of the epoch.

        Raises:
            ZooKeeperUnreachableError
        """
        self._checkpoint_ts = max(self._checkpoint_ts, after_ts)
        if self._last is not None and self._last.checkpoint_ts < after_ts:
            self._write(lambda status: status)
        if self._is_gone:
            return
        try:
            put_node(self._zookeeper, self._begun_path, epoch, ANSWER_S)
        except NoNodeError:
            pass  # the changefeed was removed, which ends this run
        except (KazooException, KazooTimeoutError) as failure:
            raise ZooKeeperUnreachableError(
                "what is begun is not writable", path=self._begun_path, reason=repr(failure)
            ) from failure

    def fail(self, error: BusError, epoch: int) -> None:
        """Write what the run under ``epoch`` has ended with; of no more interest once the epoch is over.

        Raises:
            ZooKeeperUnreachableError: nobody knows of it yet.
        """
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        failure = SorterFailure(
            epoch=epoch,
            code=error.code,
            message=str(error),
            time=now,
            may_heal=error.action is Action.RETRY,
            ddl=stopping_ddl(error),
        )
        self._write(lambda status: replace(status, failure=failure))

    def _write(self, change: Callable[[ChangefeedStatus], ChangefeedStatus]) -> bool:
        """Write the node on the condition that it is as we know it; False: it is not ours to write any more.

        Raises:
            ZooKeeperUnreachableError
        """
        try:
            while self._opened is not None and self._last is not None and self._is_there(self._opened[0]):
                changed = self._kept(change(self._last), self._opened)
                if self._put(changed):
                    self._last = changed
                    return True
                # The owner has written, or an answer to a write of ours was lost; or the user, and then it may not be
                # ours.
                written, current = self._read(self._opened[0]), self._identity()
                is_as_known = written in (changed, self._last) or current == self._opened
                if current is None or not (is_as_known or _is_moved_on(written, self._opened[1])):
                    self._opened = None
                self._last = written or self._last
            return False
        except (KazooException, KazooTimeoutError) as failure:
            raise ZooKeeperUnreachableError(
                "status is not writable", path=self._status_path, reason=repr(failure)
            ) from failure

    def _is_there(self, created_zxid: int) -> bool:
        """Tell whether the changefeed is still the one that was opened. Another of its name has nodes of the same
        versions: no compare-and-set alone would keep a last cut's end out of its status.
        """
        node = self._found(self._info_path)
        self._is_gone = node is None or int(node[1].czxid) != created_zxid
        return not self._is_gone

    def _kept(self, status: ChangefeedStatus, opened: tuple[int, int]) -> ChangefeedStatus:
        """Return a status that is not behind what we have reached, whatever another has written."""
        checkpoint_ts = max(status.checkpoint_ts, self._checkpoint_ts)
        resolved_ts = max(status.resolved_ts, checkpoint_ts)
        kept = replace(status, checkpoint_ts=checkpoint_ts, resolved_ts=resolved_ts, created_zxid=opened[0])
        if kept.set_epoch == SET_EPOCH_UNKNOWN:  # an owner of another version has written
            kept = replace(kept, set_epoch=opened[1])
        return kept

    def _put(self, status: ChangefeedStatus) -> bool:
        node = encode_changefeed_status(status)
        version = replace_node(self._zookeeper, self._status_path, node, self._version, ANSWER_S)
        if version is not None:
            self._version = version
        return version is not None

    def _found(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat] | None:
        """Return a node's bytes, and what ZooKeeper says of it; None: there is none.

        Raises:
            ZooKeeperUnreachableError
        """
        try:
            return read_node(self._zookeeper, path, ANSWER_S, watch)
        except (KazooException, KazooTimeoutError) as failure:
            raise ZooKeeperUnreachableError("changefeed is not readable", path=path, reason=repr(failure)) from failure

    def _read(self, created_zxid: int) -> ChangefeedStatus | None:
        node = self._found(self._status_path)
        self._version = node and int(node[1].version)
        return node and status_of(decode_changefeed_status(node[0]), created_zxid)

    def _said(self, created_zxid: int) -> list[FeedEntry]:
        """Return what services say of this changefeed; asked before the status, into which it may be folded meanwhile.

        Raises:
            ZooKeeperUnreachableError
        """
        try:
            entries = all_entries(self._zookeeper, self._paths)
        except (KazooException, KazooTimeoutError) as failure:
            raise ZooKeeperUnreachableError("progress is not readable", reason=repr(failure)) from failure
        return [entry for entry in entries if (entry.name, entry.created_zxid) == (self._name, created_zxid)]

    def _identity(self) -> tuple[int, int] | None:
        current = self.info()
        return current and (current[1].created_zxid, current[0].epoch)


def _is_moved_on(written: ChangefeedStatus | None, epoch: int) -> bool:
    """Tell whether a status of a later epoch goes on from where the run under ``epoch`` comes to."""
    return written is not None and written.set_epoch <= epoch
