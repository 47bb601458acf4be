"""One run of a changefeed, from start to stop, with everything that it needs::

follow the frontier: cut after cut, by driver or Spark --many large cuts wait---> catch up: a streaming query
                                                       <--it has run what there was--
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from edges.kafka.java_properties import spark_options
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.nodes.prologue import is_prologue
from schemas.sink.topic import life_of
from sorters.core.cut.beginning import Beginning, BegunEpoch, decode_begun, encode_begun, left_off
from sorters.core.cut.cut_plan import is_backlog
from sorters.cut.leave import Leave
from sorters.log.failures import HistoryLostError, bus_error
from sorters.run.epochs import CutProgress, EpochBounds, EpochControl, Epochs, EpochSources, EpochWork
from sorters.run.nodes.begun_store import BegunStore
from sorters.run.proofs.proof_log import ProofLog
from sorters.run.proofs.state_proofs import StateProofs
from sorters.run.run_inputs import RunInputs
from sorters.run.run_parts import RunParts
from sorters.spark.backlog.catch_up import FRONTIER_RECORDS_MAX, catch_up
from sorters.spark.backlog.query_folder import QUERY, Folder, HadoopFolder, LocalFolder
from sorters.spark.session import Session

log = logging.getLogger(__name__)
_LOOK_S = 0.5
"""How long a run that is told to stop may go on waiting for a frontier record."""
_LOOK_AT_LOG_S = 60.0
"""Between two looks whether the raw log is the same still. The owner looks every 10 s: where the log is another one its
reign ends, and no frontier record comes any more."""
_SILENCE_S = 30.0
"""How long no frontier record may come before the broker is asked whether it answers. A living owner publishes one at
least each minute; Kafka's client itself would wait for ever."""
END_S = 2.0
"""How long a run that is told to end waits for the cut under way: a small one takes a tenth of a second, and a large
one that is given up is written again."""


class TargetNotReachedError(BusError):
    """Rows up to the target ts may still come."""

    code, action = "sorter.target_not_reached", Action.RETRY


