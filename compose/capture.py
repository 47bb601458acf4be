"""`tidebus capture`: one process that pulls an upstream into the raw log, and owns its frontier when it is elected.

    ZooKeeper: registered --campaign--> owner of revision n
    reign:  DDL feed --take--> schema store --> table set --assign--> puller --report--> frontier --publish--> topic
                                                                        ^------- published record --------------'

One capture is enough in this version: the owner pulls everything, others stand by until it goes. A capture that loses
its session, or whose parts fail in a way that may heal, ends its reign and stands again under a new id; R and the
topics say where to go on.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from kazoo.exceptions import NoNodeError

from compose.reign import Reign, ReignOptions
from compose.sorter_fleet import SorterFleet, SorterPlaces, SorterSettings
from consumers.capture_registry import CaptureInfo, register_capture
from consumers.election import Election
from consumers.frontier_topic import FrontierTopic
from consumers.owner import Owner
from consumers.zookeeper import SESSION_TIMEOUT_S, Session
from producers.ddl_feed import DdlFeed
from producers.puller import Puller, PullerSettings
from producers.raw_log import ensure_raw_topics
from schemas.changefeed import CLUSTER_DEFAULT, ZkPaths
from schemas.errors import Action, BusError
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.rawlog.topics import raw_topics

if TYPE_CHECKING:
    from consumers.api.metrics import Pull
    from consumers.api.server import ApiServer

log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 1.0, 30.0
"""Between two reigns; it doubles while they end within a minute."""
STEADY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """Where everything is."""

    pd: str
    kafka: str
    zookeeper: str
    schema_registry: str
    cluster: str = CLUSTER_DEFAULT
    upstream: UpstreamId
    start_ts: Ts | None = None
    """Where an empty raw log begins; None: now, by PD's clock."""
    session_timeout_s: float = SESSION_TIMEOUT_S
    puller: PullerSettings = field(default_factory=PullerSettings)
    reign: ReignOptions = field(default_factory=ReignOptions)
    sorters: SorterSettings = field(default_factory=SorterSettings)
    addr: str = ""
    """``host:port`` where the HTTP API listens; empty: nowhere."""
    advertise_addr: str = ""
    """Under which others reach it; empty: ``addr``."""


def run_capture(options: CaptureOptions, stopping: threading.Event | None = None) -> int:
    """Serve until SIGTERM or SIGINT (or ``stopping``); return the exit status.

    0 when it was stopped, 1 after an error that waiting does not mend.

    An error before the first registration ends it too: a wrong address should not look like patience.
    """
    stopping = stopping or threading.Event()
    with _signals(stopping), _api(options) as api:
        pause_s, serving = RETRY_FIRST_S, False
        while not stopping.is_set():
            began_at = time.monotonic()
            capture = Capture(options, stopping, api)
            try:
                capture.serve()
            except BusError as error:
                serving |= capture.registered
                if error.action is not Action.RETRY or not serving:
                    log.error("capture ends", extra={"code": error.code, "error": str(error)})
                    return 1
                pause_s = RETRY_FIRST_S if time.monotonic() - began_at > STEADY_S else min(pause_s * 2, RETRY_MAX_S)
                log.warning("capture starts anew", extra={"code": error.code, "error": str(error), "in_s": pause_s})
                stopping.wait(pause_s)
    log.info("capture stopped")
    return 0


