"""The owner's care for prologues: has them landed one after the other, holds TiKV's history for those that wait, and
deletes what no changefeed needs any more.

What there is to do follows from the nodes alone (:mod:`schemas.nodes.prologue`), so the next owner goes on where this
one ends: an attempt that was under way is begun anew.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from confluent_kafka import KafkaException
from kazoo.exceptions import BadVersionError, NoNodeError

from compose.capture.prologue.attempt import PrologueAttempt
from compose.capture.settings.options import CaptureOptions
from consumers.control.changefeeds.feed_nodes import INFO, PROLOGUE, STATUS, FeedNodes, FeedView
from consumers.control.cluster.look_thread import LookThread
from edges.kafka.clients import kafka_admin
from edges.kafka.topics import delete_topics, partition_counts
from edges.zookeeper.node_cache import ANSWER_S
from edges.zookeeper.nodes import replace_node
from edges.zookeeper.session import Session
from producers.errors import HistoryGoneError
from producers.pull.pd.client import PdClient
from producers.pull.pd.safe_point import keep_safe_point, release_safe_point
from producers.pull.prologue.scan import PrologueStoppedError
from producers.pull.puller import PullerSettings
from producers.tls import Channels
from schemas.errors import Action, BusError, CorruptDataError
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import RUNNING, ChangefeedInfo, ZkPaths, state_of
from schemas.nodes.prologue import (
    Prologue,
    PrologueFailure,
    begun,
    completed,
    encode_prologue,
    is_over,
    log_of_topic,
)
from schemas.nodes.sorter_service import FeedName, with_progress

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
HOLD_S: Final = 60.0
"""Between two words to PD, as of the upstream's own hold."""
AGAIN_S: Final = 10.0
"""Before another attempt after one that has failed with what may pass."""
SWEEP_S: Final = 60.0
OVER_S: Final = 90.0
"""For how long the upstream's log must have brought a changefeed further before its prologue goes: sorter services keep
readers of a log open for a minute."""
LIST_S: Final = 30.0
_ANOTHERS_WORD: Final = (BadVersionError, NoNodeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Feed:
    """A changefeed with a prologue."""

    name: FeedName
    info: ChangefeedInfo
    prologue: Prologue
    version: int
    """Of its node ``prologue``."""
    is_running: bool
    is_over: bool

    @property
    def wants_attempt(self) -> bool:
        """Whether it is to be landed now: one that failed for good is tried again once somebody lets it go on."""
        failure = self.prologue.failure
        wanted = failure is None or (self.is_running and failure.epoch < self.info.epoch)
        return wanted and not self.prologue.is_complete and not self.is_over


class Prologues:
    """Of one reign; a context manager."""

    def __init__(
        self,
        options: CaptureOptions,
        settings: PullerSettings,
        session: Session,
        on_failure: Callable[[BusError], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """``on_failure`` takes a bug; nothing is done for prologues any more then."""
        self._options, self._settings, self._session = options, settings, session
        self._clock, self._wall_clock = clock, wall_clock
        self._began_at_s = wall_clock()
        self._paths = ZkPaths(options.cluster)
        self._feeds = FeedNodes(session, self._paths, (INFO, PROLOGUE))
        self._running: FeedNodes | None = None
        """With how far changefeeds are, which costs requests all the time; None: none has a prologue."""
        self._attempt: PrologueAttempt | None = None
        self._not_before: dict[str, float] = {}
        """By life, after an attempt that has failed."""
        self._held: dict[str, tuple[Prologue, float]] = {}
        """By life: for whom history is held here, and when PD is to hear of it again."""
        self._let_go_of: set[str] = set()
        """Lives of complete prologues."""
        self._over_at: dict[str, float] = {}
        self._sweep_at = 0.0
        self._refused: set[str] = set()
        """Topics that Kafka does not let us delete."""
        self._looking = LookThread("prologues", self.look, on_failure, rest_s=LOOK_S)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._looking.stop()
        if self._attempt is not None:
            self._attempt.close()
        self._feeds.close()
        if self._running is not None:
            self._running.close()

    def look(self) -> None:
        """Take in what has been written, and do what follows from it.

        Raises:
            LeaseLostError: the session is over.
            BusError: the same look may work later.
        """
        feeds = {feed.name: feed for feed in self._with_prologue(self._views())}
        self._settle(feeds)
        for feed in feeds.values():
            if feed.is_over:
                self._let_go(feed)
            elif self._needs_history(feed):
                self._hold(feed)
        self._release_held(feeds.values())
        if self._attempt is None:
            self._begin(feeds)
        if self._clock() >= self._sweep_at:
            self._sweep_at = self._clock() + SWEEP_S
            self._sweep()

    # -- attempts ------------------------------------------------------------------------------------------------------

    def _begin(self, feeds: Mapping[FeedName, _Feed]) -> None:
        now_s = self._clock()
        wanted = [
            feed for feed in feeds.values() if feed.wants_attempt and now_s >= self._not_before.get(_life(feed), now_s)
        ]
        if not wanted:
            return
        feed = min(wanted, key=lambda feed: (feed.prologue.start_ts, feed.name))
        prologue = begun(feed.prologue)
        version = self._write(feed.name, prologue, feed.version)
        if version is None:
            return
        extra = {"changefeed": feed.name[1], "log": prologue.log, "start_ts": prologue.start_ts}
        log.info("prologue begins", extra=extra | {"end_ts": prologue.end_ts})
        self._attempt = PrologueAttempt(
            feed.name,
            feed.info,
            prologue,
            version,
            options=self._options,
            settings=self._settings,
            may_land=lambda: self._session.lease_left_s() > 0,
        )

    def _settle(self, feeds: Mapping[FeedName, _Feed]) -> None:
        """Write down what came of an attempt; cut one off that nobody wants any more."""
        attempt = self._attempt
        if attempt is None:
            return
        feed = feeds.get(attempt.name)
        if feed is None or feed.prologue.life != attempt.prologue.life or feed.is_over:
            attempt.stop()
        if attempt.is_over:
            self._write_end(attempt)
            self._attempt = None  # after: without an answer all that has landed is not known yet, and it is asked again

    def _write_end(self, attempt: PrologueAttempt) -> None:
        extra = {"changefeed": attempt.name[1], "log": attempt.prologue.log}
        error, life = attempt.error, attempt.prologue.life
        if error is None:
            done = completed(attempt.prologue, attempt.prologue.attempt)
            if self._write(attempt.name, done, attempt.version) is not None:
                log.info("prologue is complete", extra=extra)
        elif isinstance(error, PrologueStoppedError):
            log.info("prologue was cut off", extra=extra)
        elif error.action is Action.RETRY:
            log.warning("prologue is begun anew", extra={**extra, "code": error.code, "error": str(error)})
            self._not_before[life] = self._clock() + AGAIN_S
        else:
            self._fail(attempt.name, attempt.info, attempt.prologue, attempt.version, error)

    def _fail(self, name: FeedName, info: ChangefeedInfo, prologue: Prologue, version: int, error: BusError) -> None:
        now_s = int(self._wall_clock())
        failure = PrologueFailure(epoch=info.epoch, code=error.code, message=error.message, failed_at_s=now_s)
        self._write(name, replace(prologue, failure=failure), version)
        log.error("prologue failed", extra={"changefeed": name[1], "code": error.code, "error": str(error)})

    def _write(self, name: FeedName, prologue: Prologue, version: int) -> int | None:
        with self._session.requests("writing a prologue") as client:
            path = self._paths.changefeed_prologue(*name)
            return replace_node(client, path, encode_prologue(prologue), version, ANSWER_S)

    # -- TiKV's history ------------------------------------------------------------------------------------------------

    def _needs_history(self, feed: _Feed) -> bool:
        """Tell whether it is still to be landed. One that failed for good may be, for as long as TiKV keeps history for
        a bus that has gone silent: nobody may ever come back to it.
        """
        failure = feed.prologue.failure
        if feed.is_over or feed.prologue.is_complete:
            return False
        if failure is None or feed.wants_attempt:
            return True
        failed_at_s = failure.failed_at_s or self._began_at_s
        return self._wall_clock() < failed_at_s + self._settings.gc_ttl_s

    def _hold(self, feed: _Feed) -> None:
        prologue = feed.prologue
        if prologue.life in self._held and self._clock() < self._held[prologue.life][1]:
            return
        try:
            with self._pd() as pd:
                keep_safe_point(pd, self._service_id(prologue), prologue.start_ts, self._settings.gc_ttl_s)
        except HistoryGoneError as error:
            if prologue.failure is None:
                self._fail(feed.name, feed.info, prologue, feed.version, error)
        self._held[prologue.life] = prologue, self._clock() + HOLD_S

    def _release_held(self, feeds: Collection[_Feed]) -> None:
        """Let go of history for prologues that are complete (a predecessor may not have come to it), and for those
        that are gone or need it no more.
        """
        waiting = {feed.prologue.life for feed in feeds if self._needs_history(feed)}
        for feed in feeds:
            if feed.prologue.is_complete and feed.prologue.life not in self._let_go_of:
                self._let_go_of.add(feed.prologue.life)
                self._held[feed.prologue.life] = feed.prologue, 0.0
        for life in self._held.keys() - waiting:
            self._release(self._held.pop(life)[0])

    def _release(self, prologue: Prologue) -> None:
        service_id = self._service_id(prologue)
        log_id = self._settings.gc_service_id(prologue.log)
        try:
            with self._pd() as pd:
                release_safe_point(pd, service_id)
                release_safe_point(pd, f"{log_id}-creating")  # of its schema snapshot
        except BusError as error:  # it goes by its TTL
            log.warning("history is held on", extra={"service_id": service_id, "error": str(error)})

    def _service_id(self, prologue: Prologue) -> str:
        return self._settings.gc_service_id(prologue.holder)

    @contextlib.contextmanager
    def _pd(self) -> Iterator[PdClient]:
        with contextlib.closing(PdClient(self._options.pd, channels=Channels(self._settings.tls))) as pd:
            yield pd

    # -- what is over --------------------------------------------------------------------------------------------------

    def _let_go(self, feed: _Feed) -> None:
        """Take the node away once nobody can be reading the log; the topics go when they are swept."""
        if self._clock() < self._over_at.setdefault(_life(feed), self._clock() + OVER_S):
            return
        with self._session.requests("removing a prologue") as client, contextlib.suppress(*_ANOTHERS_WORD):
            client.delete_async(self._paths.changefeed_prologue(*feed.name), feed.version).get(timeout=ANSWER_S)
            log.info("prologue is over", extra={"changefeed": feed.name[1], "log": feed.prologue.log})

    def _sweep(self) -> None:
        """Delete topics of prologues that no changefeed names: of dead attempts, and of changefeeds that were removed.

        Topics are listed first: what is written of an attempt is written before its topics are made.
        """
        options = self._options
        admin = kafka_admin(options.kafka.config(), log)
        try:
            topics = partition_counts(admin.list_topics(timeout=LIST_S))
            logs = {topic: of for topic in topics if (of := log_of_topic(topic, options.cluster)) is not None}
            if not logs.keys() - self._refused:
                return
            named: set[UpstreamId] = set()
            for view in self._feeds.refresh(is_exact=True).values():
                prologue = view.prologue()
                named |= {prologue.log} if prologue is not None else set()
            useless = sorted(topic for topic, of in logs.items() if of not in named and topic not in self._refused)
            for topic, reason in delete_topics(admin, useless).items():
                self._refused.add(topic)
                log.warning("topic of a prologue stays", extra={"topic": topic, "reason": str(reason)})
            if useless:
                log.info("topics of prologues are deleted", extra={"topics": len(useless)})
        except CorruptDataError as error:  # whose topics they are is not known
            log.warning("topics of prologues stay", extra={"code": error.code, "error": str(error)})
        except KafkaException as error:
            log.warning("topics of prologues stay", extra={"error": str(error)})

    # -- its thread ----------------------------------------------------------------------------------------------------

    def _views(self) -> Mapping[FeedName, FeedView]:
        """Return all changefeeds; none, where none has a prologue."""
        has_prologues = any(view.prologue_node is not None for view in self._feeds.refresh().values())
        if has_prologues:
            self._running = self._running or FeedNodes(self._session, self._paths, (INFO, STATUS, PROLOGUE))
            return self._running.refresh()
        if self._running is not None:
            self._running.close()
            self._running = None
        return {}

    def _with_prologue(self, views: Mapping[FeedName, FeedView]) -> Iterator[_Feed]:
        for name, view in views.items():
            if view.prologue_node is None:
                continue
            try:
                info, prologue, status = view.info(), view.prologue(), view.status()
            except BusError as error:
                where = {"changefeed": name[1], "code": error.code, "error": str(error)}
                log.warning("prologue is not readable", extra=where)
                continue
            if prologue is None or info.upstream != self._options.upstream:
                continue
            progress = with_progress(status, view.entry)
            checkpoint_ts = info.start_ts if progress is None else max(info.start_ts, progress.checkpoint_ts)
            yield _Feed(
                name=name,
                info=info,
                prologue=prologue,
                version=view.prologue_node.version,
                is_running=state_of(info, status) in RUNNING,
                is_over=is_over(prologue, checkpoint_ts),
            )


def _life(feed: _Feed) -> str:
    return feed.prologue.life
