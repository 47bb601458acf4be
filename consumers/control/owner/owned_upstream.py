"""An upstream and its raw log as an owner works with them; whoever wires a capture brings them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from consumers.control.log.frontier_topic import FrontierTopic
from consumers.control.owner.reign_parts import LandsDdl
from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord, TopicIds
from schemas.tidb.spans import TableSpan


class DdlProgress(Protocol):
    """What is asked of :class:`producers.pull.feed.types.SpanStatus`."""

    @property
    def span(self) -> TableSpan:
        """The span that the DDL feed pulls."""

    @property
    def reason(self) -> str:
        """What holds the DDL feed back; '' if nothing does."""

    @property
    def kind(self) -> str:
        """The reason as one of few words; '' with ''."""

    @property
    def still_s(self) -> float:
        """Since when it has not moved."""


class RunningDdlFeed(LandsDdl, Protocol):
    """What is asked of :class:`producers.pull.ddl.ddl_feed.DdlFeed`."""

    def start(self) -> Ts:
        """Land what is missing, begin to follow; return the ts from which an empty raw log begins."""

    def stop(self) -> None:
        """End it."""

    def status(self) -> DdlProgress:
        """Return how it stands; from any thread."""


class KeepsHistory(Protocol):
    """What is asked of :class:`producers.pull.pd.safe_point.SafePointKeeper`."""

    def keep(self, ts: Ts) -> None:
        """Keep TiKV's history above ``ts`` from now on."""


class OwnedUpstream(Protocol):
    """An upstream and its raw log, as far as the owner needs them."""

    def ensure_topics(self) -> int:
        """Create the raw log's topics where there are none; return the number of row partitions."""

    def count_partitions(self) -> int:
        """Return the number of row partitions; 0: Kafka does not answer."""

    def look_at_log(self, frontier: FrontierRecord | None) -> TopicIds:
        """Return the ids of the raw log's topics, having checked that it is the one that ``frontier`` is of.

        Raises:
            RawLogRecreatedError, RawLogLostError: it is another one, or has lost records.
        """

    def watch_log(self, newest: Callable[[], FrontierRecord]) -> AbstractContextManager[None]:
        """Go on with that while inside; what is wrong ends the capture."""

    def open_frontier(self) -> FrontierTopic:
        """Open the frontier topic; the caller closes it."""

    def new_ddl_feed(self, frontier: FrontierRecord | None) -> RunningDdlFeed:
        """Return a DDL feed that goes on from ``frontier``, not started."""

    def clock_bound(self) -> AbstractContextManager[Callable[[Ts], bool]]:
        """Return what says whether PD has given out a ts already."""

    def ts_source(self) -> AbstractContextManager[Callable[[], Ts]]:
        """Return what draws a ts from PD; it raises BusError where PD does not answer soon."""

    def keep_history(self, ts: Ts) -> AbstractContextManager[KeepsHistory]:
        """Keep TiKV's history above ``ts`` at once, and go on while inside.

        Raises:
            HistoryGoneError: it has been collected already.
        """
