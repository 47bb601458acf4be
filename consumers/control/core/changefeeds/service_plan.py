"""Which sorter service runs which changefeed: the owner's plan, made anew at each look.

    wanted changefeeds, with load ----+
    services that live, with capture --+--> plan --> assignments that change, written in one transaction
    assignments as they are, pins ----+

         no service  --place: the least loaded-->  service A
         service A   --gone, leaving: elsewhere at once-->  service B      revision + 1
         service A   --pinned elsewhere, or A bears too much: a few a plan-->  service B
         on its own  --a capture gets the order to start a dedicated service; once that lives-->  dedicated service

A move takes a changefeed out of one assignment and puts it into another, under a higher revision, in the same
transaction; that the former service has let go is seen to by the changefeed's lock. Where nothing has a cause to
change, the plan is empty. What a service that is gone still has in its assignment stays there while no other can take
it: it is what the service finds when it comes back.

Pure: the same arguments give the same plan.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from schemas.nodes.sorter_service import Assigned, Assignment, FeedName

FEED_LOAD: Final = 0.02
"""What a changefeed costs that has nothing to do, in cores; its CPU time comes on top of it."""
GAP_MIN: Final = 0.25
"""Share of the mean load by which services may differ before a changefeed is moved for it."""
MOVE_SHARE_MAX: Final = 0.9
"""Of the difference: a changefeed that weighs more would only turn it round."""
BALANCE_MOVES_MAX: Final = 8
"""In one plan; each is a short pause for its changefeed. What has a harder cause (drain, pin, death) is not counted."""
FIRST_WAIT_S: Final = 5.0
"""For how long an owner waits, from its beginning, for the services of captures that it knows."""
BY_HAND_WAIT_S: Final = 1.0
"""Likewise, where no capture runs one: nobody says which services run by hand will come beside those that are there."""
_NOTHING: Final = Assignment()


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFeed:
    """A changefeed that is to run."""

    name: FeedName
    created_zxid: int
    epoch: int
    is_alone: bool = False
    """It gets a service of its own: its file says so, or services have died of it."""
    load: float = 0.0
    """Cores that it has used lately."""
    revision_min: int = 0
    """The highest that any node has of it: the next is above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingService:
    """A service that is registered."""

    service: str
    starts_others: bool = False
    """A capture runs it, and starts services for single changefeeds as its assignment says."""
    is_leaving: bool = False
    """It or its capture is stopping: it takes nothing more, and what it has goes elsewhere."""
    dedicated: FeedName | None = None
    """The one changefeed that it takes; None: any that needs no service of its own."""


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What to write now."""

    write: Mapping[str, Assignment] = field(default_factory=dict)
    """By service: only those that change."""
    moved: tuple[tuple[FeedName, str, str], ...] = ()
    """Changefeed, service before ('': none) and now ('': none)."""


def dedicated_id(home: str, name: FeedName) -> str:
    """Return the id of the service that a capture, by its own service's id, starts for one changefeed."""
    return f"{home}-ded-{name[0]}.{name[1]}"


def is_complete(expected: Collection[str], living: Collection[str], waited_s: float) -> bool:
    """Tell whether services may be chosen: those that captures have named are there, or have been waited for.

    Args:
        expected: services that living captures say they run.
        living: services that are registered.
        waited_s: since the owner began.
    """
    if expected:
        return set(expected) <= set(living) or waited_s >= FIRST_WAIT_S
    return waited_s >= (BY_HAND_WAIT_S if living else FIRST_WAIT_S)


