"""A simulated service: as ``sorters/service`` does it, a step a tick, around a node of progress and one of figures."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from compose.simulation.services.ensemble import Check, Drop, Operation, Put
from compose.simulation.services.law import Cut
from compose.simulation.zookeeper import SimSession
from edges.zookeeper.session import LeaseLostError
from schemas.ids import CaptureId, Ts
from schemas.nodes.changefeed import ChangefeedStatus
from schemas.nodes.feed_figures import NOTHING_COUNTED, FeedFigures, RunKey
from schemas.nodes.sorter_service import Assigned, Assignment, FeedEntry, newest_entries

if TYPE_CHECKING:
    from compose.simulation.services.world import ServicesWorld

CUT_MAX = 6
FIGURES_TICKS = 4
"""Between two writes of figures."""


@dataclass(slots=True)
class Hosted:
    """One changefeed in the service; ``cut`` is under way up to ``at``, as number ``number``."""

    assigned: Assigned
    entry: FeedEntry | None = None
    cut: Cut | None = None
    at: int = 0
    number: int = 0
    life: int = 0
    is_ending: bool = False


class SimService:
    """One process, for one session."""

    def __init__(self, world: "ServicesWorld", service: str, process: str, capture: str, dedicated: str = "") -> None:
        self.world, self.service, self.process, self.capture = world, service, process, capture
        self.dedicated = dedicated
        self.session = SimSession(CaptureId(process), world.zookeeper, lambda: world.now)
        self.hosted: dict[str, Hosted] = {}
        self.frozen_until = 0
        self.is_registered = self.is_leaving = False
        self._version: int | None = None
        """Of the assignment as it is known here."""
        self._book: dict[str, FeedEntry] = {}
        """What is to stand in our node: also what was put there and refused, or of which nobody knows."""
        self._figures: dict[str, tuple[RunKey, FeedFigures]] = {}
        """Of the entries in it, likewise."""
        self._versions: dict[str, int | None] = {}
        """Of our nodes, as they are known here; None: there is no such node."""
        self._figured_at = -FIGURES_TICKS
        self._is_unsure = False
        """An answer was lost, so that the node's version is asked for before the next transaction."""

    def step(self) -> None:
        """Do a tick's work; raises LeaseLostError."""
        world = self.world
        self.session.renew()
        self.session.check_lease()
        if world.zookeeper.is_down:
            self._write_rows()
            return
        if not self.is_registered:
            put = Put(f"services/{self.service}", self, None, self.process)
            if not world.ensemble.commit([put]):
                return  # the session of who was here before has not ended
            self.is_registered = True
            self._book = dict(world.ensemble.value(self._node, {}))
            figures: dict[RunKey, FeedFigures] = world.ensemble.value(self._figures_node, {})
            self._figures = {run.changefeed_id: (run, counted) for run, counted in figures.items()}
            self._ask_versions()
        if world.random.random() < world.pace:
            self._read_assignment()
        for name in sorted(self.hosted):
            self._tend(name, self.hosted[name])
        self._write_rows()

    @property
    def _node(self) -> str:
        return f"progress/{self.service}"

    @property
    def _figures_node(self) -> str:
        return f"figures/{self.service}"

    def _ask_versions(self) -> None:
        self._versions = {node: self.world.ensemble.version(node) for node in (self._node, self._figures_node)}

    def _read_assignment(self) -> None:
        path = f"assignments/{self.service}"
        self._version = self.world.ensemble.version(path)
        assignment: Assignment = self.world.ensemble.value(path, Assignment())
        wanted = {feed.changefeed_id: feed for feed in assignment.feeds}
        for name, hosted in self.hosted.items():
            hosted.is_ending |= wanted.get(name) != hosted.assigned
        for name, assigned in wanted.items():
            if name not in self.hosted:
                self.hosted[name] = Hosted(assigned)

    def _tend(self, name: str, hosted: Hosted) -> None:
        world, lock = self.world, f"locks/{name}"
        mine = (node := world.ensemble.nodes.get(lock)) is not None and node.session == self.process
        if hosted.is_ending and hosted.cut is None:
            if mine:
                self._fold(name, hosted)
            del self.hosted[name]
        elif not mine:
            world.ensemble.commit([Put(lock, self.service, None, self.process)])
        elif world.feeds[name].epoch != hosted.assigned.epoch and hosted.entry is None:
            return  # its user has stopped it since
        elif hosted.entry is None:
            hosted.entry = self._taken_over(name, hosted.assigned)
            hosted.life = world.ensemble.value(f"status/{name}").set_epoch
        elif hosted.cut is None and world.random.random() < world.pace:
            self._begin(name, hosted)

    def _taken_over(self, name: str, assigned: Assigned) -> FeedEntry:
        """Read what the last holder has left."""
        world = self.world
        status: ChangefeedStatus = world.ensemble.value(f"status/{name}")
        checkpoint_ts, begun = status.checkpoint_ts, [str(world.ensemble.value(f"begun/{name}", ""))]
        entries = [entry for node in world.ensemble.below("progress").values() for entry in node.value.values()]
        last = newest_entries(entries).get((assigned.name, assigned.created_zxid))
        if last is not None and last.epoch >= status.set_epoch and not world.ignores_entry:
            checkpoint_ts = max(checkpoint_ts, last.checkpoint_ts)
            begun.insert(0, last.begun)
        # In a life before the user set the checkpoint back more may have been begun, or the same cut otherwise.
        fitting = [text for text in begun if cut_of(text)[0] <= checkpoint_ts]
        return FeedEntry(
            namespace=assigned.namespace,
            changefeed_id=name,
            created_zxid=assigned.created_zxid,
            epoch=assigned.epoch,
            revision=assigned.revision,
            checkpoint_ts=checkpoint_ts,
            resolved_ts=checkpoint_ts,
            begun=max(fitting, key=lambda text: cut_of(text)[0], default=""),
        )

    def _begin(self, name: str, hosted: Hosted) -> None:
        world, entry = self.world, hosted.entry
        assert entry is not None
        cut = cut_of(entry.begun)
        if cut[0] != entry.checkpoint_ts:
            if entry.checkpoint_ts >= world.ts:
                return
            cut = entry.checkpoint_ts, min(world.ts, entry.checkpoint_ts + world.random.randint(1, CUT_MAX))
        hosted.entry = replace(entry, begun=f"{cut[0]}:{cut[1]}")
        self._book[name] = replace(hosted.entry, figures=NOTHING_COUNTED)
        self._figures[name] = entry.run, entry.figures
        answer = self._commit()
        if answer or (answer is None and world.takes_lost_for_done) or (answer is False and world.ignores_refusal):
            hosted.cut, hosted.at = cut, cut[0]
            hosted.number = world.law.begin(name, self.process, cut, hosted.life)
        elif answer is None:
            hosted.entry = None  # its run ends, and another one reads what stands there
        else:
            self._read_assignment()
            hosted.entry = entry

    def _write_rows(self) -> None:
        """Write a row of each cut that is under way."""
        for name, hosted in self.hosted.items():
            if hosted.cut is not None:
                hosted.at += 1
                self.world.law.write(name, self.process, hosted.number, hosted.at)
                if hosted.at == hosted.cut[1]:
                    assert hosted.entry is not None
                    counted = FeedFigures(windows_proven=hosted.entry.figures.windows_proven + 1)
                    self.world.law.ended[hosted.entry.run] += 1
                    hosted.entry = replace(
                        hosted.entry, checkpoint_ts=Ts(hosted.at), resolved_ts=Ts(hosted.at), figures=counted
                    )
                    hosted.cut = None

    def _fold(self, name: str, hosted: Hosted) -> None:
        """Say all in the changefeed's own nodes, and let the lock go."""
        world, entry, path = self.world, hosted.entry, f"status/{name}"
        operations: list[Operation] = [Drop(f"locks/{name}")]
        status: ChangefeedStatus | None = world.ensemble.value(path)
        if status is not None and entry is not None and name in self._book and entry.epoch >= status.set_epoch:
            if entry.checkpoint_ts >= status.checkpoint_ts:
                said = replace(status, checkpoint_ts=entry.checkpoint_ts)
                operations.append(Put(path, said, world.ensemble.version(path)))
            operations.append(Put(f"begun/{name}", entry.begun, world.ensemble.version(f"begun/{name}")))
        world.ensemble.commit(operations)
        if entry is not None:  # what an earlier process of this service has left is for who takes the changefeed over
            self._book.pop(name, None)
            self._figures.pop(name, None)
            self._figured_at = -FIGURES_TICKS  # they go with their entry
            self._commit()

    def _commit(self) -> bool | None:
        """Write the service's nodes if it is still registered, under the assignment as it is known here; tell whether
        that is done. None: nobody knows. Figures go along where they are due.
        """
        world, ensemble = self.world, self.world.ensemble
        if self._is_unsure and not world.trusts_versions:
            self._ask_versions()
            self._is_unsure = False
        assignment = [] if self._version is None else [Check(f"assignments/{self.service}", self._version)]
        registration = ensemble.nodes.get(f"services/{self.service}")
        if registration is None or registration.session != self.process:
            raise LeaseLostError("the registration is gone", service=self.service)
        nodes: dict[str, object] = {self._node: dict(self._book)}
        if world.now >= self._figured_at + FIGURES_TICKS and not world.forgets_figures:
            nodes[self._figures_node] = dict(self._figures.values())
        puts = [Put(node, value, self._versions.get(node)) for node, value in nodes.items()]
        is_lost = world.loses_answer()
        # Lost on its way there, or on its way back.
        is_done = not (is_lost and world.random.random() < 0.5) and ensemble.commit(
            [Check(f"services/{self.service}", -1), *assignment, *puts]
        )
        if is_lost:
            world.note("answer lost", is_done)
            self._is_unsure = True
            return None
        if is_done:
            for node in nodes:
                version = self._versions.get(node)
                self._versions[node] = 0 if version is None else version + 1
            if self._figures_node in nodes:
                self._figured_at = world.now
        return is_done


def cut_of(begun: str) -> Cut:
    """Return a cut as it was written down; (-1, -1): none."""
    after, _, upto = begun.partition(":")
    return (int(after), int(upto)) if upto else (-1, -1)
