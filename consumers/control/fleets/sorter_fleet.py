"""The sorters of a cluster's changefeeds, as children of the capture that is owner: one for each that wants one.

A thread of its own looks a few times a second at what users and sorters have written and at which children have ended
(:mod:`consumers.control.changefeeds.states` decides what follows), and starts and stops children
(:mod:`consumers.control.core.changefeeds.sorter_plan`). The owner's other work does not wait for it. Children die with
this process, however it goes; what a former owner's children still write is kept apart
from ours by each changefeed's lock.

    with SorterFleet(session, paths, addresses, children, command):  # for as long as this capture is owner
        ...
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from consumers.control.changefeeds.states import Death, FeedStates
from consumers.control.core.changefeeds.errors import FeedError
from consumers.control.core.changefeeds.sorter_plan import FeedName, SorterChild, plan_sorters
from consumers.control.core.changefeeds.state import PATIENCE, Patience
from consumers.control.fleets.children import ChildProcess, ChildStarter, Fleet
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import LeaseLostError, Session
from schemas.errors import BusError, InvariantBrokenError
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths

log = logging.getLogger(__name__)

LOOK_S, LOOK_MAX_S = 0.3, 0.8
"""Between two looks: what a user changes is seen within a second. A look at a hundred changefeeds takes 25 to 50 ms of
CPU, so that with many there are fewer."""
BUSY_SHARE_MAX = 0.1
"""Of the time, in looks."""
STOP_S = 7.0
"""How long a sorter may take to end when it is told to: two seconds for the cut under way, and for its JVM. One that
is killed has written as much; the next owner's waits for this one's end."""
LAST_WORDS_CHARS, LAST_WORDS_LINES = 800, 12
BY_HAND = "none"
"""Instead of a Spark master: sorters are started elsewhere, and judged here all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SorterSettings:
    """How sorters are run."""

    master: str = "local[1]"
    """Spark's, for each sorter by itself; ``none``: somebody else starts them, with ``tidebus sorter``."""
    driver_memory: str = ""
    """Heap of a sorter's JVM as Spark writes it; empty: the sorter's own default."""
    checkpoint_dir: str = ""
    """Hadoop URI of a folder for the streaming queries' checkpoints; empty: in ``data_dir``."""
    conf: tuple[str, ...] = ()
    """Further settings of Spark, each ``key=value``."""
    data_dir: Path | None = None
    """For logs, spills and checkpoints; None: a folder that goes with this process."""
    retry_first_s: float = PATIENCE.first_s
    """The first wait after an error; it doubles up to ten minutes. TiCDC's is 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusAddresses:
    """Where the capture's children find the bus."""

    kafka: KafkaAccess
    zookeeper: ZooKeeperAccess
    schema_registry: RegistryAccess
    cluster: str
    upstream: UpstreamId


@dataclass(frozen=True, slots=True, kw_only=True)
class SorterView:
    """One sorter as seen now."""

    pid: int
    epoch: int
    running_s: float


@dataclass(slots=True)
class _Sorter:
    child: ChildProcess
    state: SorterChild
    stop_at_s: float = field(default=0.0)
    """When a sorter that was asked to end is killed."""