class FeedRun:
    """Holds the clients of one run; :meth:`close` must be called."""

    def __init__(
        self,
        spark: Session,
        inputs: RunInputs,
        *,
        data_dir: Path,
        checkpoint_ts: Ts,
        ask: Callable[[], Leave],
        on_progress: Callable[[CutProgress], None],
        checkpoint_dir: str = "",
        begun: BegunStore | None = None,
    ) -> None:
        """``spark`` is asked for a session when one is needed.

        Args:
            checkpoint_dir: the Hadoop URI of the folder for streaming queries; empty: it is ``data_dir``.
            ask: asks for leave to write the next cut.
            begun: what sorters of this changefeed have begun, wherever they ran; None: nothing is known of them, so the
                run begins at the checkpoint.
        """
        info = inputs.info
        self._image_name, self._share = inputs.image_name, inputs.share
        self._spark = spark
        self._begun = begun
        self._spark_kafka = spark_options(inputs.kafka)
        self._frontier_topic = inputs.raw_topics.frontier
        self._folder: Folder = HadoopFolder(spark, checkpoint_dir) if checkpoint_dir else LocalFolder(data_dir)
        self._failure: BusError | None = None
        self.failures_at_end = 0
        """Errors while it was stopping, which no state shows: they are logged."""
        self._thread: threading.Thread | None = None
        self._proofs: ProofLog | None = None
        """None: what is written is no part of the changefeed's course, as for a recovery."""
        self._states: StateProofs | None = None
        """None: no table has a state proof, or as above."""
        self._stopping, self._given_up = threading.Event(), threading.Event()
        self._parts = RunParts.of(spark, inputs)
        self._sources, self._growth, self._job = self._parts.sources, self._parts.growth, self._parts.job
        self._frontier = self._sources.frontier
        self._checkpoint_ts, self._target_ts = checkpoint_ts, info.target_ts
        self._waits_at = info.start_ts if inputs.image_name and inputs.config.wants_initial else None
        self._name, self._life = (info.namespace, info.changefeed_id), life_of(info)
        self._keeps_states = bool(inputs.config.state_proofs) and not is_prologue(info.upstream)
        self._ask, self._on_progress = ask, on_progress

    def start(self) -> None:
        """Begin, in a thread of its own, where the last run left off if that fits the checkpoint.

        Raises:
            HistoryLostError: the raw log starts above the checkpoint.
            KafkaUnreachableError: the raw log does not answer.
        """
        self._sources.check_log()
        beginning = self._beginning()
        self._keep_proofs()
        self._thread = threading.Thread(target=self._run, args=(beginning,), name="feed-run", daemon=True)
        self._thread.start()

    def run_here(self) -> None:
        """Run in the calling thread until :meth:`halt`, or until it fails (:meth:`failure`).

        Raises:
            BusError: it could not begin; see :meth:`start`.
        """
        self._sources.check_log()
        beginning = self._beginning()
        self._keep_proofs()
        self._run(beginning)

    def halt(self) -> None:
        """Begin nothing more; safe in any thread, and returns at once."""
        self._stopping.set()

    def give_up(self) -> None:
        """Let what is under way fail; safe in any thread. One call may come too early: call until the run has ended."""
        self._stopping.set()
        self._given_up.set()
        self._job.give_up()

    def _run(self, beginning: Beginning) -> None:
        try:
            epochs, at = self._resumed(beginning)
            while not self._stopping.is_set():
                at = self._follow(epochs, at)
                if not self._stopping.is_set():
                    at = self._catch_up(epochs, at)
        except BaseException as error:
            failure = bus_error(error)
            if not self._stopping.is_set():
                self._failure = failure
                return
            # Clients are closed under a cut that is given up; what else goes wrong then must not go unseen.
            self.failures_at_end += 1
            log.log(
                logging.ERROR if failure.action is Action.CRASH else logging.WARNING,
                "sorter has ended with an error while it was stopping",
                extra={"code": failure.code, "error": str(failure), "failures_at_end": self.failures_at_end},
            )

    def _resumed(self, beginning: Beginning) -> tuple[Epochs, int]:
        """Run the epoch that was begun, if there is one; return what runs epochs, and where the next starts."""
        epochs, at = self._epochs(beginning.after_ts), beginning.start
        if beginning.end is None:
            self._growth.settle()
            return epochs, at
        epoch = epochs.plan(at, beginning.end)
        if epochs.checkpoint_ts not in {ts for cut in epoch.cuts for ts in (cut.after_ts, cut.upto_ts)}:
            self._growth.settle()
            return self._epochs(self._checkpoint_ts), self._frontier.find(self._checkpoint_ts)
        epochs.run(epoch, repeat=True)
        self._growth.settle()
        return epochs, beginning.end

    def _begin(self, epoch: BegunEpoch) -> Leave:
        if self._begun is None:
            return self._ask()
        return self._begun.begin(encode_begun(epoch), epoch.after_ts)

    def _follow(self, epochs: Epochs, start: int) -> int:
        """Run what the frontier topic brings from ``start`` on; return where an epoch starts that is a backlog."""
        answered_at = looked_at = time.monotonic()
        with self._sources.follow(start) as tail:
            while not self._stopping.is_set():
                records = tail.read(FRONTIER_RECORDS_MAX, _LOOK_S)
                if not records and time.monotonic() < answered_at + _SILENCE_S:
                    continue
                answered_at = time.monotonic()
                if answered_at >= looked_at + _LOOK_AT_LOG_S:
                    looked_at = answered_at
                    self._sources.check_log()
                self._job.tend()
                if not records:
                    self._frontier.end()  # raises where the broker does not answer
                    continue
                epoch = epochs.plan(start, start + len(records), records)
                if is_backlog(epochs.missing(epoch), self._job.is_small, self._job.record_bytes):
                    break
                epochs.run(epoch)
                start = epoch.end
        return start

    def _catch_up(self, epochs: Epochs, start: int) -> int:
        """Let a streaming query run what is there from ``start`` on; return up to where that was."""
        log.info("catching up by spark", extra={"frontier_offset": start, "checkpoint_ts": epochs.checkpoint_ts})
        spark = self._spark()
        self._folder.remove(QUERY)  # of an older one
        catch_up(
            spark,
            kafka=self._spark_kafka,
            frontier_topic=self._frontier_topic,
            start=start,
            checkpoint=self._folder.location(QUERY),
            name="/".join(self._name),
            on_epoch=epochs.run_logged,
            stopping=self._stopping,
            given_up=self._given_up,
        )
        return start if epochs.end is None else epochs.end

    def run_to_target(self) -> None:
        """Write what lies between the checkpoint and the target ts, with no streaming query, and return.

        What is written, and how it is cut, hangs on the raw log alone: a second run writes the same bytes.

        Raises:
            HistoryLostError: the raw log starts above the checkpoint.
            TargetNotReachedError: it has not come to the target ts.
            RawLogRecreatedError, RawLogLostError: up to there it is another one by now, or has lost records.
            BusError: whatever stops a changefeed.
        """
        assert self._target_ts is not None
        self._growth.settle()
        start, end = self._frontier.find(self._checkpoint_ts), self._frontier.end()
        epochs = self._epochs(self._checkpoint_ts)
        newest_ts = epochs.frontier_of(self._frontier.record_before(end)).resolved_ts
        if newest_ts < self._target_ts:
            where = {"target_ts": self._target_ts, "newest_ts": newest_ts, "topic": self._frontier_topic}
            raise TargetNotReachedError(
                "raw log has not come to the target ts, or holds tables back before it", **where
            )
        self._sources.check_log(self._first_at(self._target_ts, epochs, end))
        for at in range(start, end, FRONTIER_RECORDS_MAX):
            if epochs.checkpoint_ts >= self._target_ts:
                return
            epochs.run(epochs.plan(at, min(at + FRONTIER_RECORDS_MAX, end)))

    def _first_at(self, target_ts: Ts, epochs: Epochs, end: int) -> int:
        """Return how many frontier records a ts needs, of which ``end`` are enough. A record that holds the
        changefeed's tables back is none that reaches it.
        """
        few, enough = self._frontier.find(target_ts), end
        while few < enough:
            middle = (few + enough) // 2
            if epochs.frontier_of(self._frontier.record_before(middle)).resolved_ts < target_ts:
                few = middle + 1
            else:
                enough = middle
        return enough

    def _epochs(self, origin_ts: Ts) -> Epochs:
        return Epochs(
            EpochSources(
                frontier=self._frontier,
                frontier_topic=self._frontier_topic,
                schemas=self._sources.schemas,
                folder=self._folder,
            ),
            EpochWork(
                preparation=self._parts.preparation,
                job=self._job,
                share=self._share,
                states=lambda: self._states,
            ),
            EpochBounds(
                origin_ts=origin_ts,
                checkpoint_ts=self._checkpoint_ts,
                target_ts=self._target_ts,
                image_name=self._image_name,
                waits_at=self._waits_at,
            ),
            EpochControl(begin=self._begin, ask=self._ask, note=self._note, stopping=self._stopping.is_set),
        )

    def _keep_proofs(self) -> None:
        self._proofs = self._sources.proofs
        self._proofs.begin(self._name)
        if self._keeps_states:
            self._states = StateProofs(self._sources.states, self._name, self._life)

    def _note(self, progress: CutProgress) -> None:
        self._on_progress(progress)
        if self._proofs is not None and progress.window is not None:
            self._proofs.note(self._name, progress.window)

    def failure(self) -> BusError | None:
        """Return why the run has ended; None while it goes on."""
        return self._failure

    def end(self, may_write: Callable[[], bool]) -> None:
        """Begin nothing more, and wait a little for the cut under way, which would be written again otherwise.

        Args:
            may_write: tells whether this process may still write; it is asked ten times a second, and the wait ends
                when it says no.
        """
        self._stopping.set()
        deadline = time.monotonic() + END_S
        while self._thread is not None and self._thread.is_alive() and may_write() and time.monotonic() < deadline:
            self._thread.join(0.1)

    def close(self) -> None:
        """Give up what is under way, and close the clients."""
        self.give_up()  # a query's thread may go on with a cut, where its JVM has died under it
        while self._thread is not None and self._thread.is_alive():
            self._job.give_up()
            self._thread.join(_LOOK_S)
        self._parts.close()

    def _beginning(self) -> Beginning:
        """Return where to begin: where the last run left off, or else at the checkpoint, so that rows come again.

        Raises:
            HistoryLostError: the raw log starts above the checkpoint.
            KafkaUnreachableError: it does not answer.
        """
        begun, beginning = decode_begun(self._begun.begun()) if self._begun else None, None
        with contextlib.suppress(HistoryLostError):  # the checkpoint itself may still be within the log
            beginning = left_off(
                begun,
                self._frontier_topic,
                self._checkpoint_ts,
                lambda offset: self._frontier.record_before(offset).resolved_ts,
            )
        return beginning or Beginning(self._checkpoint_ts, self._frontier.find(self._checkpoint_ts))
