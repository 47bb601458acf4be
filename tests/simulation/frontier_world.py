"""A world in which captures land rows badly: every delay, loss and confusion DESIGN §4 allows, drawn by one Random.

The oracle is the upstream's own list of committed rows. Everything else is messages with free timing: appends and acks,
reports, news of published records, crashes of captures (whose last sends may still reach the log), moves, owners that
are replaced while their last record is on its way, tables that are created and dropped.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from random import Random

from consumers.core.frontier import advance, first_record, take_over
from producers.core.landing import LandingBook
from producers.core.landing import Sent as LandedRecord
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import Chunk, DdlReport, FrontierRecord, LandingReport, follow_frontier

FOREVER = Ts(1 << 62)


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A committed change: the upstream never has two equal ones."""

    commit_ts: Ts
    table: TableId
    key: int


@dataclass(slots=True)
class Sent:
    """A batch on its way to one partition; ``reached`` is where its sender knew that partition to end."""

    rows: tuple[Row, ...]
    may_repeat: bool
    reached: int
    offset: int | None = None


@dataclass(slots=True)
class Pulled:
    """One table on one agent: what it has received and not sent, and what is not acknowledged yet."""

    start_ts: Ts
    scan_ts: Ts
    received_ts: Ts
    waiting: list[Row] = field(default_factory=list)
    unacked: list[Row] = field(default_factory=list)

    def landed_ts(self) -> Ts:
        """Just below the first row that is not acknowledged, else all that was received."""
        behind = [row.commit_ts for row in (*self.waiting, *self.unacked)]
        return min([Ts(ts - 1) for ts in behind], default=self.received_ts)


class Agent:
    """A plain model of an agent: independent of the producers' code, which has to do the same."""

    def __init__(self, capture: CaptureId, partitions: int) -> None:
        self.capture = capture
        self.tables: dict[TableId, Pulled] = {}
        self.flights: list[deque[Sent]] = [deque() for _ in range(partitions)]
        self.ends = [0] * partitions
        self.reached = [0] * partitions
        self.repeat_ends = [0] * partitions
        self.chunks: list[Chunk] = []

    def start(self, table: TableId, start_ts: Ts, now: Ts) -> None:
        self.tables[table] = Pulled(start_ts=start_ts, scan_ts=now, received_ts=start_ts)

    def stop(self, table: TableId) -> None:
        self.tables.pop(table, None)

    def receive(self, table: TableId, rows: list[Row], now: Ts) -> None:
        pulled = self.tables[table]
        pulled.waiting += [row for row in rows if row.table == table and pulled.received_ts < row.commit_ts <= now]
        pulled.received_ts = max(pulled.received_ts, now)

    def rescan(self, table: TableId, rows: list[Row], now: Ts) -> None:
        """A region error: everything above landed_ts comes again."""
        pulled = self.tables[table]
        again = [row for row in rows if row.table == table and pulled.landed_ts() < row.commit_ts <= now]
        pulled.waiting += again
        pulled.scan_ts, pulled.received_ts = now, max(pulled.received_ts, now)

    def send(self, random: Random, table: TableId) -> None:
        pulled = self.tables[table]
        if not pulled.waiting:
            return
        random.shuffle(pulled.waiting)
        count = random.randint(1, min(3, len(pulled.waiting)))
        rows, pulled.waiting = pulled.waiting[:count], pulled.waiting[count:]
        pulled.unacked += rows
        partition = random.randrange(len(self.ends))
        may_repeat = any(row.commit_ts <= pulled.scan_ts for row in rows)
        self.flights[partition].append(Sent(tuple(rows), may_repeat, self.reached[partition]))

    def acknowledge(self, partition: int) -> None:
        flight = self.flights[partition]
        offset = flight[0].offset if flight else None
        if offset is None:
            return
        sent = flight.popleft()
        self.ends[partition] = offset + 1
        self.reached[partition] = max(self.reached[partition], offset + 1)
        if sent.may_repeat:
            self.repeat_ends[partition] = offset + 1
        self.chunks.append(Chunk(partition, offset, max(row.commit_ts for row in sent.rows)))
        for row in sent.rows:
            pulled = self.tables.get(row.table)
            if pulled and row in pulled.unacked:
                pulled.unacked.remove(row)

    def hear(self, record: FrontierRecord) -> None:
        self.reached = [max(pair) for pair in zip(self.reached, record.high, strict=True)]
        self.chunks = [chunk for chunk in self.chunks if chunk.max_commit_ts > record.resolved_ts]

    def report(self) -> LandingReport:
        return LandingReport(
            capture=self.capture,
            landed_ts={table: pulled.landed_ts() for table, pulled in self.tables.items()},
            ends=tuple(self.ends),
            chunks=tuple(self.chunks),
            floors=tuple(
                flight[0].reached if flight else reached
                for flight, reached in zip(self.flights, self.reached, strict=True)
            ),
            repeat_ends=tuple(self.repeat_ends),
        )


