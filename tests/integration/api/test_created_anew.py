"""A changefeed that is created anew under the name of a removed one has nothing of it, on a real ZooKeeper: versions of
its nodes begin at 0 again, so that who still writes for the removed one is not refused for those."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from compose.local.monitor import Monitor
from compose.stack.local import Addresses
from consumers.control.changefeeds.feed_nodes import FeedNodes
from consumers.control.changefeeds.states import FeedStates
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.changefeeds.verbs import ChangefeedControl
from consumers.control.fleets.service_deaths import ServiceDeath, write_failure
from consumers.control.log.raw_log import RetainedFrontier
from consumers.processors.board import ProcessorBoard, Wanted
from edges.zookeeper.session import Session
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_status,
    encode_changefeed_status,
)
from schemas.nodes.sorter_service import Assigned, FeedName
from sorters.run.nodes.status import StatusBoard
from tests.support.control.lasting_session import lasting_session

NAME: FeedName = ("default", "cf")
URI = "kafka://127.0.0.1:9092/t?protocol=canal-json"
REMOVED_TS, ANEW_TS = Ts(5_000), Ts(10)
"""Where the removed changefeed began, and where the one that was created after it does."""
FAILED = ChangefeedStatus(state="failed", checkpoint_ts=Ts(6_000), resolved_ts=Ts(6_000), set_epoch=3)


@dataclass
class World:
    """A changefeed that is removed and created anew when a test says so."""

    session: Session
    paths: ZkPaths
    control: ChangefeedControl = field(init=False)
    owner: FeedStates = field(init=False)

    def __post_init__(self) -> None:
        self.control = ChangefeedControl(self.session, self.paths)
        self.create(REMOVED_TS)
        self.owner = FeedStates(self.session, self.paths, UpstreamId("u"))

    def create(self, start_ts: Ts) -> None:
        request = ChangefeedRequest(
            upstream=UpstreamId("u"), sink_uri=URI, config={}, changefeed_id="cf", start_ts=start_ts
        )
        self.control.store.create(request, RetainedFrontier(Ts(1), Ts(9_000)))

    def create_anew(self) -> None:
        self.control.remove("cf")
        self.create(ANEW_TS)

    def opened(self) -> StatusBoard:
        """Return the board of a sorter that has begun to run what there is now."""
        board = StatusBoard(self.session.client, self.paths, *NAME)
        current = board.info()
        assert current is not None
        board.open(*current)
        board.report()
        return board

    def zxid(self) -> int:
        return int(self.session.client.get(self.paths.changefeed_info(*NAME))[1].czxid)

    def node(self) -> tuple[ChangefeedStatus, int]:
        """Return what the status node holds, whose ever it is, and its version."""
        node, stat = self.session.client.get(self.paths.changefeed_status(*NAME))
        return decode_changefeed_status(node), int(stat.version)

    def read(self) -> Wanted:
        wanted = ProcessorBoard(self.session, self.paths, *NAME).read()
        assert wanted is not None
        return wanted


@pytest.fixture
def world(stack: Addresses, fresh_name: Callable[[str], str]) -> Iterator[World]:
    with lasting_session(stack.zookeeper_access) as session:
        world = World(session, ZkPaths(fresh_name("cluster")))
        yield world
        world.owner.close()


def test_last_report_of_a_removed_changefeeds_sorter_is_not_the_new_ones(world: World) -> None:
    world.owner.look()
    removed = world.opened()
    world.create_anew()
    world.owner.look()
    anew = world.opened()
    removed.report(checkpoint_ts=Ts(6_000), resolved_ts=Ts(6_000))
    removed.begin(b"of the removed", Ts(6_000))
    removed.fail(InvariantBrokenError("of the removed"), 0)
    assert (world.node()[0].checkpoint_ts, world.node()[0].failure) == (ANEW_TS, None)
    assert world.session.client.exists(world.paths.changefeed_begun(*NAME)) is None
    anew.report(checkpoint_ts=Ts(20), resolved_ts=Ts(20))
    assert world.opened().checkpoint_ts == 20


def test_report_that_overtakes_the_removal_is_none_of_the_new_changefeed(world: World) -> None:
    """Between the sorter's look at which changefeed there is, and its writing."""
    world.owner.look()
    removed = world.opened()
    put: Any = removed._put

    def create_anew_and_put(status: ChangefeedStatus) -> bool:
        removed._put = put  # type: ignore[method-assign]
        world.create_anew()
        world.owner.look()
        world.opened()
        return bool(put(status))

    removed._put = create_anew_and_put  # type: ignore[method-assign]
    removed.report(checkpoint_ts=Ts(6_000), resolved_ts=Ts(6_000))
    assert world.node()[0].checkpoint_ts == 6_000, "nothing has kept it out"
    assert world.opened().checkpoint_ts == ANEW_TS
    world.owner.look()
    assert (world.node()[0].checkpoint_ts, world.owner.feeds[NAME].checkpoint_ts) == (ANEW_TS, ANEW_TS)


