"""What a run of a changefeed reads its upstream's raw log by: clients of its own, or those that a service's runs share.

Reads are of exact ranges, so what a run makes of them does not hang on who else reads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

from edges.kafka.tail import FrontierTail
from edges.kafka.topic_state import topic_states
from schemas.ddl.bad_jobs import BadJob
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.log_state import check_raw_log
from schemas.rawlog.topics import RawTopics
from sorters.cut.raw_cut import RAW_RECORD_BYTES_GUESS, RawReader
from sorters.cut.record_window import RecordWindow
from sorters.log.frontier_reader import FrontierReader
from sorters.run.proofs.proof_log import ProofLog
from sorters.run.proofs.state_log import StateLog
from sorters.run.proofs.state_proofs import StateStore
from sorters.run.schema_feed import SchemaFeed


class FrontierSource(Protocol):
    """The frontier topic by offset, as :class:`~sorters.log.frontier_reader.FrontierReader` reads it."""

    def record_before(self, offset: int) -> FrontierRecord:
        """Return where a reader stands that has read everything below ``offset``."""

    def end(self) -> int:
        """Return the offset after the last record."""

    def read(self, start: int, end: int) -> Iterator[FrontierRecord]:
        """Yield the records at offsets ``[start, end)``."""

    def find(self, after_ts: Ts) -> int:
        """Return the offset after the last record with ``resolved_ts <= after_ts``."""


class SchemaSource(Protocol):
    """The schemas of an upstream as far as its ddl topic was read: :class:`~sorters.run.schema_feed.SchemaFeed`.

    What is read beyond what was asked for changes no answer at a ts below it.
    """

    @property
    def store(self) -> SchemaStore:
        """All versions of all tables. After :meth:`advance` it may be another object; this one may not change then."""

    @property
    def bad(self) -> Sequence[BadJob]:
        """The jobs that the store could not take."""

    def advance(self, ddl_end: int) -> bool:
        """Have at least the records below offset ``ddl_end``; tell whether the store has changed."""

    def forget(self, checkpoint_ts: Ts) -> None:
        """This run needs no version that only rows at or below ``checkpoint_ts`` need."""


class Follower(Protocol):
    """Follows the frontier topic, as :class:`~edges.kafka.tail.FrontierTail` does."""

    def read(self, count: int, timeout_s: float) -> list[FrontierRecord]:
        """Return the next records, up to ``count``, as soon as there are any; none after ``timeout_s``."""


class RunSources(Protocol):
    """All of it, for one run of a changefeed."""

    @property
    def frontier(self) -> FrontierSource:
        """The frontier topic."""

    @property
    def schemas(self) -> SchemaSource:
        """The ddl topic."""

    @property
    def proofs(self) -> ProofLog:
        """Takes what cuts have come to."""

    @property
    def states(self) -> StateStore:
        """Takes what tables hold by their state proofs, and says what was told of it."""

    def follow(self, start: int) -> AbstractContextManager[Follower]:
        """Follow the frontier topic from an offset on."""

    def raw_reader(self, stopped: Callable[[], bool]) -> RawReader:
        """Return what reads raw records until ``stopped``; the caller closes it."""

    def record_bytes(self) -> float:
        """Return how large raw records are, about."""

    def check_log(self, upto: int | None = None) -> None:
        """Refuse a raw log that is not the one that its frontier was published over: as that ends, or stands before
        offset ``upto``.

        Raises:
            RawLogRecreatedError, RawLogLostError: it is another one, or has lost records.
            KafkaUnreachableError: it does not answer.
        """

    def close(self) -> None:
        """Let go of it."""


class OwnSources:
    """Clients of the run's own."""

    def __init__(self, raw_config: Mapping[str, object], topics: RawTopics) -> None:
        """``raw_config`` is librdkafka's: servers, TLS, SASL."""
        self._config, self._topics = raw_config, topics
        self.frontier = FrontierReader(raw_config, topics.frontier)
        self.schemas = SchemaFeed(raw_config, topics.ddl)
        self.proofs = ProofLog(raw_config, topics.proofs)
        self.states = StateLog(raw_config, topics.states)

    def follow(self, start: int) -> FrontierTail:
        """See :meth:`RunSources.follow`."""
        return FrontierTail(self._config, self._topics.frontier, start)

    def raw_reader(self, stopped: Callable[[], bool]) -> RecordWindow:
        """See :meth:`RunSources.raw_reader`."""
        return RecordWindow(self._config, self._topics.region_events, stopped=stopped)

    def record_bytes(self) -> float:
        """See :meth:`RunSources.record_bytes`."""
        return RAW_RECORD_BYTES_GUESS

    def check_log(self, upto: int | None = None) -> None:
        """See :meth:`RunSources.check_log`."""
        check_log_state(self._config, self._topics, self.frontier, upto)

    def close(self) -> None:
        """See :meth:`RunSources.close`."""
        self.proofs.close()
        self.states.close()
        self.frontier.close()
        self.schemas.close()


_Sources = TypeVar("_Sources", bound=RunSources)


@contextmanager
def handed_on(sources: _Sources) -> Iterator[_Sources]:
    """Hand sources on to a run that is made within, which closes them from then on; close them if making it fails."""
    try:
        yield sources
    except BaseException:
        sources.close()
        raise


def check_log_state(
    raw_config: Mapping[str, object], topics: RawTopics, frontier: FrontierSource, upto: int | None = None
) -> None:
    """Do what :meth:`RunSources.check_log` says, with one request for the topics' states."""
    end = frontier.end() if upto is None else upto
    if end:
        record = frontier.record_before(end)
        check_raw_log(record, topics, topic_states(raw_config, (topics.region_events, topics.ddl)))
