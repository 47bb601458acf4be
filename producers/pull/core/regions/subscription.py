"""One subscribed span: its range lock, and the registrations of regions that feed it. Pure bookkeeping.

lock_for(regions) --> registrations to send --INITIALIZED, rows, resolved ts--> release() --> ranges to locate again
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from producers.pull.core.match.change_columns import Change
from producers.pull.core.match.log_rows import LogRows
from producers.pull.core.match.matcher import Matcher
from producers.pull.core.match.matcher_quota import MatcherQuota
from producers.pull.core.regions.region_map import RegionInfo
from producers.pull.core.regions.request_ids import SHARED_REGIONS_MAX, RequestIds
from producers.pull.core.regions.span_frontier import EncodedRange, Granted, LockedRange, SpanFrontier, Stale
from schemas.ids import RegionId, Ts
from schemas.tidb.spans import TableSpan

UNREGISTERED: Final = "unregistered"
"""PD, a store or a region refuses."""
NO_STREAM: Final = "no_stream"
"""A store before EventFeedV2 has all the streams that it may have."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A range to locate again."""

    range: EncodedRange
    attempt: int = 0
    """Failures since it last worked (was INITIALIZED): the back-off grows with it."""
    faults: int = 0
    """Bad data in a row, without a step of its resolved ts between: bounded by ``FAULTS_MAX`` of region_errors."""
    read_to: bytes = b""
    """Its neighbours that failed with it end here: PD is asked for all of them at once."""


@dataclass(slots=True, eq=False)
class Registration:
    """One region registered on one stream. The stream knows it by (request_id, region id)."""

    subscription: "Subscription"
    region: RegionInfo
    lock: LockedRange
    request_id: int
    checkpoint_ts: Ts
    matcher: Matcher
    attempt: int
    faults: int
    since_s: float
    """By the shell's monotonic clock; for stall reasons."""
    sent: bool = False
    """False while it waits for its turn to be scanned."""
    counted: bool = False
    """It is one of its subscription's ``initialized``; one that ends with the rows that complete its scan never is."""

    @property
    def stands(self) -> bool:
        """Say whether it has its lock still: it has not been released."""
        return self.lock.slot >= 0

    def parts(self, rows: LogRows) -> Iterator[Collection[Change]]:
        """Take the rows of one event; see :meth:`Matcher.parts`."""
        # Resolved ts go to the frontier's vector alone; the matcher needs its own only to judge rows.
        if self.matcher.initialized:
            self.matcher.resolve(self.lock.resolved_ts)
        return self.matcher.parts(rows)


@dataclass(frozen=True, slots=True)
class LockedRegions:
    """What came of locking a range for regions."""

    registrations: tuple[Registration, ...]
    retries: tuple[Retry, ...]
    """To locate again: the view was stale, or it ended before the range did."""


