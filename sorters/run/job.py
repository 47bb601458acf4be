"""The sorter process: one changefeed, run while its state wants a sorter (``schemas.nodes.changefeed.wants_sorter``).

What a run has failed with is written down for the owner, who decides what follows: the process tries nothing again by
itself. By hand it waits until the owner lets it run again; as a child of the owner (``once``) it ends.
"""

import logging
import signal
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.secrets import load_with_secrets
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.connection import zookeeper_client
from edges.zookeeper.session import ZooKeeperUnreachableError
from schemas.config.settings import ChangefeedConfig
from schemas.errors import BusError
from schemas.ids import Ts
from schemas.nodes.changefeed import (
    CLUSTER_DEFAULT,
    NAMESPACE_DEFAULT,
    ChangefeedInfo,
    ZkPaths,
    state_of,
    wants_sorter,
)
from schemas.rawlog.images import image_feed
from schemas.rawlog.topics import raw_topics
from schemas.sink.topic import sorter_config
from sorters.core.cut.runner import is_cluster, runner_of, tasks_at_once
from sorters.cut.leave import GIVEN, Leave, asked_at_once
from sorters.log.failures import bus_error
from sorters.run.cut_job import RunBy
from sorters.run.epochs import CutProgress
from sorters.run.feed_run import FeedRun
from sorters.run.first_log import LOOK_S, runnable
from sorters.run.lake_run import LakeRun, OwnReads
from sorters.run.nodes.count_nodes import CountNodes
from sorters.run.nodes.feed_lock import SESSION_S, FeedLock, SorterLockLostError
from sorters.run.nodes.status import Edition, StatusBoard
from sorters.run.run_inputs import RunInputs
from sorters.run.sources import OwnSources, handed_on
from sorters.spark.session import DRIVER_MEMORY, SparkOnDemand, create_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

POLL_S = 0.2
"""How often the process looks whether the query has ended or the user or the owner wants something else."""
RETRY_S = 1.0
"""Between two requests to a ZooKeeper that does not answer."""
STOPPED, FAILED = 0, 1
"""Exit statuses: nothing is left to do; or a run has failed, and the changefeed's status says with what."""


@dataclass(frozen=True, kw_only=True)
class SorterOptions:
    """What ``tidebus sorter`` takes."""

    changefeed_id: str
    namespace: str = NAMESPACE_DEFAULT
    cluster: str = CLUSTER_DEFAULT
    kafka: KafkaAccess
    """Of the raw log."""
    zookeeper: ZooKeeperAccess
    schema_registry: RegistryAccess = RegistryAccess()
    """For changefeeds that name none."""
    master: str = "local[2]"
    data_dir: Path
    """For Spark's spills and streaming queries; each changefeed has a folder in it."""
    raw_prefix: str = "tidebus"
    driver_memory: str = DRIVER_MEMORY
    checkpoint_dir: str = ""
    """Hadoop URI of the folder in which streaming queries keep their checkpoint; empty: in ``data_dir``."""
    spark_conf: tuple[tuple[str, str], ...] = ()
    """Further settings of Spark."""
    run_cuts: str = "auto"
    """Who runs its cuts, where the changefeed leaves it open: ``auto``, ``driver`` or ``spark``."""
    once: bool = False
    """End when the changefeed wants no sorter, or a run has failed."""


@dataclass(frozen=True, slots=True)
class LockedBoard:
    """What is begun, on a changefeed's own node, by who holds its lock."""

    board: StatusBoard
    lock: FeedLock

    def begun(self) -> bytes | None:
        """See :class:`~sorters.run.nodes.begun_store.BegunStore`."""
        return self.board.begun()

    def begin(self, epoch: bytes, after_ts: Ts) -> Leave:
        """See :class:`~sorters.run.nodes.begun_store.BegunStore`."""
        # The check first: while ZooKeeper does not answer, nothing may wait there to be written later.
        self.lock.check()
        self.board.begin(epoch, after_ts)
        return GIVEN


