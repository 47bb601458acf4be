"""One changefeed in a service: a thread that holds its lock and runs it, for as long as the service has it.

waits for: its state wants a sorter --> the lock --> the run, from where its last sorter stopped
    ^                                                 |  info changed, lease over, halt, failure, target
    '---- fold: status and begun say all, the entry goes -- lock let go --'
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.secrets import load_with_secrets
from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.connection import LeasedClient
from edges.zookeeper.lease import Lease
from edges.zookeeper.session import ZooKeeperUnreachableError
from schemas.config.settings import ChangefeedConfig
from schemas.errors import BusError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, wants_sorter
from schemas.nodes.sorter_service import Assigned, FeedEntry, FeedName, status_counts
from schemas.rawlog.images import image_feed
from schemas.rawlog.topics import raw_topics
from schemas.sink.topic import sorter_config
from sorters.core.service.quotas import Pace
from sorters.core.service.slow_words import SlowWords
from sorters.core.service.status_pace import StatusPace
from sorters.cut.leave import Leave
from sorters.log.failures import WorkerDiedError, bus_error
from sorters.run.cut_job import RunBy
from sorters.run.epochs import CutProgress
from sorters.run.feed_run import END_S, FeedRun
from sorters.run.first_log import LOOK_S as PROLOGUE_LOOK_S
from sorters.run.first_log import runnable
from sorters.run.lake_run import LakeRun, OwnReads
from sorters.run.nodes.begun_store import LastBegun
from sorters.run.nodes.count_nodes import CountNodes
from sorters.run.nodes.feed_lock import FeedLock, SorterLockLostError
from sorters.run.nodes.status import Edition, StatusBoard
from sorters.run.run_inputs import RunInputs
from sorters.run.sources import RunSources, handed_on
from sorters.service.feed_entry import entry_after
from sorters.service.feed_shares import FeedShares, HostedShare
from sorters.service.group_state import GroupState, feed_key
from sorters.spark.session import Session

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Before another try at a ZooKeeper that does not answer, or at a lock that was lost."""
LOOK_S = 10.0
"""Between two looks at a changefeed that rests, beside the watch that should tell."""


@dataclass(frozen=True, kw_only=True)
class FeedHome:
    """What all changefeeds of a service have in common."""

    client: ZooKeeperClient
    """A connected KazooClient, of the service's session."""
    lease: Lease
    """Of that session."""
    paths: ZkPaths
    state: GroupState
    shares: FeedShares
    status_pace: StatusPace
    is_lost: Callable[[], bool]
    """Whether the lease of the session is over."""
    sources: Callable[[UpstreamId, Ts, str], RunSources]
    """Return what a changefeed of an upstream reads by, from its checkpoint on; those of a protocol share cuts."""
    spark: Session
    run_by: RunBy
    """What the service says of who runs cuts."""
    kafka: KafkaAccess
    schema_registry: RegistryAccess
    raw_prefix: str
    cluster: str
    data_dir: Path
    checkpoint_dir: str
    worker_deaths: set[FeedName] = field(default_factory=set)
    """Changefeeds under which a worker of Spark has died: of a damaged batch perhaps, which Kafka's client does not
    survive. Read with checks it is named.
    """