class BookAgent(Agent):
    """The same agent on the producers' own landing book, which the product uses."""

    def __init__(self, capture: CaptureId, partitions: int) -> None:
        super().__init__(capture, partitions)
        self.book = LandingBook(capture, partitions)
        self.records: dict[int, LandedRecord] = {}

    def start(self, table: TableId, start_ts: Ts, now: Ts) -> None:
        super().start(table, start_ts, now)
        self.book.assign(table, start_ts)

    def stop(self, table: TableId) -> None:
        super().stop(table)
        self.book.remove([table])

    def receive(self, table: TableId, rows: list[Row], now: Ts) -> None:
        super().receive(table, rows, now)
        self.resolve(table)

    def send(self, random: Random, table: TableId) -> None:
        before = [len(flight) for flight in self.flights]
        super().send(random, table)
        for partition, flight in enumerate(self.flights):
            for sent in list(flight)[before[partition] :]:
                newest = max(row.commit_ts for row in sent.rows)
                record = self.book.sent(table, partition, newest, may_repeat=sent.may_repeat)
                self.records[id(sent)] = record
        self.resolve(table)

    def resolve(self, table: TableId) -> None:
        pulled = self.tables[table]
        oldest = min((row.commit_ts for row in pulled.waiting), default=Ts(pulled.received_ts + 1))
        self.book.resolved(table, Ts(oldest - 1))

    def acknowledge(self, partition: int) -> None:
        flight = self.flights[partition]
        sent = flight[0] if flight else None
        super().acknowledge(partition)
        if sent is not None and sent.offset is not None:
            self.book.acked(self.records.pop(id(sent)), sent.offset)

    def hear(self, record: FrontierRecord) -> None:
        super().hear(record)
        self.book.published(record)

    def report(self) -> LandingReport:
        return self.book.report()


