"""One upstream's raw log, read for all changefeeds of a service: a further one costs no reading of its own."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy

from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.topics import RawTopics
from sorters.log.failures import KafkaUnreachableError
from sorters.log.frontier_reader import FrontierReader
from sorters.run.proofs.proof_log import ProofLog
from sorters.run.proofs.state_log import StateLog
from sorters.run.schema_feed import SchemaFeed
from sorters.run.sources import check_log_state
from sorters.service.epoch_pace import EpochPace
from sorters.service.frontier_window import FrontierWindow, WindowFollower
from sorters.service.raw_window import RawWindow, WindowReader
from sorters.service.shared_schemas import SchemaView, SharedSchemas

CHECKED_S = 20.0
"""For how long what was found of the raw log is good for another changefeed."""
UNREACHABLE_S = 5.0
"""For how long it is that Kafka has not answered, which takes 30 s to find: those who wait meanwhile fail with it, and
do not each ask in their turn."""

WINDOW_BACK_RECORDS = 1_500
"""Frontier records, some minutes', that a window begins before the end of its topic with. A service that takes over
from one that has died finds the places of all its changefeeds there: to look for one in the topic takes a dozen
requests, and one waits for the other."""


class SharedFrontier:
    """The frontier topic by offset, for many threads: from a window as far as that reaches, else by one reader."""

    def __init__(self, reader: FrontierReader, window: FrontierWindow) -> None:
        self._reader, self._window, self._lock = reader, window, threading.Lock()

    def record_before(self, offset: int) -> FrontierRecord:
        """See :class:`~sorters.run.sources.FrontierSource`."""
        if (known := self._window.record_before(offset)) is not None:
            return known
        with self._lock:
            return self._reader.record_before(offset)

    def end(self) -> int:
        """See :class:`~sorters.run.sources.FrontierSource`."""
        with self._lock:
            return self._reader.end()

    def read(self, start: int, end: int) -> Iterator[FrontierRecord]:
        """See :class:`~sorters.run.sources.FrontierSource`; all are read at once."""
        with self._lock:
            return iter(list(self._reader.read(start, end)))

    def find(self, after_ts: Ts) -> int:
        """See :class:`~sorters.run.sources.FrontierSource`."""
        if (known := self._window.find(after_ts)) is not None:
            return known
        with self._lock:
            return self._reader.find(after_ts)

    def close(self) -> None:
        with self._lock:
            self._reader.close()


class SharedLog:
    """All readers of one raw log. :meth:`close` must be called, after its runs have ended."""

    def __init__(self, raw_config: Mapping[str, object], topics: RawTopics, *, runs_cuts: bool = True) -> None:
        """``raw_config`` is librdkafka's: servers, TLS, SASL. ``runs_cuts``: cuts are run here and not by executors, so
        that those who are behind run the same ones.

        Raises:
            KafkaUnreachableError: the frontier topic does not answer, or is not there.
        """
        self._config, self._topics = raw_config, topics
        reader = FrontierReader(raw_config, topics.frontier)
        try:
            start = max(reader.first(), reader.end() - WINDOW_BACK_RECORDS)
        except BaseException:
            reader.close()
            raise
        self._pace = EpochPace()
        self.raw = RawWindow(raw_config, topics.region_events, is_shared=self._pace.is_shared)
        self._window = FrontierWindow(
            raw_config,
            topics.frontier,
            start,
            rest_s=self._pace.rest_s,
            record_bytes=lambda: self.raw.record_bytes if runs_cuts else 0.0,
            is_full=self._pace.is_full,
        )
        self.frontier = SharedFrontier(reader, self._window)
        self._schemas = SharedSchemas(raw_config, topics.ddl)
        self.proofs = ProofLog(raw_config, topics.proofs)
        self.states = StateLog(raw_config, topics.states)
        self._checking, self._counting = threading.Lock(), threading.Lock()
        """The first is held while Kafka is asked, the second over the number of users, and never for long."""
        self._checked_at = -CHECKED_S
        self._unreachable: KafkaUnreachableError | None = None
        self._unreachable_at = 0.0
        """When the last check has failed with that."""
        self._users, self._idle_since = 0, time.monotonic()

    @property
    def is_broken(self) -> bool:
        """Whether it is of no use to another changefeed: the topics were made anew."""
        return self._window.is_broken

    def idle_s(self) -> float:
        """Return for how long nobody has read by it."""
        with self._counting:
            return 0.0 if self._users else time.monotonic() - self._idle_since

    def sources(self, checkpoint_ts: Ts, protocol: str) -> "SharedSources":
        """Return what one changefeed reads by, from its checkpoint on. Those of one protocol run the same cuts."""
        view: SchemaView | SchemaFeed | None = self._schemas.view(checkpoint_ts)
        if view is None:  # it lags: what it needs of old schemas, the others have let go
            view = SchemaFeed(self._config, self._topics.ddl)
        self.enter()
        return SharedSources(self, view, protocol)

    def enter(self) -> None:
        """Somebody reads by it, or is about to: until :meth:`leave` it is not idle."""
        with self._counting:
            self._users += 1

    def leave(self) -> None:
        """Who has entered, or has sources, reads by it no more."""
        with self._counting:
            self._users, self._idle_since = self._users - 1, time.monotonic()

    def follow(self, start: int, protocol: str) -> WindowFollower:
        """See :class:`~sorters.run.sources.RunSources`."""
        return WindowFollower(self._window, self.frontier, start, self._pace, protocol)

    def check(self) -> None:
        """See :meth:`~sorters.run.sources.RunSources.check_log`; what was just found is not asked for again, nor is a
        Kafka that has just not answered.
        """
        with self._checking:
            if time.monotonic() < self._checked_at + CHECKED_S:
                return
            if self._unreachable is not None and time.monotonic() < self._unreachable_at + UNREACHABLE_S:
                raise copy(self._unreachable) from self._unreachable
            try:
                check_log_state(self._config, self._topics, self.frontier)
            except KafkaUnreachableError as error:
                self._unreachable, self._unreachable_at = error, time.monotonic()
                raise
            self._checked_at, self._unreachable = time.monotonic(), None

    def close(self) -> None:
        self.proofs.close()
        self.states.close()
        self._window.close()
        self.raw.close()
        self._schemas.close()
        self.frontier.close()


class SharedSources:
    """A changefeed's :class:`~sorters.run.sources.RunSources` in a shared log."""

    def __init__(self, shared: SharedLog, schemas: SchemaView | SchemaFeed, protocol: str) -> None:
        self._protocol = protocol
        self._shared, self.schemas, self.frontier = shared, schemas, shared.frontier
        self.proofs, self.states = shared.proofs, shared.states

    def follow(self, start: int) -> WindowFollower:
        """See :class:`~sorters.run.sources.RunSources`."""
        return self._shared.follow(start, self._protocol)

    def raw_reader(self, stopped: Callable[[], bool]) -> WindowReader:
        """See :class:`~sorters.run.sources.RunSources`."""
        return self._shared.raw.reader(stopped)

    def record_bytes(self) -> float:
        """See :class:`~sorters.run.sources.RunSources`."""
        return self._shared.raw.record_bytes

    def check_log(self, upto: int | None = None) -> None:
        """See :class:`~sorters.run.sources.RunSources`; all of it is looked at, for all who share it."""
        self._shared.check()

    def close(self) -> None:
        self.schemas.close()
        self._shared.leave()
