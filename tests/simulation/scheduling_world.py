"""A small cluster under one seed: captures, elections, sessions, a bad network, and whatever an operator may do.

Sessions: a capture that is dead or paused stays registered for a while; when its registration goes, its local lease has
run out before, so it writes nothing any more. A paused owner that wakes up after that still commands for some ticks, by
what it knew, before it notices. Registration and the reading of the owner revision are two steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from consumers.control.core.replication.messages import (
    AddTableRequest,
    Barrier,
    Heartbeat,
    Liveness,
    Message,
    RemoveTableRequest,
    TableState,
)
from consumers.control.core.replication.replication_set import SetState
from consumers.control.core.scheduling.agent import Agent
from consumers.control.core.scheduling.coordinator import Coordinator, Identity, Limits, NotInitializedError
from consumers.control.core.scheduling.schedulers.drain_capture import DrainRefusedError
from schemas.ids import CaptureId, TableId, Ts
from schemas.tidb.spans import TableSpan
from tests.simulation.scheduling_executor import EDGES, BrokenPromiseError, SlowExecutor, Truth, cells

VERSION = "0.1.0"
CAPTURES_MAX = 5
TABLES_MAX = 8
LIMITS = Limits(max_task_concurrency=4, add_table_batch_size=5, check_balance_interval_ticks=20, heartbeat_spans_max=3)


@dataclass(slots=True)
class Process:
    """One capture process. ``agent`` is None until it has read the owner revision."""

    capture: CaptureId
    executor: SlowExecutor
    agent: Agent | None = None
    coordinator: Coordinator | None = None
    inbound: list[Message] = field(default_factory=list)
    paused: bool = False
    leaves_at: int | None = None
    """When the session of a paused or dead process ends."""
    zombie_ticks: int = 0
    """How long a replaced owner goes on commanding."""
    sequence: int = 0
    seen_alive: frozenset[CaptureId] = frozenset()
    seen_tables: Mapping[TableId, Sequence[TableSpan]] = field(default_factory=dict)
    seen_ts: int = 0
    """Up to which the DDL feed was read: the barrier."""


class World:
    """``processes`` are running or paused; ``registered`` is what ZooKeeper says."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.truth = Truth()
        self.now = 100
        self.tables: Mapping[TableId, Sequence[TableSpan]] = {}
        self.processes: dict[CaptureId, Process] = {}
        self.zombies: list[Process] = []
        self.registered: set[CaptureId] = set()
        self.expiries: dict[CaptureId, int] = {}
        self.owner: CaptureId | None = None
        self.revision = 0
        self.checkpoint_ts = 100
        self.wire: list[tuple[int, Message]] = []
        self.births = 0
        self.events: list[str] = []
        self.counts: dict[str, int] = {}
        self.delay = random.choice((0, 1, 3, 12))
        self.detours = random.choice((0.0, 0.02, 0.2))
        self.loss = random.choice((0.0, 0.05, 0.3))
        self.repeats = random.choice((0.0, 0.1, 0.3))
        self.pace = random.choice((0.1, 0.3, 0.8))
        self.trouble = random.choice((0.02, 0.08, 0.2))
        self.ambushes = random.choice((0.0, 0.3))
        for _ in range(random.randint(1, 3)):
            self.start()
        for _ in range(random.randint(1, TABLES_MAX)):
            self.create_table()

    # What happens to the cluster.

    def note(self, what: str) -> None:
        kind = what.split()[0]
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.events.append(f"{self.now}: {what}")

    def start(self) -> None:
        self.births += 1
        capture = CaptureId(f"c{self.births}")
        self.processes[capture] = Process(capture, SlowExecutor(capture, self.truth, self.random))
        self.registered.add(capture)
        self.note(f"start {capture}")

    def crash(self, process: Process) -> None:
        del self.processes[process.capture]
        self.truth.fence(process.capture)
        self.expiries[process.capture] = process.leaves_at or self.now + self.random.randint(0, 15)
        self.note(f"crash {process.capture}")

    def leave(self, process: Process) -> None:
        """A capture that has handed over everything goes."""
        self.crash(process)
        self.expiries[process.capture] = self.now

    def pause(self, process: Process) -> None:
        process.paused, process.leaves_at = True, self.now + self.random.randint(3, 15)
        self.note(f"pause {process.capture}")

    def resume(self, process: Process) -> None:
        """Its lease holds, or is over: then it stops writing before anything else."""
        process.paused, process.leaves_at = False, None
        if process.capture not in self.registered:
            self.processes.pop(process.capture)
            if process.coordinator is not None:
                process.zombie_ticks = self.random.randint(1, 10)
                self.zombies.append(process)
            self.start()
        self.note(f"resume {process.capture}")

    def create_table(self) -> None:
        table = TableId(self.random.randint(1, TABLES_MAX))
        if table in self.tables:
            return
        cuts = sorted(self.random.sample(EDGES[1:-1], self.random.choice((0, 0, 0, 1, 2))))
        edges = [EDGES[0], *cuts, EDGES[-1]]
        spans = tuple(TableSpan(table, start, end) for start, end in pairwise(edges))
        self.tables = {**self.tables, table: spans}
        for cell in (cell for span in spans for cell in cells(span)):
            # A table has no rows before the DDL that made it.
            self.truth.delivered[cell] = max(self.truth.delivered.get(cell, 0), self.now)
        self.truth.wanted.add(table)
        self.note(f"create {table} {len(spans)}")

    def drop_table(self) -> None:
        if self.tables:
            table = self.random.choice(sorted(self.tables))
            self.tables = {other: spans for other, spans in self.tables.items() if other != table}
            self.truth.wanted.remove(table)
            self.note(f"drop {table}")

    def resign(self, process: Process) -> None:
        if process.coordinator is not None and not process.paused:
            process.sequence = process.coordinator.sequence
            process.coordinator = self.owner = None
            self.note(f"resign {process.capture}")

    def operate(self) -> None:
        """An operator gives the owner an order."""
        process = self.processes.get(self.owner) if self.owner else None
        if process is None or process.coordinator is None or process.paused:
            return
        coordinator = process.coordinator
        capture = self.random.choice(sorted(self.registered))
        order = self.random.choice(("drain", "move", "move", "move", "rebalance"))
        try:
            if order == "drain":
                coordinator.drain(capture)
            elif order == "rebalance":
                coordinator.rebalance()
            elif coordinator.replications.sets:
                coordinator.move(self.random.choice(sorted(coordinator.replications.sets)), capture)
        except (NotInitializedError, DrainRefusedError):
            order = "refused"
        self.note(f"{order} {capture}")

    def ambush(self) -> None:
        """The capture that a span moves to dies while the old one is being told to stop."""
        process = self.processes.get(self.owner) if self.owner else None
        if process is None or process.coordinator is None or process.paused:
            return
        sets = process.coordinator.replications.sets.values()
        for replication in sets:
            if replication.state is SetState.COMMIT and replication.primary and replication.secondary in self.processes:
                target = self.processes[replication.secondary]
                if target is not process:
                    self.crash(target)
                    self.expiries[target.capture] = self.now
                    self.note(f"ambush {target.capture}")
                return

    def disturb(self) -> None:
        process = self.random.choice(list(self.processes.values())) if self.processes else None
        what = self.random.choice(
            (
                "crash",
                "start",
                "start",
                "pause",
                "resume",
                "resume",
                "create",
                "drop",
                "resign",
                "stop",
                "operate",
                "operate",
            )
        )
        if what == "start" or process is None:
            if len(self.processes) < CAPTURES_MAX:
                self.start()
        elif what == "crash":
            self.crash(process)
        elif what == "pause" and not process.paused:
            self.pause(process)
        elif what == "resume" and process.paused:
            self.resume(process)
        elif what == "create":
            self.create_table()
        elif what == "drop":
            self.drop_table()
        elif what == "resign":
            self.resign(process)
        elif what == "stop" and process.agent is not None and self.random.random() < 0.3:
            process.agent.stop()
            self.note(f"stop {process.capture}")
        elif what == "operate":
            self.operate()

    # One tick.

    def tick(self, *, faults: bool) -> None:
        self.now += 1
        if faults and self.random.random() < self.trouble:
            self.disturb()
        if faults and self.random.random() < self.ambushes:
            self.ambush()
        self._expire()
        self._elect()
        self._deliver()
        for process in list(self.processes.values()):
            if not process.paused:
                self._run(process)
        for zombie in list(self.zombies):
            self._command(zombie)
            zombie.zombie_ticks -= 1
            if not zombie.zombie_ticks:
                self.zombies.remove(zombie)

    def _expire(self) -> None:
        for process in self.processes.values():
            if process.leaves_at is not None and process.leaves_at <= self.now and process.capture in self.registered:
                self._end_session(process.capture)
        for capture in [capture for capture, at in self.expiries.items() if at <= self.now]:
            del self.expiries[capture]
            self._end_session(capture)

    def _end_session(self, capture: CaptureId) -> None:
        self.registered.discard(capture)
        self.truth.fence(capture)
        if capture == self.owner:
            self.owner = None
        self.note(f"expire {capture}")

    def _elect(self) -> None:
        able = [
            process
            for capture, process in self.processes.items()
            if capture in self.registered and process.agent is not None and process.agent.liveness is Liveness.ALIVE
        ]
        if self.owner is None and able and self.random.random() < 0.5:
            process = self.random.choice(able)
            self.revision += 1
            self.owner = process.capture
            me = Identity(capture=process.capture, version=VERSION, owner_revision=self.revision, changefeed_epoch=1)
            process.coordinator = Coordinator(me, Ts(self.checkpoint_ts), LIMITS, process.sequence)
            process.seen_alive, process.seen_tables = frozenset(self.registered), self.tables
            process.seen_ts = self.now
            self.note(f"elect {process.capture}")

    def _deliver(self) -> None:
        due = [message for at, message in self.wire if at <= self.now]
        self.wire = [(at, message) for at, message in self.wire if at > self.now]
        everybody = {**{zombie.capture: zombie for zombie in self.zombies}, **self.processes}
        for message in due:
            if message.receiver in everybody:
                everybody[message.receiver].inbound.append(message)

    def _run(self, process: Process) -> None:
        if process.agent is None:
            if self.random.random() < 0.3:
                process.agent = Agent(
                    process.capture, VERSION, f"epoch-{process.capture}", 1, process.executor, self.revision
                )
            return
        process.executor.work(self.now, self.pace)
        requests = [
            message
            for message in process.inbound
            if isinstance(message.body, AddTableRequest | RemoveTableRequest | Heartbeat)
        ]
        self._send(process.agent.tick(requests))
        self._command(process)
        process.inbound.clear()
        if process.agent.liveness is Liveness.STOPPING:
            self.resign(process)
            if not process.executor.runs and len(self.processes) > 1 and self.random.random() < 0.05:
                self.leave(process)

    def _command(self, process: Process) -> None:
        coordinator = process.coordinator
        if coordinator is None:
            return
        if process.zombie_ticks == 0 and self.random.random() < 0.7:  # else its watch is late
            process.seen_alive, process.seen_tables = frozenset(self.registered), self.tables
            process.seen_ts = self.now
        sent = coordinator.tick(
            list(process.inbound),
            alive=process.seen_alive,
            tables=process.seen_tables,
            barrier=Barrier(Ts(process.seen_ts)),
            salt=self.random.getrandbits(64),
        )
        process.inbound.clear()
        if coordinator.me.owner_revision == self.revision and self.owner == process.capture:
            self._persist(coordinator)
        self._send(sent)

    def _persist(self, coordinator: Coordinator) -> None:
        """Write the checkpoint as only the owner of this revision can."""
        checkpoint_ts = coordinator.checkpoint.checkpoint_ts
        if checkpoint_ts == 0:
            return
        if checkpoint_ts < self.checkpoint_ts:
            raise BrokenPromiseError(f"checkpoint goes back from {self.checkpoint_ts} to {checkpoint_ts}")
        for table in self.tables:
            for edge in EDGES[:-1]:
                if checkpoint_ts > self.truth.delivered[table, edge]:
                    raise BrokenPromiseError(f"checkpoint {checkpoint_ts} passes {table}/{edge!r}")
        self.checkpoint_ts = checkpoint_ts

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            copies = 0 if self.random.random() < self.loss else 2 if self.random.random() < self.repeats else 1
            for _ in range(copies):
                detour = self.random.randint(0, self.delay) if self.random.random() < self.detours else 0
                self.wire.append((self.now + self.delay + detour, message))

    # The end.

    def heal(self) -> None:
        """No more faults: everything runs, and the network is good."""
        self.delay, self.detours, self.loss, self.repeats, self.pace = 1, 0.0, 0.0, 0.0, 0.5
        for process in list(self.processes.values()):
            if process.paused:
                self.resume(process)
        self.start()
        self.note("heal")

    def unsettled(self) -> str | None:
        """Return what is not yet as it must be in the end, or None."""
        runs = [
            (process.capture, span, run)
            for process in self.processes.values()
            for span, run in process.executor.runs.items()
        ]
        for capture, span, run in runs:
            if span.table_id not in self.tables:
                return f"{capture} has {span} of a dropped table"
            if run.state is not TableState.REPLICATING:
                return f"{capture} has {span} in state {run.state.name}"
        held = [cell for _, span, _ in runs for cell in cells(span)]
        wanted = [(table, edge) for table in self.tables for edge in EDGES[:-1]]
        if sorted(held) != sorted(wanted):
            return f"cells that run are {sorted(held)}"
        leaving = {process.capture for process in self.processes.values() if process.agent and process.agent.liveness}
        if leaving & {capture for capture, _, _ in runs}:
            return f"{leaving} have spans"
        return None
