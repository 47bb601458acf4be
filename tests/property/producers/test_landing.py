"""The landing book under adversarial acknowledgements, and killed in mid-landing: the frontier law must hold."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.control.core.frontier.frontier import FrontierInputs, advance, first_record
from producers.pull.core.landing.book import CHUNK_RECORDS_MAX, CHUNKS_MAX, LandingBook, Sent
from schemas.errors import InvariantBrokenError
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport
from schemas.rawlog.topics import raw_partition_of_span
from schemas.tidb.keys import table_span
from schemas.tidb.spans import TableSpan

PARTITIONS = 2
START, END = table_span(TableId(2))
PARTS = [TableSpan(TableId(2), START, START + b"m"), TableSpan(TableId(2), START + b"m", END)]
SPANS = [TableSpan.of_table(TableId(1)), *PARTS]
Change = tuple[int, TableSpan]
"""``(commit_ts, span)``; no two are equal."""


@dataclass
class Agent:
    """One life of a producer: its book, and what it has read of each table."""

    capture: CaptureId
    book: LandingBook
    read_ts: dict[TableSpan, int]
    unsent: dict[TableSpan, list[Change]] = field(default_factory=dict)
    in_flight: list[tuple[Sent, list[Change]]] = field(default_factory=list)
    appended: list[tuple[Sent, int]] = field(default_factory=list)


class World:
    """An upstream, a log, one agent at a time, an owner that sees only some of the reports."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.upstream = [(ts, random.choice(SPANS)) for ts in range(1, 60)]
        self.log: list[list[list[Change]]] = [[] for _ in range(PARTITIONS)]
        self.lives = 0
        self.records = [first_record(1, Ts(0), PARTITIONS)]
        self.report: LandingReport | None = None
        self.reports_kept: list[LandingReport] = []
        self.zombies: list[tuple[Sent, list[Change]]] = []
        self.agent = self.start()

    def start(self) -> Agent:
        self.lives += 1
        capture = CaptureId(f"c{self.lives}")
        last = self.records[-1]
        agent = Agent(capture, LandingBook(capture, PARTITIONS, last), {})
        for table in SPANS:
            agent.book.assign(table, last.resolved_ts)
            agent.read_ts[table] = last.resolved_ts
            agent.unsent[table] = []
        self.report, self.reports_kept = None, []
        return agent

    def read(self) -> None:
        """Rows of one table arrive, then perhaps its resolved ts, as one region would send them."""
        agent, table = self.agent, self.random.choice(SPANS)
        until = agent.read_ts[table] + self.random.randint(1, 12)
        rows = [change for change in self.upstream if change[1] == table and agent.read_ts[table] < change[0] <= until]
        self.random.shuffle(rows)
        agent.read_ts[table] = until
        while rows:
            cut = self.random.randint(1, len(rows))
            self.send(table, rows[:cut])
            rows = rows[cut:]
        agent.book.resolved(table, Ts(until))

    def send(self, table: TableSpan, rows: list[Change]) -> None:
        sent = self.agent.book.sent(table, raw_partition_of_span(table, PARTITIONS), Ts(max(rows)[0]), may_repeat=False)
        self.agent.in_flight.append((sent, rows))

    def append(self) -> None:
        """The broker takes any record in flight; nobody knows yet."""
        if self.agent.in_flight:
            sent, rows = self.agent.in_flight.pop(self.random.randrange(len(self.agent.in_flight)))
            self.log[sent.partition].append(rows)
            self.agent.appended.append((sent, len(self.log[sent.partition]) - 1))

    def ack(self) -> None:
        if self.agent.appended:
            sent, offset = self.agent.appended.pop(self.random.randrange(len(self.agent.appended)))
            self.agent.book.acked(sent, offset)

    def tell(self) -> None:
        self.reports_kept.append(self.agent.book.report())
        self.report = self.random.choice(self.reports_kept)  # late, lost, out of order

    def publish(self) -> None:
        last = self.records[-1]
        reports = {self.report.capture: self.report} if self.report else {}
        record = advance(
            last,
            FrontierInputs(reports, DdlReport(landed_ts=Ts(1000), end=0), dict.fromkeys(SPANS, self.agent.capture)),
        )
        self.records.append(record)
        if self.random.random() < 0.7:
            self.agent.book.published(record)

    def kill(self) -> None:
        """The process dies: records in flight may still reach the log, acknowledgements are lost."""
        self.zombies += self.agent.in_flight
        self.agent = self.start()

    def late_append(self) -> None:
        if self.zombies:
            sent, rows = self.zombies.pop()
            self.log[sent.partition].append(rows)

    def run(self, steps: int) -> None:
        moves = [self.read, self.append, self.append, self.ack, self.ack, self.tell, self.publish, self.late_append]
        for _ in range(steps):
            if self.random.random() < 0.02:
                self.kill()
            self.random.choice(moves)()

    def check_law(self) -> None:
        for number, first in enumerate(self.records):
            for second in self.records[number + 1 :]:
                read = self.cut(first, second)
                wanted = {change for change in self.upstream if first.resolved_ts < change[0] <= second.resolved_ts}
                assert read == wanted, f"{first} .. {second}"

    def cut(self, first: FrontierRecord, second: FrontierRecord) -> set[Change]:
        return {
            change
            for partition in range(PARTITIONS)
            for rows in self.log[partition][first.low[partition] : second.high[partition]]
            for change in rows
            if first.resolved_ts < change[0] <= second.resolved_ts
        }


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=True))
def test_landing_killed_in_mid_landing_then_every_cut_is_exactly_the_upstream(random: Random) -> None:
    world = World(random)
    world.run(200)
    world.check_law()


