"""The simulated services' world: captures with a service each, an owner that may be a former one, users, a clock."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from random import Random

from compose.simulation.law import BrokenPromiseError
from compose.simulation.network import Network
from compose.simulation.services.ensemble import Check, Ensemble, Put
from compose.simulation.services.law import ServiceLaw, Written
from compose.simulation.services.service import SimService
from compose.simulation.zookeeper import ZooKeeper
from consumers.control.core.changefeeds.service_plan import (
    LivingService,
    ServicePlan,
    WantedFeed,
    dedicated_id,
    plan_services,
)
from edges.zookeeper.session import LeaseLostError
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedStatus
from schemas.nodes.feed_figures import NOTHING_COUNTED, FeedFigures, RunKey
from schemas.nodes.sorter_service import Assignment, FeedEntry, FeedName, newest_entries, with_progress

FEEDS = 5
CAPTURES_MAX = 4


@dataclass(slots=True)
class UserFeed:
    """A changefeed as its user wants it."""

    zxid: int
    epoch: int = 0
    runs: bool = True
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """A plan that an owner has made and not written yet."""

    due_at: int
    owner_rev: int
    versions: dict[str, int | None]
    plan: ServicePlan


class ServicesWorld:
    """The seed decides how bad things are, too."""

    def __init__(self, seed: int, disturb: Callable[["ServicesWorld"], None]) -> None:
        self.seed, self.disturb = seed, disturb
        self.random = random = Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.now, self.ts, self.births = 0, Ts(10), 0
        self.trace: list[tuple[object, ...]] = []
        self.counts: Counter[str] = Counter()
        self.zookeeper, self.network, self.ensemble = ZooKeeper(random), Network(random), Ensemble()
        self.law = ServiceLaw()
        self.has_faults = True
        self.ignores_entry = self.ignores_refusal = False
        """Planted: a new holder passes over what the last one has said; a service begins what ZooKeeper refuses."""
        self.takes_lost_for_done = self.trusts_versions = False
        """Planted, where an answer is lost: a service begins all the same; or does not ask for versions anew."""
        self.mixes_figures = self.forgets_figures = False
        """Planted: a reader takes any run's figures for those of the last one; a service writes none."""
        self.spoil: Callable[[ServicePlan], ServicePlan] = lambda plan: plan
        """Planted: what an owner writes instead."""
        self.trouble, self.pace = random.choice((0.03, 0.1, 0.2)), random.choice((0.3, 0.6, 1.0))
        self.answers_lost = random.choice((0.0, 0.01, 0.05))
        """Of transactions: done or not, and nobody knows."""
        self.processes: dict[str, SimService] = {}
        self.captures: dict[str, str] = {}
        """The shared service that each capture runs, by capture; leaving ones are in ``leaving``."""
        self.leaving: set[str] = set()
        self.pins: dict[FeedName, str] = {}
        self.late: list[Late] = []
        self.loads: dict[str, float] = {}
        self._viewed: dict[str, tuple[ChangefeedStatus, FeedEntry | None, Written | None]] = {}
        """What an owner's view of a changefeed was made of that did not lie."""
        self.feeds = {f"f{number}": UserFeed(zxid=number + 1) for number in range(FEEDS)}
        self.ensemble.commit([Put("owner-rev", 1, None)])
        for name in self.feeds:
            self.law.start_ts[name, 0] = self.ts
            status = ChangefeedStatus(state="normal", checkpoint_ts=self.ts, resolved_ts=self.ts)
            self.ensemble.commit([Put(f"status/{name}", status, None)])
        for _ in range(random.randint(1, 3)):
            self.start_capture()

    def loses_answer(self) -> bool:
        """Tell whether the answer of a transaction gets lost."""
        return self.has_faults and self.random.random() < self.answers_lost

    def note(self, kind: str, *what: object) -> None:
        """Keep what happened."""
        self.counts[kind] += 1
        self.trace.append((self.now, kind, *what))

    def trace_hash(self) -> str:
        """Return a short hash of all that happened."""
        return blake2b(repr(self.trace).encode(), digest_size=6).hexdigest()

    # -- processes

    def start_capture(self) -> None:
        """Start a capture with its service."""
        self.births += 1
        capture = f"c{self.births}"
        self.captures[capture] = f"s{self.births}"
        self.start(self.captures[capture], capture)

    def start(self, service: str, capture: str, dedicated: str = "") -> None:
        """Start a process of a service."""
        self.births += 1
        process = f"{service}#{self.births}"
        self.processes[service] = SimService(self, service, process, capture, dedicated)
        self.note("start", process)

    def kill(self, service: str, *, again: bool) -> None:
        """End a process as by kill -9; its capture starts it anew."""
        process = self.processes.pop(service)
        self.note("kill", process.process)
        if again and process.capture in self.captures:
            self.start(service, process.capture, process.dedicated)

    # -- one tick

    def tick(self) -> None:
        """Let everything happen that happens in a moment."""
        self.now += 1
        random = self.random
        self.ts = Ts(self.ts + (random.random() < 0.5))
        if self.has_faults and random.random() < self.trouble:
            self.disturb(self)
        for session in self.zookeeper.expire(self.now):
            self.ensemble.end(session)
            self.note("expire", session)
        for service in list(self.processes):
            process = self.processes.get(service)
            if process is not None and process.frozen_until <= self.now:
                self._run(service, process)
        if not self.zookeeper.is_down:
            self._own()

    def _run(self, service: str, process: SimService) -> None:
        try:
            process.step()
        except LeaseLostError:
            self.note("lost", process.process)
            self.zookeeper.end(process.session.capture)
            self.ensemble.end(process.process)
            self.kill(service, again=service == process.service)  # a zombie has a successor already

    def _own(self) -> None:
        """Let the owner look and write; a plan may be late, and its owner a former one."""
        due = [late for late in self.late if late.due_at <= self.now]
        self.late = [late for late in self.late if late.due_at > self.now]
        for late in due:
            self._write(late)
        reign = self.ensemble.value("owner-rev")
        if self.random.random() < 0.5 and all(late.owner_rev != reign for late in self.late):
            plan = self._plan()
            if plan.write:
                versions = {service: self.ensemble.version(f"assignments/{service}") for service in plan.write}
                delay = self.random.choice((0, 0, 1, 5)) if self.has_faults else 0
                self.late.append(Late(self.now + delay, reign, versions, plan))
        self._tend_dedicated()

    def _plan(self) -> ServicePlan:
        entries = self._entries()
        self._check_views(newest_entries(entries))
        revisions: Counter[str] = Counter()
        for entry in entries:
            revisions[entry.changefeed_id] = max(revisions[entry.changefeed_id], entry.revision)
        wanted = [
            WantedFeed(
                name=("default", name),
                created_zxid=feed.zxid,
                epoch=feed.epoch,
                is_alone=feed.is_alone,
                load=self.loads.get(name, 0.0),
                revision_min=revisions[name],
            )
            for name, feed in self.feeds.items()
            if feed.runs
        ]
        services = [
            LivingService(
                service=service,
                starts_others=service in self.captures.values(),
                is_leaving=node.value.is_leaving or node.value.capture in self.leaving,
                dedicated=("default", node.value.dedicated) if node.value.dedicated else None,
            )
            for service, node in self.ensemble.below("services").items()
        ]
        current = {service: node.value for service, node in self.ensemble.below("assignments").items()}
        return plan_services(
            wanted, services, current, pins=self.pins, owner_rev=self.ensemble.value("owner-rev"),
            may_balance=self.random.random() < 0.2,
        )  # fmt: skip

    def _check_views(self, newest: Mapping[tuple[FeedName, int], FeedEntry]) -> None:
        """An owner's view of how far a changefeed is never lies."""
        for name, feed in self.feeds.items():
            status: ChangefeedStatus = self.ensemble.value(f"status/{name}")
            entry, written = newest.get((("default", name), feed.zxid)), self.law.written.get(name)
            before = self._viewed.get(name)
            if before is not None and before[0] is status and before[1] is entry and before[2] is written:
                continue  # as it was, and what is written only grows
            self._viewed[name] = status, entry, written
            if entry is not None:
                self.law.counted(entry.run, self.figures(entry).windows_proven)
            view = with_progress(status, entry)
            if view is None or written is None or written.life != view.set_epoch:
                continue
            if view.checkpoint_ts > written.done_ts:
                raise BrokenPromiseError(f"checkpoint of {name} is {view.checkpoint_ts}, above {written.done_ts}")

    def _entries(self) -> list[FeedEntry]:
        return [entry for node in self.ensemble.below("progress").values() for entry in node.value.values()]

    def newest(self) -> dict[tuple[FeedName, int], FeedEntry]:
        """Return the entry that counts of each changefeed."""
        return newest_entries(self._entries())

    def figures(self, entry: FeedEntry) -> FeedFigures:
        """Return what a reader finds counted of the run that an entry is of."""
        nodes: list[dict[RunKey, FeedFigures]] = [node.value for node in self.ensemble.below("figures").values()]
        if self.mixes_figures:
            counted = (node[run] for node in nodes for run in node if run.changefeed_id == entry.changefeed_id)
        else:
            counted = (node[entry.run] for node in nodes if entry.run in node)
        return next(counted, NOTHING_COUNTED)

    def _write(self, late: Late) -> None:
        revision = self.ensemble.version("owner-rev")
        assert revision is not None
        plan = self.spoil(late.plan)
        puts = [
            Put(f"assignments/{service}", replace(assignment, owner_rev=late.owner_rev), late.versions.get(service))
            for service, assignment in sorted(plan.write.items())
        ]
        # Each election writes the node once: its version says whose reign it is.
        if not self.ensemble.commit([Check("owner-rev", late.owner_rev - 1), *puts]):
            self.note("refused", late.owner_rev)
            return
        for name, before, after in late.plan.moved:
            self.note("move", name[1], before, after)
        assigned = {service: node.value for service, node in self.ensemble.below("assignments").items()}
        self.law.assigned({service: [feed.changefeed_id for feed in to.feeds] for service, to in assigned.items()})

    def _tend_dedicated(self) -> None:
        """Start and stop services of single changefeeds, as captures do."""
        for capture, service in list(self.captures.items()):
            assignment: Assignment = self.ensemble.value(f"assignments/{service}", Assignment())
            wanted = {dedicated_id(service, name): name[1] for name in assignment.dedicated}
            for own, name in wanted.items():
                if own not in self.processes:
                    self.start(own, capture, name)
            for own, process in list(self.processes.items()):
                if process.capture != capture or not process.dedicated:
                    continue
                if own not in wanted:
                    process.is_leaving = True
                if process.is_leaving and not process.hosted:
                    self.zookeeper.end(process.session.capture)
                    self.ensemble.end(process.process)
                    self.kill(own, again=False)