class World:
    """The upstream, the log, the agents and the owner; :meth:`step` lets one thing happen."""

    def __init__(
        self, random: Random, *, partitions: int = 2, agents: int = 3, floors: bool = True, kind: type[Agent] = Agent
    ) -> None:
        self.random, self.partitions, self.floors, self.kind = random, partitions, floors, kind
        self.now = Ts(10)
        self.rows: list[Row] = []
        self.alive: dict[TableId, tuple[Ts, Ts]] = {}
        self.log: list[list[Sent]] = [[] for _ in range(partitions)]
        self.topic = [first_record(1, self.now, partitions)]
        self.revision = 1
        self.place = self.topic[0]
        self.ddl = DdlReport(landed_ts=self.now, end=0)
        self.assigned: dict[TableId, CaptureId] = {}
        self.agents: dict[CaptureId, Agent] = {}
        self.zombies: list[Agent] = []
        self.sent_reports: list[LandingReport] = []
        self.reports: dict[CaptureId, LandingReport] = {}
        self.late_record: FrontierRecord | None = None
        for _ in range(agents):
            self.join()
        for _ in range(3):
            self.create_table()
        self.read_ddl()

    # -- the upstream

    def commit(self) -> None:
        self.now = Ts(self.now + self.random.randint(1, 3))
        living = [table for table, (_, end) in self.alive.items() if end == FOREVER]
        for table in self.random.sample(living, min(len(living), self.random.randint(1, 2))):
            for _ in range(self.random.randint(1, 2)):
                self.rows.append(Row(self.now, table, len(self.rows)))

    def create_table(self) -> None:
        self.now = Ts(self.now + 1)
        self.alive[TableId(100 + len(self.alive))] = (self.now, FOREVER)

    def drop_table(self) -> None:
        living = [table for table, (_, end) in self.alive.items() if end == FOREVER]
        if len(living) > 1:
            self.now = Ts(self.now + 1)
            table = self.random.choice(living)
            self.alive[table] = (self.alive[table][0], self.now)

    # -- agents and the broker

    def join(self) -> None:
        capture = CaptureId(f"c{len(self.agents) + len(self.zombies)}")
        self.agents[capture] = self.kind(capture, self.partitions)

    def anyone(self) -> Agent:
        zombies = [agent for agent in self.zombies if agent.tables or any(agent.flights)]
        pool = zombies if zombies and self.random.random() < 0.2 else list(self.agents.values())
        return self.random.choice(pool)

    def pull(self) -> None:
        for agent in (self.anyone(), self.anyone()):
            for table in list(agent.tables):
                if self.random.random() < 0.8:
                    agent.receive(table, self.rows, self.now)

    def rescan(self) -> None:
        agent = self.anyone()
        if agent.tables:
            agent.rescan(self.random.choice(list(agent.tables)), self.rows, self.now)

    def send(self) -> None:
        agent = self.anyone()
        waiting = [table for table, pulled in agent.tables.items() if pulled.waiting]
        if waiting:
            agent.send(self.random, self.random.choice(waiting))

    def append(self) -> None:
        partition = self.random.randrange(self.partitions)
        agent = self.anyone()
        for sent in [sent for sent in agent.flights[partition] if sent.offset is None][: self.random.randint(1, 3)]:
            sent.offset = len(self.log[partition])
            self.log[partition].append(sent)

    def acknowledge(self) -> None:
        agent, partition = self.anyone(), self.random.randrange(self.partitions)
        for _ in range(self.random.randint(1, 3)):
            agent.acknowledge(partition)

    def hear(self) -> None:
        self.anyone().hear(self.random.choice(self.places()))

    def send_report(self) -> None:
        self.sent_reports.append(self.anyone().report())

    # -- the owner

    def deliver_report(self) -> None:
        """Any report ever sent, however old, reordered or from a capture that is gone: the last two are ignored."""
        if self.sent_reports:
            report = self.random.choice(self.sent_reports[-12:])
            if report.capture in self.agents:
                self.reports[report.capture] = report

    def read_ddl(self) -> None:
        self.ddl = DdlReport(landed_ts=self.now, end=len(self.alive))
        for table, (created_ts, _) in self.alive.items():
            if table not in self.assigned and created_ts > self.place.resolved_ts:
                self.assign(table, created_ts)

    def assign(self, table: TableId, not_before: Ts) -> None:
        agent = self.random.choice(list(self.agents.values()))
        self.assigned[table] = agent.capture
        agent.start(table, max(self.place.resolved_ts, not_before), self.now)

    def move(self) -> None:
        if self.assigned:
            table = self.random.choice(list(self.assigned))
            self.agents[self.assigned[table]].stop(table)
            self.assign(table, self.alive[table][0])

    def crash(self) -> None:
        """The owner takes a capture for dead: it may be so, or it goes on for a while, unheard."""
        capture = self.random.choice(list(self.agents))
        agent = self.agents.pop(capture)
        self.reports.pop(capture, None)
        self.zombies.append(agent)
        if self.random.random() < 0.5:
            agent.tables.clear()
        if self.random.random() < 0.5:
            for flight in agent.flights:
                flight.clear()
        self.join()
        for table, holder in list(self.assigned.items()):
            if holder == capture:
                self.assign(table, self.alive[table][0])

    def next_record(self) -> FrontierRecord:
        reports = self.reports
        if not self.floors:
            ends = tuple(len(partition) for partition in self.log)
            reports = {capture: replace(report, floors=ends) for capture, report in reports.items()}
        for table, (_, dropped_ts) in self.alive.items():
            if dropped_ts <= self.place.resolved_ts and table in self.assigned:
                self.agents[self.assigned.pop(table)].stop(table)
        return advance(self.place, reports, self.ddl, self.assigned, repeats_possible=bool(self.zombies))

    def publish(self) -> None:
        self.place = self.next_record()
        self.topic.append(self.place)

    def replace_owner(self) -> None:
        """Its predecessor's last record may come before or after its own first, or be lost."""
        late = self.next_record()
        first = take_over(self.place, self.revision + 1)
        self.revision += 1
        self.topic += self.random.choice([[first], [late, first], [first, late]])
        self.place = self.places()[-1]
        self.reports = {}

    def places(self) -> list[FrontierRecord]:
        """Where a reader of the topic stands after each record."""
        return list(accumulate(self.topic, follow_frontier))

    def step(self) -> None:
        actions = {
            self.commit: 6, self.pull: 10, self.send: 20, self.append: 16, self.acknowledge: 16, self.hear: 4,
            self.send_report: 9, self.deliver_report: 9, self.publish: 8, self.read_ddl: 4, self.move: 0.6,
            self.crash: 0.6, self.rescan: 1, self.replace_owner: 0.4, self.create_table: 0.8, self.drop_table: 0.4,
        }  # fmt: skip
        self.random.choices(list(actions), list(actions.values()))[0]()

    def settle(self) -> None:
        """Let everything that is on its way arrive, so that R can reach now."""
        self.read_ddl()
        for _ in range(2):
            for agent in self.agents.values():
                for table in list(agent.tables):
                    agent.receive(table, self.rows, self.now)
                    while agent.tables[table].waiting:
                        agent.send(self.random, table)
                for partition, flight in enumerate(agent.flights):
                    for sent in flight:
                        if sent.offset is None:
                            sent.offset = len(self.log[partition])
                            self.log[partition].append(sent)
                    while flight:
                        agent.acknowledge(partition)
                self.reports[agent.capture] = agent.report()
            self.publish()