def test_landing_over_many_seeds_then_frontiers_do_move() -> None:
    """The law must not hold by standing still."""
    moved = 0
    for seed in range(60):
        world = World(Random(seed))
        world.run(300)
        world.check_law()
        moved += world.records[-1].resolved_ts > 0 and world.records[-1].low != (0, 0) and world.lives > 1
    assert moved >= 20


@given(st.permutations(range(6)))
def test_landing_acks_in_any_order_then_landed_ts_waits_for_all_before_it(order: list[int]) -> None:
    book = LandingBook(CaptureId("c"), 1)
    book.assign(SPANS[0], Ts(0))
    records = []
    for ts in range(6):
        records.append(book.sent(SPANS[0], 0, Ts(ts + 1), may_repeat=False))
        book.resolved(SPANS[0], Ts(ts + 1))
    done: set[int] = set()
    for number in order:
        book.acked(records[number], number)
        done.add(number)
        prefix = next((at for at in range(6) if at not in done), 6)
        report = book.report()
        assert report.landed_ts[SPANS[0]] == prefix
        assert report.floors[0] == (max(done) + 1 if len(done) == 6 else 0)


def test_landing_when_a_record_is_never_acknowledged_then_its_table_stays_and_others_go_on() -> None:
    book = LandingBook(CaptureId("c"), 1)
    for table in SPANS[:2]:
        book.assign(table, Ts(5))
    book.sent(SPANS[0], 0, Ts(7), may_repeat=False)
    book.acked(book.sent(SPANS[1], 0, Ts(7), may_repeat=True), 41)
    for table in SPANS[:2]:
        book.resolved(table, Ts(8))
    report = book.report()
    assert dict(report.landed_ts) == {SPANS[0]: 5, SPANS[1]: 8}
    assert (report.ends, report.floors, report.repeat_ends) == ((42,), (0,), (42,))


def test_landing_when_a_table_starts_again_then_old_records_do_not_count_for_it() -> None:
    book = LandingBook(CaptureId("c"), 1)
    book.assign(SPANS[0], Ts(0))
    old = book.sent(SPANS[0], 0, Ts(4), may_repeat=False)
    book.resolved(SPANS[0], Ts(9))
    book.assign(SPANS[0], Ts(1))
    book.acked(old, 3)
    assert dict(book.report().landed_ts) == {SPANS[0]: 1}
    assert book.report().chunks[0].start_offset == 3


def test_landing_when_the_frontier_passes_then_chunks_go() -> None:
    book = LandingBook(CaptureId("c"), 1)
    book.assign(SPANS[0], Ts(0))
    for offset in range(3 * CHUNK_RECORDS_MAX):
        book.acked(book.sent(SPANS[0], 0, Ts(offset + 1), may_repeat=False), offset)
    last = first_record(1, Ts(0), 1)
    book.published(replace(last, resolved_ts=Ts(2 * CHUNK_RECORDS_MAX)))
    assert [chunk.start_offset for chunk in book.report().chunks] == [2 * CHUNK_RECORDS_MAX]


def test_landing_when_r_stalls_then_the_report_stays_small_and_keeps_its_bounds() -> None:
    book = LandingBook(CaptureId("c"), 1)
    book.assign(SPANS[0], Ts(0))
    records = CHUNKS_MAX * CHUNK_RECORDS_MAX * 3
    for offset in range(records):
        book.acked(book.sent(SPANS[0], 0, Ts(records - offset), may_repeat=False), offset)
    chunks = book.report().chunks
    assert len(chunks) <= CHUNKS_MAX
    assert (chunks[0].start_offset, chunks[0].max_commit_ts) == (0, records)


def test_landing_when_an_offset_lies_below_a_known_end_then_the_topic_is_another_one() -> None:
    book = LandingBook(CaptureId("c"), 1)
    book.assign(SPANS[0], Ts(0))
    book.acked(book.sent(SPANS[0], 0, Ts(1), may_repeat=False), 10)
    with pytest.raises(InvariantBrokenError, match="created anew"):
        book.acked(book.sent(SPANS[0], 0, Ts(2), may_repeat=False), 0)
