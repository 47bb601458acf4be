"""The processor process: this capture's part in one changefeed whose sink is no Kafka, while its state wants it.

Each capture has one for each such changefeed; they share its partitions (:mod:`consumers.processors.run`). Trouble that
may pass (a server that restarts, a deadlock) is met by beginning the run anew, a few times; what is left is written
down for the owner, who decides what follows.
"""

import contextlib
import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from consumers.control.changefeeds.processor_nodes import ProcessorInfo
from consumers.control.peers.interface import Peers
from consumers.processors.board import ChangefeedGoneError, ProcessorBoard, Wanted
from consumers.processors.core.backoff import Backoff, Movement
from consumers.processors.run import LOOK_S, ProcessorRun, RunParts, Work
from consumers.processors.sink_source import SinkTopicMissingError
from edges.kafka.access import KafkaAccess
from edges.secrets import load_with_secrets
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import LeaseLostError, Session, ZooKeeperError, ZooKeeperUnreachableError
from schemas.config.settings import ChangefeedConfig
from schemas.errors import Action, BusError, ConfigError
from schemas.ids import CaptureId
from schemas.nodes.changefeed import CLUSTER_DEFAULT, NAMESPACE_DEFAULT, ChangefeedInfo, ZkPaths
from schemas.sink.topic import has_processors

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""For trouble that may pass, without any progress; a server restarts in less. Then the owner judges."""
LEAVE_S = 8.0
"""For others to take its partitions over; they begin where it has stopped anyway."""
DONE, TOLD = 0, 143
"""Exit statuses. Nothing is left to do: its capture starts none again. It was told to stop (a shell's word for an end
by SIGTERM): its capture does, unless it said so itself. To other supervisors that is no failure, and 0."""
VERSION: Final = version("tidebus")
_OF_THE_SESSION: Final = (LeaseLostError, ZooKeeperError, ZooKeeperUnreachableError)
"""Errors after which nothing is begun anew in the same session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorOptions:
    """What ``tidebus processor`` takes."""

    changefeed_id: str
    namespace: str = NAMESPACE_DEFAULT
    cluster: str = CLUSTER_DEFAULT
    kafka: KafkaAccess
    """Of the brokers that hold the changefeed's topic: the raw log's."""
    zookeeper: ZooKeeperAccess
    capture: str = ""
    """The capture that has started it; '': nobody has, it was started by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorInputs:
    """What a run is to do."""

    options: ProcessorOptions
    info: ChangefeedInfo
    config: ChangefeedConfig
    stopped: Callable[[], bool]
    check_lease: Callable[[], None] = lambda: None
    """Raises when nothing may be written any more."""


BeginWork = Callable[[ProcessorInputs], Work]
"""Connects, to take partitions or the lead over later; raises BusError."""
OpenPeers = Callable[[CaptureId], Peers]
"""Begins to listen for other processors, under an id; raises BusError."""


class ProcessorProcess:
    """Runs until it is told to stop, or the changefeed is removed or finished."""

    def __init__(self, options: ProcessorOptions, begin: BeginWork, open_peers: OpenPeers) -> None:
        self._options, self._begin, self._open_peers = options, begin, open_peers
        self._stop, self._at_once = threading.Event(), threading.Event()
        self._backoff, self._movement = Backoff(PATIENCE_S), Movement()
        self._waits_for_topic = False

    def stop(self) -> None:
        """Ask it to hand over and end, a second time to end at once; safe in a signal handler."""
        (self._at_once if self._stop.is_set() else self._stop).set()

    def run(self) -> int:
        """Return the process's exit status, :data:`DONE` or :data:`TOLD`."""
        options = self._options
        while not self._stop.is_set():
            try:
                with Session(options.zookeeper) as session:
                    board = ProcessorBoard(session, ZkPaths(options.cluster), options.namespace, options.changefeed_id)
                    return self._serve(session, board)
            except _OF_THE_SESSION as error:
                log.warning("processor begins anew", extra={"code": error.code, "reason": str(error)})
                self._stop.wait(1.0)
        return self._status_when_told()

    def _serve(self, session: Session, board: ProcessorBoard) -> int:
        waiting = False
        while not self._stop.is_set():
            wanted = board.look()
            if wanted is None or wanted.info.desired_state == "removed":
                return DONE
            if not has_processors(wanted.info.sink_uri):
                raise ConfigError("the changefeed's sink is Kafka, which needs no processor", key="sink-uri")
            if wanted.finished:
                log.info("all up to the target is applied", extra={"target_ts": wanted.info.target_ts})
                return DONE
            if wanted.runs:
                waiting = False
                self._serve_once(session, board, wanted)
                continue
            if not waiting:
                waiting = True
                log.info("changefeed wants no processor now", extra={"changefeed": wanted.info.changefeed_id})
            self._stop.wait(LOOK_S)
        return self._status_when_told()

    def _status_when_told(self) -> int:
        return TOLD if self._options.capture else DONE

    def _serve_once(self, session: Session, board: ProcessorBoard, wanted: Wanted) -> None:
        try:
            self._run_once(session, board, wanted)
        except _OF_THE_SESSION as error:
            if isinstance(error.__cause__, BusError):  # it came while a run that had failed was being left
                self._judge(board, wanted, error.__cause__)
            raise
        except ChangefeedGoneError:
            return
        except SinkTopicMissingError as missing:
            if not self._waits_for_topic:
                log.info("waiting for the sorter's topic", extra={"topic": missing.fields.get("topic")})
            self._waits_for_topic = True
            self._stop.wait(1.0)
        except BusError as failed:
            self._stop.wait(self._judge(board, wanted, failed))
        except Exception as failed:
            self._stop.wait(self._judge(board, wanted, _told(failed)))

    def _judge(self, board: ProcessorBoard, wanted: Wanted, error: BusError) -> float:
        """Return how long to wait before the next run; what no waiting heals is written down for the owner."""
        wait_s = self._backoff.wait_s(error, time.monotonic())
        if wait_s is not None:
            log.warning("run begins anew", extra={"code": error.code, "reason": str(error)})
            return wait_s
        log.error("run failed", extra={"code": error.code, "reason": str(error)})
        self._backoff.progress()
        board.fail(error, wanted)
        return 0.0

    def _run_once(self, session: Session, board: ProcessorBoard, wanted: Wanted) -> None:
        """Run the changefeed until it should stop or run otherwise.

        Raises:
            BusError: the run has failed.
        """
        info, options = wanted.info, self._options
        inputs = ProcessorInputs(
            options=options,
            info=info,
            config=load_with_secrets(info),
            stopped=self._stop.is_set,
            check_lease=session.check_lease,
        )
        processor = CaptureId(str(uuid.uuid4()))
        with contextlib.ExitStack() as stack:
            work = stack.enter_context(contextlib.closing(self._begin(inputs)))
            peers = stack.enter_context(contextlib.closing(self._open_peers(processor)))
            me = ProcessorInfo(
                processor=processor,
                capture=CaptureId(options.capture),
                version=VERSION,
                peer_address=peers.address,
            )
            parts = RunParts(me=me, session=session, board=board, peers=peers, wanted=wanted, work=work)
            run = ProcessorRun(parts)
            log.info("processor runs", extra={"changefeed": info.changefeed_id, "processor": processor})
            try:
                self._turn(board, wanted, run)
                run.end()
            except Exception as first:
                _close_after(run, first)
                raise

    def _turn(self, board: ProcessorBoard, wanted: Wanted, run: ProcessorRun) -> None:
        began_at = looked_at = time.monotonic()
        leave_at = 0.0
        if self._movement.epoch != wanted.info.epoch:
            self._movement = Movement(wanted.info.epoch)
        while True:
            run.turn()
            now = time.monotonic()
            if self._stop.is_set():
                leave_at = leave_at or now + LEAVE_S
                if run.leave() or self._at_once.is_set():
                    return
                if now >= leave_at:
                    log.warning("processor leaves with partitions; others begin them anew")
                    return
            if now - looked_at < LOOK_S:
                continue
            looked_at = now
            is_steady = now - began_at > PATIENCE_S
            if self._movement.has_moved(run.checkpoint_ts, run.ddl_total, run.partitions(), is_steady=is_steady):
                self._backoff.progress()
            stored = board.look()
            if stored is None or stored.edition != wanted.edition or stored.finished or not stored.runs:
                return


