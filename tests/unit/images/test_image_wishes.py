"""What an owner knows of wishes for table images, from nodes of ZooKeeper."""

from dataclasses import replace
from typing import cast

import pytest

from consumers.control.changefeeds.asked_images import AskedImages, AskedTable, decode_asked, encode_asked
from consumers.control.changefeeds.image_requests import resume_images
from consumers.control.owner.images.image_wishes import ImageRules, ImageWishes
from edges.zookeeper.session import Session, ZooKeeperError
from schemas.errors import ConfigError
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedInfo,
    ChangefeedState,
    ChangefeedStatus,
    ZkPaths,
    encode_changefeed_info,
    encode_changefeed_status,
)
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import ServiceInfo, encode_service
from schemas.rawlog.images import ImageMode
from tests.support.control.memory_zookeeper import MemoryZooKeeper

PATHS = ZkPaths("c")
SERVICES = ServicePaths(PATHS)


def info(name: str, sink: str = "kafka://h:1/t", *, upstream: str = "u", state: ChangefeedState = "normal") -> bytes:
    return encode_changefeed_info(
        ChangefeedInfo(
            changefeed_id=name, upstream=UpstreamId(upstream), sink_uri=sink, start_ts=Ts(1), desired_state=state
        )
    )


def status(state: ChangefeedState) -> bytes:
    return encode_changefeed_status(ChangefeedStatus(state=state, checkpoint_ts=Ts(1), resolved_ts=Ts(1)))


def service(name: str, *, knows_images: bool = True) -> bytes:
    return encode_service(
        ServiceInfo(
            service=name, host="h", pid=1, version="1", started_at_s=1, master="local[1]", knows_images=knows_images
        )
    )


class World:
    def __init__(self) -> None:
        self.server, self.compiled = MemoryZooKeeper(), list[str]()
        self.known = ImageWishes(cast(Session, self.server), PATHS, UpstreamId("u"), self.rules_of)

    def rules_of(self, info: ChangefeedInfo) -> ImageRules:
        if info.sink_uri.startswith("broken:"):
            raise ConfigError("the sink is not allowed")
        self.compiled.append(info.changefeed_id)
        return ImageRules(
            contains=lambda _: True,
            wants=lambda _: True,
            wants_initial="initial" in info.sink_uri,
            lag_max_s=9 if "bounded" in info.sink_uri else 0,
        )

    def path(self, name: str) -> str:
        return PATHS.changefeed_info("default", name)

    def feed(self, name: str) -> str:
        return f"default/{name}@{self.server.nodes[self.path(name)].created_zxid}"


def test_wishes_are_not_known_before_the_first_look() -> None:
    world = World()
    assert (world.known.wishes(), world.known.services_know()) == (None, False)
    world.known.look()
    assert (world.known.wishes(), world.known.services_know()) == ({}, True)


def test_whoever_enters_waits_for_the_first_look() -> None:
    with World().known as known:
        assert known.wishes() == {}


def test_wishes_name_each_changefeed_of_the_upstream_by_its_creation() -> None:
    world = World()
    world.server.write({world.path("a"): info("a"), world.path("b"): info("b", "kafka://h:1/initial")})
    world.server.write({world.path("c"): info("c", upstream="another")})
    world.known.look()
    wishes = world.known.wishes()
    assert wishes is not None
    assert {name: wish.wants_initial for name, wish in wishes.items()} == {
        world.feed("a"): False,
        world.feed("b"): True,
    }
    world.server.write({world.path("a"): None})
    world.server.write({world.path("a"): info("a")})
    world.known.look()
    assert world.known.wishes() is not None
    assert world.feed("a") in (world.known.wishes() or {})
    assert len(world.known.wishes() or {}) == 2


@pytest.mark.parametrize(
    ("desired", "said", "runs"),
    [
        ("normal", None, True),
        ("normal", "normal", True),
        ("normal", "warning", True),
        ("normal", "failed", False),
        ("normal", "finished", False),
        ("stopped", "normal", False),
    ],
)
def test_a_changefeed_gets_new_barriers_only_while_it_runs(
    desired: ChangefeedState, said: ChangefeedState | None, runs: bool
) -> None:
    world = World()
    world.server.write({world.path("a"): info("a", state=desired)})
    if said is not None:
        world.server.write({PATHS.changefeed_status("default", "a"): status(said)})
    world.known.look()
    assert [wish.is_running for wish in (world.known.wishes() or {}).values()] == [runs]


def test_the_key_is_another_one_only_where_settings_change() -> None:
    world = World()
    world.server.write({world.path("a"): info("a")})
    world.known.look()
    key = (world.known.wishes() or {})[world.feed("a")].key
    world.server.write({world.path("a"): info("a", state="stopped")})
    world.known.look()
    assert (world.known.wishes() or {})[world.feed("a")].key is key
    world.server.write({world.path("a"): info("a", "kafka://h:1/other")})
    world.known.look()
    assert (world.known.wishes() or {})[world.feed("a")].key is not key
    assert world.compiled == ["a", "a"]


@pytest.mark.parametrize("node", [b"no json", info("a", "broken:x")])
def test_settings_that_cannot_be_read_stop_their_changefeed_alone(node: bytes) -> None:
    world = World()
    world.server.write({world.path("a"): node, world.path("b"): info("b")})
    world.known.look()
    wishes = world.known.wishes() or {}
    assert {name: (wish.is_readable, wish.is_running) for name, wish in wishes.items()} == {
        world.feed("a"): (False, False),
        world.feed("b"): (True, True),
    }


