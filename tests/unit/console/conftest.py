"""A bus in memory, its API with one changefeed, and a server of both."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from consumers.control.api.serving.server import ApiServer
from consumers.control.console.routes import ROUTERS
from tests.support.control.api import Api
from tests.support.control.memory_bus import ME, URI, Memory, Shares


@pytest.fixture
def bus() -> Memory:
    bus = Memory()
    bus.leader, bus.shares = ME.capture_id, Shares()
    return bus


@pytest.fixture
def api(bus: Memory) -> Api:
    api = Api(bus)
    config = {"filter": {"rules": ["a.*"]}, "sink": {"kafka_config": {"sasl_password": "hidden"}}}
    status, made = api.v2("POST", "/changefeeds", {"changefeed_id": "cf", "sink_uri": URI, "replica_config": config})
    assert status == 200, made
    return api


@pytest.fixture
def server(bus: Memory) -> Iterator[ApiServer]:
    with closing(ApiServer("127.0.0.1:0", routers=ROUTERS)) as opened, opened.serving(bus):
        yield opened