class Subscription:
    """See the module's text."""

    def __init__(
        self, span: TableSpan, start_ts: Ts, request_ids: RequestIds, quota: MatcherQuota | None = None
    ) -> None:
        """Start with nothing registered.

        Args:
            span: what is wanted.
            start_ts: from where, exclusive.
            request_ids: of all subscriptions of the feed.
            quota: of all matchers together.
        """
        self.span = span
        self.start_ts = start_ts
        self.frontier = SpanFrontier(EncodedRange(*span.encoded), start_ts)
        self.waiting: list[Retry] = []
        """Ranges under the locks of older regions; they are located again after a release."""
        self.resolved_ts = start_ts
        """What the sink has been told."""
        self.moved_at_s = 0.0
        """When resolved_ts last moved, by the shell's clock."""
        self.reason = "regions of the span are being located"
        """Why the span's unlocked part is unlocked, for people; set by :meth:`unlocked_for`."""
        self.reason_kind = UNREGISTERED
        """The same as one word, for counting."""
        self.lock_notes: dict[RegionId, tuple[Ts, str]] = {}
        """What the lock resolver found in a region that stood still; void once its resolved ts has reached the ts."""
        self.stopped = False
        self.initialized = 0
        """How many of its registrations are."""
        self._at_slot: dict[int, Registration] = {}
        self._quota = quota or MatcherQuota()
        self._request_ids = request_ids
        self._rounds: list[int] = []
        self._round_of: dict[RegionId, int] = {}

    @property
    def registrations(self) -> list[Registration]:
        """All of them; a copy."""
        return list(self._at_slot.values())

    def holder(self, lock: LockedRange) -> Registration:
        """Return the registration that holds a lock of this span."""
        return self._at_slot[lock.slot]

    def has_used(self, request_id: int, region_id: RegionId) -> bool:
        """Say whether the region has ever been registered by this request id of its own."""
        return request_id in self._rounds[: self._round_of.get(region_id, 0)]

    def own_request_ids(self) -> Sequence[int]:
        """Return every request id that it alone has used."""
        return self._rounds

    def unlocked_for(self, reason: str, kind: str = UNREGISTERED) -> None:
        """Note why its unlocked part is unlocked, for people and as one word."""
        self.reason, self.reason_kind = reason, kind

    def lock_for(self, wanted: Retry, regions: Sequence[RegionInfo], now_s: float) -> LockedRegions:
        """Lock ``wanted`` for ``regions`` (they cover it from its start, maybe not to its end)."""
        made: list[Registration] = []
        retries: list[Retry] = []

        def again(part: EncodedRange) -> Retry:
            return Retry(part, wanted.attempt + 1, wanted.faults)

        end = wanted.range.start
        for region in regions:
            part = region.range.intersect(wanted.range)
            if part is None:
                continue
            end = part.end
            outcome = self.frontier.lock(part, region.region_id, region.version)
            if isinstance(outcome, Granted):
                made.append(self._register(region, outcome.lock, wanted, now_s))
            elif isinstance(outcome, Stale):
                retries += map(again, outcome.retry)
            else:
                self.waiting.append(again(part))
        if end < wanted.range.end:
            retries.append(again(EncodedRange(end, wanted.range.end)))
        return LockedRegions(tuple(made), tuple(retries))

    def initialize(self, registration: Registration) -> None:
        """Note that a registration's scan is complete."""
        registration.attempt = 0
        registration.counted = True
        self.initialized += 1

    def release(self, registration: Registration, *, fault: bool = False) -> list[Retry]:
        """Give up a registration; return what to locate again: its range, and what had waited for a lock."""
        return self.release_all([registration], fault=fault)

    def release_all(self, registrations: Sequence[Registration], *, fault: bool = False) -> list[Retry]:
        """Give up registrations of this span; ``fault``: for bad data, which is not forgiven without end."""
        retries, self.waiting = self.waiting, []
        for registration in registrations:
            del self._at_slot[registration.lock.slot]
            self.initialized -= registration.counted
            registration.matcher.close()
            faults = registration.faults if registration.lock.resolved_ts == registration.checkpoint_ts else 0
            faults += fault
            retries.append(Retry(registration.lock.range, max(registration.attempt + 1, faults), faults))
        self.frontier.unlock_all([registration.lock for registration in registrations])
        return retries

    def stop(self) -> None:
        """Forget what its matchers hold: nothing more is taken."""
        self.stopped = True
        for registration in self._at_slot.values():
            registration.matcher.close()

    def _register(self, region: RegionInfo, lock: LockedRange, wanted: Retry, now_s: float) -> Registration:
        checkpoint_ts = lock.resolved_ts
        registration = self._at_slot[lock.slot] = Registration(
            subscription=self,
            region=region,
            lock=lock,
            request_id=self._request_id(region.region_id),
            checkpoint_ts=checkpoint_ts,
            matcher=Matcher(
                region.region_id,
                self.span.start,
                self.span.end,
                start_ts=self.start_ts,
                checkpoint_ts=checkpoint_ts,
                quota=self._quota,
            ),
            attempt=wanted.attempt,
            faults=wanted.faults,
            since_s=now_s,
        )
        return registration

    def _request_id(self, region_id: RegionId) -> int:
        """Return an id under which the region has never been registered."""
        if len(self._at_slot) < SHARED_REGIONS_MAX:
            return self._request_ids.shared(region_id)
        number = self._round_of.get(region_id, 0)
        self._round_of[region_id] = number + 1
        while len(self._rounds) <= number:  # regions in the same round share one
            self._rounds.append(self._request_ids.own())
        return self._rounds[number]


def joined(retries: Sequence[Retry]) -> list[Retry]:
    """Join neighbouring ranges, and let the rest be looked up together: a store that fails costs PD few questions."""
    out: list[Retry] = []
    for retry in sorted(retries, key=lambda retry: retry.range):
        if out and out[-1].range.end >= retry.range.start:
            last = out[-1]
            whole = EncodedRange(last.range.start, max(last.range.end, retry.range.end))
            out[-1] = Retry(whole, max(last.attempt, retry.attempt), max(last.faults, retry.faults))
        else:
            out.append(retry)
    read_to = max((retry.range.end for retry in out), default=b"")
    return [Retry(retry.range, retry.attempt, retry.faults, read_to) for retry in out]
