"""One capture's sorter services, as its children: a shared one, and one for each changefeed that the owner wants alone.

    assignments/{our service}: dedicated --> children:  tidebus sorters --service-id S
                                                        tidebus sorters --service-id S-ded-NS.ID --dedicated NS/ID
    a child died: its file of running changefeeds --> their status: failed with sorter.died --> the owner judges

It outlives the capture's sessions within one process: a capture that begins anew finds its services at work
(:meth:`ServiceFleet.attached`). Children die with this process, however it goes.
"""

import contextlib
import logging
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kazoo.exceptions import BadVersionError, NoNodeError

from consumers.control.core.changefeeds.service_plan import dedicated_id
from consumers.control.fleets.children import ChildProcess, ChildStarter, Fleet
from consumers.control.fleets.service_deaths import ServiceDeath, write_failure
from consumers.control.fleets.settings import BusAddresses, SorterSettings
from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.session import Session
from schemas.errors import BusError, CorruptDataError
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import Assignment, FeedName, decode_assignment, decode_service
from schemas.running_feeds import (
    RunningFileError,
    crash_file,
    read_beats,
    read_crashed_thread,
    read_threads,
    remove_all_files,
    remove_files,
    running_file,
)

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
STOP_S: Final = 10.0
"""How long a service may take to end its cuts and its JVM."""
AGAIN_FIRST_S, AGAIN_MAX_S = 1.0, 30.0
"""Waits before a service that has died is started again, doubled each time."""
STILL_S: Final = 20.0
"""After so long without a heartbeat a service is killed: C code holds its interpreter, and all its changefeeds wait."""
FIRST_BEAT_S: Final = 180.0
"""After so long without its first heartbeat, too, which needs nobody's answer: it comes seconds after the start."""
STEADY_S: Final = 60.0
"""After so long the next wait is the first one again."""
LAST_WORDS_CHARS, LAST_WORDS_LINES = 800, 12


@dataclass(slots=True)
class _Service:
    """One that is to run here."""

    service: str
    feed: FeedName | None
    """None: the shared one."""
    child: ChildProcess | None = None
    """None: it has ended, and begins again at ``start_at_s``."""
    start_at_s: float = 0.0
    started_at_s: float = 0.0
    wait_s: float = AGAIN_FIRST_S
    beats: int = 0
    """As last read; 0: its heart has not begun to beat."""
    looked_at_s: float = 0.0
    still_s: float = 0.0
    """For how long that has not changed; only what was looked at counts, so that we may stand still ourselves."""
    stands_still: bool = False
    """It was killed for it."""
    checks_batches: bool = False
    """One was aborted: Kafka's client may have met a damaged batch, which it does not survive, and does not name."""
    kill_at_s: float | None = None
    """When one that was asked to end is killed; None: nobody has asked."""


