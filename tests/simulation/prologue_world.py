"""One changefeed that starts before the raw log began, in one process: owners that die or go on as zombies, attempts,
a sweep of topics, and a sorter that dies in the middle of a cut. The steps are the product's own; around them all is
memory.

A key has its changes at different ts, and what lands of them comes in any order, some of it twice.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from producers.pull.core.landing.prologue import prologue_frontier
from schemas.errors import InvariantBrokenError
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.nodes.prologue import Prologue, begun, completed, is_over, log_at, log_of_topic
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport
from schemas.rawlog.topics import raw_topics
from schemas.tidb.spans import TableSpan
from sorters.core.cut.cut import frontier_for
from sorters.core.cut.cut_plan import plan_cuts

START_TS, END_TS, LAST_TS = Ts(10), Ts(60), Ts(90)
UPSTREAM, CLUSTER, LIFE = UpstreamId("u"), "c", "c.00f0e1d2c3b4a596"
SPAN = TableSpan.of_table(TableId(1))
Change = tuple[int, str]
"""commit_ts and key."""


class BrokenError(Exception):
    """A promise is broken."""


@dataclass(slots=True)
class Log:
    """The topics of one attempt."""

    rows: list[Change] = field(default_factory=list)
    frontier: list[FrontierRecord] = field(default_factory=list)


@dataclass(slots=True)
class Attempt:
    """What an owner has under way, or has left behind."""

    prologue: Prologue
    version: int
    waiting: list[Change]
    """Not landed yet."""
    published: int = 0
    is_told: bool = False


@dataclass(slots=True)
class Rules:
    """What the parts do; a planted fault is another one."""

    log_of: Callable[[Prologue], UpstreamId] = lambda prologue: prologue.log
    choose: Callable[[Prologue | None, Ts], UpstreamId | None] = lambda node, ts: log_at(node, UPSTREAM, ts)
    may_publish: Callable[[Attempt], bool] = lambda attempt: not attempt.waiting
    checks_version: bool = True
    lists_topics_first: bool = True


class PrologueWorld:
    """One schedule."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.random = random.Random(seed)  # reproducible, no secret
        self.rules = rules or Rules()
        keys = [f"k{number}" for number in range(6)]
        draws = (Ts(self.random.randint(1, LAST_TS)) for _ in range(60))
        self.upstream: list[Change] = sorted({(int(ts), self.random.choice(keys)) for ts in draws})
        self.node: Prologue | None = Prologue(life=LIFE, start_ts=START_TS, end_ts=END_TS)
        self.version = 0
        self.logs: dict[UpstreamId, Log] = {}
        self.owner: Attempt | None = None
        self.zombies: list[Attempt] = []
        self.listed: list[str] | None = None
        self.known: frozenset[UpstreamId] | None = None
        self.checkpoint_ts = START_TS
        self.written: dict[int, list[Change]] = {}
        """By where the cut began: what went out, also of a cut that was cut off."""
        self.out: list[Change] = []
        self.counts: dict[str, int] = {}

    def run(self, steps: int = 160) -> None:
        """Let everything happen in any order, then without any fault to the end.

        Raises:
            BrokenError: a promise is broken.
        """
        faults = (self.kill_owner, self.zombie, self.sort_half, self.replay)
        work = (self.own, self.own, self.own, self.sweep, self.sort, self.let_go)
        for _ in range(steps):
            self._step(self.random.choice((*work, *faults)))
        for _ in range(400):
            for action in (self.own, self.sort, self.sweep, self.let_go):
                self._step(action)
        wanted = [change for change in self.upstream if change[0] > START_TS]
        if self.out != wanted:
            raise BrokenError(f"{len(self.out)} changes instead of {len(wanted)}")
        if self.node is not None or self.logs:
            raise BrokenError("a prologue is left behind")

    def _step(self, action: Callable[[], None]) -> None:
        try:
            action()
        except InvariantBrokenError as error:
            raise BrokenError(str(error)) from error

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _write(self, prologue: Prologue, version: int) -> int | None:
        """Write the node by compare-and-set."""
        if self.node is None or (version != self.version and self.rules.checks_version):
            self._count("refused")
            return None
        self.node, self.version = prologue, self.version + 1
        return self.version

    # -- the owner -----------------------------------------------------------------------------------------------------

    def own(self) -> None:
        """Do the next thing of the owner's."""
        if self.owner is not None and not self.owner.is_told:
            self._advance(self.owner)
        elif self.node is not None and not self.node.is_complete:
            prologue = begun(self.node)
            version = self._write(prologue, self.version)
            if version is not None:
                self._count("begun")
                held = [change for change in self.upstream if change[0] > START_TS]
                self.random.shuffle(held)
                self.owner = Attempt(prologue, version, held)

    def _advance(self, attempt: Attempt) -> None:
        name = self.rules.log_of(attempt.prologue)
        log = self.logs.setdefault(name, Log())
        if not self.rules.may_publish(attempt):
            for _ in range(self.random.randint(1, 20)):
                if attempt.waiting:
                    log.rows.append(attempt.waiting.pop())
                    if self.random.random() < 0.2:
                        log.rows.append(log.rows[-1])
        elif attempt.published < 2:
            report = LandingReport(
                capture=CaptureId(name),
                landed_ts={SPAN: LAST_TS},
                ends=(len(log.rows),),
                chunks=(),
                floors=(len(log.rows),),
                repeat_ends=(len(log.rows),),
            )
            records = prologue_frontier(START_TS, END_TS, report, DdlReport(landed_ts=LAST_TS, end=0))
            assert records is not None
            log.frontier.append(records[attempt.published])
            attempt.published += 1
        else:
            done = replace(completed(attempt.prologue, attempt.prologue.attempt))
            if self._write(done, attempt.version) is not None:
                self._count("complete")
            attempt.is_told = True

    def kill_owner(self) -> None:
        """Another is elected; the old one may not know yet."""
        if self.owner is not None and self.random.random() < 0.3:
            self._count("kill")
            self.zombies.append(self.owner)
            self.owner = None

    def zombie(self) -> None:
        """An owner that was replaced goes on."""
        late = [attempt for attempt in self.zombies if not attempt.is_told]
        if late:
            self._count("zombie")
            self._advance(self.random.choice(late))

    def sweep(self) -> None:
        """Take the next half of a sweep: what is listed and what is read are of two moments."""
        topics = [raw_topics(name).ddl for name in self.logs]
        named = frozenset() if self.node is None else frozenset({self.rules.log_of(self.node)})
        if self.listed is None:
            self.listed, self.known = topics, named
            return
        if self.rules.lists_topics_first:
            self.known = named
        else:
            self.listed = topics
        for topic in self.listed:
            log = log_of_topic(topic, CLUSTER)
            if log is not None and self.known is not None and log not in self.known and log in self.logs:
                del self.logs[log]
                self._count("swept")
        self.listed = self.known = None

    def let_go(self) -> None:
        """Take the node away once it is over."""
        if self.node is not None and is_over(self.node, self.checkpoint_ts):
            self.node = None

    # -- the sorter ----------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[Ts, list[Change]] | None:
        """Return the next cut: up to where, and what is in it; None: it waits."""
        after_ts, name = self.checkpoint_ts, self.rules.choose(self.node, self.checkpoint_ts)
        if name is None:
            return None
        if name == UPSTREAM:
            if after_ts >= LAST_TS:
                return None
            rest = [change for change in self.upstream if change[0] > max(after_ts, END_TS - 5)]
            return LAST_TS, rest
        log = self.logs.get(name)
        if log is None or len(log.frontier) < 2:
            raise BrokenError("a log is read that is not there")
        first, *others = (frontier_for(record, lambda _: True) for record in log.frontier)
        cuts = plan_cuts(first, others, after_ts, target_ts=END_TS)
        if not cuts:
            raise BrokenError("a log is read that ends too early")
        cut = cuts[0]
        rows = {row for row in log.rows[cut.start[0] : cut.end[0]] if cut.after_ts < row[0] <= cut.upto_ts}
        return cut.upto_ts, sorted(rows)

    def _check_repeat(self, rows: list[Change]) -> None:
        before = self.written.setdefault(self.checkpoint_ts, rows)
        if before != rows:
            raise BrokenError("a repeated cut is another one")

    def sort(self) -> None:
        """Run a cut."""
        following = self._next()
        if following is not None:
            self._check_repeat(following[1])
            self.out += following[1]
            self.checkpoint_ts = following[0]
            self._count("cut")

    def sort_half(self) -> None:
        """Die in the middle of a cut: it went out, and nobody noted so."""
        following = self._next()
        if following is not None and self.random.random() < 0.3:
            self._check_repeat(following[1])
            self._count("repeat")

    def replay(self) -> None:
        """Have a look at what the next cut would be."""
        following = self._next()
        if following is not None:
            self._check_repeat(following[1])
