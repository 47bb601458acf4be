"""The processor process: one changefeed whose sink is no Kafka, applied while its state wants it.

It holds the changefeed's processor lock in ZooKeeper, whose number grows with each holder and is the revision by which
the destination tells a later processor from an earlier one. Trouble that may pass (a server that restarts, a deadlock)
is met by beginning the run anew, a few times; what is left is written down for the owner, who decides what follows.
"""

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from consumers.apply.errors import SinkTopicMissingError
from consumers.processor_board import AppliedNode, ProcessorBoard, Wanted
from consumers.zookeeper import LeaseLostError, Session, ZooKeeperError, ZooKeeperUnreachableError
from schemas.changefeed import CLUSTER_DEFAULT, NAMESPACE_DEFAULT, ChangefeedInfo, ZkPaths
from schemas.config.changefeed import ChangefeedConfig, load_changefeed
from schemas.errors import Action, BusError, ConfigError
from schemas.ids import Ts
from schemas.sink_topic import has_processors, life_of

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""Between two looks at what is wanted; also how often the checkpoint is written."""
PATIENCE_S = 60.0
"""For trouble that may pass, without any progress; a server restarts in less. Then the owner judges."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.2, 5.0
STOPPED, FAILED = 0, 1
"""Exit statuses."""


class Run(Protocol):
    """One run over the changefeed's topic."""

    def turn(self) -> None:
        """Do what can be done now, within some milliseconds.

        Raises:
            BusError: the run is over.
        """
        ...

    @property
    def checkpoint_ts(self) -> Ts:
        """All up to here is in the destination."""
        ...

    @property
    def rows_total(self) -> int: ...
    @property
    def ddl_total(self) -> int: ...
    def finish(self) -> None:
        """Let what is under way arrive."""
        ...

    def close(self) -> None:
        """Give all connections back; called once, also after an error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorOptions:
    """What ``tidebus processor`` takes."""

    changefeed_id: str
    namespace: str = NAMESPACE_DEFAULT
    cluster: str = CLUSTER_DEFAULT
    kafka: str
    """Bootstrap servers of the brokers that hold the changefeed's topic: the raw log's."""
    zookeeper: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a run is to do."""

    options: ProcessorOptions
    info: ChangefeedInfo
    config: ChangefeedConfig
    revision: int
    stopped: Callable[[], bool]


Begin = Callable[[Assignment], Run]
"""Connects and takes the destination over; raises BusError."""