def test_owner_that_has_read_a_removed_changefeed_says_nothing_of_the_new_one(world: World) -> None:
    write: Any = world.owner._write

    def create_anew_and_write(*arguments: Any) -> bool:
        world.owner._write = write  # type: ignore[method-assign]
        world.create_anew()
        return bool(write(*arguments))

    world.owner._write = create_anew_and_write  # type: ignore[method-assign, assignment]
    world.owner.look()
    assert world.node()[0].checkpoint_ts == REMOVED_TS, "both nodes had the versions that it knew"
    assert world.opened().checkpoint_ts == ANEW_TS
    world.owner.look()
    assert world.control.store.status("cf") == ChangefeedStatus(
        state="normal", checkpoint_ts=ANEW_TS, resolved_ts=ANEW_TS
    )


@pytest.mark.parametrize("is_said", [True, False], ids=["of the removed one", "of a version that does not say"])
def test_status_is_read_by_everyone_as_the_changefeeds_whose_it_is(
    world: World, stack: Addresses, is_said: bool
) -> None:
    """Where a version has written it that does not know, there is no other way than to take it."""
    removed = world.zxid() if is_said else 0
    world.create_anew()
    written = encode_changefeed_status(replace(FAILED, created_zxid=removed))
    world.session.client.create(world.paths.changefeed_status(*NAME), written)
    said = None if is_said else FAILED
    nodes = FeedNodes(world.session, world.paths)
    monitor = Monitor(stack, world.paths, UpstreamId("u"), lambda: Ts(0), ())
    monitor._zookeeper = cast(Any, world.session.client)
    board = StatusBoard(world.session.client, world.paths, *NAME)
    current = board.info()
    assert current is not None
    try:
        assert [feed.status for feed in nodes.readable(is_exact=True)] == [said]
        assert world.control.store.status("cf") == said
        assert monitor.status("cf") == said
        assert board.status(current[1]) == said
        looked = ProcessorBoard(world.session, world.paths, *NAME).look()
        assert looked is not None and (looked.status, world.read().status) == (said, said)
        assert board.open(*current) == (6_000 if said else ANEW_TS)
        assert world.control.pause("cf").checkpoint_ts == (6_000 if said else ANEW_TS)
    finally:
        nodes.close()


def test_failures_of_a_removed_changefeeds_processor_and_service_are_not_the_new_ones(world: World) -> None:
    world.owner.look()
    world.opened()
    removed = world.read()
    assigned = Assigned(namespace="default", changefeed_id="cf", created_zxid=world.zxid(), epoch=0, revision=1)
    world.create_anew()
    world.owner.look()
    world.opened()
    board = ProcessorBoard(world.session, world.paths, *NAME)
    board.fail(InvariantBrokenError("of the removed"), removed)
    death = ServiceDeath("s", 1, "killed", frozenset({NAME}), {NAME: assigned})
    assert not write_failure(world.session.client, world.paths, NAME, death)
    assert world.node()[0].failure is None
    board.fail(InvariantBrokenError("its own"), world.read())
    failure = world.node()[0].failure
    assert failure is not None and "its own" in failure.message