class Capture:
    """One life: a ZooKeeper session and an id."""

    def __init__(self, options: CaptureOptions, stopping: threading.Event, api: "ApiServer | None" = None) -> None:
        self._options, self._stopping, self._api = options, stopping, api
        self.capture_id = CaptureId(str(uuid.uuid4()))
        self.registered = False
        self._reigning: tuple[Reign, float] | None = None

    def serve(self) -> None:
        """Register, wait to be elected, reign; return when ``stopping`` is set.

        Raises:
            BusError: whatever ended it.
        """
        options, paths = self._options, ZkPaths(self._options.cluster)
        with contextlib.ExitStack() as stack:
            session = stack.enter_context(Session(options.zookeeper, timeout_s=options.session_timeout_s))
            info = self._info()
            register_capture(session, paths, info)
            self.registered = True
            if self._api is not None:
                stack.enter_context(self._served(self._api, session, info))
            log.info("capture registered", extra={"capture": self.capture_id, "cluster": options.cluster})
            election = Election(session, paths, self.capture_id)
            try:
                revision = election.campaign(self._stopping.is_set)
                if revision is not None:
                    log.info("capture is owner", extra={"capture": self.capture_id, "owner_rev": revision})
                    self._reign(session, paths, revision)
            except BusError as error:
                if error.action is not Action.RETRY:
                    self._write_failure(session, paths, error)
                raise
            finally:
                election.resign()

    def _reign(self, session: Session, paths: ZkPaths, revision: int) -> None:
        options, failed = self._options, Failure()
        settings = replace(options.puller, cluster=options.cluster)
        topics = raw_topics(options.upstream, settings.topic_prefix)
        with contextlib.ExitStack() as stack:
            partitions = ensure_raw_topics(options.kafka, topics, settings.raw_log)
            frontier = stack.enter_context(contextlib.closing(FrontierTopic(options.kafka, topics.frontier)))
            last = frontier.newest()
            ddl = DdlFeed(
                upstream=options.upstream,
                pd_address=options.pd,
                bootstrap_servers=options.kafka,
                start_ts=options.start_ts,
                frontier=last,
                on_fatal=failed.set,
                settings=settings,
            )
            stack.callback(ddl.stop)
            snapshot_ts = ddl.start()
            owner = Owner(frontier, session, revision, partitions, held_lag_s=options.reign.held_lag_s)
            place = owner.start(lambda: snapshot_ts)
            puller = Puller(
                capture=self.capture_id,
                upstream=options.upstream,
                pd_address=options.pd,
                bootstrap_servers=options.kafka,
                schema_registry=options.schema_registry,
                frontier=place,
                on_fatal=failed.set,
                settings=settings,
            )
            stack.callback(puller.stop)
            puller.start()
            reign = Reign(self.capture_id, owner, puller, ddl, options.reign, had_predecessor=last is not None)
            stack.callback(reign.close)
            self._reigning = reign, time.monotonic()
            stack.callback(setattr, self, "_reigning", None)
            stack.enter_context(SorterFleet(session, paths, self._sorter_places(), options.sorters, failed.set))
            while not self._stopping.is_set():
                failed.check()
                session.check_lease()
                pause_s = reign.tick()
                if reign.status_is_due():
                    self._write_status(session, paths, {"state": "normal", **reign.status()})
                self._stopping.wait(pause_s)

    def _sorter_places(self) -> SorterPlaces:
        options = self._options
        return SorterPlaces(
            kafka=options.kafka,
            zookeeper=options.zookeeper,
            schema_registry=options.schema_registry,
            cluster=options.cluster,
            upstream=options.upstream,
        )

    def _write_status(self, session: Session, paths: ZkPaths, status: Mapping[str, object]) -> None:
        with session.requests("writing the upstream's status") as client:
            path, value = paths.upstream(self._options.upstream), json.dumps(status).encode()
            try:
                client.set(path, value)
            except NoNodeError:  # a reader must never see it empty
                client.create(path, value, makepath=True)

    def _write_failure(self, session: Session, paths: ZkPaths, error: BusError) -> None:
        """Leave the reason where whoever looks for this upstream finds it: nobody pulls it until it is mended."""
        shown = {"code": error.code, "message": str(error)}
        failed = {"capture": self.capture_id, "state": "failed", "error": shown, "at_s": round(time.time(), 3)}
        with contextlib.suppress(BusError):  # the first error says more
            self._write_status(session, paths, failed)

    @contextlib.contextmanager
    def _served(self, api: "ApiServer", session: Session, info: CaptureInfo) -> Iterator[None]:
        """Answer the API from this session while inside."""
        from compose.api_backend import ApiBackend, ApiPlaces

        options = self._options
        places = ApiPlaces(
            pd=options.pd,
            tls=options.puller.tls,
            kafka=options.kafka,
            zookeeper=options.zookeeper,
            cluster=options.cluster,
            upstream=options.upstream,
        )
        backend = ApiBackend(session, info, places, self._stopping.is_set, self._pull)
        with contextlib.closing(backend), api.serving(backend):
            yield

    def _pull(self) -> "Pull | None":
        """Return the metrics of this capture's reign; None: it has none."""
        from compose.metrics import pull_of

        reigning = self._reigning  # one reading: the reign may end meanwhile
        if reigning is None:
            return None
        reign, began_at_s = reigning
        return pull_of(self._options.upstream, began_at_s, *reign.seen())

    def _info(self) -> CaptureInfo:
        return CaptureInfo(
            capture_id=self.capture_id,
            address=self._options.advertise_addr or (self._api.address if self._api else "") or _process_name(),
            version=version("tidebus"),
            started_at_s=int(time.time()),
        )


class Failure:
    """The first error of any part, told from its own thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: BusError | None = None

    def set(self, error: BusError) -> None:
        """Note an error; later ones follow from it."""
        with self._lock:
            self._error = self._error or error

    def check(self) -> None:
        """Raise what was noted.

        Raises:
            BusError: what was noted.
        """
        with self._lock:
            if self._error is not None:
                raise self._error


@contextlib.contextmanager
def _api(options: CaptureOptions) -> Iterator["ApiServer | None"]:
    if not options.addr:
        yield None
        return
    from consumers.api.server import ApiServer

    with contextlib.closing(ApiServer(options.addr)) as server:
        yield server


def _process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@contextlib.contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    """Set ``stopping`` on SIGTERM and SIGINT while inside; only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
