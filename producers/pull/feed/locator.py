"""The locator: one thread that asks the region cache (and so PD) where ranges are, each not before its time.

It keeps the feed's thread free of blocking calls, and goes through a long range page by page, so that the first regions
are registered while the last are still looked up. Where many ranges wait PD is asked for whole pages, which most likely
hold the next ones: 100,000 tables are some hundred questions. A range that cannot be located is tried again with
growing waits, and the feed hears each failure, so that a span's stall shows its reason.
"""

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from producers.errors import ProducerBugError, RegionsUnknownError, StoreUnavailableError
from producers.pull.core.regions.region_errors import backoff_ms
from producers.pull.core.regions.region_map import RegionInfo
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.core.regions.subscription import Retry, Subscription
from producers.pull.pd.region_cache import RegionCache
from schemas.errors import Action, BusError
from schemas.ids import StoreId
from schemas.tidb.codec import encode_bytes

READ_AHEAD_FROM: Final = 16
"""Ranges that wait: from so many on PD is asked for what comes behind the first, too. A page costs as much as some ten
single regions."""
TABLES_END: Final = encode_bytes(b"u")
"""Behind all rows of tables."""


@dataclass(frozen=True, slots=True)
class LocatedRange:
    """Regions for a range, and the addresses of the leaders' stores."""

    subscription: Subscription
    retry: Retry
    regions: tuple[RegionInfo, ...]
    addresses: dict[StoreId, str]
    rest: Retry | None = None
    """What of the range stands behind these regions; whoever takes them submits it."""


@dataclass(frozen=True, slots=True)
class UnlocatedRange:
    """One try failed; the locator goes on trying unless the error lasts."""

    subscription: Subscription
    error: BusError


class Locator:
    """See the module's text."""

    def __init__(
        self,
        cache: RegionCache,
        deliver: Callable[[LocatedRange | UnlocatedRange], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Prepare.

        Args:
            cache: asks PD.
            deliver: called by the locator's thread.
            clock: in seconds, never goes back; a simulation has its own.
            jitter: a number in [0, 1) that spreads retries.
        """
        self._cache = cache
        self._deliver = deliver
        self._jobs: list[tuple[float, int, Subscription, Retry]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        self._clock = clock
        self._jitter = jitter
        self._thread = threading.Thread(target=self._run, name="region-locator", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a call to PD that is under way ends when the PD client is closed."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread."""
        self._thread.join(timeout_s)

    def submit(self, subscription: Subscription, retry: Retry, *, wait_ms: int = 0) -> None:
        """Locate a range: at once at attempt 0, else after its back-off, or ``wait_ms`` if longer."""
        backoff = backoff_ms(retry.attempt - 1, self._jitter()) if retry.attempt else 0
        due = self._clock() + max(backoff, wait_ms) / 1000
        with self._changed:
            heapq.heappush(self._jobs, (due, next(self._numbers), subscription, retry))
            self._changed.notify()

    def step(self) -> bool:
        """Do the job that is due, if there is one: what the thread does, for a locator that was not started."""
        if not self._jobs or self._jobs[0][0] > self._clock():
            return False
        self._do(*heapq.heappop(self._jobs)[2:])
        return True

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._do(*job)

    def _do(self, subscription: Subscription, retry: Retry) -> None:
        if subscription.stopped:
            return
        try:
            located = self._locate(subscription, retry)
        except BusError as error:
            if self._stopping:
                return
            self._deliver(UnlocatedRange(subscription, error))
            if error.action is Action.RETRY:
                self._cache.drop(retry.range)
                self.submit(subscription, replace(retry, attempt=retry.attempt + 1))
            return
        except Exception as error:
            self._deliver(UnlocatedRange(subscription, ProducerBugError("locator failed", error=repr(error))))
            raise
        self._deliver(located)

    def _next(self) -> tuple[Subscription, Retry] | None:
        with self._changed:
            while not self._stopping:
                wait_s = self._jobs[0][0] - self._clock() if self._jobs else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._jobs)[2:]
                self._changed.wait(wait_s)
        return None

    def _locate(self, subscription: Subscription, retry: Retry) -> LocatedRange:
        reads_ahead = retry.attempt == 0 and len(self._jobs) >= READ_AHEAD_FROM
        read_to = max(retry.read_to, TABLES_END) if reads_ahead else retry.read_to
        regions = self._cache.locate_page(retry.range, read_to)
        usable, addresses = self._reachable(regions)
        end = usable[-1].range.end
        if end >= retry.range.end:
            return LocatedRange(subscription, retry, usable, addresses)
        # The rest begins a back-off of its own, whether it could not be had or was not asked for.
        rest = Retry(EncodedRange(end, retry.range.end), 0, retry.faults, retry.read_to)
        covered = Retry(EncodedRange(retry.range.start, end), retry.attempt, retry.faults)
        return LocatedRange(subscription, covered, usable, addresses, rest)

    def _reachable(self, regions: Iterable[RegionInfo]) -> tuple[tuple[RegionInfo, ...], dict[StoreId, str]]:
        """Return the regions before the first one whose leader cannot be reached, at least one, and the addresses of
        their leaders. Those behind it are located again together with it.

        Raises:
            RegionsUnknownError, StoreUnavailableError: it is the very first.
        """
        reachable: list[RegionInfo] = []
        addresses: dict[StoreId, str] = {}
        for region in regions:
            try:
                if region.leader is None:
                    raise RegionsUnknownError("region has no leader", region_id=region.region_id)
                if region.leader.store_id not in addresses:
                    addresses[region.leader.store_id] = self._cache.address(region.leader.store_id)
            except (RegionsUnknownError, StoreUnavailableError):
                if not reachable:
                    raise
                break
            reachable.append(region)
        return tuple(reachable), addresses
