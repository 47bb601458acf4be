"""The sorter service: a process that runs the changefeeds which the owner assigns to it.

    a life: a session --> registered --> assigned: a thread for each changefeed --> the lease is over, or told to stop
    what outlives it: Spark, and the readers of raw logs

A life ends with its session: all threads give up, and the next life begins under the same id, with what it has written
down. SIGTERM: it says that it stops, ends each changefeed's cut, folds what it knows, and goes.
"""

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import LeaseLostError, Session
from schemas.errors import Action, BusError
from schemas.ids import UpstreamId, physical_ms
from schemas.nodes.changefeed import CLUSTER_DEFAULT, ZkPaths
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import Assigned, Assignment, FeedName
from schemas.rawlog.topics import raw_topics
from schemas.running_feeds import RunningFeeds, crash_file, running_file
from sorters.core.cut.runner import is_cluster, runner_of, tasks_at_once
from sorters.core.service.spark_start import is_spark_due
from sorters.core.service.status_pace import StatusPace
from sorters.run.cut_job import RunBy
from sorters.run.feed_run import END_S
from sorters.service.arenas import share_arenas
from sorters.service.feed_shares import FeedShares
from sorters.service.group_state import GroupState
from sorters.service.hosted_feed import FeedHome, HostedFeed
from sorters.service.registration import ServiceNode, service_info
from sorters.service.shared_log import SharedLog
from sorters.service.shared_logs import SharedLogs
from sorters.service.shared_spark import SharedSpark
from sorters.service.vitals import Vitals
from sorters.spark.connector import SUBMITTED_ENV
from sorters.spark.jobs.spark_counts import OF_PROCESS
from sorters.spark.session import DRIVER_MEMORY, create_session, event_log_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

TICK_S = 0.2
SLOTS = 2_048
"""Changefeeds of which it is noted that the service works for them; beyond that many, nobody knows."""
HOST_AGAIN_S = 5.0
"""Before a changefeed whose thread has ended of itself, and which is assigned all the same, gets another."""
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 30.0
STEADY_S = 60.0
END_LATEST_S = END_S + 5.0
"""For the end of all changefeeds, when it is told to stop; what Spark's tasks take to die is in it
(:data:`sorters.spark.jobs.job_group.DEATH_S`)."""


class SparkSubmitGoneError(BusError):
    """The JVM was spark-submit's, and no other can be had."""

    code, action = "sorter.spark_submit_gone", Action.STOP_CHANGEFEED


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """What ``tidebus sorters`` takes."""

    service: str = field(default_factory=lambda: str(uuid.uuid4()))
    cluster: str = CLUSTER_DEFAULT
    kafka: KafkaAccess
    """Of the raw log."""
    zookeeper: ZooKeeperAccess
    schema_registry: RegistryAccess = RegistryAccess()
    """For changefeeds that name none."""
    dedicated: str = ""
    """``namespace/id`` of the one changefeed to run; empty: whatever is assigned."""
    master: str = "local[2]"
    data_dir: Path
    raw_prefix: str = "tidebus"
    driver_memory: str = DRIVER_MEMORY
    checkpoint_dir: str = ""
    spark_conf: tuple[tuple[str, str], ...] = ()
    spark_ui_port: int | None = 0
    """0: any that is free; None: no UI."""
    event_log: str = ""
    """Hadoop URI or path of a folder for Spark's event logs; empty: none are kept."""
    run_cuts: str = "auto"
    """Who runs cuts of changefeeds that leave it open: ``auto``, ``driver`` or ``spark``."""
    memory_bytes_max: int = 0
    """Above which it ends itself; 0: a share of the machine's (:data:`~sorters.service.vitals.MEMORY_SHARE_MAX`)."""
    keeps_spark_warm: bool = True
    """Whether Spark starts with the first changefeed; else with the first cut that needs it."""