class ProcessorProcess:
    """Runs until it is told to stop, or the changefeed is removed or finished."""

    def __init__(self, options: ProcessorOptions, begin: Begin) -> None:
        self._options, self._begin = options, begin
        self._stop = threading.Event()
        self._troubled_since: float | None = None
        self._backoff_s = BACKOFF_FIRST_S
        self._waits_for_topic = False

    def stop(self) -> None:
        """Ask it to end; safe in a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Return the process's exit status."""
        options = self._options
        while not self._stop.is_set():
            try:
                with Session(options.zookeeper) as session:
                    board = ProcessorBoard(session, ZkPaths(options.cluster), options.namespace, options.changefeed_id)
                    status = self._serve(session, board)
                    board.release()
                    return status
            except (LeaseLostError, ZooKeeperError, ZooKeeperUnreachableError) as error:
                log.warning("processor begins anew", extra={"code": error.code, "reason": str(error)})
                self._stop.wait(1.0)
        return STOPPED

    def _serve(self, session: Session, board: ProcessorBoard) -> int:
        waiting = ""
        while not self._stop.is_set():
            wanted = board.read()
            if wanted is None or wanted.info.desired_state == "removed":
                return STOPPED
            if not has_processors(wanted.info.sink_uri):
                raise ConfigError("the changefeed's sink is Kafka, which needs no processor", key="sink-uri")
            if wanted.finished:
                log.info("all up to the target is applied", extra={"target_ts": wanted.info.target_ts})
                return STOPPED
            revision = board.lock(_holder()) if wanted.runs else None
            if revision is not None:
                waiting = ""
                self._serve_once(session, board, wanted, revision)
                continue
            why = "changefeed has a processor" if wanted.runs else "changefeed wants no processor now"
            if why != waiting:
                waiting = why
                log.info(why, extra={"changefeed": wanted.info.changefeed_id})
            self._stop.wait(LOOK_S)
        return STOPPED

    def _serve_once(self, session: Session, board: ProcessorBoard, wanted: Wanted, revision: int) -> None:
        try:
            self._run_once(session, board, wanted, revision)
            return
        except (LeaseLostError, ZooKeeperError):
            raise
        except SinkTopicMissingError as missing:
            if not self._waits_for_topic:
                log.info("waiting for the sorter's topic", extra={"topic": missing.fields.get("topic")})
            self._waits_for_topic = True
            self._stop.wait(1.0)
            return
        except BusError as failed:
            error = failed
        except Exception as failed:
            log.exception("run failed")
            error = _UnforeseenError("unforeseen", reason=repr(failed))
        now = time.monotonic()
        since = self._troubled_since = self._troubled_since or now
        if error.action is Action.RETRY and now - since < PATIENCE_S:
            log.warning("run begins anew", extra={"code": error.code, "reason": str(error)})
            self._stop.wait(self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)
            return
        log.error("run failed", extra={"code": error.code, "reason": str(error)})
        self._troubled_since, self._backoff_s = None, BACKOFF_FIRST_S
        board.fail(error, wanted.info.epoch)

    def _run_once(self, session: Session, board: ProcessorBoard, wanted: Wanted, revision: int) -> None:
        """Run the changefeed until it should stop or run otherwise.

        Raises:
            BusError: the run has failed.
        """
        info = wanted.info
        config = load_changefeed(info.sink_uri, info.config)
        assignment = Assignment(
            options=self._options, info=info, config=config, revision=revision, stopped=self._stop.is_set
        )
        run = self._begin(assignment)
        log.info("processor runs", extra={"changefeed": info.changefeed_id, "checkpoint_ts": run.checkpoint_ts})
        looked_at, seen = time.monotonic(), run.rows_total + run.ddl_total
        reached = Ts(0)
        try:
            while not self._stop.is_set():
                run.turn()
                now = time.monotonic()
                if now - looked_at < LOOK_S:
                    continue
                looked_at = now
                session.check_lease()
                if run.rows_total + run.ddl_total > seen or run.checkpoint_ts > reached:
                    seen = run.rows_total + run.ddl_total
                    self._troubled_since, self._backoff_s = None, BACKOFF_FIRST_S
                reached = self._report(board, wanted, run, reached)
                found = board.read()
                if found is None or found.edition != wanted.edition or found.finished:
                    break
            run.finish()
            self._report(board, wanted, run, reached)
        finally:
            run.close()

    def _report(self, board: ProcessorBoard, wanted: Wanted, run: Run, reached: Ts) -> Ts:
        """Write the checkpoint if it has moved; what an earlier processor has reported is never undercut."""
        life, before = life_of(wanted.info), wanted.applied
        known = before.checkpoint_ts if before is not None and before.life == life else Ts(0)
        checkpoint_ts = max(run.checkpoint_ts, known, reached)
        if checkpoint_ts > reached:
            board.report(
                AppliedNode(life=life, checkpoint_ts=checkpoint_ts, rows_total=run.rows_total, ddl_total=run.ddl_total)
            )
        return checkpoint_ts


class _UnforeseenError(BusError):
    code, action = "processor.unforeseen", Action.STOP_CHANGEFEED


def _holder() -> str:
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid()})


def run_processor(options: ProcessorOptions, begin: Begin) -> int:
    """Run the processor of one changefeed until SIGTERM or SIGINT; return the exit status.

    Raises:
        BusError: it could not even start.
    """
    process = ProcessorProcess(options, begin)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    return process.run()