class SorterProcess:
    """Runs until it is told to stop, the changefeed is removed, or it is finished."""

    def __init__(self, options: SorterOptions) -> None:
        self._options = options
        self._stop = threading.Event()
        self._spark = SparkOnDemand(self._start_spark)
        self._counts: CountNodes | None = None
        self._rows_total = 0
        self._corrupt_rows_total = self._damaged_records_total = 0
        self._windows_proven = 0

    def stop(self) -> None:
        """Ask it to end; safe in a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Return the process's exit status: STOPPED or FAILED, which is also for one that could not start."""
        options = self._options
        with zookeeper_client(options.zookeeper, SESSION_S) as zookeeper:
            paths = ZkPaths(options.cluster)
            board = StatusBoard(zookeeper.client, paths, options.namespace, options.changefeed_id)
            self._counts = CountNodes(zookeeper.client, paths, options.namespace, options.changefeed_id)
            if board.info() is None:
                where = {"changefeed": options.changefeed_id, "namespace": options.namespace}
                log.error("no such changefeed; see `tidebus changefeed list`", extra=where)
                return FAILED
            lock = FeedLock(zookeeper, paths.changefeed_sorter(options.namespace, options.changefeed_id))
            try:
                return self._serve(board, lock)
            finally:
                self._spark.stop()
                lock.release()

    def _data_dir(self) -> Path:
        # Absolute: while Spark starts, this process works in another folder.
        return self._options.data_dir.resolve() / "sorters" / self._options.namespace / self._options.changefeed_id

    def _checkpoint_dir(self) -> str:
        options = self._options
        if not options.checkpoint_dir:
            return ""
        return "/".join((options.checkpoint_dir.rstrip("/"), options.cluster, options.namespace, options.changefeed_id))

    def _serve(self, board: StatusBoard, lock: FeedLock) -> int:
        """Start a run whenever one is wanted, until there is none to come."""
        while True:
            wanted = self._next_run(board)
            # The lock before Spark: who only waits needs no memory for it.
            if wanted is None:
                return STOPPED
            info, edition = wanted
            if not lock.acquire(partial(self._is_current, board, edition)):
                continue
            error = self._run_once(board, lock, info, edition)
            if isinstance(error, SorterLockLostError):
                log.warning("sorter stops writing", extra={"code": error.code, "reason": str(error)})
            elif error is not None:
                log.error("run failed", extra={"code": error.code, "reason": str(error)}, exc_info=error)
                self._tell(board, error, info, edition)
                if self._options.once:
                    return FAILED
                if self._spark.is_gone():
                    log.error("spark is gone, and this process with it: start it again")
                    return FAILED
            elif info.target_ts is not None and board.checkpoint_ts >= info.target_ts:
                log.info("target reached", extra={"changefeed": info.changefeed_id, "target_ts": info.target_ts})
                return STOPPED

    def _next_run(self, board: StatusBoard) -> tuple[ChangefeedInfo, Edition] | None:
        """Wait until the changefeed wants a sorter; None: it will not, or we are told to stop, or shall not wait."""
        said = False
        while not self._stop.is_set():
            try:
                current = board.info()
                status = None if current is None else board.status(current[1])
                if current is None or state_of(current[0], status) in ("removed", "finished"):
                    return None
                if wants_sorter(current[0], status):
                    return current
            except ZooKeeperUnreachableError:
                self._stop.wait(RETRY_S)
                continue
            if self._options.once:
                return None
            if not said:
                said = True
                log.info("changefeed wants no sorter now; waiting", extra={"changefeed": current[0].changefeed_id})
            self._stop.wait(POLL_S)
        return None

    def _is_current(self, board: StatusBoard, edition: Edition) -> bool:
        """Tell whether the changefeed is as it was; while ZooKeeper does not answer, it is."""
        if self._stop.is_set():
            return False
        try:
            current = board.info()
        except ZooKeeperUnreachableError:
            return True
        return current is not None and current[1] == edition

    def _start_spark(self) -> "SparkSession":
        options = self._options
        log.info("spark starts", extra={"changefeed": options.changefeed_id, "master": options.master})
        return create_session(
            options.master,
            f"tidebus-sorter-{options.namespace}-{options.changefeed_id}",
            self._data_dir(),
            driver_memory=options.driver_memory,
            conf=dict(options.spark_conf),
        )

    def _tell(self, board: StatusBoard, error: BusError, info: ChangefeedInfo, edition: Edition) -> None:
        """Write down what a run has failed with: as long as that is not done, nobody can decide on it."""
        while self._is_current(board, edition):
            try:
                board.fail(error, info.epoch)
                return
            except ZooKeeperUnreachableError as failure:
                log.warning("failure is not written yet", extra={"reason": str(failure)})
                self._stop.wait(RETRY_S)

    def _run_once(self, board: StatusBoard, lock: FeedLock, info: ChangefeedInfo, edition: Edition) -> BusError | None:
        """Run the changefeed until it fails (the error), or it should stop or run otherwise (None)."""
        options = self._options
        run: FeedRun | LakeRun | None = None
        try:
            checkpoint_ts = board.open(info, edition)
            config = sorter_config(load_with_secrets(info), info, options.kafka.servers)
            if info.target_ts is not None and checkpoint_ts >= info.target_ts:
                return None
            while (runs_as := runnable(board, info, checkpoint_ts)) is None:
                if self._stop.wait(LOOK_S) or lock.is_lost() or not self._is_current(board, edition):
                    return None
            info = runs_as
            if not options.master.startswith("local"):
                self._spark.get()  # a cluster that has no room, or is not there, is better known now than at a backlog
            image_name = image_feed(info.namespace, info.changefeed_id, edition.created_zxid)
            make = self._lake_run if config.uri.is_lake else self._feed_run
            run = make(board, lock, info, config, checkpoint_ts, image_name)
            run.start()
            board.report()
            log.info("changefeed runs", extra={"changefeed": info.changefeed_id, "checkpoint_ts": checkpoint_ts})
            return self._watch(run, board, lock, info, edition)
        except Exception as error:
            return bus_error(error)
        finally:
            if run is not None:
                run.end(lambda: not lock.is_lost())
                run.close()

    def _feed_run(
        self,
        board: StatusBoard,
        lock: FeedLock,
        info: ChangefeedInfo,
        config: ChangefeedConfig,
        checkpoint_ts: Ts,
        image_name: str,
    ) -> FeedRun:
        options = self._options
        return FeedRun(
            self._spark.get,
            RunInputs(
                kafka=options.kafka,
                raw_topics=raw_topics(info.upstream, options.raw_prefix),
                schema_registry=options.schema_registry,
                info=info,
                config=config,
                counts=self._counts,
                run_by=RunBy(
                    on_cluster=is_cluster(options.master),
                    tasks=tasks_at_once(options.master),
                    is_warm=lambda: self._spark.is_started,
                    by_service=runner_of(options.run_cuts),
                ),
                image_name=image_name,
                next_fence=lock.fences(),
            ),
            data_dir=self._data_dir(),
            checkpoint_ts=checkpoint_ts,
            ask=lambda: asked_at_once(lock.check),
            on_progress=lambda progress: None if lock.is_lost() else self._on_progress(board, progress),
            checkpoint_dir=self._checkpoint_dir(),
            begun=LockedBoard(board, lock),
        )

    def _lake_run(
        self,
        board: StatusBoard,
        lock: FeedLock,
        info: ChangefeedInfo,
        config: ChangefeedConfig,
        checkpoint_ts: Ts,
        image_name: str,
    ) -> LakeRun:
        raw_config = self._options.kafka.with_texts().config()
        topics = raw_topics(info.upstream, self._options.raw_prefix)
        with handed_on(OwnSources(raw_config, topics)) as sources:
            return LakeRun(
                self._spark.get,
                sources=sources,
                own=OwnReads(image_name, raw_config, topics, self._data_dir()),
                info=info,
                config=config,
                checkpoint_ts=checkpoint_ts,
                before_cut=lock.check,
                on_progress=lambda progress: None if lock.is_lost() else self._on_progress(board, progress),
            )

    def _watch(
        self, run: FeedRun | LakeRun, board: StatusBoard, lock: FeedLock, info: ChangefeedInfo, edition: Edition
    ) -> BusError | None:
        while not self._stop.wait(POLL_S):
            if lock.is_lost():
                return SorterLockLostError("zookeeper does not answer", changefeed=info.changefeed_id)
            failure = run.failure()
            if failure is not None:
                return failure
            if info.target_ts is not None and board.checkpoint_ts >= info.target_ts:
                return None
            if not self._is_current(board, edition):  # how long ZooKeeper may be silent, the lock tells
                return None
        return None

    def _on_progress(self, board: StatusBoard, progress: CutProgress) -> None:
        self._rows_total += progress.rows
        self._corrupt_rows_total += progress.corrupt_rows
        self._damaged_records_total += progress.damaged_records
        self._windows_proven += progress.window is not None
        board.report(
            checkpoint_ts=progress.checkpoint_ts,
            resolved_ts=progress.resolved_ts,
            rows_total=self._rows_total,
            corrupt_rows_total=self._corrupt_rows_total,
            damaged_records_total=self._damaged_records_total,
            states_proven=progress.states_proven,
            states_unproven=progress.states_unproven,
            batch_rows=progress.rows,
            batch_s=progress.cut_s,
            windows_proven=self._windows_proven,
            **({"last_synced_ts": progress.checkpoint_ts} if progress.rows else {}),
        )


def run_sorter(options: SorterOptions) -> int:
    """Run the sorter of one changefeed until SIGTERM or SIGINT; return the exit status.

    Raises:
        BusError: it could not even start.
    """
    process = SorterProcess(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    return process.run()