class SorterFleet(Fleet):
    """Of one owner, for as long as its reign."""

    def __init__(
        self,
        session: Session,
        paths: ZkPaths,
        addresses: BusAddresses,
        children: ChildStarter,
        command: Sequence[str],
        settings: SorterSettings | None = None,
        on_fatal: Callable[[BusError], None] = lambda _: None,
        held: Callable[[ChangefeedInfo], FeedError | None] = lambda _: None,
    ) -> None:
        """``command`` begins a command of the bus. ``on_fatal`` takes a bug; nothing is supervised any more then.

        ``held``: see :class:`FeedStates`.
        """
        self._settings = settings or SorterSettings()
        super().__init__(children, self._settings.data_dir, "sorters")
        self._addresses, self._program, self._on_fatal = addresses, command, on_fatal
        patience = _patience(self._settings.retry_first_s)
        self._states = FeedStates(session, paths, addresses.upstream, patience=patience, held=held)
        self._sorters: dict[FeedName, _Sorter] = {}
        self._starts_max = max(1, os.cpu_count() or 1)
        self._looks = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sorter-fleet", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking, end all sorters and wait for them; all are asked first."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._children.stop_together(STOP_S)
        self._sorters.clear()
        self._remove_folder()

    def seen(self) -> Mapping[FeedName, SorterView]:
        """Return the sorters that run here; from any thread."""
        now_s = time.monotonic()
        return {
            name: SorterView(
                pid=sorter.child.pid, epoch=sorter.state.epoch, running_s=now_s - sorter.state.started_at_s
            )
            for name, sorter in list(self._sorters.items())
        }

    def _run(self) -> None:
        try:
            rest_s = LOOK_S
            while not self._stopping.wait(rest_s):
                began_at_s = time.monotonic()
                self._tick()
                rest_s = min(max(LOOK_S, (time.monotonic() - began_at_s) / BUSY_SHARE_MAX), LOOK_MAX_S)
        except LeaseLostError as error:
            # The capture notices too, and ends its reign; sorters of the next owner wait for ours to go.
            log.warning("sorters are supervised no more", extra={"code": error.code, "error": str(error)})
        except Exception as error:
            log.exception("supervision of sorters has failed")
            known = error if isinstance(error, BusError) else None
            self._on_fatal(known or InvariantBrokenError("supervision of sorters has failed", reason=repr(error)))

    def _tick(self) -> None:
        """Look once. Children first: what one has said before it ended is then read.

        Raises:
            LeaseLostError: the session is over.
        """
        deaths = self._reap()
        try:
            self._states.look(self._sorters.keys(), deaths)
        except LeaseLostError:
            raise
        except BusError as error:
            if self._looks:
                log.warning("changefeeds cannot be looked at", extra={"code": error.code, "error": str(error)})
            self._looks = False
            return
        if not self._looks:
            log.info("changefeeds can be looked at again")
        self._looks = True
        wanted = self._states.wanted() if self._settings.master != BY_HAND else {}
        running = {name: sorter.state for name, sorter in self._sorters.items()}
        plan = plan_sorters(wanted, running, time.monotonic(), self._starts_max)
        for name in plan.stop:
            self._end(name)
        for name in plan.start:
            self._start(name, wanted[name])

    def _reap(self) -> list[Death]:
        """Take away the children that have ended; return those that nobody has asked to."""
        deaths = []
        for name, sorter in list(self._sorters.items()):
            child, was_asked = sorter.child, sorter.state.stopping
            if child.is_running():
                child.turn_over_log()
                if was_asked and time.monotonic() > sorter.stop_at_s:
                    log.warning("sorter does not end; killed", extra=_of(name))
                    child.kill()
                else:
                    continue
            status, words = child.exit_status(), " | ".join(child.tail(LAST_WORDS_LINES).splitlines())
            child.discard(STOP_S)  # with what it has left behind: a JVM, Python workers
            del self._sorters[name]
            if not was_asked:
                message = f"the sorter has ended with {_how(status)}; its last words: {words[-LAST_WORDS_CHARS:]}"
                deaths.append(Death(name, sorter.state.epoch, message))
            log.info("sorter has ended", extra={**_of(name), "status": status, "told": was_asked})
        return deaths

    def _end(self, name: FeedName) -> None:
        sorter = self._sorters[name]
        sorter.child.terminate()
        sorter.state = replace(sorter.state, stopping=True)
        sorter.stop_at_s = time.monotonic() + STOP_S

    def _start(self, name: FeedName, epoch: int) -> None:
        namespace, changefeed_id = name
        data_dir = self._folder()
        child = self._children.start(
            f"sorter {namespace}/{changefeed_id}",
            self._command(name, data_dir),
            log=data_dir / "sorters" / namespace / changefeed_id / "sorter.log",
            env=self._addresses.schema_registry.environment(),
        )
        self._sorters[name] = _Sorter(child, SorterChild(epoch=epoch, started_at_s=time.monotonic()))
        log.info("sorter started", extra={**_of(name), "pid": child.pid, "epoch": epoch, "log": str(child.log)})

    def _command(self, name: FeedName, data_dir: Path) -> list[str]:
        addresses, settings = self._addresses, self._settings
        given = {
            "--namespace": name[0],
            "--changefeed": name[1],
            "--cluster": addresses.cluster,
            "--master": settings.master,
            "--data-dir": str(data_dir),
            "--driver-memory": settings.driver_memory,
            "--checkpoint-dir": settings.checkpoint_dir,
        }
        command = [*self._program, "sorter", "--once"]
        for access in (addresses.kafka, addresses.zookeeper, addresses.schema_registry):
            command += access.arguments()
        command += [part for flag, value in given.items() if value for part in (flag, value)]
        return command + [part for setting in settings.conf for part in ("--conf", setting)]


def _patience(first_s: float) -> Patience:
    return replace(PATIENCE, first_s=first_s, interval_s_max=max(first_s, PATIENCE.interval_s_max))


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {-status} ({signal.strsignal(-status)})"
    return f"status {status}"


def _of(name: FeedName) -> dict[str, str]:
    return {"changefeed": name[1], "namespace": name[0]}