class SorterService:
    """Runs until :meth:`stop`."""

    def __init__(self, options: ServiceOptions) -> None:
        """Raises RunningFileError where it cannot note what it works for."""
        self._options = options
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._paths = ZkPaths(options.cluster)
        self._spark = SharedSpark(self._start_spark)
        self._raw_config = options.kafka.with_texts().config()
        self._logs = SharedLogs(self._open_log)
        self._running = RunningFeeds(running_file(options.data_dir.resolve(), options.service), SLOTS)
        self._shares = FeedShares(self._running, os.cpu_count() or 1)
        self._vitals = Vitals(self._running, self._shares, options.memory_bytes_max, self.stop)
        self._submitted_by = os.getppid() if SUBMITTED_ENV in os.environ else 0
        """The process of the ``spark-submit`` that has started this one; 0: none has."""

    def stop(self) -> None:
        """Ask it to end; safe in a signal handler."""
        self._stop.set()
        self._woken.set()

    def run(self) -> int:
        """Serve until told to stop; return the exit status.

        0 when it was stopped, 1 after an error that waiting does not mend, or when it has too much memory.
        """
        self._vitals.start()
        pause_s = RETRY_FIRST_S
        try:
            while not self._stop.is_set():
                began_at = time.monotonic()
                try:
                    self._serve()
                except BusError as error:
                    if error.action is not Action.RETRY:
                        log.error("sorter service ends", extra={"code": error.code, "error": str(error)})
                        return 1
                    steady = time.monotonic() - began_at > STEADY_S
                    pause_s = RETRY_FIRST_S if steady else min(pause_s * 2, RETRY_MAX_S)
                    extra = {"code": error.code, "error": str(error), "in_s": pause_s}
                    log.warning("sorter service starts anew", extra=extra)
                    self._stop.wait(pause_s)
        finally:
            self._spark.stop()
            self._logs.close()
            self._vitals.stop()
        return 1 if self._vitals.is_over else 0

    def _serve(self) -> None:
        """Live for one session.

        Raises:
            BusError: whatever ended it.
        """
        options, paths = self._options, ServicePaths(self._paths)
        with Session(options.zookeeper) as session:
            registration = ServiceNode(session, paths, service_info(options.service, options.master, options.dedicated))
            life = _Life(self, session, paths)
            log.info("sorter service is there", extra={"service": options.service, "cluster": options.cluster})
            try:
                while not self._stop.is_set():
                    self._vitals.note_tick()
                    session.check_lease()
                    self._check_submitter()
                    life.tick()
                    if options.keeps_spark_warm and is_spark_due(life.busy_s(), life.lag_s()):
                        self._spark.warm()
                    if is_cluster(options.master):
                        self._spark.look()
                    registration.tell(spark_ui=self._spark.web_url, spark=OF_PROCESS.figures)
                    self._logs.close_idle()
                    self._woken.wait(TICK_S)
                    self._woken.clear()
                registration.tell(is_stopping=True)
            finally:
                self._vitals.note_last_tick()
                life.end(sys.exc_info()[1])

    def _check_submitter(self) -> None:
        if self._submitted_by and os.getppid() != self._submitted_by:
            raise SparkSubmitGoneError(
                "spark-submit, which has started this service, has ended", pid=self._submitted_by
            )

    def home(self, session: Session, state: GroupState) -> FeedHome:
        """Return what all changefeeds of a life have in common."""
        options = self._options
        return FeedHome(
            client=session.client,
            lease=session.lease,
            paths=self._paths,
            state=state,
            shares=self._shares,
            status_pace=StatusPace(),
            is_lost=lambda: session.lease_left_s() <= 0,
            sources=self._logs.sources,
            spark=self._spark.get,
            run_by=RunBy(
                on_cluster=is_cluster(options.master),
                tasks=tasks_at_once(options.master),
                is_warm=self._spark.is_warm,
                by_service=runner_of(options.run_cuts),
            ),
            kafka=options.kafka,
            schema_registry=options.schema_registry,
            raw_prefix=options.raw_prefix,
            cluster=options.cluster,
            data_dir=options.data_dir.resolve(),
            checkpoint_dir=options.checkpoint_dir,
        )

    @property
    def service(self) -> str:
        """Its id."""
        return self._options.service

    def wake(self) -> None:
        """Let the loop look at once; from any thread."""
        self._woken.set()

    def note_end(self, *, blames_nobody: bool) -> None:
        """Note whom the end of the process is blamed on, before it ends at once.

        What threads have noted stays, and names those; with ``blames_nobody`` it is wiped. Where memory is the reason,
        whoever has grown is named alone.
        """
        self._vitals.stop()
        if blames_nobody and not self._vitals.is_over:
            self._running.note_alone(None)

    def _open_log(self, upstream: UpstreamId) -> SharedLog:
        topics = raw_topics(upstream, self._options.raw_prefix)
        return SharedLog(self._raw_config, topics, runs_cuts=not is_cluster(self._options.master))

    def _start_spark(self) -> "SparkSession":
        options = self._options
        log.info("spark starts", extra={"service": options.service, "master": options.master})
        conf = {"spark.scheduler.mode": "FAIR"}
        if options.spark_ui_port is not None:
            conf |= {"spark.ui.enabled": "true", "spark.ui.port": str(options.spark_ui_port)}
        return create_session(
            options.master,
            f"tidebus-sorters-{options.cluster}-{options.service}",
            options.data_dir.resolve() / "sorters",
            driver_memory=options.driver_memory,
            conf={**conf, **event_log_settings(options.event_log), **dict(options.spark_conf)},
        )


