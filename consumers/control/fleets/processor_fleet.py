"""One capture's processors, as its children: one for each changefeed of the cluster whose sink is no Kafka.

The processors of all captures share a changefeed's partitions among themselves (:mod:`consumers.processors.run`). A
child looks by itself whether it is wanted, waits while it is not, and ends when its changefeed is removed or all up to
its target is applied; here it is only started for each such changefeed, started again when it has died or somebody else
has stopped it (its exit status says which), and stopped when the changefeed is gone. When the capture leaves, its
children are told at once, so that they hand over as it does.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from consumers.control.changefeeds.feed_nodes import INFO, FeedNodes, FeedView
from consumers.control.changefeeds.feed_troubles import FeedTroubles
from consumers.control.cluster.look_thread import LookThread
from consumers.control.fleets.children import ChildProcess, ChildStarter, Fleet
from consumers.control.fleets.settings import BusAddresses
from edges.zookeeper.session import Session
from schemas.errors import BusError
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths
from schemas.sink.topic import has_processors

log = logging.getLogger(__name__)

LOOK_S = 1.0
STOP_S = 10.0
"""How long a processor may take to let its transactions arrive."""
AGAIN_FIRST_S, AGAIN_MAX_S = 1.0, 30.0
"""Waits before a child that has died is started again, doubled each time."""
FeedName = tuple[str, str]


@dataclass(slots=True)
class _Processor:
    child: ChildProcess
    begun_for: tuple[int, int]
    """The changefeed's life and epoch when the child was started; see :func:`_run_of`."""
    wait_s: float = AGAIN_FIRST_S
    start_at_s: float | None = None
    """When a processor that has died is started again; None: it runs, or has done its work."""


class ProcessorFleet(Fleet):
    """Of one capture."""

    def __init__(
        self,
        session: Session,
        paths: ZkPaths,
        addresses: BusAddresses,
        children: ChildStarter,
        command: Sequence[str],
        arguments: Sequence[str],
        data_dir: Path | None = None,
        *,
        on_fatal: Callable[[BusError], None],
    ) -> None:
        """``command`` begins a command of the bus; ``arguments`` are those that all processors of this capture get.
        ``on_fatal`` takes a bug; processors that die are not started again then.
        """
        super().__init__(children, data_dir, "processors")
        self._program, self._arguments = command, arguments
        self._stored, self._addresses = FeedNodes(session, paths, (INFO,)), addresses
        self._processors: dict[FeedName, _Processor] = {}
        self._unreadable = FeedTroubles(log, "changefeed is not readable; its processor is left as it is")
        self._refused = FeedTroubles(log, "processor cannot be started; trying again")
        self._tending = threading.Lock()
        self._is_leaving = False
        self._looking = LookThread("processors", self._look, on_fatal, rest_s=LOOK_S)

    def start(self) -> None:
        """Begin to look."""
        self._looking.start()

    def leave(self) -> None:
        """Tell all processors to hand over and end, and start none any more; does not wait."""
        with self._tending:
            if not self._is_leaving:
                self._is_leaving = True
                for processor in self._processors.values():
                    processor.child.terminate()

    def stop(self) -> None:
        """End all processors and wait for them."""
        self._looking.stop()
        self.leave()
        deadline = time.monotonic() + STOP_S
        for processor in self._processors.values():
            processor.child.wait(max(0.0, deadline - time.monotonic()))
        self._children.stop_together(STOP_S)
        self._processors.clear()
        self._stored.close()
        self._remove_folder()

    def _look(self) -> None:
        with self._tending:
            if not self._is_leaving:
                self._tend_all()

    def _tend_all(self) -> None:
        wanted: dict[FeedName, tuple[int, int]] = {}
        views = self._stored.refresh()
        self._unreadable.keep(views)
        for name, view in views.items():
            info = self._info(name, view)
            if info is not None and info.upstream == self._addresses.upstream and has_processors(info.sink_uri):
                wanted[name] = _run_of(view, info)
        for name in self._processors.keys() - wanted.keys() - self._unreadable.names:
            self._processors.pop(name).child.discard(STOP_S)
        self._refused.keep(wanted)
        for name, run in wanted.items():
            try:
                self._tend(name, run)
            except BusError as error:  # a disk that is full, say: the others are tended all the same
                self._refused.tell(name, error)
            else:
                self._refused.end(name)

    def _info(self, name: FeedName, view: FeedView) -> ChangefeedInfo | None:
        """Return a changefeed; None, said once, of one that nobody can read: its processor is left as it is."""
        try:
            info = view.info()
        except BusError as error:  # its bytes, or its key: others have readable ones
            self._unreadable.tell(name, error)
            return None
        self._unreadable.end(name)
        return info

    def _tend(self, name: FeedName, run: tuple[int, int]) -> None:
        processor = self._processors.get(name)
        if processor is None:
            self._processors[name] = _Processor(self._started(name), run)
            return
        if processor.child.is_running():
            processor.child.turn_over_log()
            return
        now = time.monotonic()
        if processor.begun_for != run:  # resumed, perhaps after it was finished; or removed and created anew
            processor.begun_for, processor.wait_s, processor.start_at_s = run, AGAIN_FIRST_S, now
        elif processor.start_at_s is None and (status := processor.child.exit_status()) != 0:
            extra = {"changefeed": name[1], "status": status, "last": processor.child.tail(4)}
            log.warning("processor has ended before its work has", extra=extra)
            processor.start_at_s = now + processor.wait_s
            processor.wait_s = min(2 * processor.wait_s, AGAIN_MAX_S)
        if processor.start_at_s is not None and now >= processor.start_at_s:
            processor.child.start()
            processor.start_at_s = None

    def _started(self, name: FeedName) -> ChildProcess:
        addresses = self._addresses
        command = [*self._program, "processor", "--namespace", name[0], "--changefeed", name[1]]
        command += [*addresses.kafka.arguments(), *addresses.zookeeper.arguments(), "--cluster", addresses.cluster]
        command += self._arguments
        log_file = self._folder() / "processors" / name[0] / name[1] / "processor.log"
        child = self._children.start(f"processor {name[0]}/{name[1]}", command, log=log_file)
        log.info("processor started", extra={"changefeed": name[1], "pid": child.pid, "log": str(log_file)})
        return child


def _run_of(view: FeedView, info: ChangefeedInfo) -> tuple[int, int]:
    """Return what a processor that has ended may have done its work for: one that is created anew under a name begins
    with the same epoch as the one before, but its node is another.
    """
    return view.info_node.created_zxid, info.epoch
