"""The owner gives changefeeds to sorter services on a real ZooKeeper; services are nodes that the test writes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from compose.stack.local import Addresses
from consumers.control.changefeeds.pins import pin_changefeed
from consumers.control.changefeeds.states import FeedStates
from consumers.control.changefeeds.store import ChangefeedNotFoundError, ChangefeedRequest
from consumers.control.changefeeds.verbs import ChangefeedControl
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.cluster.election import raise_revision
from consumers.control.core.changefeeds.service_plan import FIRST_WAIT_S, dedicated_id
from consumers.control.core.changefeeds.state import Patience
from consumers.control.fleets.sorter_assigner import BALANCE_EVERY_S, GONE_S, LOAD_OVER_S, SorterAssigner
from consumers.control.log.raw_log import RetainedFrontier
from edges.zookeeper.session import LeaseLostError, Session
from schemas.errors import BusError, CorruptDataError
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedStatus, SorterFailure, ZkPaths
from schemas.nodes.feed_figures import FeedFigures, encode_figures
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import (
    Assignment,
    FeedEntry,
    ServiceInfo,
    decode_assignment,
    encode_entries,
    encode_service,
)
from tests.support.control.changefeed_status import write_status
from tests.support.control.lasting_session import lasting_session

URI = "kafka://127.0.0.1:9092/t?protocol=canal-json"


@dataclass
class World:
    """A cluster without processes; owners look when they are told to."""

    session: Session
    paths: ZkPaths
    now_s: float = 1000.0
    captures: dict[CaptureId, CaptureInfo] = field(default_factory=dict)
    fatal: list[BusError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes, self.control = ServicePaths(self.paths), ChangefeedControl(self.session, self.paths)
        self.owner = self.elect()

    def elect(self) -> SorterAssigner:
        """Let another owner be elected, and return it."""
        self.revision = getattr(self, "revision", 0) + 1
        raise_revision(self.session, self.paths, self.revision)
        states = FeedStates(
            self.session,
            self.paths,
            UpstreamId("u"),
            patience=Patience(jitter_max=0.0),
            clock=lambda: self.now_s,
            jitter=lambda: 0.0,
        )
        return SorterAssigner(
            self.session,
            self.paths,
            states,
            self.revision,
            lambda: self.captures,
            on_fatal=self.fatal.append,
            clock=lambda: self.now_s,
        )

    def create(self, *names: str, config: dict[str, object] | None = None) -> None:
        for name in names:
            request = ChangefeedRequest(
                upstream=UpstreamId("u"), sink_uri=URI, config=config or {}, changefeed_id=name, start_ts=Ts(100)
            )
            self.control.store.create(request, RetainedFrontier(Ts(50), Ts(200)))

    def start(self, service: str, capture: str = "", dedicated: str = "") -> None:
        """Register a service, and with ``capture`` the capture that runs it."""
        info = ServiceInfo(
            service=service, host="h", pid=1, version="0", started_at_s=0, master="local[1]", dedicated=dedicated
        )
        self.session.client.create(self.nodes.service(service), encode_service(info), makepath=True)
        if capture:
            known = CaptureInfo(
                capture_id=CaptureId(capture), address="", version="0", started_at_s=0, service_id=service
            )
            self.captures[known.capture_id] = known

    def kill(self, service: str) -> None:
        self.session.client.delete(self.nodes.service(service))

    def look(self, after_s: float = 0.0) -> dict[str, list[str]]:
        """Return who has which changefeeds after a look of the owner."""
        self.now_s += after_s
        self.owner.look()
        return self.given()

    def given(self) -> dict[str, list[str]]:
        client = self.session.client
        services = client.get_children(self.nodes.assignments) if client.exists(self.nodes.assignments) else []
        return {service: [feed.changefeed_id for feed in self.assignment(service).feeds] for service in services}

    def assignment(self, service: str) -> Assignment:
        return decode_assignment(self.session.client.get(self.nodes.assignment(service))[0])

    def zxid(self, name: str) -> int:
        return int(self.session.client.get(self.paths.changefeed_info("default", name))[1].czxid)

    def say(self, service: str, name: str, revision: int, cpu_s: float = 0.0) -> None:
        """Let a service say how far a changefeed is."""
        entry = FeedEntry(
            namespace="default",
            changefeed_id=name,
            created_zxid=self.zxid(name),
            epoch=0,
            revision=revision,
            checkpoint_ts=Ts(150),
            resolved_ts=Ts(150),
            cpu_s=cpu_s,
        )
        client, counted = self.session.client, encode_figures([(entry.run, FeedFigures(windows_proven=1))])
        nodes = {self.nodes.entries(service, 0): encode_entries([entry]), self.nodes.entry_figures(service, 0): counted}
        for path, node in nodes.items():
            if client.exists(path):
                client.set(path, node)
            else:
                client.create(path, node, makepath=True)

    def died(self, name: str) -> None:
        """Let a capture say that its service has died of a changefeed."""
        info, status = self.control.store.get(name), self.control.store.status(name)
        failure = SorterFailure(epoch=info.epoch, code="sorter.died", message="signal 11", time="", may_heal=True)
        before = status or ChangefeedStatus(state="normal", checkpoint_ts=Ts(100), resolved_ts=Ts(100))
        write_status(self.control.store, name, replace(before, failure=failure))

    def status(self, name: str) -> ChangefeedStatus:
        status = self.control.store.status(name)
        assert status is not None
        return status


@pytest.fixture
def world(stack: Addresses, fresh_name: Callable[[str], str]) -> Iterator[World]:
    with lasting_session(stack.zookeeper_access) as session:
        yield World(session, ZkPaths(fresh_name("cluster")))


def test_assigner_waits_for_the_services_of_its_captures_and_shares_out_what_is_wanted(world: World) -> None:
    world.create("a", "b", "c")
    world.start("s1", "c1")
    world.captures[CaptureId("c2")] = replace(world.captures[CaptureId("c1")], service_id="s2")
    assert world.look() == {}
    world.start("s2")
    assert world.look() == {"s1": ["a", "c"], "s2": ["b"]}
    version = world.session.client.get(world.nodes.assignment("s1"))[1].version
    world.look(5 * BALANCE_EVERY_S)
    assert world.session.client.get(world.nodes.assignment("s1"))[1].version == version, "nothing has a cause"
    world.control.pause("a")
    assert world.look() == {"s1": ["c"], "s2": ["b"]}
    world.control.resume("a")
    assert sorted(world.look()["s1"] + world.given()["s2"]) == ["a", "b", "c"]
    world.control.remove("b")
    assert sorted(world.look()["s1"] + world.given()["s2"]) == ["a", "c"]


def test_assigner_goes_on_without_a_service_that_never_came_and_without_one_that_has_died(world: World) -> None:
    world.create("a", "b")
    world.start("s1", "c1")
    world.captures[CaptureId("c2")] = replace(world.captures[CaptureId("c1")], service_id="s2")
    assert world.look(FIRST_WAIT_S) == {"s1": ["a", "b"]}
    world.kill("s1")
    assert world.look() == {"s1": ["a", "b"]}, "nobody else can take them"
    world.start("s2")
    assert world.look() == {"s1": [], "s2": ["a", "b"]}
    assert [feed.revision for feed in world.assignment("s2").feeds] == [2, 2]


def test_assigner_drains_a_capture_that_is_leaving_and_obeys_a_pin(world: World) -> None:
    world.create("a", "b")
    world.start("s1", "c1")
    world.start("s2", "c2")
    assert world.look() == {"s1": ["a"], "s2": ["b"]}
    pin_changefeed(world.session, world.paths, ("default", "a"), "s2")
    assert world.look() == {"s1": [], "s2": ["a", "b"]}
    assert world.look(BALANCE_EVERY_S) == {"s1": ["b"], "s2": ["a"]}, "for balance the other one moves"
    world.captures[CaptureId("c2")] = replace(world.captures[CaptureId("c2")], is_stopping=True)
    assert world.look() == {"s1": ["a", "b"], "s2": []}
    world.captures[CaptureId("c2")] = replace(world.captures[CaptureId("c2")], is_stopping=False)
    pin_changefeed(world.session, world.paths, ("default", "a"), "")
    assert world.look() == {"s1": ["a", "b"], "s2": []}
    assert {len(names) for names in world.look(BALANCE_EVERY_S).values()} == {1}
    with pytest.raises(ChangefeedNotFoundError):
        pin_changefeed(world.session, world.paths, ("default", "none-such"), "s1")


def test_assigner_moves_by_the_cpu_time_that_services_tell(world: World) -> None:
    world.create("a", "b", "c", "d")
    world.start("s1", "c1")
    world.start("s2", "c2")
    assert world.look() == {"s1": ["a", "c"], "s2": ["b", "d"]}
    world.say("s1", "a", 1, cpu_s=0.0)
    world.look()
    world.say("s1", "a", 1, cpu_s=LOAD_OVER_S)
    world.look(LOAD_OVER_S)
    assert world.look(BALANCE_EVERY_S) == {"s1": ["a"], "s2": ["b", "c", "d"]}


def test_assigner_former_owner_is_refused(world: World) -> None:
    world.create("a")
    former = world.owner
    world.start("s1", "c1")
    world.owner = world.elect()
    with pytest.raises(LeaseLostError):
        former.look()
    assert world.given() == {}
    assert world.look() == {"s1": ["a"]}
    assert world.assignment("s1").owner_rev == 2


@pytest.mark.parametrize("value", [b"garbage", b"0"])
def test_assigner_says_that_the_owner_revision_is_not_its_own_until_it_is(world: World, value: bytes) -> None:
    world.create("a")
    world.start("s1", "c1")
    world.session.client.set(world.paths.owner_rev, value)
    for _ in range(2):
        with pytest.raises(CorruptDataError) as caught:
            world.look()
        assert caught.value.fields["node"] == world.paths.owner_rev
    assert world.fatal == []
    world.session.client.set(world.paths.owner_rev, b"1")
    assert world.look() == {"s1": ["a"]}


def test_assigner_whose_owner_has_a_successor_ends_the_capture_whose_session_may_live(world: World) -> None:
    world.create("a")
    world.start("s1", "c1")
    world.session.client.set(world.paths.owner_rev, b"9")
    with pytest.raises(LeaseLostError):
        world.look()
    assert [type(error) for error in world.fatal] == [LeaseLostError]


def test_assigner_writes_an_assignment_anew_that_nobody_can_read(world: World) -> None:
    world.create("a")
    world.start("s1", "c1")
    world.start("s2", "c2")
    assert world.look() == {"s1": ["a"]}
    world.session.client.set(world.nodes.assignment("s1"), b"garbage")
    world.session.client.create(world.nodes.assignment("s2"), b"garbage")
    assert world.look() == {"s1": ["a"], "s2": []}


def test_assigner_changefeed_of_which_services_died_twice_gets_its_own_until_it_is_resumed(world: World) -> None:
    world.create("a", "poison")
    world.start("s1", "c1")
    world.look()
    for deaths, wait_s in ((1, 15.0), (2, 25.0)):
        world.died("poison")
        assert world.look() == {"s1": ["a"]}
        status = world.status("poison")
        assert (status.state, status.sorter_deaths, status.failure) == ("pending", deaths, None)
        shared = world.look(wait_s)["s1"]
        assert (world.status("poison").state, "poison" in shared) == ("warning", deaths == 1)
    assert world.assignment("s1").dedicated == (("default", "poison"),)
    world.control.pause("poison")
    world.look()
    world.control.resume("poison")
    assert (world.look()["s1"], world.assignment("s1").dedicated) == (["a", "poison"], ())


def test_assigner_isolated_changefeed_goes_to_the_service_that_a_capture_is_to_start(world: World) -> None:
    world.create("a")
    world.create("x", config={"sorter": {"isolation": "process"}})
    world.start("s1", "c1")
    assert world.look() == {"s1": ["a"]}
    assert world.assignment("s1").dedicated == (("default", "x"),)
    own = dedicated_id("s1", ("default", "x"))
    world.start(own, dedicated="default/x")
    assert world.look() == {"s1": ["a"], own: ["x"]}
    world.captures[CaptureId("c1")] = replace(world.captures[CaptureId("c1")], is_stopping=True)
    world.start("s2", "c2")
    assert world.look() == {"s1": [], "s2": ["a"], own: []}
    assert (world.assignment("s1").dedicated, world.assignment("s2").dedicated) == ((), (("default", "x"),))


def test_assigner_nodes_of_a_service_that_is_gone_stay_until_they_are_outlived(world: World) -> None:
    world.create("a", "b")
    world.start("s1", "c1")
    world.look()
    world.say("s1", "a", 1)
    world.kill("s1")
    world.start("s2", "c2")
    world.look()
    world.look(GONE_S)
    client = world.session.client
    assert client.exists(world.nodes.entries("s1", 0)), "nobody has taken over what it has begun"
    world.say("s2", "a", 2)
    assert world.look() == {"s2": ["a", "b"]}
    assert not client.exists(world.nodes.service_progress("s1"))
    assert not client.exists(world.nodes.service_figures("s1"))
    world.control.pause("a")
    world.say("s2", "a", 2)
    assert world.look()["s2"] == ["b"]
    world.control.resume("a")
    world.look()
    assert [feed.revision for feed in world.assignment("s2").feeds] == [3, 2], "above all that is said of it"
