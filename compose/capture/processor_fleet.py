"""One capture's processors, as its children: one for each changefeed of the cluster whose sink is no Kafka.

The processors of all captures share a changefeed's partitions among themselves (:mod:`consumers.processors.run`). A
child looks by itself whether it is wanted, waits while it is not, and ends when its changefeed is removed or all up to
its target is applied; here it is only started for each such changefeed, started again when it has died, and stopped
when the changefeed is gone. When the capture leaves, its children are told at once, so that they hand over as it does.
"""

import logging
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from compose.capture.sorter_fleet import SorterPlaces
from compose.stack.children import Child, Nursery
from compose.stack.scoped import Scoped
from consumers.control.changefeeds.store import ChangefeedStore
from edges.zookeeper.session import LeaseLostError, Session
from producers.tls import TlsSettings
from schemas.errors import BusError
from schemas.ids import CaptureId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths
from schemas.sink.topic import has_processors

log = logging.getLogger(__name__)

LOOK_S = 1.0
STOP_S = 10.0
"""How long a processor may take to let its transactions arrive."""
AGAIN_FIRST_S, AGAIN_MAX_S = 1.0, 30.0
"""Waits before a child that has died is started again, doubled each time."""
FeedName = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorHome:
    """What a capture tells its processors of itself."""

    capture: CaptureId
    peer_host: str = "127.0.0.1"
    """Where they listen for other processors, each at any free port."""
    advertise_peer_host: str = ""
    """Under which those reach them; empty: ``peer_host``."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    """Between processors."""

    def arguments(self) -> list[str]:
        """Return the command's options."""
        tls = self.tls
        given = {
            "--capture": self.capture,
            "--peer-host": self.peer_host,
            "--advertise-peer-host": self.advertise_peer_host,
            "--ca": tls.ca_path,
            "--cert": tls.cert_path,
            "--key": tls.key_path,
            "--cert-allowed-cn": ",".join(tls.allowed_cn),
        }
        return [part for option, value in given.items() if value for part in (option, value)]


@dataclass(slots=True)
class _Processor:
    child: Child
    epoch: int
    wait_s: float = AGAIN_FIRST_S
    start_at_s: float | None = None
    """When one that has died is started again; None: it runs, or has done its work."""


class ProcessorFleet(Scoped):
    """A context manager; what it has started is gone when it is left."""

    def __init__(
        self,
        session: Session,
        paths: ZkPaths,
        places: SorterPlaces,
        home: ProcessorHome,
        data_dir: Path | None = None,
    ) -> None:
        """``data_dir`` is for logs; None: a folder that goes with this process."""
        self._home = home
        self._store, self._places, self._data_dir = ChangefeedStore(session, paths), places, data_dir
        self._nursery = Nursery()
        self._processors: dict[FeedName, _Processor] = {}
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None
        self._stopping = threading.Event()
        self._looking = threading.Lock()
        self._is_leaving = False
        self._thread = threading.Thread(target=self._run, name="processor-fleet", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def leave(self) -> None:
        """Tell all processors to hand over and end, and start none any more; does not wait."""
        with self._looking:
            if not self._is_leaving:
                self._is_leaving = True
                for processor in self._processors.values():
                    processor.child.terminate()

    def stop(self) -> None:
        """End all processors and wait for them."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.leave()
        deadline = time.monotonic() + STOP_S
        for processor in self._processors.values():
            processor.child.wait(max(0.0, deadline - time.monotonic()))
        self._nursery.stop_together(STOP_S)
        self._processors.clear()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                with self._looking:
                    if not self._is_leaving:
                        self._look()
            except LeaseLostError as error:
                log.warning("processors are supervised no more", extra={"code": error.code, "error": str(error)})
                return
            except BusError as error:
                log.warning("changefeeds cannot be looked at", extra={"code": error.code, "error": str(error)})

    def _look(self) -> None:
        wanted: dict[FeedName, ChangefeedInfo] = {}
        for namespace in self._store.namespaces():
            for info in self._store.list(namespace):
                if info.upstream == self._places.upstream and has_processors(info.sink_uri):
                    wanted[namespace, info.changefeed_id] = info
        for name in self._processors.keys() - wanted.keys():
            processor = self._processors.pop(name)
            processor.child.stop(STOP_S)
            self._nursery.forget(processor.child)
        for name, info in wanted.items():
            self._tend(name, info)

    def _tend(self, name: FeedName, info: ChangefeedInfo) -> None:
        processor = self._processors.get(name)
        if processor is None:
            self._processors[name] = _Processor(self._started(name), info.epoch)
            return
        if processor.child.is_running():
            return
        now = time.monotonic()
        if processor.epoch != info.epoch:  # resumed, perhaps after it was finished
            processor.epoch, processor.wait_s, processor.start_at_s = info.epoch, AGAIN_FIRST_S, now
        elif processor.start_at_s is None and processor.child.exit_status() != 0:
            log.warning("processor has died", extra={"changefeed": name[1], "last": processor.child.tail(4)})
            processor.start_at_s = now + processor.wait_s
            processor.wait_s = min(2 * processor.wait_s, AGAIN_MAX_S)
        if processor.start_at_s is not None and now >= processor.start_at_s:
            processor.start_at_s = None
            processor.child.start()

    def _started(self, name: FeedName) -> Child:
        places = self._places
        command = [sys.executable, "-m", "compose.cli", "processor", "--namespace", name[0], "--changefeed", name[1]]
        command += ["--kafka", places.kafka, "--zookeeper", places.zookeeper, "--cluster", places.cluster]
        command += self._home.arguments()
        log_file = self._folder() / "processors" / name[0] / name[1] / "processor.log"
        child = self._nursery.start(f"processor {name[0]}/{name[1]}", command, log=log_file)
        log.info("processor started", extra={"changefeed": name[1], "pid": child.pid, "log": str(log_file)})
        return child

    def _folder(self) -> Path:
        if self._data_dir is not None:
            return self._data_dir.resolve()
        if self._own_folder is None:
            self._own_folder = tempfile.TemporaryDirectory(prefix="tidebus-processors-")
        return Path(self._own_folder.name)
