"""One subscribed span: its range lock, and the registrations of regions that feed it. Pure bookkeeping.

place(regions) --> registrations to send --INITIALIZED, rows, resolved ts--> release() --> ranges to place again
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from producers.core.matcher import Matcher
from producers.core.region_map import RegionInfo
from producers.core.span_frontier import Granted, KeyRange, LockedRange, SpanFrontier, Stale
from schemas.ids import RegionId, TableId, Ts
from schemas.tidb.codec import encode_bytes


@dataclass(frozen=True, slots=True)
class TableSpan:
    """The rows of one physical table: raw keys ``[start, end)``."""

    table_id: TableId
    start: bytes
    end: bytes

    @property
    def encoded(self) -> KeyRange:
        """The same span among the keys of regions."""
        return KeyRange(encode_bytes(self.start), encode_bytes(self.end))


@dataclass(frozen=True, slots=True)
class Retry:
    """A range to locate again; ``attempt`` counts the failures since it last worked."""

    range: KeyRange
    attempt: int = 0


@dataclass(slots=True, eq=False)
class Registration:
    """One region registered on one stream. The stream knows it by (request_id, region id)."""

    subscription: "Subscription"
    region: RegionInfo
    lock: LockedRange
    request_id: int
    matcher: Matcher
    attempt: int
    since_s: float
    """By the shell's monotonic clock; for stall reasons."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What came of placing regions on a range."""

    registrations: tuple[Registration, ...]
    retries: tuple[Retry, ...]
    """To locate again: the view was stale, or it ended before the range did."""


class Subscription:
    """See the module's text. ``request_ids`` hands out numbers that no other subscription on the stream uses."""

    def __init__(self, span: TableSpan, start_ts: Ts, request_ids: Iterator[int]) -> None:
        self.span = span
        self.start_ts = start_ts
        self.frontier = SpanFrontier(span.encoded, start_ts)
        self.registrations: set[Registration] = set()
        self.waiting: list[Retry] = []
        """Ranges under the locks of older regions; they are placed again after a release."""
        self.resolved_ts = start_ts
        self.moved_at_s = 0.0
        """When resolved_ts last moved, by the shell's clock."""
        self.reason = "regions of the span are being located"
        """Why the span's unlocked part is unlocked, for people."""
        self.stopped = False
        self._request_ids = request_ids
        self._rounds: list[int] = []
        self._round_of: dict[RegionId, int] = {}

    def request_ids(self) -> Sequence[int]:
        """Return every request id that it has used."""
        return self._rounds

    def place(self, wanted: Retry, regions: Sequence[RegionInfo], now_s: float) -> Placed:
        """Lock ``wanted`` for ``regions`` (they cover it from its start, maybe not to its end)."""
        made: list[Registration] = []
        retries: list[Retry] = []
        end = wanted.range.start
        for region in regions:
            part = region.range.intersect(wanted.range)
            if part is None:
                continue
            end = part.end
            outcome = self.frontier.lock(part, region.region_id, region.version)
            if isinstance(outcome, Granted):
                made.append(self._register(region, outcome.lock, wanted.attempt, now_s))
            elif isinstance(outcome, Stale):
                retries += [Retry(piece, wanted.attempt + 1) for piece in outcome.retry]
            else:
                self.waiting.append(Retry(part, wanted.attempt + 1))
        if end < wanted.range.end:
            retries.append(Retry(KeyRange(end, wanted.range.end), wanted.attempt + 1))
        return Placed(tuple(made), tuple(retries))

    def release(self, registration: Registration) -> list[Retry]:
        """Give up a registration; return what to locate again: its range, and what had waited for a lock."""
        self.registrations.discard(registration)
        self.frontier.unlock(registration.lock)
        waiting, self.waiting = self.waiting, []
        return [Retry(registration.lock.range, registration.attempt + 1), *waiting]

    def resolve(self, registration: Registration, ts: Ts) -> bool:
        """Take a region's resolved ts; say whether it moved."""
        if not registration.matcher.resolve(ts):
            return False
        self.frontier.advance(registration.lock, ts)
        return True

    def _register(self, region: RegionInfo, lock: LockedRange, attempt: int, now_s: float) -> Registration:
        # A region's registration that ended may still be heard of (an INITIALIZED that was under way when the error
        # came): the next one of this region gets another request id. Regions in the same round share one, as the
        # server groups resolved ts by request id.
        number = self._round_of.get(region.region_id, 0)
        self._round_of[region.region_id] = number + 1
        while len(self._rounds) <= number:
            self._rounds.append(next(self._request_ids))
        registration = Registration(
            subscription=self,
            region=region,
            lock=lock,
            request_id=self._rounds[number],
            matcher=Matcher(
                region.region_id,
                self.span.start,
                self.span.end,
                start_ts=self.start_ts,
                checkpoint_ts=lock.resolved_ts,
            ),
            attempt=attempt,
            since_s=now_s,
        )
        self.registrations.add(registration)
        return registration


def joined(retries: Sequence[Retry]) -> list[Retry]:
    """Join neighbouring ranges, so that a store that fails costs PD one question a span and not one a region."""
    out: list[Retry] = []
    for retry in sorted(retries, key=lambda retry: retry.range):
        if out and out[-1].range.end >= retry.range.start:
            last = out[-1]
            out[-1] = Retry(
                KeyRange(last.range.start, max(last.range.end, retry.range.end)), max(last.attempt, retry.attempt)
            )
        else:
            out.append(retry)
    return out
