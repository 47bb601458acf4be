"""The owner's judgement of changefeeds on a real ZooKeeper, beside a user and a sorter; the clock is the test's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from compose.stack.local import Addresses
from consumers.control.changefeeds.states import STOPPING_S, Death, FeedStates
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.changefeeds.verbs import ChangefeedControl, ConfigChange
from consumers.control.core.changefeeds.errors import TABLE_HELD, FeedError
from consumers.control.core.changefeeds.state import Patience
from consumers.control.log.raw_log import RetainedFrontier
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.errors import Action, BusError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedStatus, ZkPaths, wants_sorter
from sorters.log.failures import HistoryLostError, KafkaUnreachableError
from sorters.run.nodes.status import StatusBoard
from tests.support.control.lasting_session import lasting_session
from tests.support.processes.service_progress import WrittenProgress, entry

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
        self.control.store.create(request, RetainedFrontier(Ts(50), Ts(200)))
        self.board = StatusBoard(self.session.client, self.paths, *NAME)
        self.owner = self.new_owner()

    def new_owner(self) -> FeedStates:
        """Return the states as an owner has them that has just been elected."""
        patience = Patience(jitter_max=0.0)
        return FeedStates(
            self.session, self.paths, UpstreamId("u"), patience=patience, clock=lambda: self.now_s, jitter=lambda: 0.0
        )

    def zxid(self) -> int:
        """Return the changefeed's creation."""
        return int(self.session.client.get(self.paths.changefeed_info(*NAME))[1].czxid)

    def status_version(self) -> int:
        return int(self.session.client.get(self.paths.changefeed_status(*NAME))[1].version)

    def look(self, after_s: float = 0.0, *deaths: Death) -> ChangefeedStatus:
        self.now_s += after_s
        self.owner.look((), deaths)
        status = self.control.store.status("cf")
        assert status is not None
        return status

    def run_sorter(self) -> int:
        """Open the board as a run of the sorter does; return its epoch."""
        stored = self.board.info()
        assert stored is not None
        assert wants_sorter(stored[0], self.board.status(stored[1]))
        self.board.open(*stored)
        return stored[0].epoch


@pytest.fixture
def world(stack: Addresses, fresh_name: Callable[[str], str]) -> Iterator[World]:
    with lasting_session(stack.zookeeper_access) as session:
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
    world.control.store.create(request, RetainedFrontier(Ts(50), Ts(200)))
    world.board.report(checkpoint_ts=Ts(500))  # the old one's sorter has not noticed yet
    status = world.look()
    assert (status.state, status.checkpoint_ts) == ("normal", 120)


def test_states_changefeed_of_another_upstream_is_left_alone(world: World) -> None:
    request = ChangefeedRequest(
        upstream=UpstreamId("v"), sink_uri=URI, config={}, changefeed_id="other", start_ts=Ts(120), namespace="n"
    )
    world.control.store.create(request, RetainedFrontier(Ts(50), Ts(200)))
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
        nodes = read()
        world.board.report(checkpoint_ts=Ts(190))
        return nodes

    world.owner._read = read_then_report  # type: ignore[method-assign, assignment]
    world.board.fail(KafkaUnreachableError("no answer"), epoch)
    status = world.look()
    assert (status.state, status.checkpoint_ts) == ("pending", 190)
    assert replace(status, error=None).failure is None


@pytest.fixture
def service(world: World) -> Iterator[WrittenProgress]:
    """A service's hand, in a session of its own."""
    with lasting_session(ZooKeeperAccess(world.session.hosts)) as session:
        yield WrittenProgress(session.client, world.paths)


def test_states_what_a_service_says_moves_the_changefeed_and_writes_no_status(
    world: World, service: WrittenProgress
) -> None:
    world.look()
    before = world.status_version()
    for checkpoint_ts in range(110, 160, 10):
        service.write(entry(NAME, world.zxid(), checkpoint_ts, rows_total=checkpoint_ts))
        world.owner._stored.refresh(is_exact=True)
        status = world.look()
        assert (world.owner.feeds[NAME].checkpoint_ts, status.checkpoint_ts) == (checkpoint_ts, checkpoint_ts)
        assert (status.state, status.rows_total) == ("normal", checkpoint_ts)
    assert world.status_version() == before


def test_states_look_asks_nothing_while_nothing_changes(world: World) -> None:
    world.look()
    world.owner.look()
    before = world.owner._stored.cache.requests_total
    for _ in range(10):
        world.owner.look()
    assert world.owner._stored.cache.requests_total == before


