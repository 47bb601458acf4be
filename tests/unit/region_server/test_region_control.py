"""Cluster events by HTTP: what a line of a shell script can let happen."""

import http.client
import json

import pytest

from producers.region_server.control import parse_event
from producers.region_server.core.chaos import FailRegion, Split, TransferLeader
from producers.region_server.server import RegionServer
from schemas.errors import ConfigError
from schemas.ids import RegionId, StoreId


def test_event_is_made_of_its_name_and_fields() -> None:
    assert parse_event("split", {"key": "6b"}) == Split(b"k")
    assert parse_event("fail_region", {"region_id": "4", "error": "congested"}) == FailRegion(RegionId(4), "congested")
    given = {"region_id": "2", "to": "3", "hint": "false", "pd_lag_ms": "7"}
    assert parse_event("transfer_leader", given) == TransferLeader(RegionId(2), StoreId(3), False, 7)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("explode", {}),
        ("split", {}),
        ("split", {"key": "zz"}),
        ("split", {"key": "6b", "times": "2"}),
        ("stop_store", {"store_id": "one"}),
        ("start_store", {"store_id": "1", "new_address": "perhaps"}),
    ],
)
def test_event_that_makes_no_sense_is_a_config_error(name: str, fields: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse_event(name, fields)


def asked(address: str, method: str, path: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request(method, path)
    reply = connection.getresponse()
    body = json.loads(reply.read())
    connection.close()
    return reply.status, body


def test_control_port_shows_the_cluster_and_performs_events() -> None:
    with RegionServer(min_ts_interval_ms=1000) as server:
        address = server.call(server.open_control(0))

        def ask(method: str, path: str) -> tuple[int, dict[str, object]]:
            return asked(address, method, path)

        assert ask("POST", "/chaos/split?key=6b")[0] == 200
        status, view = ask("GET", "/chaos")
        regions = view["regions"]
        assert isinstance(regions, list)
        assert (status, [(region["start"], region["end"]) for region in regions]) == (200, [("", "6b"), ("6b", "")])
        assert ask("POST", "/chaos/stop_store?store_id=1")[0] == 200
        assert ask("GET", "/chaos")[1]["down"] == [1]
        status, refused = ask("POST", "/chaos/stop_store?store_id=9")
        assert (status, refused["code"]) == (400, "bus.config")
        assert ask("POST", "/chaos/explode")[0] == 400
        assert ask("GET", "/elsewhere")[0] == 404


def test_control_port_when_the_request_names_no_url_then_it_is_refused_with_a_reason() -> None:
    with RegionServer(stores=1) as server:
        status, refused = asked(server.call(server.open_control(0)), "GET", "//[")
    assert (status, refused["code"]) == (400, "bus.config")
    assert "request names no URL (url=//[, reason=Invalid IPv6 URL)" in str(refused["message"])
