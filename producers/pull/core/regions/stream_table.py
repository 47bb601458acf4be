"""The registrations of one stream, found by what its messages carry. Pure, and the way of every resolved ts.

An event names (request id, region); a batched resolved ts names one request id and up to all regions of the store, or,
without multiplexing, regions only. A region counts for resolved ts from INITIALIZED on (docs/formats/cdcpb.md §4.5).
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final

import numpy as np

from producers.pull.core.regions.request_ids import is_shared
from producers.pull.core.regions.subscription import Registration, Subscription
from schemas.ids import RegionId, Ts

_VECTOR_MIN: Final = 24
"""Regions of a message from which on numpy's fixed cost is worth it."""


class _RegionGroup:
    """Regions of one request id; ``subscription`` is that of all, None where the id is shared."""

    __slots__ = ("moving", "registrations", "slots", "subscription")

    def __init__(self, subscription: Subscription | None) -> None:
        self.subscription = subscription
        self.registrations: dict[int, Registration] = {}
        self.moving: dict[int, Registration] = {}
        """Those that are INITIALIZED, of several subscriptions."""
        self.slots: dict[int, int] = {}
        """The slots of their locks, where there is one."""


class StreamTable:
    """See the module's text. Without ``multiplexed`` all registrations are of one subscription, each region once."""

    def __init__(self, *, multiplexed: bool) -> None:
        self.multiplexed = multiplexed
        self._groups: dict[int, _RegionGroup] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Registration]:
        for group in self._groups.values():
            yield from group.registrations.values()

    def add(self, registration: Registration) -> None:
        """Take one; its region is not yet here under the same request id."""
        group = self._groups.get(registration.request_id)
        if group is None:
            alone = None if is_shared(registration.request_id) else registration.subscription
            group = self._groups[registration.request_id] = _RegionGroup(alone)
        assert registration.region.region_id not in group.registrations, "a region is registered once"
        group.registrations[registration.region.region_id] = registration
        self._count += 1

    def remove(self, registration: Registration) -> None:
        """Forget one; what still comes for it is found no more."""
        group = self._groups.get(registration.request_id)
        if group is None or group.registrations.get(registration.region.region_id) is not registration:
            return
        del group.registrations[registration.region.region_id]
        group.slots.pop(registration.region.region_id, None)
        group.moving.pop(registration.region.region_id, None)
        self._count -= 1
        if not group.registrations:
            del self._groups[registration.request_id]

    def clear(self) -> list[Registration]:
        """Forget and return all."""
        gone = list(self)
        self._groups, self._count = {}, 0
        return gone

    def find(self, request_id: int, region_id: int) -> Registration | None:
        """Return whose event it is."""
        group = self._groups.get(request_id)
        return None if group is None else group.registrations.get(region_id)

    def has_region(self, region_id: RegionId) -> bool:
        """Say whether any request id has the region."""
        return any(region_id in group.registrations for group in self._groups.values())

    @property
    def initialized(self) -> bool:
        """Say whether any region is INITIALIZED."""
        return any(group.moving or group.slots for group in self._groups.values())

    def expects_an_answer(self) -> bool:
        """Say whether the store has been asked for anything."""
        return any(registration.sent for registration in self)

    def of(self, subscription: Subscription) -> list[Registration]:
        """Return a subscription's registrations."""
        return [
            registration
            for registration in subscription.registrations
            if self.find(registration.request_id, registration.region.region_id) is registration
        ]

    def initialize(self, registration: Registration) -> None:
        """Let resolved ts count for a registration from now on."""
        group = self._groups[registration.request_id]
        if group.subscription is None:
            group.moving[registration.region.region_id] = registration
        else:
            group.slots[registration.region.region_id] = registration.lock.slot

    def resolve(self, request_id: int, regions: Sequence[int], ts: Ts) -> list[Subscription]:
        """Take one resolved ts for many regions; return the subscriptions that it concerns, some maybe more than once.

        Regions that are unknown or not INITIALIZED are passed over, lower and equal ts change nothing.
        """
        if self.multiplexed:
            group = self._groups.get(request_id)
            return [] if group is None else _resolve(group, regions, ts)
        return [moved for group in self._groups.values() for moved in _resolve(group, regions, ts)]


def _resolve(group: _RegionGroup, regions: Sequence[int], ts: Ts) -> list[Subscription]:
    if group.subscription is not None:
        return [group.subscription] if _resolve_alone(group.subscription, group, regions, ts) else []
    moved, moving = [], group.moving.get
    for region in regions:
        registration = moving(region)
        if registration is not None:
            registration.subscription.frontier.advance_slot(registration.lock.slot, ts)
            moved.append(registration.subscription)
    return moved


def _resolve_alone(subscription: Subscription, group: _RegionGroup, regions: Sequence[int], ts: Ts) -> bool:
    frontier, slot_of = subscription.frontier, group.slots.get
    if len(regions) < _VECTOR_MIN:
        known = [slot for slot in map(slot_of, regions) if slot is not None]
        for slot in known:
            frontier.advance_slot(slot, ts)
        return bool(known)
    slots = np.fromiter(map(slot_of, regions, repeat(-1)), np.intp, len(regions))
    if slots.min() < 0:
        slots = slots[slots >= 0]
    frontier.advance_slots(slots, ts)
    return bool(len(slots))
