"""What a capture's API answers where a node of one changefeed holds what nobody can read: of the others, all."""

import logging
from contextlib import closing
from typing import cast

import pytest

from compose.capture.api.backend import ApiBackend
from edges.zookeeper.session import Session
from schemas.errors import CorruptDataError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, encode_changefeed_info
from tests.support.control.memory_bus import ME
from tests.support.control.served_bus import places_of
from tests.support.control.stored_zookeeper import MemorySession

PATHS = ZkPaths("c")


@pytest.fixture
def zookeeper() -> MemorySession:
    made = MemorySession()
    for name in ("bad", "good"):
        info = ChangefeedInfo(changefeed_id=name, upstream=UpstreamId("u"), sink_uri="mysql://h/", start_ts=Ts(100))
        made.client.put(PATHS.changefeed_info("default", name), encode_changefeed_info(info))
    return made


def bus_over(zookeeper: MemorySession) -> "closing[ApiBackend]":
    addresses = places_of("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1", "c", "u")
    return closing(ApiBackend(cast(Session, zookeeper), ME, addresses, lambda: False))


def test_others_are_listed_and_whoever_asks_for_the_one_is_told_where_its_node_is(zookeeper: MemorySession) -> None:
    path = PATHS.changefeed_info("default", "bad")
    zookeeper.client.put(path, b"garbage")
    with bus_over(zookeeper) as bus:
        assert [feed.info.changefeed_id for feed in bus.all_feeds()] == ["good"]
        with pytest.raises(CorruptDataError) as caught:
            bus.feed("bad", "default")
    assert caught.value.fields["path"] == path


def test_who_applies_what_is_nobody_where_it_cannot_be_read(
    zookeeper: MemorySession, caplog: pytest.LogCaptureFixture
) -> None:
    path = PATHS.changefeed_processors("default", "bad")
    zookeeper.client.put(path, b"garbage")
    with bus_over(zookeeper) as bus, caplog.at_level(logging.ERROR):
        assert bus.processor_shares(bus.feed("bad", "default")) == []
    assert [vars(record)["path"] for record in caplog.records] == [path]
