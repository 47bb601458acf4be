"""The processors' half of ``tidebus recover``: the destination, up to a ts, without a capture.

It is a processor like any other to the destination: it takes the changefeed's processor lock, whose number is the
revision by which the destination refuses all earlier ones, and begins where the destination says that it stands.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from kazoo.exceptions import NoNodeError

from consumers.control.changefeeds.processor_nodes import AppliedNode
from consumers.control.changefeeds.store import ChangefeedNotFoundError
from consumers.control.cluster.capture_registry import list_captures
from consumers.processors.alone import AloneRun
from consumers.processors.board import ProcessorBoard, Wanted
from consumers.processors.core.recovery import check_alone
from consumers.processors.processor import BeginWork, ProcessorInputs, ProcessorOptions
from edges.secrets import load_with_secrets
from edges.zookeeper.progress import read_entries
from edges.zookeeper.session import SESSION_TIMEOUT_S, Session
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedStatus, ZkPaths, state_of
from schemas.nodes.sorter_service import with_progress
from schemas.sink.topic import life_of

log = logging.getLogger(__name__)

GONE_WAIT_S = 4 * SESSION_TIMEOUT_S
"""For captures and processors that were killed: their sessions' time-out, and more for a machine that is busy."""
LOOK_S = 0.25


class ProcessorAliveError(BusError):
    """Another processor holds the changefeed's lock and does not go."""

    code, action = "recover.processor_alive", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The changefeed as ZooKeeper has it."""

    info: ChangefeedInfo
    created_zxid: int
    """Of its creation: one of the same name that is created anew has another."""
    status: ChangefeedStatus | None
    applied_ts: Ts
    """What processors have said that the destination has; 0: nothing yet."""

    @property
    def sorted_ts(self) -> Ts:
        """The sorter's checkpoint."""
        return self.info.start_ts if self.status is None else max(self.status.checkpoint_ts, self.info.start_ts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a recovery has written to the destination."""

    checkpoint_ts: Ts
    rows: int
    ddls: int


def stored(session: Session, options: ProcessorOptions) -> Stored:
    """Return the changefeed.

    Raises:
        ChangefeedNotFoundError: there is none.
        BusError: ZooKeeper failed.
    """
    with session.requests("reading how far the changefeed is sorted") as client:
        entries = read_entries(client, ZkPaths(options.cluster))  # before the status, into which it may be folded
    wanted = _board(session, options).read()
    if wanted is None:
        raise ChangefeedNotFoundError(
            "there is no such changefeed; `tidebus changefeed list` shows all",
            changefeed=options.changefeed_id,
            namespace=options.namespace,
        )
    entry = entries.get(((options.namespace, options.changefeed_id), wanted.edition[0]))
    return Stored(
        info=wanted.info,
        created_zxid=wanted.edition[0],
        status=with_progress(wanted.status, entry),
        applied_ts=_known_ts(wanted),
    )


def wait_alone(session: Session, options: ProcessorOptions, say: Callable[[str], None]) -> None:
    """Wait until captures that were killed are known to be gone.

    Raises:
        CapturesAliveError: some live on, and run the changefeed.
        BusError: ZooKeeper failed.
    """
    deadline, is_shown = time.monotonic() + GONE_WAIT_S, False
    while True:
        changefeed = stored(session, options)
        captures = [
            f"{capture.capture_id} at {capture.address}" for capture in list_captures(session, ZkPaths(options.cluster))
        ]
        try:
            check_alone(changefeed.info, state_of(changefeed.info, changefeed.status), captures)
            return
        except BusError:
            if not captures or time.monotonic() > deadline:
                raise
        if not is_shown:
            say(f"waiting for captures to be gone: {', '.join(captures)}")
            is_shown = True
        time.sleep(LOOK_S)


def apply_upto(
    options: ProcessorOptions, begin: BeginWork, target_ts: Ts, on_progress: Callable[[Ts, int], None]
) -> Applied:
    """Apply what the topic holds up to ``target_ts``.

    Args:
        begin: connects to both sides.
        on_progress: called several times a second with how far all partitions are, and rows and DDLs written so far.

    Raises:
        ProcessorAliveError: see there.
        LeaseLostError: the session is over; another may have the lock.
        BusError: the run has failed; it is begun again where the destination stands.
    """
    with Session(options.zookeeper) as session:
        board = _board(session, options)
        revision = _lock(session, board, options)
        try:
            wanted = board.read()
            if wanted is None:
                raise ChangefeedNotFoundError("changefeed was removed meanwhile", changefeed=options.changefeed_id)
            info = wanted.info
            config = load_with_secrets(info)
            inputs = ProcessorInputs(
                options=options, info=info, config=config, stopped=lambda: False, check_lease=session.check_lease
            )
            with closing(begin(inputs)) as work:
                run = AloneRun(work, revision, max(_known_ts(wanted), info.start_ts))
                with closing(run):
                    _turn(session, run, target_ts, on_progress)
                    run.finish()
                    applied = Applied(checkpoint_ts=run.checkpoint_ts, rows=run.rows_total, ddls=run.ddl_total)
            _report(board, wanted, applied)
            return applied
        finally:
            board.release()


def _turn(session: Session, run: AloneRun, target_ts: Ts, on_progress: Callable[[Ts, int], None]) -> None:
    looked_at = time.monotonic()
    while run.checkpoint_ts < target_ts:
        run.turn()
        now = time.monotonic()
        if now - looked_at >= LOOK_S:
            looked_at = now
            session.check_lease()
            on_progress(run.checkpoint_ts, run.rows_total + run.ddl_total)


def _report(board: ProcessorBoard, wanted: Wanted, applied: Applied) -> None:
    """Let `tidebus changefeed query` show how far the destination is."""
    checkpoint_ts = max(applied.checkpoint_ts, _known_ts(wanted))
    board.report(
        AppliedNode(
            life=life_of(wanted.info), checkpoint_ts=checkpoint_ts, rows_total=applied.rows, ddl_total=applied.ddls
        )
    )


def _known_ts(wanted: Wanted) -> Ts:
    applied = wanted.applied
    return applied.checkpoint_ts if applied is not None and applied.life == life_of(wanted.info) else Ts(0)


def _board(session: Session, options: ProcessorOptions) -> ProcessorBoard:
    return ProcessorBoard(session, ZkPaths(options.cluster), options.namespace, options.changefeed_id)


def _lock(session: Session, board: ProcessorBoard, options: ProcessorOptions) -> int:
    deadline = time.monotonic() + GONE_WAIT_S
    own = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "command": "recover"})
    while (revision := board.lock(own)) is None:
        if time.monotonic() > deadline:
            path = ZkPaths(options.cluster).changefeed_processor(options.namespace, options.changefeed_id)
            raise ProcessorAliveError(
                "the changefeed's processor runs elsewhere; stop it (or the captures that run it) and try again",
                holder=_holder(session, path),
                waited_s=GONE_WAIT_S,
            )
        time.sleep(LOOK_S)
    return revision


def _holder(session: Session, path: str) -> str:
    with session.requests("reading a processor's lock") as client:
        try:
            return str(client.get(path)[0].decode(errors="replace"))
        except NoNodeError:
            return "gone just now"