def broken_law(world: World) -> str | None:
    """Return the first pair of published places whose cut is not the upstream's changes, or None."""
    places = world.places()
    for j, second in enumerate(places):
        for first in places[:j]:
            wanted = {row for row in world.rows if first.resolved_ts < row.commit_ts <= second.resolved_ts}
            cut = [
                row
                for partition, (low, high) in enumerate(zip(first.low, second.high, strict=True))
                for sent in world.log[partition][low:high]
                for row in sent.rows
                if first.resolved_ts < row.commit_ts <= second.resolved_ts
            ]
            if set(cut) != wanted:
                return f"{first} .. {second}: lost {wanted - set(cut)}, invented {set(cut) - wanted}"
            no_repeats = all(low >= high for low, high in zip(first.low, second.repeat_high, strict=True))
            if no_repeats and len(cut) != len(wanted):
                return f"{first} .. {second}: repeats above repeat_high"
    return None


def went_back(world: World) -> str | None:
    """Return the first place that is behind its predecessor in any of its values, or None."""
    places = world.places()
    for before, after in pairwise(places):
        pairs = [
            (before.owner_rev, after.owner_rev), (before.resolved_ts, after.resolved_ts),
            (before.ddl_high, after.ddl_high), *zip(before.high, after.high, strict=True),
            *zip(before.low, after.low, strict=True), *zip(before.repeat_high, after.repeat_high, strict=True),
            *zip(after.low, after.high, strict=True),
        ]  # fmt: skip
        if any(one > other for one, other in pairs):
            return f"{before} -> {after}"
    return None
