"""The end of the cut that runs when its changefeed is stopped reaches the status, on a real ZooKeeper, whoever has
written the nodes since it began; but for a user who has set another checkpoint."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from compose.stack.local import Addresses
from consumers.control.changefeeds.states import STOPPING_S, FeedStates
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.changefeeds.verbs import ChangefeedControl, ConfigChange
from consumers.control.log.raw_log import RetainedFrontier
from consumers.processors.board import ProcessorBoard
from edges.zookeeper.session import Session
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import SET_EPOCH_UNKNOWN, ChangefeedStatus, ZkPaths, encode_changefeed_status
from schemas.nodes.sorter_service import FeedName
from sorters.run.nodes.status import StatusBoard
from tests.support.control.lasting_session import lasting_session
from tests.support.processes.service_progress import WrittenProgress, entry

NAME: FeedName = ("default", "cf")


@dataclass
class World:
    """A changefeed whose service has said 200 of it, and whose sorter is in the cut from there to 900."""

    session: Session
    paths: ZkPaths
    now_s: float = 1000.0
    has_status: bool = True
    control: ChangefeedControl = field(init=False)

    def __post_init__(self) -> None:
        self.control = ChangefeedControl(self.session, self.paths)
        request = ChangefeedRequest(
            upstream=UpstreamId("u"),
            sink_uri="kafka://127.0.0.1:9092/t?protocol=canal-json",
            config={},
            changefeed_id="cf",
            start_ts=Ts(100),
        )
        self.control.store.create(request, RetainedFrontier(Ts(50), Ts(200)))
        self.owner = FeedStates(self.session, self.paths, UpstreamId("u"), clock=lambda: self.now_s)
        self.owner.look()
        self.board = StatusBoard(self.session.client, self.paths, *NAME)
        current = self.board.info()
        assert current is not None
        self.board.open(*current)
        if self.has_status:
            self.board.report()
        self.service = WrittenProgress(self.session.client, self.paths)
        self.service.write(entry(NAME, current[1].created_zxid, 200))
        self.owner._stored.refresh(is_exact=True)

    def fold(self) -> None:
        """End the cut, as its sorter does."""
        assert self.board.report(checkpoint_ts=Ts(900), resolved_ts=Ts(950), rows_total=7)
        self.service.drop(NAME)

    def status(self) -> ChangefeedStatus:
        status = self.control.store.status("cf")
        assert status is not None
        return status

    def status_version(self) -> int | None:
        node = self.session.client.exists(self.paths.changefeed_status(*NAME))
        return None if node is None else int(node.version)


@pytest.fixture
def session(stack: Addresses) -> Iterator[Session]:
    with lasting_session(stack.zookeeper_access) as session:
        yield session


@pytest.fixture
def world(session: Session, fresh_name: Callable[[str], str]) -> Iterator[World]:
    world = World(session, ZkPaths(fresh_name("cluster")))
    yield world
    world.owner.close()


def pause(world: World) -> None:
    before = world.status_version()
    assert world.control.pause("cf").checkpoint_ts == 200
    assert world.status_version() == before, "it is the sorter's and the owner's"


def pause_seen_by_the_owner(world: World) -> None:
    pause(world)
    for _ in range(2):
        world.owner.look()
        world.now_s += STOPPING_S
    assert world.status().state == "stopped"


def pause_and_resume(world: World) -> None:
    pause(world)
    assert world.control.resume("cf").checkpoint_ts == 200


def pause_and_update(world: World) -> None:
    pause(world)
    world.control.configure("cf", ConfigChange(target_ts=Ts(9_000)))


def failure_of_a_processor(world: World) -> None:
    board = ProcessorBoard(world.session, world.paths, *NAME)
    wanted = board.read()
    assert wanted is not None
    board.fail(InvariantBrokenError("a row was refused"), wanted)
    world.owner._stored.refresh(is_exact=True)
    world.owner.look()
    assert world.status().error is not None


@pytest.mark.parametrize(
    "stop", [pause, pause_seen_by_the_owner, pause_and_resume, pause_and_update, failure_of_a_processor]
)
def test_end_of_the_last_cut_is_where_the_changefeed_goes_on(world: World, stop: Callable[[World], None]) -> None:
    stop(world)
    stopped = world.status()
    world.fold()
    status = world.status()
    assert (status.checkpoint_ts, status.resolved_ts, status.rows_total) == (900, 950, 7)
    assert (status.state, status.error) == (stopped.state, stopped.error), "what follows is others' to say"
    current = world.board.info()
    assert current is not None
    assert world.board.open(*current) == 900


def test_end_of_the_last_cut_is_not_heard_once_a_user_has_set_the_checkpoint(world: World) -> None:
    pause_seen_by_the_owner(world)
    world.control.resume("cf", overwrite_checkpoint_ts=Ts(150))
    world.fold()
    assert (world.status().checkpoint_ts, world.status().rows_total) == (150, 0)


OTHER_SINK = ConfigChange(sink_uri="kafka://127.0.0.1:9092/other?protocol=canal-json")
OTHER_FILTER = ConfigChange(config={"filter": {"rules": ["d.*"]}})


@pytest.mark.parametrize("change", [OTHER_SINK, OTHER_FILTER], ids=["sink", "filter"])
def test_end_of_the_last_cut_is_not_heard_where_rows_go_elsewhere_since(world: World, change: ConfigChange) -> None:
    pause(world)
    world.control.configure("cf", change)
    world.control.resume("cf")
    world.fold()
    assert (world.status().checkpoint_ts, world.status().rows_total) == (200, 0)
    current = world.board.info()
    assert current is not None
    assert world.board.open(*current) == 200


def test_what_was_said_under_former_settings_says_nothing_under_others(world: World) -> None:
    pause(world)
    world.control.configure("cf", OTHER_SINK)
    world.control.resume("cf")
    current = world.board.info()
    assert current is not None
    world.service.write(entry(NAME, current[1].created_zxid, 900))
    assert world.control.resume("cf").checkpoint_ts == 200


@pytest.mark.parametrize("change", [None, OTHER_SINK], ids=["checkpoint", "sink"])
def test_what_was_said_before_a_first_status_says_nothing_behind_a_change(
    session: Session, fresh_name: Callable[[str], str], change: ConfigChange | None
) -> None:
    world = World(session, ZkPaths(fresh_name("cluster")), has_status=False)
    pause(world)
    if change is not None:
        world.control.configure("cf", change)
    expected = world.control.resume("cf", overwrite_checkpoint_ts=None if change else Ts(150)).checkpoint_ts
    assert expected == (200 if change else 150)
    current = world.board.info()
    assert current is not None
    world.service.write(entry(NAME, current[1].created_zxid, 900))
    world.owner.close()
    assert world.board.open(*current) == expected


def test_end_of_the_last_cut_is_not_heard_where_a_version_that_does_not_say_may_have_set_the_checkpoint(
    world: World,
) -> None:
    pause(world)
    status = replace(world.status(), checkpoint_ts=Ts(150), set_epoch=SET_EPOCH_UNKNOWN)
    world.session.client.set(world.paths.changefeed_status(*NAME), encode_changefeed_status(status))
    world.fold()
    assert world.status().checkpoint_ts == 150
