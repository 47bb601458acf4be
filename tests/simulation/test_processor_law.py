"""Processors under every fault: each row is written once and by whoever has its partition, DDL and syncpoints are where
they were upstream, no checkpoint lies or goes back, and once the faults end everything is applied.

``PROCESSOR_SEEDS`` says how many seeds to run, and more than the default also lets all of a schedule's boundaries be
crossed in every way; a failing seed replays with ``tidebus simulate --of processors --seed N --trace``.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from compose.cli import run_cli
from compose.simulation.processors.destination import SimDestination
from compose.simulation.processors.faults import disturb
from compose.simulation.processors.run import outcome_of
from compose.simulation.processors.world import ChangefeedWorld
from consumers.control.core.replication.captures import CaptureSet
from consumers.control.core.replication.messages import Checkpoint
from consumers.processors.apply.opened_partition import OpenedPartition
from consumers.processors.apply.share import DatabaseShare
from consumers.processors.core.apply import barrier, barriers, leader
from consumers.processors.core.apply.barrier import Checked, DdlBarrier, Message, Order, Phase, step
from consumers.processors.core.apply.barriers import Barriers, WriteSyncpoint
from consumers.processors.core.apply.executor import PartitionExecutor, WorkOrder
from consumers.processors.core.apply.partition import Claim, PartitionQueue, txn_end
from consumers.processors.core.apply.waiting import Waiting
from consumers.processors.core.fence import PartitionFence
from consumers.processors.core.flow_book import FlowBook
from schemas.ids import Ts
from schemas.sink.fence import NO_FENCE
from schemas.sink.flow_mark import FlowMark
from tests.support.sources.hash_seeds import printed_with_hash_seeds

SEEDS_DEFAULT = 40
SEEDS = int(os.environ.get("PROCESSOR_SEEDS", SEEDS_DEFAULT))
SHARDS = 10
WORTH = 25
"""Of the first seeds is shown, too, that they are worth the name."""
TRIES_MAX = 300
"""Within so many seeds a broken rule must show; most show in the first few, one after some sixty."""


@pytest.mark.timeout(max(600, SEEDS))
@pytest.mark.parametrize("shard", range(SHARDS))
def test_processors_under_random_faults_keep_their_promises(shard: int) -> None:
    for seed in range(WORTH + shard, SEEDS, SHARDS):
        outcome = outcome_of(seed)
        assert not outcome.broken, outcome


def test_processor_schedules_are_worth_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    passed = FlowBook.pass_watermark

    def counted(self: FlowBook, ts: Ts, mark: FlowMark | None) -> None:
        before = self.proven, self.unproven
        passed(self, ts, mark)
        counts["proven"] += self.proven - before[0]
        counts["unproven"] += self.unproven - before[1]
        counts["unmarked"] += mark is None

    monkeypatch.setattr(FlowBook, "pass_watermark", counted)
    for seed in range(WORTH):
        outcome = outcome_of(seed)
        assert not outcome.broken, outcome
        world = outcome.world
        counts += world.counts
        counts["syncpoint"] += world.destination.syncpoints
        counts["image"] += sum(event.commit_ts == event.start_ts for event in world.history.events)
        counts["refused"] += world.destination.refused
        counts["late"] += world.sorter.late
    wanted = (
        "crash", "expire", "lost", "freeze", "left", "move", "drain", "rebalance", "cut", "outage", "restart",
        "broker", "resort", "stop", "checked", "refused",
    )  # fmt: skip
    assert not [what for what in wanted if not counts[what]], counts
    assert counts["late"] > 50, counts
    assert counts["image"] > 100 and counts["lead"] > 50 and counts["ddl"] > 100 and counts["syncpoint"] > 100, counts
    assert counts["proven"] > 1000 and counts["unproven"] > 200 and counts["unmarked"] > 100, counts


def _with_updates(world: ChangefeedWorld) -> None:
    """Besides what goes wrong, a user updates the changefeed now and then: all processes begin anew with it, and what
    they have sent comes to the destination when others have begun.
    """
    if world.random.random() < 0.2:
        world.syncpoint_interval = world.random.choice((12, 20, 10**9))
        world.note("update", world.syncpoint_interval)
        for process in list(world.processes.values()):
            world.bury(process, closes=True, keeps=1.0, late=3)
        world.start()
    disturb(world)


def test_processors_write_true_syncpoints_whatever_interval_a_user_sets_meanwhile() -> None:
    counts: Counter[str] = Counter()
    for seed in range(WORTH):
        outcome = outcome_of(seed, disturb=_with_updates)
        assert not outcome.broken, outcome
        counts["update"] += outcome.world.counts["update"]
        counts["syncpoint"] += outcome.world.destination.syncpoints
    assert counts["update"] > 50 and counts["syncpoint"] > 100, counts


def _begins_at_the_last(self: SimDestination, _: int) -> Ts:
    return Ts(0)


def _fences_nobody(self: SimDestination, _: int) -> Ts:
    return Ts(max(int.from_bytes(row.position[:8], "big") for row in self.positions))


@pytest.mark.parametrize("wrong", [_begins_at_the_last, _fences_nobody])
def test_processor_law_when_syncpoints_begin_otherwise_then_seeds_find_it(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any]
) -> None:
    monkeypatch.setattr(SimDestination, "_begin_syncpoints", wrong)
    assert any(outcome_of(seed, disturb=_with_updates).broken for seed in range(TRIES_MAX))


def test_processor_seed_goes_the_same_way_each_time_and_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for _ in range(2):
        assert run_cli(["simulate", "--of", "processors", "--seed", "3", "--trace"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    kinds = {line.split()[1] for line in printed[0].splitlines()}
    assert {"start", "lead", "checkpoint", "heal"} <= kinds
    assert "all promises kept" in printed[0]


def test_processor_seed_when_run_with_other_hash_seeds_goes_the_same_way() -> None:
    """In it two sessions are over in one tick: in which order they are is the owner's to say, not a set's."""
    code = "from compose.simulation.processors.run import outcome_of; print(outcome_of(3))"
    outcomes = printed_with_hash_seeds(code, ("1", "3"))
    assert len(outcomes) == 1, outcomes


# -- killed, or stopped, at each call to the destination and to ZooKeeper, made or answered


MORE = SEEDS > SEEDS_DEFAULT
DDLS = ("alter", "swap", "rename", "truncate") if MORE else ("alter", "swap")
WAYS = ("lost", "done", "late", "stopped") if MORE else ("lost", "stopped")
"""What becomes of what it has sent when the process dies; ``stopped``: it goes on when others have taken over."""


def _quiet(world: ChangefeedWorld) -> None:
    """A history that stands, two processors, syncpoints between DDLs, and nothing that goes wrong by itself."""
    world.has_faults = False
    world.commits = world.ddls = 0.0
    network = world.network
    network.delay, network.detours, network.loss, network.repeats = 0, 0.0, 0.0, 0.0
    world.pace, world.delays, world.syncpoint_interval = 1.0, (0,), 12
    for kind in DDLS:
        for _ in range(4):
            world.history.commit()
        world.history.alter(kind)
    world.history.commit()
    while len(world.processes) < 2:
        world.start()


@pytest.mark.parametrize("way", WAYS)
def test_processor_that_ends_at_any_boundary_of_a_barrier_leaves_what_others_finish(way: str) -> None:
    whole = outcome_of(3, _quiet, ticks=1)
    assert not whole.broken, whole
    assert whole.world.boundaries > 60
    crossed: Counter[str] = Counter()
    for number in range(whole.world.boundaries):

        def prepare(world: ChangefeedWorld, number: int = number) -> None:
            _quiet(world)
            world.crash_at = number, way

        outcome = outcome_of(3, prepare, ticks=1)
        assert not outcome.broken, (number, way, str(outcome))
        crossed.update(str(what[3]) for what in outcome.world.trace if what[1] == "boundary")
    assert {
        "register",
        "lock",
        "lead",
        "leads",
        "call",
        "answer",
        "locked",
        "ddl is sent",
        "checkpoint",
    } <= crossed.keys()
    assert sum(crossed.values()) >= whole.world.boundaries - 2


# -- the law has teeth: without any one of these rules some seed breaks it


def _any_stands(state: DdlBarrier, partition: int, position: bytes) -> tuple[DdlBarrier, tuple[Order, ...]]:
    after, orders = _stands(state, partition, position)
    if after.phase is Phase.GATHER and after.standing and position > state.passed:
        return barrier._order(after, Phase.CHECK if after.noted == position else Phase.BEGIN)
    return after, orders


def _never_has_run(state: DdlBarrier, message: Message) -> tuple[DdlBarrier, tuple[Order, ...]]:
    return step(state, Checked(False) if isinstance(message, Checked) else message)


def _forgets_what_is_noted(self: Barriers) -> None:
    self.noted = None
    _post_init(self)


def _forgets_what_has_passed(self: Barriers) -> None:
    self.passed = b""
    _post_init(self)


def _writes_when_any_stands(self: Barriers) -> None:
    _gather(self)
    ts = self._next_ts
    free = self._next is None and ts is not None and not self._ddl.standing
    if free and ts is not None and any(self._stands_at.get(part, 0) >= ts for part in self.partitions):
        self._next = WriteSyncpoint(ts)


def _claims_above(self: PartitionQueue, rows_max: int, *, bytes_max: int, barrier_ts: Ts | None = None) -> Claim | None:
    return _claim(self, rows_max, bytes_max=bytes_max)


def _claims_halves(
    self: PartitionQueue, rows_max: int, *, bytes_max: int, barrier_ts: Ts | None = None
) -> Claim | None:
    self._waiting.close()
    return _claim(self, rows_max, bytes_max=bytes_max, barrier_ts=barrier_ts)


def _keeps_no_chunk(
    self: PartitionQueue, rows_max: int, *, bytes_max: int, barrier_ts: Ts | None = None
) -> Claim | None:
    """What is written with a chunk of an image stays below its rows."""
    claim = _claim(self, rows_max, bytes_max=bytes_max, barrier_ts=barrier_ts)
    if claim is not None and claim.position == txn_end(claim.last_commit_ts, claim.last_commit_ts):
        position, offset = txn_end(claim.last_commit_ts, 0), self.offset
        claim = self._claimed = replace(claim, position=position, next_offset=offset)
    return claim


def _reads_on(self: Waiting, commit_ts: int, position: bytes = b"") -> None:
    """A pass that begins anew is taken for more of the same."""


def _passes_all(self: PartitionFence, fence: bytes, position: bytes, *, is_part: bool = False) -> bool:
    """The rule before there were fences: what comes late is taken for a new pass."""
    return True


def _forgets_what_comes_late(self: PartitionFence, fence: bytes, position: bytes, *, is_part: bool = False) -> bool:
    """The newest writer is the one that wrote last."""
    self._newest = NO_FENCE
    return _passes(self, fence, position, is_part=is_part)


def _hears_the_first(self: PartitionFence, fence: bytes, position: bytes, *, is_part: bool = False) -> bool:
    """A sorter that takes over is late, too."""
    if not self._newest:
        self._newest = fence
    return fence == self._newest


def _passes_at_once(self: OpenedPartition, _: bytes) -> None:
    if (mark := self.queue.barrier) is not None and self.keeping is None:
        self.stored = mark.position
        self.queue.pass_barrier(mark.position)


def _keeps_by_what_is_stored(self: OpenedPartition, passed_ddl: bytes) -> bool:
    """Positions of partitions without rows stay where a new leader has found them."""
    return _may_keep(self, passed_ddl) and self.stored >= passed_ddl


def _ends_at_once(self: DatabaseShare) -> list[WorkOrder]:
    done = [at.ending for at in self._partitions.values() if at.ending is not None]
    for at in self._partitions.values():
        at.ending = None
    return done


def _says_all(self: PartitionExecutor, at: Checkpoint) -> Checkpoint:
    return at


def _anybody_moves(self: SimDestination, *_: Any) -> bool:
    return True


def _hasty(self: CaptureSet, alive: Any) -> Any:
    after, gone = _with_alive(self, alive)
    return CaptureSet(after.captures, frozenset(), after.first_reports), gone


def _begins_anew(self: leader.Leader) -> None:
    self.checkpoint_ts = Ts(1_000)
    _begin(self)


_stands, _post_init, _gather = barrier._stands, Barriers.__post_init__, Barriers._gather
_claim, _with_alive, _begin = PartitionQueue.claim, CaptureSet.with_alive, leader.Leader.__post_init__
_passes, _may_keep = PartitionFence.passes, OpenedPartition.may_keep


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        (barrier, "_stands", _any_stands),
        (barriers, "step", _never_has_run),
        (Barriers, "__post_init__", _forgets_what_is_noted),
        (Barriers, "__post_init__", _forgets_what_has_passed),
        (Barriers, "_gather", _writes_when_any_stands),
        (PartitionQueue, "claim", _claims_above),
        (PartitionQueue, "claim", _claims_halves),
        (PartitionQueue, "claim", _keeps_no_chunk),
        (Waiting, "truncate", _reads_on),
        (PartitionFence, "passes", _passes_all),
        (PartitionFence, "passes", _forgets_what_comes_late),
        (PartitionFence, "passes", _hears_the_first),
        (OpenedPartition, "pass_ddl", _passes_at_once),
        (OpenedPartition, "may_keep", _keeps_by_what_is_stored),
        (DatabaseShare, "_end", _ends_at_once),
        (PartitionExecutor, "_as_announced", _says_all),
        *([(SimDestination, "_may_move", _anybody_moves)] if MORE else []),
        (CaptureSet, "with_alive", _hasty),
        (leader.Leader, "__post_init__", _begins_anew),
    ],
    ids=[
        "a ddl runs when one partition stands",
        "a ddl that has run runs again",
        "a begun ddl is forgotten",
        "a passed ddl is forgotten",
        "a syncpoint is written when one partition stands",
        "rows above the barrier are applied",
        "transactions are applied by halves",
        "the position of a chunk is not kept",
        "a pass that begins anew is not noticed",
        "what comes late is a pass",
        "who wrote last is the newest",
        "a newer sorter is not heard",
        "ddl are passed before they run",
        "positions below what has passed are not kept",
        "partitions are given away with work under way",
        "what another leader has announced counts",
        *(["positions are moved by anybody"] if MORE else []),
        "a new leader does not wait",
        "a new leader begins at the start",
    ],
)
def test_processor_law_when_a_rule_is_broken_then_seeds_find_it(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, wrong: Callable[..., Any]
) -> None:
    monkeypatch.setattr(where, name, wrong)
    assert any(outcome_of(seed).broken for seed in range(TRIES_MAX))