class HostedFeed:
    """Runs until :meth:`halt`, or until the changefeed is gone."""

    def __init__(self, assigned: Assigned, home: FeedHome) -> None:
        self.assigned, self._home = assigned, home
        namespace, changefeed_id = assigned.name
        self._names = {"changefeed": changefeed_id, "namespace": namespace}
        self._key = feed_key(assigned)
        self._board = StatusBoard(home.client, home.paths, namespace, changefeed_id)
        self._lock = FeedLock(
            LeasedClient(home.client, home.lease), home.paths.changefeed_sorter(namespace, changefeed_id)
        )
        self._halted = threading.Event()
        self._changed = threading.Event()
        """Set when the user or the owner may have changed the changefeed, or when it is halted."""
        self._halted_at = self._ended_at = self._reported_s = 0.0
        self._run: FeedRun | LakeRun | None = None
        self._share: HostedShare | None = None
        self._entry: FeedEntry | None = None
        self._tasks_cpu_s = 0.0
        """Of Spark's tasks, since this thread began."""
        self._unreadable, self._stopped = SlowWords(), SlowWords()
        self._thread = threading.Thread(target=self._serve, name=f"feed {namespace}/{changefeed_id}", daemon=True)

    def start(self) -> None:
        """Begin to wait for its turn."""
        self._thread.start()

    def halt(self) -> None:
        """Begin nothing more; returns at once. :meth:`tend` ends a cut that takes long."""
        if not self._halted.is_set():
            self._halted_at = time.monotonic()
        self._halted.set()
        self._interrupt()

    def tend(self) -> None:
        """Called some times a second: what must not go on is given up."""
        run = self._run
        if run is None:
            return
        overdue = self._halted.is_set() and time.monotonic() > self._halted_at + END_S
        if overdue or self._home.is_lost():
            run.give_up()

    @property
    def is_alive(self) -> bool:
        """Whether its thread still has something to do."""
        return self._thread.is_alive()

    @property
    def checkpoint_ts(self) -> Ts | None:
        """How far it is; None: it does not run."""
        entry = self._entry
        return None if entry is None else entry.checkpoint_ts

    def ended_s(self) -> float:
        """Return since when its thread has ended; 0: it has not."""
        return time.monotonic() - self._ended_at if self._ended_at else 0.0

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # -- its thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._halted.is_set():
                wanted = self._next_run()
                if wanted is None:
                    return
                if self._lock.acquire(self._may_go_on):
                    try:
                        self._run_once(*wanted)
                    finally:
                        self._lock.release()
        except Exception as error:
            log.exception("changefeed is hosted no more", extra={**self._names, "reason": repr(error)})
        finally:
            self._ended_at = time.monotonic()

    def _next_run(self) -> tuple[ChangefeedInfo, Edition] | None:
        """Wait until the changefeed wants a sorter under the epoch that it was assigned with; None: it never will."""
        while not self._halted.is_set():
            self._changed.clear()
            try:
                current = self._board.info(self._on_change)
                if current is None or current[1].created_zxid != self.assigned.created_zxid:
                    return None
                if current[0].epoch == self.assigned.epoch and wants_sorter(current[0], self._board.status(current[1])):
                    return current
            except ZooKeeperUnreachableError:
                self._halted.wait(RETRY_S)
                continue
            except BusError as error:  # somebody else has written a node of it
                if self._unreadable.are_due(str(error), time.monotonic()):
                    log.error("changefeed is not readable; it runs again once it is", extra=self._naming(error))
            self._changed.wait(LOOK_S)
        return None

    def _on_change(self, _event: object) -> None:
        # In kazoo's thread: only notes, and returns at once.
        self._interrupt()

    def _interrupt(self) -> None:
        self._changed.set()
        run = self._run
        if run is not None:
            run.halt()

    def _may_go_on(self) -> bool:
        return not (self._changed.is_set() or self._home.is_lost())

    def _run_once(self, info: ChangefeedInfo, edition: Edition) -> None:
        """Run the changefeed until it fails, which is written down, or should stop or run otherwise."""
        try:
            failure = self._attempt(info, edition)
        except Exception as error:
            failure = bus_error(error)
        finally:
            run, self._run = self._run, None
            if run is not None:
                run.close()
            share, self._share = self._share, None
            if share is not None:
                share.close()
        if self._home.is_lost():
            self._halted.wait(RETRY_S)  # the service is about to begin anew
            return
        self._fold()
        if failure is None:
            return
        if isinstance(failure, SorterLockLostError | ZooKeeperUnreachableError):
            if self._stopped.are_due(str(failure), time.monotonic()):
                log.warning("changefeed stops writing", extra=self._naming(failure))
            self._halted.wait(RETRY_S)
            return
        if isinstance(failure, WorkerDiedError):
            self._home.worker_deaths.add(self.assigned.name)
        log.error("run failed", extra=self._naming(failure), exc_info=failure)
        self._tell(failure, info)

    def _attempt(self, info: ChangefeedInfo, edition: Edition) -> BusError | None:
        home, begun, entry = self._home, self._open(info, edition), self._opened
        if info.target_ts is not None and entry.checkpoint_ts >= info.target_ts:
            self._changed.wait(LOOK_S)  # the owner is about to see that it is finished
            return None
        runs_as = self._runs_as(info)
        if runs_as is None:
            return None
        config = sorter_config(load_with_secrets(info), info, home.kafka.servers)
        pace = Pace(config.sorter.cpu_share_max_percent / 100, config.sorter.rows_per_second_max)
        share = self._share = home.shares.share(self.assigned.name, pace)
        if config.uri.is_lake:
            run: FeedRun | LakeRun = self._lake_run(runs_as, config, edition, share)
        else:
            run = self._feed_run(runs_as, config, edition, share, begun)
        self._run = run
        if not self._may_go_on():
            return None
        home.state.begin(entry)
        self._board.report()
        self._reported_s = time.monotonic()
        log.info("changefeed runs", extra={**self._names, "checkpoint_ts": entry.checkpoint_ts})
        run.run_here()
        return run.failure()

    def _runs_as(self, info: ChangefeedInfo) -> ChangefeedInfo | None:
        """Wait until there is a raw log to run it from; None: it is to run otherwise by now, or not here."""
        entry, said = self._opened, False
        while (runs_as := runnable(self._board, info, entry.checkpoint_ts)) is None:
            if not said:
                said = True
                log.info("changefeed waits for its prologue", extra={**self._names, "start_ts": info.start_ts})
            if self._changed.wait(PROLOGUE_LOOK_S) or self._home.is_lost():
                return None
        return runs_as

    def _lake_run(
        self, info: ChangefeedInfo, config: ChangefeedConfig, edition: Edition, share: HostedShare
    ) -> LakeRun:
        home, entry = self._home, self._opened
        raw_config, topics = self._kafka().with_texts().config(), raw_topics(info.upstream, home.raw_prefix)
        image_name = image_feed(info.namespace, info.changefeed_id, edition.created_zxid)
        with handed_on(home.sources(info.upstream, entry.checkpoint_ts, config.protocol)) as sources:
            return LakeRun(
                home.spark,
                own=OwnReads(image_name, raw_config, topics, home.data_dir.joinpath("sorters", *self.assigned.name)),
                sources=sources,
                info=info,
                config=config,
                checkpoint_ts=entry.checkpoint_ts,
                before_cut=lambda: home.state.ask(self._key).wait(),
                on_progress=lambda progress: self._on_progress(progress, info),
                share=share,
            )

    def _feed_run(
        self, info: ChangefeedInfo, config: ChangefeedConfig, edition: Edition, share: HostedShare, begun: bytes | None
    ) -> FeedRun:
        home, entry = self._home, self._opened
        namespace, changefeed_id = self.assigned.name
        folder = home.checkpoint_dir.rstrip("/")
        checkpoint_dir = "/".join((folder, home.cluster, namespace, changefeed_id)) if folder else ""
        with handed_on(home.sources(info.upstream, entry.checkpoint_ts, config.protocol)) as sources:
            return FeedRun(
                home.spark,
                RunInputs(
                    kafka=self._kafka(),
                    raw_topics=raw_topics(info.upstream, home.raw_prefix),
                    schema_registry=home.schema_registry,
                    info=info,
                    config=config,
                    sources=sources,
                    counts=CountNodes(home.client, home.paths, namespace, changefeed_id),
                    run_by=home.run_by,
                    share=share,
                    image_name=image_feed(namespace, changefeed_id, edition.created_zxid),
                    next_fence=self._lock.fences(),
                ),
                data_dir=home.data_dir / "sorters" / namespace / changefeed_id,
                checkpoint_ts=entry.checkpoint_ts,
                ask=lambda: home.state.ask(self._key),
                on_progress=lambda progress: self._on_progress(progress, info),
                checkpoint_dir=checkpoint_dir,
                begun=LastBegun(begun, self._begin),
            )

    def _kafka(self) -> KafkaAccess:
        """Return how the raw log is read where it is not read for several changefeeds."""
        kafka = self._home.kafka
        return kafka.checking_batches() if self.assigned.name in self._home.worker_deaths else kafka

    @property
    def _opened(self) -> FeedEntry:
        """How far the changefeed is, which was taken over."""
        assert self._entry is not None, "it is opened first"
        return self._entry

    def _open(self, info: ChangefeedInfo, edition: Edition) -> bytes | None:
        """Take the changefeed over from whoever had it last; return what was begun there."""
        checkpoint_ts, begun, status = self._board.open(info, edition), self._board.begun(), self._board.opened
        self._entry = FeedEntry(
            namespace=info.namespace,
            changefeed_id=info.changefeed_id,
            created_zxid=edition.created_zxid,
            epoch=info.epoch,
            revision=self.assigned.revision,
            checkpoint_ts=checkpoint_ts,
            resolved_ts=max(status.resolved_ts if status is not None else checkpoint_ts, checkpoint_ts),
            begun=(begun or b"").decode(errors="replace"),
            last_synced_ts=status.last_synced_ts if status is not None else Ts(0),
        )
        return begun

    def _begin(self, epoch: bytes, after_ts: Ts) -> Leave:
        entry = self._opened
        checkpoint_ts = max(entry.checkpoint_ts, after_ts)
        self._entry = replace(entry, begun=epoch.decode(), checkpoint_ts=checkpoint_ts)
        return self._home.state.ask_to_begin(self._entry)

    def _on_progress(self, progress: CutProgress, info: ChangefeedInfo) -> None:
        self._tasks_cpu_s += progress.tasks_cpu_s
        self._entry = entry_after(self._opened, progress, time.thread_time() + self._tasks_cpu_s)
        if self._home.is_lost():
            return
        self._home.state.note(self._entry)
        if self._home.status_pace.takes(self._reported_s, time.monotonic()):
            self._report(self._entry)
        if info.target_ts is not None and progress.checkpoint_ts >= info.target_ts:
            log.info("target reached", extra={**self._names, "target_ts": info.target_ts})
            self._interrupt()

    def _fold(self) -> None:
        """Let the changefeed's own nodes say how far it is and what is begun, and take the entry away."""
        entry, self._entry = self._entry, None
        if entry is None:
            return
        if not self._report(entry) and not entry.begun:
            return  # it is the only word
        try:
            if entry.begun:
                self._board.begin(entry.begun.encode(), entry.checkpoint_ts)
            self._home.state.drop(self._key)
        except (ZooKeeperUnreachableError, SorterLockLostError) as failure:
            log.warning("entry stays", extra={**self._names, "reason": str(failure)})

    def _report(self, entry: FeedEntry) -> bool:
        is_said = self._board.report(
            checkpoint_ts=entry.checkpoint_ts,
            resolved_ts=entry.resolved_ts,
            last_synced_ts=entry.last_synced_ts,
            **status_counts(entry),
        )
        self._reported_s = time.monotonic()
        return is_said

    def _tell(self, error: BusError, info: ChangefeedInfo) -> None:
        """Write down what a run has failed with: as long as that is not done, nobody can decide on it."""
        while not self._home.is_lost():
            try:
                self._board.fail(error, info.epoch)
                return
            except ZooKeeperUnreachableError as failure:
                log.warning("failure is not written yet", extra={**self._names, "reason": str(failure)})
                if self._halted.wait(RETRY_S):
                    return

    def _naming(self, error: BusError) -> dict[str, str]:
        return {**self._names, "code": error.code, "reason": str(error)}
