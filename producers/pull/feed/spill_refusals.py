"""Open transactions that find no room on disk: their region is read again later, and all others go on.

Called by the feed's thread only, under its lock.
"""

import logging
from collections.abc import Iterable
from typing import Final

from producers.pull.core.match.matcher_quota import MatcherQuota, QuotaHolder
from producers.pull.core.match.spill import SpillRefusedError
from producers.pull.core.regions.stream_errors import REFUSED_MS, no_room
from producers.pull.core.regions.subscription import Registration, Subscription
from producers.pull.feed.recovery import Recovery
from producers.pull.feed.store_streams import StoreStreams

log = logging.getLogger(__name__)

SAID_EACH_S: Final = 60.0
"""Between two lines in the log: a large transaction may have rows in thousands of regions."""


class SpillRefusals:
    """See the module's text."""

    def __init__(self, quota: MatcherQuota, streams: StoreStreams, recovery: Recovery) -> None:
        """All of one feed."""
        self._quota, self._streams, self._recovery = quota, streams, recovery
        self._said_at_s: float | None = None
        self._unsaid = 0

    def end(self, error: SpillRefusedError, subscriptions: Iterable[Subscription], now_s: float) -> None:
        """End the registration that lacks rows by ``error``, to be registered again later.

        Without multiplexing its stream ends with it, and so do all that stand there.

        Raises:
            SpillRefusedError: it is none of ``subscriptions``.
        """
        holder, self._quota.refused = self._quota.refused, None
        registration = _holding(holder, subscriptions) if holder is not None else None
        stream = self._streams.on(registration) if registration is not None else None
        if registration is None or stream is None:
            raise error
        self._say(error, registration, now_s)
        self._recovery.end_registration(stream, registration, no_room(error), now_s, deregister=True)

    def _say(self, error: SpillRefusedError, registration: Registration, now_s: float) -> None:
        self._unsaid += 1
        if self._said_at_s is not None and now_s - self._said_at_s < SAID_EACH_S:
            return
        where = {"table_id": registration.subscription.span.table_id, "region_id": registration.region.region_id}
        extra = {"code": error.code, "error": str(error), **where, "times": self._unsaid, "in_s": REFUSED_MS // 1000}
        log.warning("a region's open transactions find no room on disk; it is read again", extra=extra)
        self._said_at_s, self._unsaid = now_s, 0


def _holding(holder: QuotaHolder, subscriptions: Iterable[Subscription]) -> Registration | None:
    for subscription in subscriptions:
        for registration in subscription.registrations:
            if registration.matcher.holds(holder):
                return registration
    return None