def _close_after(run: ProcessorRun, first: Exception) -> None:
    """Leave the lock and the register after an error, which says more than what goes wrong now.

    Raises:
        LeaseLostError, ZooKeeperError, ZooKeeperUnreachableError: caused by ``first``. Lock and registration may stand
            there for as long as the session does, so it must end: who begins anew in it would take the lock for
            another's, and nobody would lead.
    """
    try:
        run.close()
    except _OF_THE_SESSION as error:
        if not isinstance(first, _OF_THE_SESSION):
            raise error from _told(first)
    except BusError as error:
        log.warning("run is not left cleanly", extra={"code": error.code, "reason": str(error)})


def _told(error: Exception) -> BusError:
    if isinstance(error, BusError):
        return error
    log.error("run failed", exc_info=error)
    return _UnforeseenError("unforeseen", reason=repr(error))


class _UnforeseenError(BusError):
    """Something that nobody foresaw ended a processor's work; `reason` is what it said. Resume tries it once more."""

    code, action = "processor.unforeseen", Action.STOP_CHANGEFEED


def run_processor(options: ProcessorOptions, begin: BeginWork, open_peers: OpenPeers) -> int:
    """Run a processor of one changefeed until SIGTERM or SIGINT; return the exit status.

    Raises:
        BusError: it could not even start.
    """
    process = ProcessorProcess(options, begin, open_peers)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    return process.run()