class ServiceFleet(Fleet):
    """Of one capture's process."""

    def __init__(
        self,
        paths: ZkPaths,
        addresses: BusAddresses,
        children: ChildStarter,
        command: Sequence[str],
        settings: SorterSettings,
        *,
        is_heir: bool = False,
    ) -> None:
        """``command`` begins a command of the bus; ``is_heir``: no other capture has the data folder, so that what such
        services have left in it is of dead ones.
        """
        super().__init__(children, settings.data_dir, "sorters")
        self._paths, self._nodes, self._addresses = paths, ServicePaths(paths), addresses
        self._program, self._settings, self._is_heir = command, settings, is_heir
        self.service_id = str(uuid.uuid4())
        """The shared service's: it stays as long as this process."""
        self._services = {self.service_id: _Service(self.service_id, None)}
        self._session: Session | None = None
        self._assignments: dict[str, Assignment] = {}
        """As last read: for how many changefeeds are still here, and under which epochs they run."""
        self._deaths: list[ServiceDeath] = []
        """Not told yet."""
        self._looks = True
        self._looking = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="service-fleet", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        if self._is_heir:
            remove_all_files(self._folder())
        self._thread.start()

    def stop(self) -> None:
        """End all services and wait for them; all are asked first."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._children.stop_together(STOP_S)
        for service in self._services:
            remove_files(self._folder(), service)
        self._services.clear()
        self._remove_folder()

    @contextlib.contextmanager
    def attached(self, session: Session) -> Iterator[None]:
        """Hear of the owner, and tell it of deaths, by this session while inside."""
        self._session = session
        try:
            yield
        finally:
            with self._looking:
                self._session = None

    @property
    def feeds(self) -> int:
        """How many changefeeds the services here were assigned, as of the last look."""
        return sum(len(assignment.feeds) for assignment in self._assignments.values())

    def pids(self) -> dict[str, int]:
        """Return the services that run here; from any thread."""
        return {name: known.child.pid for name, known in list(self._services.items()) if known.child is not None}

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._looking:
                    self.look()
                if not self._looks:
                    log.info("assignments can be read again")
                self._looks = True
            except BusError as error:
                if self._looks:
                    log.warning("assignments cannot be read", extra={"code": error.code, "error": str(error)})
                self._looks = False
            except Exception:
                log.exception("a look at the sorter services has failed")
            self._stopping.wait(LOOK_S)

    def look(self) -> None:
        """Tend the children, tell of those that have died, and take in what the owner wants.

        Raises:
            BusError: ZooKeeper does not answer; the children are tended all the same.
        """
        for known in list(self._services.values()):
            self._tend(known)
        session = self._session
        if session is None:
            return
        while self._deaths:
            self._tell(session, self._deaths[0])
            self._deaths.pop(0)
        self._read_assignments(session)

    # -- children ------------------------------------------------------------------------------------------------------

    def _tend(self, known: _Service) -> None:
        now_s, child = time.monotonic(), known.child
        if child is None:
            if known.kill_at_s is not None:
                del self._services[known.service]
                remove_files(self._folder(), known.service)
            elif now_s >= known.start_at_s:
                try:
                    self._start(known)
                except BusError as error:  # a disk that is full, say: what runs is tended all the same
                    again_s = _postpone(known, now_s)
                    extra = {"service": known.service, "code": error.code, "error": str(error), "again_in_s": again_s}
                    log.error("sorter service cannot be started", extra=extra)
            return
        if child.is_running():
            child.turn_over_log()
            if known.kill_at_s is not None and now_s > known.kill_at_s:
                log.warning("sorter service does not end; killed", extra={"service": known.service})
                child.kill()
            elif self._stands_still(known, now_s):
                log.warning("sorter service stands still; killed", extra={"service": known.service})
                known.stands_still = True
                child.kill()
            return
        was_asked = known.kill_at_s is not None
        status, words = child.exit_status(), " | ".join(child.tail(LAST_WORDS_LINES).splitlines())
        known.checks_batches |= status == -signal.SIGABRT
        extra = {"service": known.service, "status": status, "told": was_asked}
        (log.info if was_asked else log.warning)("sorter service has ended", extra=extra)
        how = _how(status) + (f" after standing still for {_still_max_s(known):.0f} s" if known.stands_still else "")
        self._note_death(known, child.pid, f"{how}; its last words: {words[-LAST_WORDS_CHARS:]}")
        child.discard(STOP_S)  # with what it has left behind: a JVM, Python workers
        known.child = None
        if now_s - known.started_at_s > STEADY_S:
            known.wait_s = AGAIN_FIRST_S
        _postpone(known, now_s)

    def _stands_still(self, known: _Service, now_s: float) -> bool:
        known.still_s += min(now_s - known.looked_at_s, 2 * LOOK_S)
        known.looked_at_s = now_s
        try:
            beats = read_beats(running_file(self._folder(), known.service))
        except RunningFileError:
            return False  # nobody knows
        if beats != known.beats:
            known.beats, known.still_s = beats, 0.0
        return known.still_s > _still_max_s(known)

    def _note_death(self, known: _Service, pid: int, how: str) -> None:
        path = running_file(self._folder(), known.service)
        try:
            threads = read_threads(path)
            crashed = read_crashed_thread(crash_file(self._folder(), known.service))
            guesses = [
                [work.name for work in threads if work.thread == crashed],
                [work.name for work in threads if not work.only_prepares],
                [work.name for work in threads],
            ]
            running = frozenset(next(filter(None, guesses), []))
            path.unlink(missing_ok=True)
        except (RunningFileError, OSError) as error:
            log.warning("nobody knows what the service was working for", extra={"error": str(error)})
            running = frozenset()
        if known.kill_at_s is not None:
            running = frozenset()  # it was to end: that it took too long is no changefeed's fault
        assigned = {feed.name: feed for feed in self._assignments.get(known.service, Assignment()).feeds}
        message = f"the sorter service has ended with {how}"
        self._deaths.append(ServiceDeath(known.service, pid, message, running, assigned))

    def _start(self, known: _Service) -> None:
        name = "sorters" if known.feed is None else f"sorters {'/'.join(known.feed)}"
        log_file = service_log(self._folder(), known.feed)
        known.child = self._children.start(
            name, self._command(known), log=log_file, env=self._addresses.schema_registry.environment()
        )
        known.started_at_s = known.looked_at_s = time.monotonic()
        known.beats, known.still_s, known.stands_still = 0, 0.0, False
        extra = {"service": known.service, "pid": known.child.pid, "log": str(log_file)}
        log.info("sorter service started", extra=extra)

    def _command(self, known: _Service) -> list[str]:
        addresses, settings = self._addresses, self._settings
        given = {
            "--service-id": known.service,
            "--dedicated": "/".join(known.feed or ()),
            "--cluster": addresses.cluster,
            "--master": settings.master,
            "--data-dir": str(self._folder()),
            "--driver-memory": settings.driver_memory,
            "--checkpoint-dir": settings.checkpoint_dir,
            "--run-cuts": settings.run_cuts,
            "--spark-ui-port": _own_port(known, settings),
            "--event-log": settings.event_log,
        }
        command = [*self._program, "sorters"]
        for access in (addresses.kafka, addresses.zookeeper, addresses.schema_registry):
            command += access.arguments()
        command += [part for flag, value in given.items() if value for part in (flag, value)]
        command += ["--spark-on-demand"] if settings.spark_on_demand else []
        command += ["--check-batches"] if known.checks_batches else []
        return command + [part for setting in settings.conf for part in ("--conf", setting)]

    # -- ZooKeeper -----------------------------------------------------------------------------------------------------

    def _read_assignments(self, session: Session) -> None:
        """Read what the owner has assigned to the services here, and which it wants to be here."""
        with session.requests("reading assignments") as client:
            assignments = {service: _assignment(client, self._nodes.assignment(service)) for service in self._services}
        self._assignments = assignments
        wanted = {dedicated_id(self.service_id, name): name for name in assignments[self.service_id].dedicated}
        for service, name in wanted.items():
            self._services.setdefault(service, _Service(service, name))
        for service, known in self._services.items():
            if known.feed is not None and service not in wanted and known.kill_at_s is None:
                known.kill_at_s = time.monotonic() + STOP_S
                if known.child is not None:
                    known.child.terminate()

    def _tell(self, session: Session, death: ServiceDeath) -> None:
        """Say of what a service has died, then take its registration away: nobody need wait for its session's end.

        Raises:
            BusError: ZooKeeper failed; it must be told again.
        """
        with session.requests("telling of a service's death") as client:
            for name in sorted(death.running):
                if write_failure(client, self._paths, name, death):
                    extra = {"changefeed": name[1], "namespace": name[0], "service": death.service}
                    log.warning("sorter service has died of a changefeed", extra=extra)
            path = self._nodes.service(death.service)
            with contextlib.suppress(NoNodeError, BadVersionError, CorruptDataError):
                node, stat = client.get(path)
                if decode_service(node).pid == death.pid:
                    client.delete(path, version=stat.version)


def _still_max_s(known: _Service) -> float:
    return STILL_S if known.beats else FIRST_BEAT_S


def _postpone(known: _Service, now_s: float) -> float:
    """Let a service be started later, each time twice as late; return in how many seconds."""
    wait_s = known.wait_s
    known.start_at_s, known.wait_s = now_s + wait_s, min(2 * wait_s, AGAIN_MAX_S)
    return wait_s


def _assignment(client: ZooKeeperClient, path: str) -> Assignment:
    try:
        return decode_assignment(client.get(path)[0])
    except NoNodeError:
        return Assignment()


def _own_port(known: _Service, settings: SorterSettings) -> str:
    """Return the port of Spark's UI; a changefeed's own service takes any: the shared one has the named one."""
    port = settings.spark_ui_port
    return "" if port == 0 or (port > 0 and known.feed is not None) else str(port)


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {-status} ({signal.strsignal(-status)})"
    return f"status {status}"


def service_log(data_dir: Path, name: FeedName | None = None) -> Path:
    """Return the log of a capture's shared service, or of a changefeed's own."""
    return data_dir.joinpath("sorters", *(name or ()), "service.log")