def test_states_service_that_reaches_the_target_finishes_the_changefeed(world: World, service: WrittenProgress) -> None:
    world.look()
    service.write(entry(NAME, world.zxid(), 900))
    world.owner._stored.refresh(is_exact=True)
    status = world.look()
    assert (status.state, status.checkpoint_ts, world.owner.wanted()) == ("finished", 900, {})
    service.write(entry(NAME, world.zxid(), 900, rows_total=5))  # what it still says changes nothing
    world.owner._stored.refresh(is_exact=True)
    assert (world.look().state, world.control.store.get("cf").epoch) == ("finished", 1)


def test_states_what_a_service_has_said_before_it_died_is_read_first(world: World, service: WrittenProgress) -> None:
    """By another session, with no time between: only a sync sees it for certain."""
    world.look()
    world.board.fail(KafkaUnreachableError("no answer"), world.run_sorter())
    world.look()
    world.look(10.1)
    assert world.owner.feeds[NAME].state == "warning"
    service.write(entry(NAME, world.zxid(), 120, epoch=1))
    world.owner.look((), [Death(NAME, 0, "an earlier one")])
    assert world.owner.feeds[NAME].checkpoint_ts == 120
    assert world.look().state == "normal", "it has moved since its error"


def test_states_entry_of_an_earlier_changefeed_or_holder_says_nothing(world: World, service: WrittenProgress) -> None:
    world.look()
    other = WrittenProgress(service.client, world.paths, "service-b")
    other.write(entry(NAME, world.zxid() - 1, 800), entry(("default", "gone"), 1, 700))
    service.write(entry(NAME, world.zxid(), 130, revision=2))
    world.owner._stored.refresh(is_exact=True)
    assert world.look().checkpoint_ts == 130
    other.write(entry(NAME, world.zxid(), 120, revision=1))
    world.owner._stored.refresh(is_exact=True)
    assert (world.look().checkpoint_ts, world.owner.feeds[NAME].checkpoint_ts) == (130, 130)


def test_states_checkpoint_that_a_user_has_set_back_is_not_overruled_by_what_was_said_before(
    world: World, service: WrittenProgress
) -> None:
    world.look()
    service.write(entry(NAME, world.zxid(), 500))
    world.owner._stored.refresh(is_exact=True)
    world.look()
    world.control.pause("cf")
    world.look(STOPPING_S)
    assert world.look(STOPPING_S).state == "stopped"
    assert world.control.resume("cf", overwrite_checkpoint_ts=Ts(150)).checkpoint_ts == 150
    status = world.look()
    assert (status.state, status.checkpoint_ts, world.owner.feeds[NAME].checkpoint_ts) == ("normal", 150, 150)
    service.write(entry(NAME, world.zxid(), 160, epoch=world.control.store.get("cf").epoch))
    world.owner._stored.refresh(is_exact=True)
    assert world.look().checkpoint_ts == 160


def test_states_progress_that_does_not_decode_disturbs_nobody(world: World, service: WrittenProgress) -> None:
    service.write(entry(NAME, world.zxid(), 140))
    service.client.create(f"{world.paths.root}/progress/other/0", b"[{", makepath=True)
    world.owner._stored.refresh(is_exact=True)
    assert (world.look().checkpoint_ts, world.owner.feeds[NAME].checkpoint_ts) == (140, 140)


def test_states_user_goes_on_from_where_the_service_is(world: World, service: WrittenProgress) -> None:
    world.look()
    service.write(entry(NAME, world.zxid(), 170))
    world.control.pause("cf")
    world.look(STOPPING_S)
    assert world.look(STOPPING_S).state == "stopped"
    assert world.control.resume("cf").checkpoint_ts == 170
    assert world.look().checkpoint_ts == 170


def test_states_change_of_what_a_resting_changefeed_waits_for_is_told_though_no_node_has_changed(world: World) -> None:
    waits = FeedError(code=TABLE_HELD, message="t stands", time="2026-01-01T00:00:00+00:00")
    held: list[FeedError | None] = [None]
    world.owner = FeedStates(
        world.session, world.paths, UpstreamId("u"), clock=lambda: world.now_s, held=lambda _: held[0]
    )
    world.look()
    world.look()
    held[0] = waits
    status = world.look()
    assert (status.state, status.error is not None and status.error.message) == ("warning", "t stands")
    world.look()
    held[0] = None
    assert world.look().state == "normal"
