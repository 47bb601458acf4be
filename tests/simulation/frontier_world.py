"""A world in which captures land rows badly: every delay, loss and confusion that the law allows, drawn by one Random.

The oracle is the upstream's own list of committed rows. Everything else is messages with free timing: appends and acks,
reports, news of published records, crashes of captures (whose last sends may still reach the log), moves, tables that
are split into other spans, owners that are replaced while their last record is on its way, tables that are created and
dropped, some by DDL jobs that the owner cannot read until a newer one takes over; tables that stall
for a while.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random

from consumers.control.core.frontier.frontier import FrontierInputs, advance, first_record, take_over
from consumers.control.core.frontier.held_tables import NEVER_HELD, Holding, pulled_from
from schemas.ddl.job import JobScope
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport, follow_frontier
from schemas.tidb.spans import TableSpan
from sorters.core.cut.cut import ChangefeedFrontier, frontier_for
from tests.simulation.frontier_agents import KEY_INDEXES, Agent, Row, Sent, key_at

FOREVER = Ts(1 << 62)


class World:
    """The upstream, the log, the agents and the owner; :meth:`step` lets one thing happen."""

    def __init__(
        self,
        random: Random,
        *,
        partitions: int = 2,
        agents: int = 3,
        floors: bool = True,
        kind: type[Agent] = Agent,
        held_lag: int = NEVER_HELD,
    ) -> None:
        self.random, self.partitions, self.floors, self.kind = random, partitions, floors, kind
        self.holding = Holding(held_lag)
        self.stalled: set[TableId] = set()
        """Tables of which nothing comes from the upstream."""
        self.now = Ts(10)
        self.rows: list[Row] = []
        self.alive: dict[TableId, tuple[Ts, Ts]] = {}
        self.unread: set[TableId] = set()
        """Tables whose creation the present owner cannot read."""
        self.ever_unread: set[TableId] = set()
        self.log: list[list[Sent]] = [[] for _ in range(partitions)]
        self.topic = [first_record(1, self.now, partitions)]
        self.revision = 1
        self.published = self.topic[0]
        self.ddl = DdlReport(landed_ts=self.now, end=0)
        self.assigned: dict[TableSpan, CaptureId] = {}
        self.spans: dict[TableId, tuple[TableSpan, ...]] = {}
        """Of each table that is assigned."""
        self.splits = 0
        self.agents: dict[CaptureId, Agent] = {}
        self.zombies: list[Agent] = []
        self.sent_reports: list[LandingReport] = []
        self.reports: dict[CaptureId, LandingReport] = {}
        self.late_record: FrontierRecord | None = None
        for _ in range(agents):
            self.join()
        for _ in range(3):
            self.create_table()
        self.unread.clear()
        self.ever_unread.clear()
        self.read_ddl()

    # -- the upstream

    def commit(self) -> None:
        self.now = Ts(self.now + self.random.randint(1, 3))
        living = [table for table, (_, end) in self.alive.items() if end == FOREVER]
        for table in self.random.sample(living, min(len(living), self.random.randint(1, 2))):
            for _ in range(self.random.randint(1, 2)):
                self.rows.append(Row(self.now, table, len(self.rows), self.random.randrange(KEY_INDEXES)))

    def create_table(self) -> None:
        self.now = Ts(self.now + 1)
        table = TableId(100 + len(self.alive))
        self.alive[table] = (self.now, FOREVER)
        if self.random.random() < 0.4:
            self.unread.add(table)
            self.ever_unread.add(table)

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
        zombies = [agent for agent in self.zombies if agent.spans or any(agent.flights)]
        pool = zombies if zombies and self.random.random() < 0.2 else list(self.agents.values())
        return self.random.choice(pool)

    def pull(self) -> None:
        for agent in (self.anyone(), self.anyone()):
            for span in list(agent.spans):
                if self.random.random() < 0.8 and span.table_id not in self.stalled:
                    agent.receive(span, self.rows, self.now)

    def rescan(self) -> None:
        agent = self.anyone()
        spans = [span for span in agent.spans if span.table_id not in self.stalled]
        if spans:
            agent.rescan(self.random.choice(spans), self.rows, self.now)

    def stall(self) -> None:
        """A table stops, with others at times; or one goes on."""
        if self.stalled and self.random.random() < 0.5:
            self.stalled.remove(self.random.choice(sorted(self.stalled)))
        else:
            self.stalled.update(self.random.sample(sorted(self.alive), self.random.randint(1, min(2, len(self.alive)))))

    def send(self) -> None:
        agent = self.anyone()
        waiting = [span for span, pulled in agent.spans.items() if pulled.waiting]
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
            if table not in self.spans.keys() | self.unread and created_ts > self.published.resolved_ts:
                self.split(table, created_ts)

    def split(self, table: TableId, not_before: Ts) -> None:
        """Pull a table by other spans than before, or for the first time; often whole."""
        for span in self.spans.get(table, ()):
            self.agents[self.assigned.pop(span)].stop(span)
        whole, most = TableSpan.of_table(table), self.random.choice([0, 1, 3])
        cuts = [key_at(table, at) for at in sorted(self.random.sample(range(1, KEY_INDEXES), most))]
        bounds = list(pairwise([whole.start, *cuts, whole.end]))
        self.spans[table] = tuple(TableSpan(table, start, end) for start, end in bounds)
        for span in self.spans[table]:
            self.assign(span, not_before)

    def split_anew(self) -> None:
        if self.spans:
            table = self.random.choice(list(self.spans))
            before = self.spans[table]
            self.split(table, self.alive[table][0])
            self.splits += before != self.spans[table]

    def assign(self, span: TableSpan, not_before: Ts) -> None:
        agent = self.random.choice(list(self.agents.values()))
        self.assigned[span] = agent.capture
        agent.start(span, pulled_from(self.published, span.table_id, not_before), self.now)

    def move(self) -> None:
        if self.assigned:
            span = self.random.choice(list(self.assigned))
            self.agents[self.assigned[span]].stop(span)
            self.assign(span, self.alive[span.table_id][0])

    def crash(self) -> None:
        """The owner takes a capture for dead: it may be so, or it goes on for a while, unheard."""
        capture = self.random.choice(list(self.agents))
        agent = self.agents.pop(capture)
        self.reports.pop(capture, None)
        self.zombies.append(agent)
        if self.random.random() < 0.5:
            agent.spans.clear()
        if self.random.random() < 0.5:
            for flight in agent.flights:
                flight.clear()
        self.join()
        for span, holder in list(self.assigned.items()):
            if holder == capture:
                self.assign(span, self.alive[span.table_id][0])

    def next_record(self) -> FrontierRecord:
        reports = self.reports
        if not self.floors:
            ends = tuple(len(partition) for partition in self.log)
            reports = {capture: replace(report, floors=ends) for capture, report in reports.items()}
        for table, (_, dropped_ts) in self.alive.items():
            stops = [job.ts for job in self.published.held_ddl]
            stops += [held.ts for held in self.published.held if table in held.tables]
            if dropped_ts <= min([self.published.resolved_ts, *stops]) and table in self.spans:
                for span in self.spans.pop(table):
                    self.agents[self.assigned.pop(span)].stop(span)
        created = sorted(self.alive[table][0] for table in self.unread)
        return advance(
            self.published,
            FrontierInputs(
                reports,
                self.ddl,
                self.assigned,
                landing=set(self.assigned.values()),
                repeats_possible=bool(self.zombies or self.published.held_ddl),
                bad_ddl=[JobScope(ts=ts, start_ts=Ts(ts - 1)) for ts in created if ts <= self.ddl.landed_ts],
            ),
            holding=self.holding,
        )

    def publish(self) -> None:
        self.published = self.next_record()
        self.topic.append(self.published)
        self.holding = self.holding.after(self.published)

    def replace_owner(self, *, reads_all: bool = False) -> None:
        """Its predecessor's last record may come before or after its own first, or be lost; it may read more jobs."""
        late = self.next_record()
        first = take_over(self.published, self.revision + 1)
        self.revision += 1
        self.topic += self.random.choice([[first], [late, first], [first, late]])
        self.published = self.places()[-1]
        self.reports = {}
        self.holding = Holding(self.holding.lag).after(self.published)
        if reads_all or self.random.random() < 0.5:
            read, self.unread = self.unread, set()
            for table in sorted(read):
                # Of a later job the owner does not know yet.
                if self.alive[table][0] <= self.ddl.landed_ts:
                    self.split(table, self.alive[table][0])

    def places(self) -> list[FrontierRecord]:
        """Where a reader of the topic stands after each record."""
        return list(accumulate(self.topic, follow_frontier))

    def step(self) -> None:
        actions = {
            self.commit: 6, self.pull: 10, self.send: 20, self.append: 16, self.acknowledge: 16, self.hear: 4,
            self.send_report: 9, self.deliver_report: 9, self.publish: 8, self.read_ddl: 4, self.move: 0.6,
            self.crash: 0.6, self.split_anew: 0.6, self.rescan: 1, self.replace_owner: 0.4, self.create_table: 0.8,
            self.drop_table: 0.4, self.stall: 0.8 if self.holding.lag < NEVER_HELD else 0,
        }  # fmt: skip
        self.random.choices(list(actions), list(actions.values()))[0]()

    def settle(self) -> None:
        """Let everything that is on its way arrive, so that R can reach now; of tables that are not stalled."""
        self.read_ddl()
        for _ in range(2):
            for agent in self.agents.values():
                for span in list(agent.spans):
                    if span.table_id not in self.stalled:
                        agent.receive(span, self.rows, self.now)
                    while agent.spans[span].waiting:
                        agent.send(self.random, span)
                for partition, flight in enumerate(agent.flights):
                    for sent in flight:
                        if sent.offset is None:
                            sent.offset = len(self.log[partition])
                            self.log[partition].append(sent)
                    while flight:
                        agent.acknowledge(partition)
                self.reports[agent.capture] = agent.report()
            self.publish()


