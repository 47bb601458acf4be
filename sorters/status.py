"""The changefeed's nodes in ZooKeeper: reads what the user wants, writes how far it is."""

import datetime
import logging
from dataclasses import replace
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from schemas.changefeed import (
    ChangefeedError,
    ChangefeedInfo,
    ChangefeedState,
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_info,
    decode_changefeed_status,
    encode_changefeed_status,
)
from schemas.errors import Action, BusError
from schemas.ids import Ts

_NO_TS = Ts(0)
_NOT_OURS = -2
"""In place of a version: the status is the user's to say until :meth:`StatusBoard.open`."""
ANSWER_S = 2.0
"""kazoo keeps a request until the connection is back, however long that takes; nobody here may hang so long."""
log = logging.getLogger(__name__)


class ZooKeeperUnreachableError(BusError):
    """ZooKeeper does not answer."""

    code, action = "sorter.zookeeper_unreachable", Action.RETRY


class StatusBoard:
    """``info`` and ``status`` of one changefeed. ``checkpoint_ts`` never goes back, whatever is reported."""

    def __init__(self, zookeeper: Any, paths: ZkPaths, namespace: str, changefeed_id: str) -> None:
        """``zookeeper`` is a started KazooClient."""
        self._zookeeper = zookeeper
        self._info_path = paths.changefeed_info(namespace, changefeed_id)
        self._status_path = paths.changefeed_status(namespace, changefeed_id)
        self._last: ChangefeedStatus | None = None
        self._version: int | None = None
        """Of the status node as we know it; None: it is not there."""
        self._opened_at: int | None = None
        """Version of the changefeed's node then: while it stands, no user has touched the status."""

    def info(self) -> tuple[ChangefeedInfo, int] | None:
        """Return the changefeed and the version of its node, which changes when the user changes it; None: no such.

        Raises:
            ZooKeeperUnreachableError, CorruptDataError
        """
        try:
            node, stat = self._zookeeper.get_async(self._info_path).get(timeout=ANSWER_S)
        except NoNodeError:
            return None
        except (KazooException, KazooTimeoutError) as error:
            raise ZooKeeperUnreachableError("changefeed is not readable", reason=repr(error)) from error
        return decode_changefeed_info(node), int(stat.version)

    def status(self) -> ChangefeedStatus | None:
        """Return the last status that was written, also by an earlier process.

        Raises:
            ZooKeeperUnreachableError, CorruptDataError
        """
        try:
            node = self._read()
        except (KazooException, KazooTimeoutError) as error:
            raise ZooKeeperUnreachableError("changefeed status is not readable", reason=repr(error)) from error
        return None if node is None else decode_changefeed_status(node)

    @property
    def checkpoint_ts(self) -> Ts:
        """What has been reported, or 0 before :meth:`open`."""
        return self._last.checkpoint_ts if self._last else _NO_TS

    def open(self, start_ts: Ts) -> Ts:
        """Return the checkpoint to go on from: the written one, or ``start_ts`` of a new changefeed."""
        try:
            self._opened_at = self._info_version()  # first: who writes both after this is found out
        except (KazooException, KazooTimeoutError) as error:
            raise ZooKeeperUnreachableError("changefeed is not readable", reason=repr(error)) from error
        status = self.status()
        if status is not None and status.checkpoint_ts >= start_ts:
            self._last = status
        else:
            self._last = ChangefeedStatus(state="normal", checkpoint_ts=start_ts, resolved_ts=start_ts)
        return self._last.checkpoint_ts

    def report(
        self,
        state: ChangefeedState,
        *,
        checkpoint_ts: Ts = _NO_TS,
        resolved_ts: Ts = _NO_TS,
        error: BusError | None = None,
        **figures: Any,
    ) -> None:
        """Write the status. ``figures`` are the status's fields from ``rows_total`` on.

        A status that ZooKeeper does not take is only a late one: the next brings the same news, and a checkpoint that
        is behind repeats rows and loses none. One that another has written over since :meth:`open` is not ours to
        write any more: a user has resumed from another checkpoint, and the node of the changefeed says so too.
        """
        last = self._last or ChangefeedStatus(state=state, checkpoint_ts=checkpoint_ts, resolved_ts=resolved_ts)
        shown = _shown(error) if error else None
        self._last = replace(
            last,
            state=state,
            checkpoint_ts=max(last.checkpoint_ts, checkpoint_ts),
            resolved_ts=max(last.resolved_ts, resolved_ts, checkpoint_ts),
            error=shown,
            **figures,
        )
        try:
            known, node = encode_changefeed_status(last), encode_changefeed_status(self._last)
            if self._version == _NOT_OURS or not self._write(known, node):
                log.warning("status was written by another", extra={"path": self._status_path})
        except (KazooException, KazooTimeoutError) as failure:
            log.warning("status not written", extra={"path": self._status_path, "reason": repr(failure)})

    def _read(self) -> bytes | None:
        try:
            node, stat = self._zookeeper.get_async(self._status_path).get(timeout=ANSWER_S)
        except NoNodeError:
            self._version = None
            return None
        self._version = int(stat.version)
        return bytes(node)

    def _write(self, known: bytes, node: bytes) -> bool:
        """Write the node on the condition that it is as we left it; False: the user has written it."""
        while True:
            try:
                if self._version is None:
                    self._zookeeper.create_async(self._status_path, node, makepath=True).get(timeout=ANSWER_S)
                    self._version = 0
                else:
                    stat = self._zookeeper.set_async(self._status_path, node, self._version).get(timeout=ANSWER_S)
                    self._version = int(stat.version)
                return True
            except (BadVersionError, NodeExistsError, NoNodeError):
                # An answer to a write of ours was lost, or a sorter that should be gone still writes, or the user has.
                found = self._read()
                if found not in (known, node) and self._info_version() != self._opened_at:
                    self._version = _NOT_OURS
                    return False

    def _info_version(self) -> int | None:
        stat = self._zookeeper.exists_async(self._info_path).get(timeout=ANSWER_S)
        return None if stat is None else int(stat.version)


def _shown(error: BusError) -> ChangefeedError:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return ChangefeedError(code=error.code, message=str(error), time=now)
