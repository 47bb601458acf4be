"""Registering ranges, and registering them again: what the event feed does with each decision of region_errors.

Called by the feed's thread only, under its lock. A range is always in one of three states: at the locator (or on its
way there), waiting under an older lock, or locked by a registration that stands on a stream.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from producers.errors import StoreUnavailableError
from producers.pull.core.regions.region_errors import FAULTS_MAX, Decision, RecoveryStep
from producers.pull.core.regions.region_map import RegionInfo
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.core.regions.stream_errors import REOPEN_MS, silent
from producers.pull.core.regions.subscription import NO_STREAM, Registration, Retry, Subscription, joined
from producers.pull.feed.locator import LocatedRange
from producers.pull.feed.store_streams import OpenStream, StoreStreams
from producers.pull.pd.region_cache import RegionCache
from schemas.ids import StoreId

log = logging.getLogger(__name__)

_UNOPENED: Final = StoreUnavailableError.code.partition(".")[2]
"""As the locator's failures to reach a store are counted."""


class Submit(Protocol):
    """:meth:`Locator.submit`."""

    def __call__(self, subscription: Subscription, retry: Retry, *, wait_ms: int = 0) -> None: ...


class Recovery:
    """See the module's text."""

    def __init__(self, cache: RegionCache, streams: StoreStreams, submit: Submit, troubles: Counter[str]) -> None:
        """``troubles`` is counted up here, by kind."""
        self._cache = cache
        self._streams = streams
        self._submit = submit
        self._troubles = troubles

    def register(self, located: LocatedRange, now_s: float) -> None:
        """Lock a range for the regions found, and register them."""
        subscription = located.subscription
        if subscription.stopped:
            return
        waits = {store_id: self._streams.later(store_id, subscription, now_s) for store_id in located.addresses}
        runs = itertools.groupby(located.regions, lambda region: waits[_leader_of(region)])
        for later, group in runs:
            regions = list(group)
            wanted = located.retry.range.intersect(EncodedRange(regions[0].range.start, regions[-1].range.end))
            if wanted is None:
                continue
            retry = replace(located.retry, range=wanted)
            if later is not None:
                if later.reason:
                    subscription.unlocked_for(later.reason, NO_STREAM)
                self._submit(subscription, retry, wait_ms=int(later.wait_s * 1000))
                continue
            locked = subscription.lock_for(retry, regions, now_s)
            self._register_all(locked.registrations, located.addresses, now_s)
            for again in locked.retries:
                self._cache.drop(again.range)
                self._submit(subscription, again)
        if located.rest is not None:
            self._submit(subscription, located.rest)

    def end_registration(
        self,
        stream: OpenStream,
        registration: Registration,
        decision: Decision,
        now_s: float,
        *,
        deregister: bool = False,
    ) -> None:
        """Register one region's range again, as decided.

        Raises:
            BusError: the decision's error, where it is final.
        """
        if deregister and not stream.table.multiplexed:
            # Without multiplexing there is no word for the end of one registration.
            self.end_stream(stream, decision, now_s)
            return
        subscription, region = registration.subscription, registration.region
        self._note([subscription], decision, f"region {region.region_id} at {stream.where}")
        self._streams.remove(stream, registration, now_s, deregister=deregister)
        wanted = registration.lock.range
        if decision.step is RecoveryStep.LOCATE:
            self._cache.drop(wanted)
        elif decision.new_leader is not None:
            self._cache.set_leader(region.region_id, wanted, decision.new_leader)
        retries = subscription.release(registration, fault=decision.bounded)
        self._again(subscription, retries, decision, decision.wait_ms)

    def end_stream(self, stream: OpenStream, decision: Decision, now_s: float) -> None:
        """End a stream, and register all its regions again.

        Raises:
            BusError: the decision's error, where it is final.
        """
        mine: dict[Subscription, list[Registration]] = {}
        wait_s = decision.wait_ms / 1000
        for registration in self._streams.close(stream, now_s, wait_s=wait_s, old_protocol=decision.old_protocol):
            mine.setdefault(registration.subscription, []).append(registration)
        if decision.step is not RecoveryStep.REGISTER and not decision.old_protocol:
            self._cache.forget_stores()
        self._note(mine, decision, stream.where)
        for subscription, registrations in mine.items():
            retries = joined(subscription.release_all(registrations, fault=decision.bounded))
            for retry in retries:
                self._cache.drop(retry.range)
            self._again(subscription, retries, decision, 0)

    def look(self, subscriptions: Iterable[Subscription], now_s: float, listening_since_s: float) -> None:
        """Do what is due by time: once a second."""
        self._streams.close_idle(now_s)
        for stream, silent_s in self._streams.silent(now_s, listening_since_s):
            self.end_stream(stream, silent(stream.where, silent_s), now_s)
        for subscription in subscriptions:
            # A range waits until an older lock over it is released. Asking again also costs little, and then no mistake
            # about who waits for whom can leave a range without a registration for ever.
            waiting, subscription.waiting = subscription.waiting, []
            for retry in waiting:
                self._submit(subscription, retry)

    def _register_all(
        self, registrations: Iterable[Registration], addresses: Mapping[StoreId, str], now_s: float
    ) -> None:
        """Register what a span has just locked; what no stream can be opened for now is located again."""
        unopened: list[Registration] = []
        for registration in registrations:
            try:
                self._register(registration, addresses[_leader_of(registration.region)], now_s)
            except StoreUnavailableError as error:
                unopened.append(registration)
                registration.subscription.unlocked_for(str(error))
        if not unopened:
            return
        subscription = unopened[0].subscription
        self._troubles[_UNOPENED] += 1
        for retry in joined(subscription.release_all(unopened)):
            self._cache.drop(retry.range)
            self._submit(subscription, retry, wait_ms=REOPEN_MS)

    def _register(self, registration: Registration, address: str, now_s: float) -> None:
        region, subscription = registration.region, registration.subscription
        store_id = _leader_of(region)
        known = self._streams.get(store_id, subscription)
        if known is not None and known.address != address:
            moved = f"store {store_id} has moved from {known.address} to {address}"
            self.end_stream(known, Decision(kind="store_moved", step=RecoveryStep.LOCATE, reason=moved), now_s)
            known = None
        stream = known or self._streams.open(store_id, address, subscription, now_s)
        merged = not stream.table.multiplexed and stream.table.has_region(region.region_id)
        self._streams.register(stream, registration, now_s)
        if merged:
            # The region has a part of the span already. Without multiplexing it cannot be registered twice, nor
            # deregistered; the stream starts anew, and the joined range is registered from the lesser ts.
            reason = f"region {region.region_id} was merged and must be registered as one range"
            self.end_stream(stream, Decision(kind="merged", step=RecoveryStep.REGISTER, reason=reason), now_s)

    def _note(self, subscriptions: Iterable[Subscription], decision: Decision, where: str) -> None:
        """Count and show a decision; raise its error if nothing else is to be done."""
        self._troubles[decision.kind] += 1
        if decision.step is RecoveryStep.FAIL and decision.error is not None:
            raise decision.error
        for subscription in subscriptions:
            subscription.unlocked_for(f"{where}: {decision.reason}")

    def _again(self, subscription: Subscription, retries: Sequence[Retry], decision: Decision, wait_ms: int) -> None:
        faults = max((retry.faults for retry in retries), default=0) if decision.bounded else 0
        if decision.error is not None and faults > FAULTS_MAX:
            raise decision.error
        if faults == 1:  # the first of a row; the rest is counted
            extra = {"table_id": subscription.span.table_id, "reason": decision.reason}
            log.warning("a part of a span is registered anew after bad data", extra=extra)
        for retry in retries:
            self._submit(subscription, retry, wait_ms=wait_ms)


def _leader_of(region: RegionInfo) -> StoreId:
    assert region.leader is not None, "the locator gives only regions with a leader"
    return region.leader.store_id
