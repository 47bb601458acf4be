"""The owner gives changefeeds to sorter services: it judges their states, plans, and writes assignments.

    FeedStates --wanted--> plan_services --> one transaction: the owner's revision checked, all assignments that change
    services/ progress/ pins --^

A thread of its own looks a few times a second; the owner's other work does not wait for it. Who is no owner any more is
refused by ZooKeeper itself: each transaction checks that nobody has been elected since
(``consumers/control/cluster/election.py``). What services then do is theirs (``sorters/service``), and one that goes on
by an old assignment is refused as well.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from kazoo.exceptions import KazooException, NoNodeError, RolledBackError

from consumers.control.changefeeds.pins import service_of
from consumers.control.changefeeds.service_nodes import ReadsServices, ServiceNodes, StoredServices
from consumers.control.changefeeds.states import FeedStates
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.cluster.election import decode_revision
from consumers.control.cluster.look_thread import LookThread
from consumers.control.core.changefeeds.service_plan import (
    LivingService,
    ServicePlan,
    WantedFeed,
    dedicated_id,
    is_complete,
    plan_services,
)
from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.node_cache import ANSWER_S
from edges.zookeeper.session import LeaseLostError, Session
from schemas.errors import BusError, CorruptDataError
from schemas.ids import CaptureId
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import Assignment, FeedEntry, FeedName, encode_assignment

log = logging.getLogger(__name__)

LOOK_S, LOOK_MAX_S = 0.3, 0.8
"""Between two looks: what a user changes is seen within a second."""
BALANCE_EVERY_S: Final = 10.0
"""Between two plans that move changefeeds for the sake of load: so long a move takes to show."""
LOAD_OVER_S: Final = 5.0
"""For how long CPU time is counted before it is a load."""
GONE_S: Final = 60.0
"""For how long a service must be gone before its nodes are deleted: one that its capture starts again comes sooner."""


@dataclass(slots=True)
class _Load:
    cpu_s: float
    at_s: float
    revision: int
    cores: float = 0.0


class SorterAssigner:
    """Of one owner, for as long as its reign; a context manager."""

    def __init__(
        self,
        session: Session,
        paths: ZkPaths,
        states: FeedStates,
        revision: int,
        captures: Callable[[], Mapping[CaptureId, CaptureInfo]],
        *,
        on_fatal: Callable[[BusError], None] = lambda _: None,
        nodes: ReadsServices | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``states`` is ours alone from now on, ``revision`` the owner's own, ``captures`` whoever is registered.

        ``on_fatal`` takes a bug, or that another owner has been elected; nothing is supervised any more then.
        """
        self._session, self._paths, self._services = session, paths, ServicePaths(paths)
        self._revision, self._captures, self._clock = revision, captures, clock
        self._on_fatal = on_fatal
        self._states = states
        self._nodes: ReadsServices = nodes or ServiceNodes(session, paths)
        self._began_at_s, self._balanced_at_s = clock(), clock()
        self._gone_since_s: dict[str, float] = {}
        self._loads: dict[tuple[FeedName, int], _Load] = {}
        self._given: dict[tuple[FeedName, int], int] = {}
        """The highest revision that was given to each changefeed, by name and creation."""
        self._unassigned: frozenset[FeedName] = frozenset()
        self._looking = LookThread("changefeeds", self.look, on_fatal, rest_s=LOOK_S, rest_s_max=LOOK_MAX_S)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._looking.stop()
        self._states.close()
        self._nodes.close()

    def look(self) -> None:
        """Take in what has been written, and write what follows from it.

        Raises:
            LeaseLostError: the session is over, or another owner has been elected.
            BusError: the same look may work later.
        """
        stored = self._nodes.read()
        busy = {entry.name for service in stored.services for entry in stored.progress.get(service, ())}
        self._states.look(busy)
        wanted = self._wanted(stored)
        plan = self._plan(wanted, stored)
        # Its service runs nothing new before it can read what it has, and one that begins does not get that far.
        anew = {service: Assignment(owner_rev=self._revision) for service in stored.undecoded}
        plan = replace(plan, write={**anew, **plan.write})
        if plan.write:
            self._write(plan, stored)
        self._say_unassigned(wanted, plan, stored)
        self._clean(stored)

    # -- what is wanted, and by whom -----------------------------------------------------------------------------------

    def _wanted(self, stored: StoredServices) -> list[WantedFeed]:
        entries = stored.entries()
        self._note_loads(entries)
        feeds = self._states.wanted_feeds()
        keys = {(feed.name, feed.created_zxid) for feed in feeds}
        self._given = {key: revision for key, revision in self._given.items() if key[0] in self._states.feeds}
        revisions = {key: max(self._given.get(key, 0), entries[key].revision if key in entries else 0) for key in keys}
        return [
            replace(
                feed,
                load=self._loads[key].cores if (key := (feed.name, feed.created_zxid)) in self._loads else 0.0,
                revision_min=revisions[key],
            )
            for feed in feeds
        ]

    def _note_loads(self, entries: Mapping[tuple[FeedName, int], FeedEntry]) -> None:
        now_s = self._clock()
        self._loads = {key: load for key, load in self._loads.items() if key in entries}
        for key, entry in entries.items():
            load = self._loads.get(key)
            if load is None or load.revision != entry.revision or entry.cpu_s < load.cpu_s:  # another process counts
                cores = 0.0 if load is None else load.cores
                self._loads[key] = _Load(entry.cpu_s, now_s, entry.revision, cores)
            elif now_s - load.at_s >= LOAD_OVER_S:
                latest = (entry.cpu_s - load.cpu_s) / (now_s - load.at_s)
                load.cores = (load.cores + latest) / 2
                load.cpu_s, load.at_s = entry.cpu_s, now_s

    def _plan(self, wanted: list[WantedFeed], stored: StoredServices) -> ServicePlan:
        now_s = self._clock()
        captures = list(self._captures().values())
        ours = {capture.service_id: capture for capture in captures if capture.service_id}
        expected = [service for service, capture in ours.items() if not capture.is_stopping]
        may_balance = now_s - self._balanced_at_s >= BALANCE_EVERY_S
        # One that was killed is listed until its session is over, beside the one that was started in its place.
        latest_last = sorted(ours.values(), key=lambda capture: capture.started_at_s)
        by_address = {capture.address: capture.service_id for capture in latest_last}
        pinned = {
            feed.name: service_of(pin, by_address)
            for feed in wanted
            if (pin := stored.pins.get(feed.name)) is not None and pin.created_zxid == feed.created_zxid
        }
        plan = plan_services(
            wanted,
            [_living(service, stored, ours) for service in stored.services],
            {service: assignment for service, (assignment, _) in stored.assignments.items()},
            pins=pinned,
            owner_rev=self._revision,
            may_place=is_complete(expected, stored.services.keys(), now_s - self._began_at_s),
            may_balance=may_balance,
        )
        if plan.moved or may_balance:
            self._balanced_at_s = now_s
        return plan

    # -- what is written -----------------------------------------------------------------------------------------------

    def _write(self, plan: ServicePlan, stored: StoredServices) -> None:
        self._session.check_lease()
        with self._session.requests("writing assignments") as client:
            nodes = self._services
            for folder in (nodes.services, nodes.assignments, nodes.progress, nodes.figures):
                client.ensure_path(folder)
            transaction = client.transaction()
            transaction.check(self._paths.owner_rev, self._reigning(client))
            for service, assignment in plan.write.items():
                path, node = self._services.assignment(service), encode_assignment(assignment)
                if service in stored.assignments:
                    transaction.set_data(path, node, stored.assignments[service][1])
                else:
                    transaction.create(path, node)
            results = transaction.commit_async().get(timeout=ANSWER_S)
        errors = [result for result in results if isinstance(result, KazooException)]
        if errors:
            reasons = [repr(error) for error in errors if not isinstance(error, RolledBackError)]
            log.info("assignments were not written; looking again", extra={"reasons": reasons})
            return
        for assignment in plan.write.values():
            for feed in assignment.feeds:
                self._given[feed.name, feed.created_zxid] = feed.revision
        for name, before, service in plan.moved:
            extra = {"changefeed": name[1], "namespace": name[0], "before": before, "service": service}
            log.info("changefeed is assigned" if service else "changefeed is assigned no more", extra=extra)

    def _reigning(self, client: ZooKeeperClient) -> int:
        """Return the version of the node of owner revisions, which is still ours.

        Raises:
            LeaseLostError: another owner has been elected.
            CorruptDataError: somebody else has written the node; nothing is assigned while that stands.
        """
        path = self._paths.owner_rev
        value, stat = client.get_async(path).get(timeout=ANSWER_S)
        elected = decode_revision(value, path)
        if elected > self._revision:
            replaced = LeaseLostError("another owner has been elected", owner_rev=self._revision, elected=elected)
            self._on_fatal(replaced)  # our session may live all the same, and we would go on as an owner by half
            raise replaced
        if elected < self._revision:
            raise CorruptDataError("owner revision went back", node=path, seen=elected, owner_rev=self._revision)
        return int(stat.version)

    def _say_unassigned(self, wanted: list[WantedFeed], plan: ServicePlan, stored: StoredServices) -> None:
        """Say once of changefeeds that no service takes."""
        after = {service: assignment for service, (assignment, _) in stored.assignments.items()} | dict(plan.write)
        given = {feed.name for service in stored.services if service in after for feed in after[service].feeds}
        unassigned = frozenset(feed.name for feed in wanted if feed.name not in given)
        waited_s = self._clock() - self._began_at_s
        if unassigned - self._unassigned and waited_s > 2 * LOAD_OVER_S:
            log.warning(
                "changefeeds wait for a sorter service; captures start one each, or run `tidebus sorters`",
                extra={"changefeeds": sorted("/".join(name) for name in unassigned)[:20], "number": len(unassigned)},
            )
            self._unassigned = unassigned
        self._unassigned &= unassigned

    # -- what is over --------------------------------------------------------------------------------------------------

    def _clean(self, stored: StoredServices) -> None:
        """Delete the nodes of services that are long gone, once nothing in them counts any more."""
        now_s = self._clock()
        gone = {*stored.assignments, *stored.progress} - stored.services.keys()
        self._gone_since_s = {service: self._gone_since_s.get(service, now_s) for service in gone}
        for service, since_s in self._gone_since_s.items():
            if now_s - since_s < GONE_S:
                continue
            entries = stored.progress.get(service, ())
            if not all(self._is_outlived(entry, stored) for entry in entries):
                continue
            if service in stored.assignments and stored.assignments[service][0].feeds:
                continue
            self._delete(service, stored)
            self._gone_since_s[service] = now_s  # if it could not be, later

    def _is_outlived(self, entry: FeedEntry, stored: StoredServices) -> bool:
        newest = stored.entries().get((entry.name, entry.created_zxid))
        if newest is not None and newest.revision > entry.revision:
            return True
        with self._session.requests("looking for a changefeed") as client:
            info = client.exists_async(self._paths.changefeed_info(*entry.name)).get(timeout=ANSWER_S)
        return info is None or int(info.czxid) != entry.created_zxid

    def _delete(self, service: str, stored: StoredServices) -> None:
        folders = (self._services.service_progress(service), self._services.service_figures(service))
        with self._session.requests("deleting the nodes of a service that is gone") as client:
            transaction = client.transaction()
            transaction.check(self._paths.owner_rev, self._reigning(client))
            for folder in folders:
                with contextlib.suppress(NoNodeError):
                    for number in client.get_children(folder):
                        transaction.delete(f"{folder}/{number}")
                    transaction.delete(folder)
            if service in stored.assignments:
                transaction.delete(self._services.assignment(service), stored.assignments[service][1])
            results = transaction.commit_async().get(timeout=ANSWER_S)
        if not any(isinstance(result, KazooException) for result in results):
            log.info("nodes of a sorter service that is gone are deleted", extra={"service": service})


def _living(service: str, stored: StoredServices, ours: Mapping[str, CaptureInfo]) -> LivingService:
    info = stored.services[service]
    namespace, _, changefeed_id = info.dedicated.partition("/")
    dedicated = (namespace, changefeed_id) if info.dedicated else None
    capture = ours.get(service)
    if dedicated is not None:
        capture = next((ours[home] for home in sorted(ours) if service == dedicated_id(home, dedicated)), None)
    return LivingService(
        service=service,
        starts_others=service in ours and dedicated is None,
        is_leaving=info.is_stopping or (capture is not None and capture.is_stopping),
        dedicated=dedicated,
    )
