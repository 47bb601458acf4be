"""The owner's judgement of changefeeds on a real ZooKeeper, beside a user and a sorter; the clock is the test's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from compose.stack.local import Addresses
from consumers.control.changefeeds.states import STOPPING_S, Death, FeedStates
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.changefeeds.verbs import ChangefeedControl, ConfigChange
from consumers.control.core.changefeeds.state import Patience
from consumers.control.log.raw_log import FrontierWindow
from edges.zookeeper.session import Session
from schemas.errors import Action, BusError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedStatus, ZkPaths, wants_sorter
from sorters.log.failures import HistoryLostError, KafkaUnreachableError
from sorters.run.status import StatusBoard

URI = "kafka://127.0.0.1:9092/t?protocol=canal-json"
NAME = ("default", "cf")


@dataclass
class World:
    """One changefeed from ts 100 to 900, its sorter's board, and owners that look when they are told to."""

    session: Session
    paths: ZkPaths
    now_s: float = 1000.0
    owner: FeedStates = field(init=False)

    def __post_init__(self) -> None:
        self.control = ChangefeedControl(self.session, self.paths)
        request = ChangefeedRequest(
            upstream=UpstreamId("u"), sink_uri=URI, config={}, changefeed_id="cf", target_ts=Ts(900), start_ts=Ts(100)
        )
        self.control.store.create(request, FrontierWindow(Ts(50), Ts(200)))
        self.board = StatusBoard(self.session.client, self.paths, *NAME)
        self.owner = self.new_owner()

    def new_owner(self) -> FeedStates:
        """Return the states as an owner has them that has just been elected."""
        patience = Patience(jitter_max=0.0)
        return FeedStates(
            self.session, self.paths, UpstreamId("u"), patience=patience, clock=lambda: self.now_s, jitter=lambda: 0.0
        )

    def look(self, after_s: float = 0.0, *deaths: Death) -> ChangefeedStatus:
        self.now_s += after_s
        self.owner.look((), deaths)
        status = self.control.store.status("cf")
        assert status is not None
        return status

    def run_sorter(self) -> int:
        """Open the board as a run of the sorter does; return its epoch."""
        found = self.board.info()
        assert found is not None
        assert wants_sorter(found[0], self.board.status())
        self.board.open(*found)
        return found[0].epoch


@pytest.fixture
def world(stack: Addresses, fresh_name: Callable[[str], str]) -> Iterator[World]:
    with Session(stack.zookeeper_access) as session:
        yield World(session, ZkPaths(fresh_name("cluster")))


def test_states_new_changefeed_is_normal_and_wants_a_sorter(world: World) -> None:
    status = world.look()
    assert (status.state, status.checkpoint_ts, status.error) == ("normal", 100, None)
    assert world.owner.wanted() == {NAME: 0}


def test_states_error_that_may_heal_waits_tries_again_and_is_forgotten_once_the_checkpoint_has_passed(
    world: World,
) -> None:
    world.look()
    epoch = world.run_sorter()
    world.board.report(checkpoint_ts=Ts(150), resolved_ts=Ts(300))
    world.board.fail(KafkaUnreachableError("no answer", address="k:9092"), epoch)
    status = world.look()
    assert (status.state, status.checkpoint_ts, status.failure) == ("pending", 150, None)
    assert status.error is not None
    assert (status.error.code, "k:9092" in status.error.message) == ("sorter.kafka_unreachable", True)
    assert (world.owner.wanted(), world.control.store.get("cf").epoch) == ({}, 1)
    assert world.look(9.9).state == "pending"
    status = world.look(0.2)
    assert (status.state, status.error is not None) == ("warning", True)
    assert world.owner.wanted() == {NAME: 1}
    world.run_sorter()
    world.board.report(checkpoint_ts=Ts(160), resolved_ts=Ts(300))
    status = world.look()
    assert (status.state, status.error, status.checkpoint_ts) == ("normal", None, 160)


@pytest.mark.parametrize(
    "error", [HistoryLostError("gone"), type("Bad", (BusError,), {"code": "x", "action": Action.CRASH})("b")]
)
def test_states_error_that_does_not_heal_fails_at_once_until_the_user_resumes(world: World, error: BusError) -> None:
    world.look()
    world.board.fail(error, world.run_sorter())
    assert world.look().state == "failed"
    assert world.look(10_000.0).state == "failed"
    assert world.owner.wanted() == {}
    world.control.resume("cf")
    status = world.look()
    assert (status.state, status.error) == ("normal", None)
    assert world.owner.wanted() == {NAME: 1}


def test_states_errors_for_longer_than_the_changefeeds_file_allows_fail_it(world: World) -> None:
    world.look()
    for _ in range(200):
        status = world.look()
        if status.state == "failed":
            break
        if status.state == "pending":
            world.look(world.owner.feeds[NAME].retrying.retry_at_s - world.now_s)  # type: ignore[union-attr]
        else:
            world.board.fail(KafkaUnreachableError("no answer"), world.run_sorter())
    assert world.look().state == "failed"
    assert 1800 < world.now_s - 1000.0 < 1800 + 600