class _Life:
    """The changefeeds of one session."""

    def __init__(self, service: SorterService, session: Session, paths: ServicePaths) -> None:
        self._service = service
        self._assignment = Assignment()
        with session.requests("reading what a sorter service has to do") as client:
            self._state = GroupState(
                client, paths, service.service, self._on_assignment, lambda: session.lease_left_s() <= 0
            )
        self._home = service.home(session, self._state)
        self.feeds: dict[FeedName, HostedFeed] = {}
        self._busy_since = 0.0

    def busy_s(self) -> float:
        """Return for how many seconds there have been changefeeds here; 0: there is none."""
        return time.monotonic() - self._busy_since if self.feeds else 0.0

    def lag_s(self) -> float:
        """Return how many seconds the checkpoint that is furthest behind is behind this machine's clock; 0: no
        changefeed runs.
        """
        oldest_ms = min((physical_ms(ts) for feed in self.feeds.values() if (ts := feed.checkpoint_ts)), default=None)
        return 0.0 if oldest_ms is None else time.time() - oldest_ms / 1000

    def tick(self) -> None:
        """Start what is assigned and not there, and halt what is not assigned any more, or otherwise."""
        wanted = {assigned.name: assigned for assigned in self._assignment.feeds}
        for name, feed in list(self.feeds.items()):
            is_wanted = wanted.get(name) == feed.assigned
            if not feed.is_alive and (not is_wanted or feed.ended_s() > HOST_AGAIN_S):
                del self.feeds[name]
            elif not is_wanted:
                feed.halt()
            feed.tend()
        for name, assigned in wanted.items():
            if name not in self.feeds:
                self.feeds[name] = self._hosted(assigned)

    def end(self, ended_by: BaseException | None = None) -> None:
        """End all changefeeds, and what they write their state by; ``ended_by`` is what has ended this life, None: it
        was told to stop.
        """
        deadline = time.monotonic() + END_LATEST_S
        for feed in self.feeds.values():
            feed.halt()
        while any(feed.is_alive for feed in self.feeds.values()) and time.monotonic() < deadline:
            for feed in self.feeds.values():
                feed.tend()
                feed.join(0.02)
        left = [name for name, feed in self.feeds.items() if feed.is_alive]
        self._state.close()
        if left:
            extra = {"changefeeds": left, "ended_by": str(ended_by or "it was told to stop")}
            log.error("changefeeds do not end; the process goes with them", extra=extra)
            logging.shutdown()
            # Where a machine that is starved has lost the lease, whoever computes just then is not to blame.
            self._service.note_end(blames_nobody=isinstance(ended_by, LeaseLostError))
            os._exit(1)

    def _hosted(self, assigned: Assigned) -> HostedFeed:
        self._busy_since = self._busy_since if self.feeds else time.monotonic()
        log.info("changefeed is assigned", extra={"changefeed": assigned.changefeed_id, "epoch": assigned.epoch})
        feed = HostedFeed(assigned, self._home)
        feed.start()
        return feed

    def _on_assignment(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._service.wake()


def run_service(options: ServiceOptions) -> int:
    """Run a sorter service until SIGTERM or SIGINT; return the exit status."""
    share_arenas(os.cpu_count() or 1)
    service = SorterService(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    with crash_file(options.data_dir.resolve(), options.service).open("w") as file:
        faulthandler.enable(file)  # its capture reads there which thread has crashed
        try:
            return service.run()
        finally:
            faulthandler.disable()  # the file is closed next, and its number may be another's then
            with contextlib.suppress(RuntimeError, ValueError, OSError):  # no standard error is left
                faulthandler.enable()