Contains = Callable[[TableId], bool]


def of_all(_: TableId) -> bool:
    return True


def of_even(table: TableId) -> bool:
    return table % 2 == 0


def of_odd(table: TableId) -> bool:
    return table % 2 == 1


def broken_law(world: World, view: Callable[[FrontierRecord], FrontierRecord] = lambda record: record) -> str | None:
    """Return the first pair of published places whose cut is not the upstream's changes, or None.

    For a changefeed of all tables, which stands at a job that nobody could read, and for some that need no such table:
    of all others, and of half of them each. ``view`` is what a sorter makes of a record.
    """
    places = [view(record) for record in world.places()]
    broken = _broken_law(world, _stands(places, of_all, lambda _: True), world.rows)
    for contains in (of_all, of_even, of_odd):
        rows = [row for row in world.rows if row.table not in world.ever_unread and contains(row.table)]
        broken = broken or _broken_law(world, _stands(places, contains, lambda _: False), rows)
    return broken


def _broken_law(world: World, places: list[ChangefeedFrontier], rows: list[Row]) -> str | None:
    tables = {row.table for row in rows}
    moves = [first for first, second in pairwise(places) if first != second] + places[-1:]
    for j, second in enumerate(moves):
        for first in moves[:j]:
            wanted = {row for row in rows if first.resolved_ts < row.commit_ts <= second.resolved_ts}
            cut = [
                row
                for partition, (low, high) in enumerate(zip(first.low, second.high, strict=True))
                for sent in world.log[partition][low:high]
                for row in sent.rows
                if first.resolved_ts < row.commit_ts <= second.resolved_ts and row.table in tables
            ]
            if set(cut) != wanted:
                return f"{first} .. {second}: lost {wanted - set(cut)}, invented {set(cut) - wanted}"
            no_repeats = all(low >= high for low, high in zip(first.low, second.repeat_high, strict=True))
            if no_repeats and len(cut) != len(wanted):
                return f"{first} .. {second}: repeats above repeat_high"
    return None


