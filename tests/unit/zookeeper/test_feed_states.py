"""The owner's looks at changefeeds under planted orders of writes and events; on a real ZooKeeper the integration test
of the same name."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from compose.operator.error_codes import catalogue
from consumers.control.changefeeds.processor_nodes import AppliedNode, encode_applied
from consumers.control.changefeeds.states import DIED, Death, FeedStates
from consumers.control.changefeeds.verbs import feed_of
from consumers.control.core.changefeeds import sink_errors
from edges.zookeeper.session import Session, ZooKeeperError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedInfo,
    ChangefeedStatus,
    SorterFailure,
    ZkPaths,
    decode_changefeed_info,
    decode_changefeed_status,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.nodes.failures import StoppingDdl
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import FeedEntry, FeedName, encode_entries
from schemas.sink.topic import life_of
from tests.support.control.memory_zookeeper import MemoryZooKeeper
from tests.support.processes.service_progress import entry

PATHS = ZkPaths("c")
NAME: FeedName = ("default", "cf")
INFO_PATH, STATUS_PATH = PATHS.changefeed_info(*NAME), PATHS.changefeed_status(*NAME)
PROGRESS_PATH = ServicePaths(PATHS).entries("service-a", 0)


@dataclass
class World:
    server: MemoryZooKeeper = field(default_factory=MemoryZooKeeper)
    now_s: float = 1000.0
    sink_uri: str = "kafka://h:1/t?protocol=canal-json"

    def __post_init__(self) -> None:
        info = ChangefeedInfo(
            changefeed_id="cf",
            upstream=UpstreamId("u"),
            sink_uri=self.sink_uri,
            start_ts=Ts(100),
            target_ts=Ts(900),
        )
        self.server.write({INFO_PATH: encode_changefeed_info(info)})
        self.owner = FeedStates(
            cast(Session, self.server), PATHS, UpstreamId("u"), clock=lambda: self.now_s, jitter=lambda: 0.0
        )
        self.owner.look()

    def status(self) -> ChangefeedStatus:
        return decode_changefeed_status(self.server.nodes[STATUS_PATH].value)

    def change(self, change: Callable[[ChangefeedStatus], ChangefeedStatus]) -> None:
        self.server.write({STATUS_PATH: encode_changefeed_status(change(self.status()))})

    def progress(self, *entries: FeedEntry) -> None:
        self.server.write({PROGRESS_PATH: encode_entries(entries)})

    def entry(self, checkpoint_ts: int, epoch: int = 0) -> FeedEntry:
        return entry(NAME, self.server.nodes[INFO_PATH].created_zxid, checkpoint_ts, epoch=epoch)

    def transactions(self) -> int:
        return sum(what == "transaction" for what, _ in self.server.asked)


def failed(status: ChangefeedStatus) -> ChangefeedStatus:
    failure = SorterFailure(epoch=0, code="raw_log.gone", message="gone", time="t", may_heal=True)
    return replace(status, failure=failure)


def test_look_after_a_death_hears_what_was_said_before_though_no_event_has_come() -> None:
    world = World()
    world.server.events_late = True
    world.change(failed)
    world.progress(world.entry(150))
    world.owner.look((), [Death(NAME, 0, "killed")])
    status, feed = world.status(), world.owner.feeds[NAME]
    assert status.error is not None
    assert (status.state, status.error.code, status.sorter_deaths) == ("pending", "raw_log.gone", 0)
    assert feed.checkpoint_ts == 150


def test_death_is_kept_until_its_reason_can_be_read() -> None:
    world = World()
    world.server.away = True
    with pytest.raises(ZooKeeperError):
        world.owner.look((), [Death(NAME, 0, "killed")])
    world.server.away = False
    world.owner.look()
    status = world.status()
    assert status.error is not None
    assert (status.state, status.error.code, status.sorter_deaths) == ("pending", DIED, 1)


@pytest.mark.parametrize(
    ("code", "errors"), [("apply.row_refused", (1, 0)), ("apply.ddl_refused", (0, 1)), ("raw_log.gone", (0, 0))]
)
def test_errors_of_the_sink_are_counted_once_each_by_what_it_refused(code: str, errors: tuple[int, int]) -> None:
    world = World()
    failure = SorterFailure(epoch=0, code=code, message="m", time="t", may_heal=True)
    world.change(lambda status: replace(status, failure=failure))
    for _ in range(3):
        world.owner.look()
    status = world.status()
    assert (status.dml_errors, status.ddl_errors, status.failure) == (*errors, None)
    epoch = decode_changefeed_info(world.server.nodes[INFO_PATH].value).epoch
    world.change(lambda status: replace(status, state="warning", failure=replace(failure, epoch=epoch)))
    FeedStates(cast(Session, world.server), PATHS, UpstreamId("u")).look()  # the next owner goes on counting
    status = world.status()
    assert (status.dml_errors, status.ddl_errors) == (2 * errors[0], 2 * errors[1])


def test_ddl_that_stops_a_changefeed_stands_with_its_error_until_it_is_resumed() -> None:
    world = World()
    ddl = StoppingDdl(table="a.b", query="alter …", start_ts=Ts(8), commit_ts=Ts(9), reason="no", what_helps="this")
    failure = SorterFailure(epoch=0, code="lake.schema_refused", message="m", time="t", may_heal=False, ddl=ddl)
    world.change(lambda status: replace(status, failure=failure))
    world.owner.look()
    status = world.status()
    assert status.error is not None and (status.state, status.failure, status.error.ddl) == ("failed", None, ddl)
    next_owner = FeedStates(cast(Session, world.server), PATHS, UpstreamId("u"))
    for owner in (world.owner, next_owner):
        world.change(lambda status: replace(status, rows_total=status.rows_total + 1))
        owner.look()
        error = world.status().error
        assert error is not None and error.ddl == ddl
    info = decode_changefeed_info(world.server.nodes[INFO_PATH].value)
    feed = feed_of(info, world.status())
    assert feed.error is not None and feed.error.ddl == ddl


def test_codes_of_the_sink_are_codes() -> None:
    codes = {entry.code for entry in catalogue()}
    assert codes >= sink_errors._OF_DDL | sink_errors._OF_ROWS


def test_progress_is_never_written_into_the_status() -> None:
    world = World()
    before, written = world.transactions(), world.server.nodes[STATUS_PATH].version
    for checkpoint_ts in range(110, 160):
        world.progress(world.entry(checkpoint_ts))
        world.owner.look()
        assert world.owner.feeds[NAME].checkpoint_ts == checkpoint_ts
    assert (world.transactions(), world.server.nodes[STATUS_PATH].version) == (before, written)


def test_look_at_rest_asks_nothing_and_a_moving_one_asks_once() -> None:
    world = World()
    world.owner.look()
    asked = len(world.server.asked)
    for _ in range(10):
        world.owner.look()
    assert len(world.server.asked) == asked
    world.progress(world.entry(110))
    world.owner.look()  # the first node of all progress: the folders are listed
    asked = len(world.server.asked)
    world.progress(world.entry(120))
    world.owner.look()
    assert world.server.asked[asked:] == [("get", PROGRESS_PATH)]


def test_failure_that_comes_with_the_last_progress_in_one_transaction_is_judged_from_there() -> None:
    """The service folds its entry into the status and drops it; the owner was about to read the entry."""
    world = World()
    world.progress(world.entry(140))
    world.owner.look()
    world.progress(world.entry(150))

    def fold(what: str, path: str) -> None:
        world.server.on_request = lambda *_: None
        folded = replace(failed(world.status()), checkpoint_ts=Ts(160), resolved_ts=Ts(160))
        world.server.write({STATUS_PATH: encode_changefeed_status(folded), PROGRESS_PATH: encode_entries([])})

    world.server.on_request = fold
    world.owner.look()
    feed = world.owner.feeds[NAME]
    assert (feed.state, feed.checkpoint_ts, feed.retrying is not None and feed.retrying.reached_ts) == (
        "pending",
        160,
        160,
    )


def test_error_of_a_destination_stands_until_that_has_moved_though_its_sorter_goes_on() -> None:
    world = World(sink_uri="mysql://u@h:1/")
    info = decode_changefeed_info(world.server.nodes[INFO_PATH].value)

    def applied(ts: int) -> None:
        node = AppliedNode(life=life_of(info), checkpoint_ts=Ts(ts), rows_total=0, ddl_total=0)
        world.server.write({PATHS.changefeed_applied(*NAME): encode_applied(node)})

    applied(120)
    world.progress(world.entry(150))
    world.change(failed)
    world.owner.look()
    assert world.status().state == "pending"
    world.now_s += 10
    for checkpoint_ts in range(160, 200, 10):
        world.progress(world.entry(checkpoint_ts, epoch=1))
        world.owner.look()
        error = world.status().error
        assert (world.status().state, error and error.code) == ("warning", "raw_log.gone")
    applied(121)
    world.owner.look()
    assert (world.status().state, world.status().error) == ("normal", None)
    asked = len(world.server.asked)
    applied(122)
    world.progress(world.entry(210, epoch=1))
    world.owner.look()
    read = [path for what, path in world.server.asked[asked:] if what == "get"]
    assert PROGRESS_PATH in read and PATHS.changefeed_applied(*NAME) not in read, "it changes all the time"


def test_transition_that_another_has_overtaken_is_taken_from_what_it_wrote() -> None:
    """A user pauses between the owner's reading and its writing: an epoch of the owner's must not undo that."""
    world = World()
    world.change(failed)

    def pause(what: str, path: str) -> None:
        if what == "transaction":
            world.server.on_request = lambda *_: None
            info = decode_changefeed_info(world.server.nodes[INFO_PATH].value)
            stopped = replace(info, desired_state="stopped", epoch=info.epoch + 1)
            world.server.write({INFO_PATH: encode_changefeed_info(stopped)})

    world.server.on_request = pause
    world.owner.look()
    info = decode_changefeed_info(world.server.nodes[INFO_PATH].value)
    assert (info.desired_state, info.epoch, world.owner.feeds[NAME].state) == ("stopped", 1, "stopped")
    assert world.owner.wanted() == {}


def test_connection_that_was_lost_hides_nothing() -> None:
    world = World()
    world.server.suspend()
    world.progress(world.entry(170))
    world.owner.look()
    assert world.owner.feeds[NAME].checkpoint_ts == 170


def test_closed_states_hear_of_nothing() -> None:
    world = World()
    world.owner.close()
    assert not world.server.listeners