def plan_services(
    wanted: Iterable[WantedFeed],
    services: Iterable[LivingService],
    current: Mapping[str, Assignment],
    *,
    pins: Mapping[FeedName, str] | None = None,
    owner_rev: int = 0,
    may_place: bool = True,
    may_balance: bool = True,
) -> ServicePlan:
    """Return the assignments that are to change.

    Args:
        wanted: all changefeeds that are to run, each once.
        services: whoever is registered.
        current: assignments as they are, of services that are gone, too.
        pins: by changefeed the service on which a user wants it, or that is to start its own one; obeyed while that
            service lives.
        owner_rev: the owner's revision; noted in what is written.
        may_place: choose services for changefeeds that have none that lives; see :func:`is_complete`.
        may_balance: move changefeeds for the sake of load.
    """
    planner = _Planner(wanted, services, current, pins or {})
    planner.keep()
    planner.choose_homes(may_place=may_place)
    if may_place:
        planner.place_waiting()
        planner.follow_pins()
        if may_balance:
            planner.balance()
    return planner.plan(owner_rev)


class _Planner:
    def __init__(
        self,
        wanted: Iterable[WantedFeed],
        services: Iterable[LivingService],
        current: Mapping[str, Assignment],
        pins: Mapping[FeedName, str],
    ) -> None:
        self._wanted = {feed.name: feed for feed in sorted(wanted, key=lambda feed: feed.name)}
        self._services = {service.service: service for service in sorted(services, key=lambda known: known.service)}
        self._current, self._pins = current, pins
        self._shared = [
            known.service for known in self._services.values() if known.dedicated is None and not known.is_leaving
        ]
        self._service_of: dict[FeedName, str] = {}
        self._home_of: dict[FeedName, str] = {}
        """By changefeed that is alone the shared service whose capture is to run it."""
        self._revision_of: dict[FeedName, int] = {}
        self._before: dict[FeedName, str] = {}
        self._loads = dict.fromkeys(self._shared, 0.0)

    def keep(self) -> None:
        """Take over what is as it should be: the youngest assignment of each changefeed, where it still may run."""
        for service in sorted(self._current):
            for assigned in self._current[service].feeds:
                feed = self._wanted.get(assigned.name)
                if feed is None or feed.created_zxid != assigned.created_zxid:
                    continue
                if assigned.revision > self._revision_of.get(assigned.name, -1):
                    self._revision_of[assigned.name] = assigned.revision
                    self._before[assigned.name] = service
        for name, service in self._before.items():
            if self._fits(self._wanted[name], service):
                self._give(name, service)

    def choose_homes(self, *, may_place: bool) -> None:
        """Say which captures run services for single changefeeds, and give those to them that live."""
        hosts = [service for service in self._shared if self._services[service].starts_others]
        for feed in self._wanted.values():
            if not feed.is_alone:
                continue
            own = [
                known.service
                for known in self._services.values()
                if known.dedicated == feed.name and not known.is_leaving
            ]
            home = self._home(feed.name, hosts, own)
            if home:
                self._set_home(feed.name, home)
            elif hosts and may_place and not own:  # one that is nobody's was started by hand: that will do
                self._set_home(feed.name, min(hosts, key=lambda service: (self._loads[service], service)))
            if own and feed.name not in self._service_of:
                at_home = [service for service in own if service == dedicated_id(home, feed.name)]
                self._give(feed.name, min(at_home or own))

    def _home(self, name: FeedName, hosts: list[str], own: list[str]) -> str:
        """Return the capture's service that is to start, or has started, the changefeed's own one; '': none yet."""
        pinned = self._pins.get(name, "")
        if pinned in hosts:
            return pinned
        chosen = [service for service in self._current if name in self._current[service].dedicated]
        alive = [service for service in chosen if service in hosts or dedicated_id(service, name) in own]
        return min(alive or (chosen if not hosts else []), default="")

    def place_waiting(self) -> None:
        """Give those that have none a service, the heaviest first."""
        if not self._shared:
            return
        waiting = [feed for feed in self._wanted.values() if not feed.is_alone and feed.name not in self._service_of]
        for feed in sorted(waiting, key=lambda feed: (-feed.load, feed.name)):
            self._give(feed.name, self._pinned(feed.name) or self._lightest())

    def follow_pins(self) -> None:
        """Move what a user wants elsewhere."""
        for name, service in list(self._service_of.items()):
            pinned = self._pinned(name)
            if pinned and pinned != service and not self._wanted[name].is_alone:
                self._take(name)
                self._give(name, pinned)

    def balance(self) -> None:
        """Move a few from services that bear too much to the one that bears least."""
        if len(self._shared) < 2:
            return
        gap_min = GAP_MIN * sum(self._loads.values()) / len(self._shared)
        for _ in range(BALANCE_MOVES_MAX):
            name = self._to_move(gap_min)
            if name is None:
                return
            self._take(name)
            self._give(name, self._lightest())

    def plan(self, owner_rev: int) -> ServicePlan:
        """Return what differs from the assignments as they are."""
        feeds: dict[str, list[Assigned]] = {service: [] for service in {*self._services, *self._current}}
        moved = []
        for name, service in self._service_of.items():
            feed, before = self._wanted[name], self._before.get(name, "")
            revision = self._revision_of.get(name, 0)
            if service != before:
                revision = max(revision, feed.revision_min) + 1
                moved.append((name, before, service))
            feeds[service].append(self._assigned(feed, revision))
        for name, before in self._before.items():
            feed = self._wanted[name]
            if name in self._service_of:
                continue
            if not feed.is_alone and self._takes(before, name):
                feeds[before].append(self._assigned(feed, self._revision_of[name]))  # until another can take it
            else:
                moved.append((name, before, ""))
        write = {}
        for service in sorted(feeds):
            homes = tuple(sorted(name for name, home in self._home_of.items() if home == service))
            after = Assignment(
                owner_rev=owner_rev,
                feeds=tuple(sorted(feeds[service], key=lambda assigned: assigned.name)),
                dedicated=homes,
            )
            before_it = self._current.get(service, _NOTHING)
            if (after.feeds, after.dedicated) != (before_it.feeds, before_it.dedicated):
                write[service] = after
        return ServicePlan(write, tuple(sorted(moved)))

    def _assigned(self, feed: WantedFeed, revision: int) -> Assigned:
        namespace, changefeed_id = feed.name
        return Assigned(
            namespace=namespace,
            changefeed_id=changefeed_id,
            created_zxid=feed.created_zxid,
            epoch=feed.epoch,
            revision=revision,
        )

    def _fits(self, feed: WantedFeed, service: str) -> bool:
        known = self._services.get(service)
        if known is None or known.is_leaving:
            return False
        return known.dedicated == feed.name if feed.is_alone else known.dedicated is None

    def _takes(self, service: str, name: FeedName) -> bool:
        return service not in self._services or self._services[service].dedicated in (None, name)

    def _pinned(self, name: FeedName) -> str:
        pinned = self._pins.get(name, "")
        return pinned if pinned in self._loads else ""

    def _load(self, name: FeedName) -> float:
        return FEED_LOAD + max(0.0, self._wanted[name].load)

    def _give(self, name: FeedName, service: str) -> None:
        self._service_of[name] = service
        if service in self._loads:
            self._loads[service] += self._load(name)

    def _take(self, name: FeedName) -> None:
        service = self._service_of.pop(name)
        if service in self._loads:
            self._loads[service] -= self._load(name)

    def _set_home(self, name: FeedName, home: str) -> None:
        self._home_of[name] = home
        if home in self._loads:
            self._loads[home] += self._load(name)

    def _lightest(self) -> str:
        return min(self._shared, key=lambda service: (self._loads[service], service))

    def _to_move(self, gap_min: float) -> FeedName | None:
        """Return what is to go from the heaviest service that has something to give to the lightest one."""
        lightest = self._lightest()
        for service in sorted(self._shared, key=lambda service: (-self._loads[service], service)):
            gap = self._loads[service] - self._loads[lightest]
            if gap <= gap_min:
                return None
            movable = [
                name
                for name, given in self._service_of.items()
                if given == service and not self._pinned(name) and self._load(name) < MOVE_SHARE_MAX * gap
            ]
            if movable:
                return min(movable, key=lambda name: (abs(self._load(name) - gap / 2), name))
        return None
