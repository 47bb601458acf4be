"""The sorter process: one changefeed, run as the user wants it and as its errors allow."""

import logging
import math
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from schemas.changefeed import CLUSTER_DEFAULT, NAMESPACE_DEFAULT, ChangefeedInfo, ZkPaths
from schemas.config.changefeed import load_changefeed
from schemas.errors import Action, BusError
from schemas.rawlog.topics import raw_topics
from schemas.sink_topic import sorter_config
from sorters.epochs import Progress
from sorters.failures import bus_error
from sorters.feed_lock import SESSION_S, FeedLock, SorterLockLostError
from sorters.feed_run import FeedRun
from sorters.spark_session import DRIVER_MEMORY, create_session
from sorters.status import StatusBoard, ZooKeeperUnreachableError

log = logging.getLogger(__name__)

POLL_S = 0.2
"""How often the process looks whether the query has ended or the user wants something else."""
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 30.0
"""Waits between tries after an error that may heal; doubled each time, as TiCDC does."""
STUCK_S = 30 * 60.0
"""``changefeed-error-stuck-duration``: after so long without progress a changefeed fails. TiCDC's default."""


@dataclass(frozen=True, kw_only=True)
class SorterOptions:
    """What ``tidebus sorter`` takes."""

    changefeed_id: str
    namespace: str = NAMESPACE_DEFAULT
    cluster: str = CLUSTER_DEFAULT
    kafka: str
    """Bootstrap servers of the raw log."""
    zookeeper: str
    schema_registry: str | None = None
    """For changefeeds that name none."""
    master: str = "local[2]"
    data_dir: Path
    """For the streaming query's own checkpoint and Spark's spills; each changefeed has a folder in it."""
    raw_prefix: str = "tidebus"
    driver_memory: str = DRIVER_MEMORY


