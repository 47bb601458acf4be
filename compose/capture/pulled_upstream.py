"""An upstream as this capture's owner works with it: PD, the DDL feed and the raw log's topics, all by producers."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from compose.capture.settings.options import CaptureOptions
from consumers.control.log.frontier_topic import FrontierTopic
from consumers.control.log.log_watch import look_at_log, watched_log
from consumers.control.owner.ts_bound import TsBound
from producers.errors import RawTopicError
from producers.pull.ddl.ddl_feed import DdlFeed
from producers.pull.landing.raw_log import ensure_raw_topics
from producers.pull.pd.client import PdClient
from producers.pull.pd.safe_point import SafePointKeeper, keep_safe_point
from producers.pull.puller import PullerSettings
from producers.tls import Channels
from schemas.errors import BusError
from schemas.ids import Ts
from schemas.rawlog.frontier import FrontierRecord, TopicIds
from schemas.rawlog.topics import raw_topics

log = logging.getLogger(__name__)

CLOCK_DEADLINE_S = 1.0
"""For PD's now, which the owner's tick waits for."""


class PulledUpstream:
    """Implements :class:`consumers.control.owner.owned_upstream.OwnedUpstream`."""

    def __init__(
        self, options: CaptureOptions, settings: PullerSettings, on_failure: Callable[[BusError], None]
    ) -> None:
        """``on_failure`` takes, from any thread, what ends a part of an owner for good."""
        self._options, self._settings, self._on_failure = options, settings, on_failure
        self._topics = raw_topics(options.upstream, settings.topic_prefix)

    def ensure_topics(self) -> int:
        """See there."""
        return ensure_raw_topics(self._options.kafka, self._topics, self._settings.raw_log)

    def count_partitions(self) -> int:
        """See there."""
        try:
            return ensure_raw_topics(self._options.kafka, self._topics, self._settings.raw_log)
        except RawTopicError as error:
            log.warning("partitions cannot be counted", extra={"code": error.code, "error": str(error)})
            return 0

    def look_at_log(self, frontier: FrontierRecord | None) -> TopicIds:
        """See there."""
        return look_at_log(self._options.kafka, self._topics, frontier)

    def watch_log(self, newest: Callable[[], FrontierRecord]) -> AbstractContextManager[None]:
        """See there."""
        return watched_log(self._options.kafka, self._topics, newest, self._on_failure)

    @contextlib.contextmanager
    def clock_bound(self) -> Iterator[Callable[[Ts], bool]]:
        """See there."""
        channels = Channels(self._settings.tls)
        with contextlib.closing(PdClient(self._options.pd, channels=channels, deadline_s=CLOCK_DEADLINE_S)) as pd:
            bound = TsBound(pd.now)
            # Nobody waits yet. Later a PD that is slow to answer once must not make all reports seem of the future.
            with (
                contextlib.suppress(BusError),
                contextlib.closing(PdClient(self._options.pd, channels=channels)) as slow,
            ):
                bound.anchor(slow.now())
            yield bound.is_past

    @contextlib.contextmanager
    def ts_source(self) -> Iterator[Callable[[], Ts]]:
        """See there."""
        channels = Channels(self._settings.tls)
        with contextlib.closing(PdClient(self._options.pd, channels=channels, deadline_s=CLOCK_DEADLINE_S)) as pd:
            yield pd.now

    def open_frontier(self) -> FrontierTopic:
        """See there."""
        return FrontierTopic(self._options.kafka, self._topics.frontier, publishes=True)

    def new_ddl_feed(self, frontier: FrontierRecord | None) -> DdlFeed:
        """See there."""
        options = self._options
        return DdlFeed(
            upstream=options.upstream,
            pd_address=options.pd,
            kafka=options.kafka,
            start_ts=options.start_ts,
            frontier=frontier,
            on_fatal=self._on_failure,
            settings=self._settings,
        )

    @contextlib.contextmanager
    def keep_history(self, ts: Ts) -> Iterator[SafePointKeeper]:
        """See there."""
        settings = self._settings
        service_id = settings.gc_service_id(self._options.upstream)
        with contextlib.closing(PdClient(self._options.pd, channels=Channels(settings.tls))) as pd:
            keep_safe_point(pd, service_id, ts, settings.gc_ttl_s)
            keeper = SafePointKeeper(pd, service_id, ttl_s=settings.gc_ttl_s, on_fatal=self._on_failure)
            try:
                keeper.start()
                yield keeper
            finally:
                keeper.stop()
