"""The owner's care for prologues, over nodes in memory: who is landed next, what is held, let go, told and deleted."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compose.capture.prologue.prologues import AGAIN_S, HOLD_S, OVER_S, SWEEP_S, Prologues
from compose.capture.settings.options import CaptureOptions
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session, ZooKeeperError
from producers.errors import HistoryGoneError, SnapshotFailedError
from producers.pull.prologue.scan import PrologueStoppedError
from producers.pull.puller import PullerSettings
from schemas.errors import BusError, CorruptDataError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedInfo,
    ChangefeedState,
    ChangefeedStatus,
    ZkPaths,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.nodes.prologue import Prologue, decode_prologue, encode_prologue
from schemas.nodes.service_paths import ServicePaths
from schemas.rawlog.topics import raw_topics
from tests.support.control.memory_zookeeper import MemoryZooKeeper

PATHS = ZkPaths("c")
GC_TTL_S = 3_600
WALL_S = 1_700_000_000
"""The wall clock is so far ahead of the other."""
OPTIONS = CaptureOptions(
    pd="h:1",
    kafka=KafkaAccess("h:2"),
    zookeeper=ZooKeeperAccess("h:3"),
    schema_registry=RegistryAccess(),
    cluster="c",
    upstream=UpstreamId("u"),
)


@dataclass
class Attempt:
    """Stands for a thread that lands."""

    name: tuple[str, str]
    info: ChangefeedInfo
    prologue: Prologue
    version: int
    options: object
    settings: object
    may_land: object
    is_over: bool = False
    error: BusError | None = None
    is_stopped: bool = False

    def stop(self) -> None:
        self.is_stopped = True


@dataclass
class World:
    server: MemoryZooKeeper = field(default_factory=MemoryZooKeeper)
    attempts: list[Attempt] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    """By service id: how often PD has heard of it."""
    gone: bool = False
    topics: list[str] = field(default_factory=list)
    now_s: float = 1_000.0
    care: Prologues = field(init=False)

    def add(self, name: str, start_ts: int = 10, *, epoch: int = 1, state: ChangefeedState = "normal") -> str:
        """Create a changefeed with a prologue; return its life."""
        life = f"c.{name * 16}"
        self.tell(name, Prologue(life=life, start_ts=Ts(start_ts), end_ts=Ts(50)))
        self.change(name, epoch=epoch, state=state)
        return life

    def change(self, name: str, *, epoch: int, state: ChangefeedState = "normal") -> None:
        info = ChangefeedInfo(
            changefeed_id=name,
            upstream=UpstreamId("u"),
            sink_uri="kafka://h:1/t",
            start_ts=Ts(10),
            epoch=epoch,
            desired_state=state,
        )
        self.server.write({PATHS.changefeed_info("default", name): encode_changefeed_info(info)})

    def tell(self, name: str, prologue: Prologue) -> None:
        self.server.write({PATHS.changefeed_prologue("default", name): encode_prologue(prologue)})

    def reach(self, name: str, ts: int) -> None:
        status = ChangefeedStatus(state="normal", checkpoint_ts=Ts(ts), resolved_ts=Ts(ts))
        self.server.write({PATHS.changefeed_status("default", name): encode_changefeed_status(status)})

    def remove(self, name: str) -> None:
        folder = f"{PATHS.changefeeds}/default/{name}/"
        self.server.write({path: None for path in list(self.server.nodes) if path.startswith(folder)})

    def node(self, name: str) -> Prologue | None:
        stored = self.server.nodes.get(PATHS.changefeed_prologue("default", name))
        return None if stored is None else decode_prologue(stored.value)

    def end(self, error: BusError | None = None) -> None:
        """Let the attempt under way end, and the owner see so."""
        self.attempts[-1].is_over, self.attempts[-1].error = True, error
        self.care.look()

    def keep(self, _pd: object, service_id: str, ts: Ts, ttl_s: int) -> None:
        if self.gone:
            raise HistoryGoneError("collected", needed_ts=ts, gc_safe_point=99)
        self.held[service_id] = self.held.get(service_id, 0) + 1

    def release(self, _pd: object, service_id: str) -> None:
        self.held.pop(service_id, None)

    def delete(self, _admin: object, names: list[str]) -> dict[str, Any]:
        self.topics = [topic for topic in self.topics if topic not in names]
        return {}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made, module = World(), "compose.capture.prologue.prologues"

    def begin(*given: Any, **more: Any) -> Attempt:
        made.attempts.append(Attempt(*given, **more))
        return made.attempts[-1]

    monkeypatch.setattr(f"{module}.PrologueAttempt", begin)
    monkeypatch.setattr(f"{module}.PdClient", lambda *_, **__: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(f"{module}.keep_safe_point", made.keep)
    monkeypatch.setattr(f"{module}.release_safe_point", made.release)
    monkeypatch.setattr(f"{module}.kafka_admin", lambda *_: SimpleNamespace(list_topics=lambda timeout: None))
    monkeypatch.setattr(f"{module}.partition_counts", lambda _: dict.fromkeys(made.topics, 1))
    monkeypatch.setattr(f"{module}.delete_topics", made.delete)
    made.care = Prologues(
        OPTIONS,
        PullerSettings(cluster="c", gc_ttl_s=GC_TTL_S),
        cast(Session, made.server),
        lambda error: pytest.fail(str(error)),
        clock=lambda: made.now_s,
        wall_clock=lambda: made.now_s + WALL_S,
    )
    return made


def test_prologues_are_landed_one_after_the_other_and_history_is_held_for_all_that_wait(world: World) -> None:
    late, early = world.add("a", 20), world.add("b", 10)
    world.care.look()
    assert [attempt.prologue.life for attempt in world.attempts] == [early]
    assert world.held == {f"tidebus-c-prologue.{late}": 1, f"tidebus-c-prologue.{early}": 1}
    world.now_s += HOLD_S
    world.care.look()
    assert set(world.held.values()) == {2}
    world.end()
    done = world.node("b")
    assert done is not None
    assert (done.is_complete, done.attempt) == (True, 1)
    world.care.look()
    assert [attempt.prologue.life for attempt in world.attempts] == [early, late]
    assert set(world.held) == {f"tidebus-c-prologue.{late}"}


def test_how_far_changefeeds_are_is_asked_only_while_one_has_a_prologue(world: World) -> None:
    """Sorter services write it some twenty times a second: whoever reads it pays for each time that he looks."""
    folder = ServicePaths(PATHS).progress
    asked, ask = list[str](), world.server.get_async

    def counted(path: str, watch: Any = None) -> Any:
        asked.append(path)
        return ask(path, watch)

    def looks() -> int:
        before = len(asked)
        for number in range(3):
            world.server.write({f"{folder}/s/0": b"[]", PATHS.changefeed_status("default", "z"): b"%d" % number})
            world.care.look()
        return sum(path.startswith(folder) for path in asked[before:])

    world.server.get_async = counted  # type: ignore[method-assign]
    world.change("z", epoch=1)
    assert looks() == 0
    world.add("a")
    assert looks() == 3
    world.remove("a")
    assert looks() == 0


def test_what_may_pass_is_tried_again_by_another_attempt_after_a_while(world: World) -> None:
    world.add("a")
    world.care.look()
    world.end(SnapshotFailedError("no progress"))
    world.care.look()
    assert len(world.attempts) == 1
    world.now_s += AGAIN_S
    world.care.look()
    assert [attempt.prologue.attempt for attempt in world.attempts] == [1, 2]


@pytest.mark.parametrize("when", ["on_request", "on_answer"])
@pytest.mark.parametrize("error", [None, HistoryGoneError("collected")])
def test_what_came_of_an_attempt_is_written_again_where_zookeeper_did_not_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, when: str, error: BusError | None
) -> None:
    world.add("a")
    world.care.look()

    def lose(what: str, path: str) -> None:
        if what == "set":
            raise ZooKeeperError("a ZooKeeper request failed", reason="ConnectionLoss()")

    with monkeypatch.context() as losing:
        losing.setattr(world.server, when, lose)
        with pytest.raises(ZooKeeperError):
            world.end(error)
    world.care.look()
    written = world.node("a")
    assert written is not None
    assert (len(world.attempts), written.attempt, written.is_complete) == (1, 1, error is None)
    assert (written.failure is None) == (error is None)
    world.care.look()
    assert len(world.attempts) == 1, "nothing is read anew"


def test_what_cannot_heal_is_told_and_tried_again_once_somebody_resumes(world: World) -> None:
    world.add("a", epoch=3)
    world.care.look()
    world.end(HistoryGoneError("collected"))
    failed = world.node("a")
    assert failed is not None
    assert failed.failure is not None
    assert (failed.failure.epoch, failed.failure.code) == (3, "producer.history_gone")
    world.change("a", epoch=4, state="stopped")
    world.care.look()
    assert len(world.attempts) == 1, "it rests"
    world.change("a", epoch=4)
    world.care.look()
    assert len(world.attempts) == 2
    begun = world.node("a")
    assert begun is not None
    assert begun.failure is None


@pytest.mark.parametrize("notes_time", [True, False])
def test_history_for_a_prologue_that_failed_for_good_is_held_for_the_gc_ttl_and_again_once_somebody_resumes(
    world: World, notes_time: bool
) -> None:
    """An older version notes no time: then it counts from the beginning of the reign."""
    life = world.add("a", epoch=3)
    world.care.look()
    world.now_s += 600
    world.end(SnapshotFailedError("no progress"))
    assert world.held, "it is about to be tried again"
    world.now_s += AGAIN_S
    world.care.look()
    world.end(CorruptDataError("a row that nobody can read"))
    failed = world.node("a")
    assert failed is not None
    assert failed.failure is not None
    assert failed.failure.failed_at_s == 1_700_001_610
    if not notes_time:
        world.tell("a", replace(failed, failure=replace(failed.failure, failed_at_s=0)))
    over_s = GC_TTL_S + (1_610 if notes_time else 1_000)
    world.change("a", epoch=4, state="stopped")
    while world.now_s + HOLD_S < over_s:
        world.now_s += HOLD_S
        world.care.look()
        assert world.held, "who resumes it within that time loses nothing"
    world.now_s = over_s
    world.care.look()
    assert world.held == {}
    world.change("a", epoch=4)
    world.care.look()
    assert list(world.held) == [f"tidebus-c-prologue.{life}"]
    assert len(world.attempts) == 3


def test_history_that_is_lost_while_it_waits_is_told(world: World) -> None:
    world.add("a", 10)
    world.add("b", 20)
    world.care.look()
    world.gone, world.now_s = True, world.now_s + HOLD_S
    world.care.look()
    waits = world.node("b")
    assert waits is not None
    assert waits.failure is not None
    assert waits.failure.code == "producer.history_gone"


def test_a_removed_changefeed_has_its_attempt_cut_off_and_its_history_let_go(world: World) -> None:
    world.add("a")
    world.care.look()
    world.remove("a")
    world.care.look()
    assert world.attempts[0].is_stopped
    assert world.held == {}
    world.end(PrologueStoppedError("cut off"))
    assert world.node("a") is None


def test_a_late_word_of_an_attempt_is_not_heard(world: World) -> None:
    world.add("a")
    world.care.look()
    mine = world.node("a")
    assert mine is not None
    world.tell("a", replace(mine, attempt=2))  # another owner has begun anew
    world.end()
    kept = world.node("a")
    assert kept is not None
    assert not kept.is_complete


def test_a_prologue_goes_when_the_upstreams_log_has_long_passed_it_and_its_topics_behind_it(world: World) -> None:
    life = world.add("a")
    world.care.look()
    world.end()
    mine = world.attempts[0].prologue
    dead = f"tidebus.prologue.{life}.7.ddl"
    others = ["tidebus.u.ddl", "tidebus.prologue.other.00f0e1d2c3b4a596.1.ddl"]
    topics = raw_topics(mine.log)
    world.topics = [topics.ddl, topics.frontier, topics.region_events, dead, *others]
    world.now_s += SWEEP_S
    world.care.look()
    assert world.topics == [topics.ddl, topics.frontier, topics.region_events, *others]
    world.reach("a", 50)
    world.now_s += 2 * OVER_S
    world.care.look()
    assert world.node("a") is not None, "a sorter may be about to write what is left of it"
    world.reach("a", 51)
    world.care.look()
    assert world.node("a") is not None, "readers may be open"
    world.now_s += OVER_S
    world.care.look()
    assert world.node("a") is None
    world.now_s += SWEEP_S
    world.care.look()
    assert world.topics == others
