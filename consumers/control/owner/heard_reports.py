"""The landing reports that a reign goes by: those of live captures that can be true."""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from consumers.control.core.frontier.reports import heard
from consumers.control.peers.interface import FeedKey, Peers
from schemas.errors import Action, BusError
from schemas.ids import CaptureId, Ts
from schemas.rawlog.frontier import LandingReport

log = logging.getLogger(__name__)

COUNT_EVERY_S: Final = 1.0
"""Between two looks at how many partitions there are, while a report tells of more."""


class ReportRefusedError(BusError):
    """A capture reports what cannot be: offsets of no partition, or changes from the future. It is not heard."""

    code, action = "frontier.report_refused", Action.RETRY


class Widens(Protocol):
    """What is asked of :class:`consumers.control.owner.owner.Owner`."""

    @property
    def partitions(self) -> int:
        """Of region-events, as far as it knows."""

    def widen(self, partitions: int) -> None:
        """Take region-events for as wide."""


class HeardReports:
    """One reign's; not thread-safe."""

    def __init__(
        self,
        peers: Peers,
        feed: FeedKey,
        owner: Widens,
        count_partitions: Callable[[], int],
        is_past: Callable[[Ts], bool],
        clock: Callable[[], float],
    ) -> None:
        """See :class:`consumers.control.owner.reign_parts.ReignParts` for ``count_partitions`` and ``is_past``."""
        self._peers, self._feed, self._owner, self._clock = peers, feed, owner, clock
        self._count_partitions, self._is_past = count_partitions, is_past
        self._count_at = 0.0
        self.refused: Mapping[CaptureId, str] = {}
        """Who is not heard, and why."""

    def of(self, captures: Collection[CaptureId]) -> Mapping[CaptureId, LandingReport]:
        """Return the newest report of each capture; one that cannot be true counts as not sent."""
        now = self._clock()
        reports = {who: report for who, report in self._peers.reports(self._feed).items() if who in captures}
        judged = heard(reports, self._owner.partitions, self._is_past)
        if judged.is_wider and now >= self._count_at:
            self._count_at = now + COUNT_EVERY_S
            self._owner.widen(self._count_partitions())
            judged = heard(reports, self._owner.partitions, self._is_past)
        for who in judged.refused.keys() - self.refused.keys():
            reason = judged.refused[who]
            error = ReportRefusedError("a capture's landing report is not heard", capture=who, reason=reason)
            log.error("landing report refused", extra={"code": error.code, "error": str(error)})
        self.refused = judged.refused
        return judged.reports