class SorterProcess:
    """Runs until it is told to stop, the changefeed is removed, or it is finished."""

    def __init__(self, options: SorterOptions) -> None:
        self._options = options
        self._stop = threading.Event()
        self._rows_total = 0
        self._corrupt_rows_total = 0
        self._failing_since: float | None = None
        self._backoff_s = BACKOFF_FIRST_S

    def stop(self) -> None:
        """Ask it to end; safe in a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Return the process's exit status: 0 when told to stop or done, 1 when it could not start."""
        options = self._options
        zookeeper = KazooClient(hosts=options.zookeeper, timeout=SESSION_S)
        try:
            zookeeper.start(timeout=30)
        except KazooTimeoutError as error:
            raise ZooKeeperUnreachableError("zookeeper does not answer", address=options.zookeeper) from error
        try:
            paths = ZkPaths(options.cluster)
            board = StatusBoard(zookeeper, paths, options.namespace, options.changefeed_id)
            if board.info() is None:
                log.error("no such changefeed", extra={"changefeed": options.changefeed_id})
                return 1
            lock = FeedLock(zookeeper, paths.changefeed_sorter(options.namespace, options.changefeed_id))
            # Before Spark starts: who only waits needs no memory for it.
            if not lock.acquire(lambda: self._is_wanted(board)):
                return 0
            app = f"tidebus-sorter-{options.namespace}-{options.changefeed_id}"
            spark = create_session(options.master, app, self._data_dir(), driver_memory=options.driver_memory)
            try:
                self._supervise(spark, board, lock)
            finally:
                spark.stop()
                lock.release()
        finally:
            zookeeper.stop()
            zookeeper.close()
        return 0

    def _data_dir(self) -> Path:
        return self._options.data_dir / "sorters" / self._options.namespace / self._options.changefeed_id

    def _is_wanted(self, board: StatusBoard) -> bool:
        found = None if self._stop.is_set() else self._info(board)
        return found is not None and found[0].desired_state != "removed"

    def _supervise(self, spark: Any, board: StatusBoard, lock: FeedLock) -> None:
        """Start a run whenever the user wants one, and act on how it ends."""
        seen: int | None = None
        while lock.acquire(lambda: self._is_wanted(board)):
            found = self._info(board)
            if found is None or found[0].desired_state == "removed":
                return
            info, version = found
            if version != seen:
                seen = version
                self._failing_since, self._backoff_s = None, BACKOFF_FIRST_S
            if info.desired_state != "normal":
                self._idle(board, info, version)
                continue
            error = self._run_once(spark, board, lock, info, version)
            if isinstance(error, SorterLockLostError):
                log.warning("sorter stops writing", extra={"code": error.code, "reason": str(error)})
                continue  # what the status says is another's to say now
            if error is None:
                if self._finished(board, info):
                    return
                continue
            self._act_on(error, board, version)

    def _info(self, board: StatusBoard) -> tuple[ChangefeedInfo, int] | None:
        while True:
            try:
                return board.info()
            except ZooKeeperUnreachableError:
                if self._stop.wait(BACKOFF_FIRST_S):
                    return None

    def _idle(self, board: StatusBoard, info: ChangefeedInfo, version: int) -> None:
        board.open(info.start_ts)
        board.report(info.desired_state)
        self._await_change(board, version)

    def _await_change(self, board: StatusBoard, version: int, timeout_s: float = math.inf) -> None:
        """Wait until the user changes the changefeed (``resume`` writes its node), ``timeout_s`` at most."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self._stop.wait(POLL_S):
            found = self._info(board)
            if found is None or found[1] != version:
                return

    def _run_once(
        self, spark: Any, board: StatusBoard, lock: FeedLock, info: ChangefeedInfo, version: int
    ) -> BusError | None:
        """Run the changefeed until it fails (the error), or it should stop or run otherwise (None)."""
        options = self._options
        run: FeedRun | None = None
        try:
            checkpoint_ts = board.open(info.start_ts)
            config = sorter_config(load_changefeed(info.sink_uri, info.config), info, options.kafka)
            if info.target_ts is not None and checkpoint_ts >= info.target_ts:
                return None
            run = FeedRun(
                spark,
                kafka=options.kafka,
                raw_topics=raw_topics(info.upstream, options.raw_prefix),
                schema_registry=options.schema_registry,
                data_dir=self._data_dir(),
                info=info,
                config=config,
                checkpoint_ts=checkpoint_ts,
                before_cut=lock.check,
                on_progress=lambda progress: None if lock.is_lost() else self._on_progress(board, progress),
            )
            run.start()
            if self._failing_since is None:
                board.report("normal")
            log.info("changefeed runs", extra={"changefeed": info.changefeed_id, "checkpoint_ts": checkpoint_ts})
            return self._watch(run, board, lock, info, version)
        except Exception as error:
            return bus_error(error)
        finally:
            if run is not None:
                run.close()

    def _watch(
        self, run: FeedRun, board: StatusBoard, lock: FeedLock, info: ChangefeedInfo, version: int
    ) -> BusError | None:
        while not self._stop.wait(POLL_S):
            if lock.is_lost():
                return SorterLockLostError("zookeeper does not answer", changefeed=info.changefeed_id)
            failure = run.failure()
            if failure is not None:
                return failure
            if info.target_ts is not None and board.checkpoint_ts >= info.target_ts:
                return None
            try:
                found = board.info()
            except ZooKeeperUnreachableError:
                continue  # the lock tells how long that may last
            if found is None or found[1] != version:
                return None
        return None

    def _on_progress(self, board: StatusBoard, progress: Progress) -> None:
        self._rows_total += progress.rows
        self._corrupt_rows_total += progress.corrupt_rows
        self._failing_since, self._backoff_s = None, BACKOFF_FIRST_S
        board.report(
            "normal",
            checkpoint_ts=progress.checkpoint_ts,
            resolved_ts=progress.resolved_ts,
            rows_total=self._rows_total,
            corrupt_rows_total=self._corrupt_rows_total,
            batch_rows=progress.rows,
            batch_s=progress.batch_s,
        )

    def _finished(self, board: StatusBoard, info: ChangefeedInfo) -> bool:
        if info.target_ts is None or board.checkpoint_ts < info.target_ts:
            return False
        board.report("finished")
        log.info("changefeed finished", extra={"changefeed": info.changefeed_id, "target_ts": info.target_ts})
        return True

    def _act_on(self, error: BusError, board: StatusBoard, version: int) -> None:
        """Fail for good, or back off and let the next turn try again."""
        if error.action is not Action.RETRY:
            log.error("changefeed failed", extra={"code": error.code, "reason": str(error)}, exc_info=error)
            board.report("failed", error=error)
            self._await_change(board, version)
            return
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > STUCK_S:
            log.error("changefeed failed: no progress for too long", extra={"code": error.code, "reason": str(error)})
            board.report("failed", error=error)
            self._failing_since = None
            self._await_change(board, version)
            return
        log.warning("changefeed tries again", extra={"code": error.code, "reason": str(error)})
        board.report("warning", error=error)
        self._await_change(board, version, self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)


def run_sorter(options: SorterOptions) -> int:
    """Run the sorter of one changefeed until SIGTERM or SIGINT; return the exit status.

    Raises:
        BusError: it could not even start.
    """
    process = SorterProcess(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    return process.run()