def _stands(
    places: list[FrontierRecord], contains: Contains, concerned: Callable[[object], bool]
) -> list[ChangefeedFrontier]:
    return [frontier_for(record, contains, concerned) for record in places]


def place_of(world: World, contains: Contains) -> ChangefeedFrontier:
    """Return where a changefeed stands that no bad job concerns."""
    return frontier_for(world.places()[-1], contains, lambda _: False)


def went_back(world: World) -> str | None:
    """Return the first record that is behind its predecessor in any of its values, or None; for any changefeed."""
    records = world.places()
    for earlier, later in pairwise(_stands(records, of_all, lambda _: True)):
        if later.resolved_ts < earlier.resolved_ts:
            return f"{earlier} -> {later}"
    for contains in (of_all, of_even, of_odd, *(table.__eq__ for table in world.alive)):
        for earlier, later in pairwise(_stands(records, contains, lambda _: False)):
            lows = zip(earlier.low, later.low, strict=True)
            if later.resolved_ts < earlier.resolved_ts or any(a > b for a, b in lows):
                return f"{earlier} -> {later}"
    for before, after in pairwise(records):
        pairs = [
            (before.owner_rev, after.owner_rev), (before.resolved_ts, after.resolved_ts),
            (before.ddl_high, after.ddl_high), *zip(before.high, after.high, strict=True),
            *zip(before.low, after.low, strict=True), *zip(before.repeat_high, after.repeat_high, strict=True),
            *zip(after.low, after.high, strict=True),
        ]  # fmt: skip
        if any(value_before > value_after for value_before, value_after in pairs):
            return f"{before} -> {after}"
    return None