def test_what_is_answered_is_taken_out_of_zookeeper_and_nothing_else() -> None:
    world = World()
    path = PATHS.changefeed_images("default", "a")
    wanted = AskedImages(
        requested={ImageMode.BACKFILL: frozenset({TableId(1), TableId(2)}), ImageMode.RESYNC: frozenset({TableId(3)})},
        paused=frozenset({TableId(1), TableId(3)}),
        is_paused=True,
    )
    world.server.write({world.path("a"): info("a"), path: encode_asked(wanted)})
    world.known.look()
    assert (world.known.wishes() or {})[world.feed("a")].asked == wanted
    world.known.answered(
        world.feed("a"), [AskedTable(ImageMode.BACKFILL, TableId(1)), AskedTable(ImageMode.RESYNC, TableId(3))]
    )
    world.known.look()
    left = replace(wanted, requested={ImageMode.BACKFILL: frozenset({TableId(2)}), ImageMode.RESYNC: frozenset()})
    assert (world.known.wishes() or {})[world.feed("a")].asked == left
    assert decode_asked(world.server.nodes[path].value) == left
    writes = [what for what, _ in world.server.asked if what == "set"]
    world.known.look()
    assert [what for what, _ in world.server.asked if what == "set"] == writes == ["set"]


@pytest.mark.parametrize("is_answered", [False, True])
def test_images_node_that_does_not_decode_stops_its_changefeed_alone_until_it_is_made_anew(
    *, is_answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    path, session = PATHS.changefeed_images("default", "a"), cast(Session, world.server)
    world.server.write({world.path("a"): info("a"), world.path("b"): info("b")})
    world.known.look()
    if is_answered:
        world.known.answered(world.feed("a"), [AskedTable(ImageMode.BACKFILL, TableId(1))])
    world.server.write({path: b"no json"})
    world.known.look()
    wishes = world.known.wishes() or {}
    assert [wishes[world.feed(name)].is_readable for name in "ab"] == [False, True]
    said = str(vars(caplog.records[-1])["error"])
    assert f"path={path}" in said and "`tidebus table resume`" in said
    resume_images(session, PATHS, ("default", "a"), [])
    world.known.look()
    wish = (world.known.wishes() or {})[world.feed("a")]
    assert (wish.is_readable, wish.is_running, wish.asked) == (True, True, AskedImages())


def test_an_answer_that_zookeeper_has_not_taken_is_said_again() -> None:
    world = World()
    path = PATHS.changefeed_images("default", "a")
    wanted = AskedImages(requested={ImageMode.RESYNC: frozenset({TableId(3)})})
    world.server.write({world.path("a"): info("a"), path: encode_asked(wanted)})
    world.known.look()
    world.known.answered(world.feed("a"), [AskedTable(ImageMode.RESYNC, TableId(3))])
    world.server.away = True
    with pytest.raises(ZooKeeperError):
        world.known.look()
    world.server.away = False
    world.known.look()
    assert not any(decode_asked(world.server.nodes[path].value).requested.values())


def test_images_wait_until_every_service_and_every_sorter_knows_them() -> None:
    world = World()
    hosted = PATHS.changefeed_sorter("default", "a")
    world.server.write({SERVICES.service("s1"): service("s1"), world.path("a"): info("a")})
    world.known.look()
    assert world.known.services_know()
    for path, old, new in [
        (SERVICES.service("s2"), service("s2", knows_images=False), service("s2")),
        (SERVICES.service("s3"), b"no json", service("s3")),
        (hosted, b'{"host": "h", "pid": 7}', b'{"host": "h", "pid": 7, "knows_images": true}'),
    ]:
        world.server.write({path: old})
        world.known.look()
        assert not world.known.services_know(), path
        world.server.write({path: new})
        world.known.look()
        assert world.known.services_know(), path


def test_wishes_are_not_known_while_zookeeper_does_not_answer() -> None:
    world = World()
    world.server.write({world.path("a"): info("a")})
    world.known.look()
    world.server.away = True
    with pytest.raises(ZooKeeperError):
        world.known.look()
    assert world.known.wishes() is None
    world.server.away = False
    world.known.look()
    assert world.feed("a") in (world.known.wishes() or {})


def test_a_checkpoint_is_known_of_changefeeds_with_a_bound_to_their_lag_alone() -> None:
    world = World()
    world.server.write({world.path("a"): info("a"), world.path("b"): info("b", "kafka://h:1/bounded")})
    world.known.look()
    assert (world.known.checkpoint(world.feed("a")), world.known.checkpoint(world.feed("b"))) == (None, 1)
    said = ChangefeedStatus(state="normal", checkpoint_ts=Ts(77), resolved_ts=Ts(78))
    world.server.write({PATHS.changefeed_status("default", "b"): encode_changefeed_status(said)})
    world.known.look()
    assert world.known.checkpoint(world.feed("b")) == 77
    world.server.write({world.path("b"): info("b")})
    world.known.look()
    world.server.write({world.path("a"): info("a", "kafka://h:1/bounded")})
    world.known.look()
    assert (world.known.checkpoint(world.feed("a")), world.known.checkpoint(world.feed("b"))) == (1, None)