def test_states_sorter_that_died_is_counted_and_what_it_said_before_goes_first(world: World) -> None:
    world.look()
    status = world.look(0.0, Death(NAME, 0, "killed"))
    assert (status.state, status.sorter_deaths) == ("pending", 1)
    assert status.error is not None
    assert (status.error.code, status.error.message) == ("sorter.died", "killed")
    world.look(10.1)
    world.board.fail(HistoryLostError("gone"), world.run_sorter())
    status = world.look(0.0, Death(NAME, 1, "ended with status 1"))
    assert (status.state, status.sorter_deaths) == ("failed", 1)
    assert status.error is not None
    assert status.error.code == HistoryLostError.code


def test_states_death_under_an_older_epoch_is_not_heard(world: World) -> None:
    world.look()
    world.control.pause("cf")
    world.control.resume("cf")
    world.look()
    assert world.look(0.0, Death(NAME, 0, "told to stop, and killed")).sorter_deaths == 0
    assert world.owner.wanted() == {NAME: 1}


def test_states_paused_one_wants_none_and_keeps_what_its_sorter_writes_last(world: World) -> None:
    world.look()
    world.run_sorter()
    world.control.pause("cf")
    assert world.look().state == "normal", "left to the sorter for a moment"
    assert world.owner.wanted() == {}
    world.board.report(checkpoint_ts=Ts(170))
    status = world.look(STOPPING_S)
    assert (status.state, status.checkpoint_ts) == ("stopped", 170)
    world.control.configure("cf", ConfigChange(target_ts=Ts(160)))
    world.control.resume("cf")
    assert world.look().state == "finished", "the new target was passed before"


def test_states_target_reached_is_finished(world: World) -> None:
    world.look()
    world.run_sorter()
    world.board.report(checkpoint_ts=Ts(900), resolved_ts=Ts(950))
    status = world.look()
    assert (status.state, status.checkpoint_ts) == ("finished", 900)
    assert world.owner.wanted() == {}


def test_states_new_owner_goes_on_from_what_is_stored_and_begins_its_back_off_anew(world: World) -> None:
    world.look()
    world.board.fail(KafkaUnreachableError("no answer"), world.run_sorter())
    world.look()
    world.look(8.0)
    world.owner = world.new_owner()
    status = world.look(5.0)
    assert (status.state, status.error is not None) == ("pending", True)
    assert world.look(9.0).state == "pending"
    assert world.look(1.1).state == "warning"
    world.owner = world.new_owner()
    status = world.look()
    assert (status.state, status.error is not None) == ("warning", True), "nothing has moved since the error"
    world.run_sorter()
    world.board.report(checkpoint_ts=Ts(180))
    status = world.look()
    assert (status.state, status.error) == ("normal", None)


def test_states_two_owners_write_a_transition_once(world: World) -> None:
    world.look()
    late = world.new_owner()
    late.look()
    world.board.fail(KafkaUnreachableError("no answer"), world.run_sorter())
    world.look()
    late.look()
    assert world.control.store.get("cf").epoch == 1
    assert world.look().state == "pending"


def test_states_removed_and_created_again_is_another_changefeed(world: World) -> None:
    world.look()
    world.run_sorter()
    info = world.control.store.get("cf")
    world.control.remove("cf")
    request = ChangefeedRequest(
        upstream=info.upstream, sink_uri=URI, config={}, changefeed_id="cf", start_ts=Ts(120), target_ts=None
    )
    world.control.store.create(request, FrontierWindow(Ts(50), Ts(200)))
    world.board.report(checkpoint_ts=Ts(500))  # the old one's sorter has not noticed yet
    status = world.look()
    assert (status.state, status.checkpoint_ts) == ("normal", 120)


def test_states_changefeed_of_another_upstream_is_left_alone(world: World) -> None:
    request = ChangefeedRequest(
        upstream=UpstreamId("v"), sink_uri=URI, config={}, changefeed_id="other", start_ts=Ts(120), namespace="n"
    )
    world.control.store.create(request, FrontierWindow(Ts(50), Ts(200)))
    world.look()
    assert world.owner.wanted() == {NAME: 0}
    assert world.control.store.status("other", "n") is None


def test_states_node_that_does_not_decode_disturbs_no_other(world: World) -> None:
    broken = world.paths.changefeed_info("default", "broken")
    world.session.client.create(broken, b"{", makepath=True)
    assert world.look().state == "normal"
    assert world.owner.wanted() == {NAME: 0}


def test_states_sorter_that_writes_between_reading_and_writing_loses_nothing(world: World) -> None:
    world.look()
    epoch = world.run_sorter()
    world.board.report(checkpoint_ts=Ts(150))
    read = world.owner._read

    def read_then_report() -> object:
        found = read()
        world.board.report(checkpoint_ts=Ts(190))
        return found

    world.owner._read = read_then_report  # type: ignore[method-assign, assignment]
    world.board.fail(KafkaUnreachableError("no answer"), epoch)
    status = world.look()
    assert (status.state, status.checkpoint_ts) == ("pending", 190)
    assert replace(status, error=None).failure is None
