"""The HTTP API's routes of captures, owner, PD and the process, and what a capture that does not own passes on."""

import http.client
import json
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest

from consumers.control.api.errors import ApiAddressError
from consumers.control.api.serving.server import ApiServer
from consumers.control.core.scheduling.coordinator import NotInitializedError
from consumers.control.core.scheduling.schedulers.drain_capture import DrainRefusedError
from schemas.errors import ConfigError
from schemas.ids import CaptureId, TableId
from tests.support.control.api import Api
from tests.support.control.memory_bus import CHECKPOINT, ME, OTHER, URI, Memory, Shares


@pytest.fixture
def bus() -> Memory:
    bus = Memory()
    bus.leader = ME.capture_id
    bus.shares = Shares({ME.capture_id: [TableId(1)], OTHER.capture_id: [TableId(2), TableId(3)]})
    return bus


@pytest.fixture
def api(bus: Memory) -> Api:
    return Api(bus)


def made(api: Api, bus: Memory) -> None:
    assert api.v2("POST", "/changefeeds", {"changefeed_id": "cf", "sink_uri": URI})[0] == 200
    bus.table_ids = [TableId(1), TableId(2)]


def asked(bus: Memory) -> list[tuple[Any, ...]]:
    assert isinstance(bus.shares, Shares)
    return bus.shares.asked


def test_api_status_names_the_capture_and_whether_it_owns(api: Api, bus: Memory) -> None:
    status, shown = api.v2("GET", "/status")
    assert (status, shown["id"], shown["tidebus_version"]) == (200, "me", "1.2.3")
    assert (shown["version"], shown["is_owner"], shown["liveness"]) == ("v8.5.4", True, 0)
    assert set(shown) == {"version", "tidebus_version", "git_hash", "id", "cluster_id", "pid", "is_owner", "liveness"}
    bus.leader = OTHER.capture_id
    assert api.ask("GET", "/status")[1]["is_owner"] is False


def test_api_captures_lists_all_with_the_owner(api: Api) -> None:
    assert api.v2("GET", "/captures") == (
        200,
        {
            "total": 2,
            "items": [
                {"id": "me", "is_owner": True, "address": "127.0.0.1:1", "cluster_id": "default"},
                {"id": "other", "is_owner": False, "address": "127.0.0.1:2", "cluster_id": "default"},
            ],
        },
    )


def test_api_version_1_lists_captures_without_a_wrapper(api: Api) -> None:
    assert api.ask("GET", "/api/v1/captures")[1] == api.v2("GET", "/captures")[1]["items"]


def test_api_tso_is_split_into_clock_and_counter(api: Api) -> None:
    assert api.v2("POST", "/tso", {}) == (200, {"timestamp": 1_700_000_000_123, "logic_time": 5})
    assert api.v2("POST", "/tso", {"id": 7}) == api.v2("POST", "/tso") == api.v2("POST", "/tso", {})


def test_api_health_is_empty_or_the_error(api: Api, bus: Memory) -> None:
    assert api.v2("GET", "/health") == (200, {})
    bus.shares = Shares(refusal=NotInitializedError("the owner waits"))
    assert (api.v2("GET", "/health")[0], api.v2("GET", "/health")[1]["error_code"]) == (503, "CDC:ErrServerIsNotReady")
    bus.broken = ConfigError("no good", key="x")
    assert api.v2("GET", "/health")[0] == 400


def test_api_drain_is_accepted_with_the_number_of_tables(api: Api, bus: Memory) -> None:
    assert api.v2("POST", "/captures/other/drain") == (202, {"current_table_count": 2})
    assert api.ask("PUT", "/api/v1/captures/drain", {"capture_id": "other"}) == (202, {"current_table_count": 2})
    assert asked(bus) == [("drain", "other")] * 2


def test_api_drain_of_the_owner_the_last_or_an_unknown_capture_is_refused(api: Api, bus: Memory) -> None:
    for capture, code in (("me", "CDC:ErrSchedulerRequestFailed"), ("who", "CDC:ErrCaptureNotExist")):
        status, shown = api.v2("POST", f"/captures/{capture}/drain")
        assert (status, shown["error_code"]) == (400, code)
    bus.shares = Shares(refusal=DrainRefusedError("another capture is being drained"))
    assert api.v2("POST", "/captures/other/drain")[1]["error_code"] == "CDC:ErrSchedulerRequestFailed"
    bus.live, bus.leader = [OTHER], None
    assert "start another one" in api.v2("POST", "/captures/other/drain")[1]["error_msg"]


def test_api_move_table_and_rebalance_reach_the_scheduler(api: Api, bus: Memory) -> None:
    made(api, bus)
    tables = "/api/v1/changefeeds/cf/tables"
    assert api.ask("POST", f"{tables}/move_table", {"capture_id": "other", "table_id": 1}) == (202, {})
    assert api.ask("POST", f"{tables}/rebalance_table") == (202, {})
    form = b"cf-id=cf&target-cp-id=me&table-id=2"
    assert api.ask("POST", "/capture/owner/move_table", raw=form)[0] == 202
    assert asked(bus) == [("move", 1, "other"), ("rebalance",), ("move", 2, "me")]
    for body, code in (
        ({"capture_id": "who", "table_id": 1}, "CDC:ErrCaptureNotExist"),
        ({"capture_id": "me", "table_id": 3}, "CDC:ErrAPIInvalidParam"),
        ({"capture_id": "me", "table_id": 0}, "CDC:ErrAPIInvalidParam"),
        ({"capture_id": "me"}, "CDC:ErrAPIInvalidParam"),
    ):
        status, shown = api.ask("POST", f"{tables}/move_table", body)
        assert (status, shown["error_code"]) == (400, code)
    assert api.ask("POST", "/api/v1/changefeeds/no/tables/rebalance_table")[0] == 400
    assert len(asked(bus)) == 3


def test_api_owner_resigns_by_all_its_names(api: Api, bus: Memory) -> None:
    assert api.v2("POST", "/owner/resign") == (200, {})
    assert api.ask("POST", "/api/v1/owner/resign") == (200, {})
    assert api.ask("POST", "/capture/owner/resign") == (202, None)
    assert asked(bus) == [("resign",)] * 3


def test_api_old_routes_take_forms(api: Api, bus: Memory) -> None:
    made(api, bus)
    query = "/capture/owner/changefeed/query"
    assert api.ask("POST", query, raw=b"cf-id=cf")[1]["state"] == "normal"
    assert api.ask("POST", query, raw=b"cf-id=cf")[1]["captures"] == ["me", "other"]
    for job, state in ((1, "stopped"), (2, "normal")):
        assert api.ask("POST", "/capture/owner/admin", raw=f"cf-id=cf&admin-job={job}".encode())[0] == 202
        assert api.v2("GET", "/changefeeds/cf/status")[1]["state"] == state
    assert api.ask("POST", "/capture/owner/admin", raw=b"cf-id=cf&admin-job=9")[0] == 400
    assert api.ask("POST", "/capture/owner/admin", raw=b"cf-id=cf&admin-job=3")[0] == 202
    assert api.ask("POST", query, raw=b"cf-id=cf")[1]["error_code"] == "CDC:ErrChangeFeedNotExists"


def test_api_unsafe_routes_say_what_they_did(api: Api) -> None:
    assert api.v2("GET", "/unsafe/metadata") == (200, [{"key": "/tidebus/default/owner-rev", "value": "3"}])
    body = {"region_id": 4, "ts": CHECKPOINT}
    assert api.v2("POST", "/unsafe/resolve_lock", body) == (200, {"region": 4, "ts": CHECKPOINT})
    assert api.v2("POST", "/unsafe/resolve_lock", {})[1]["error_code"] == "CDC:ErrAPIInvalidParam"
    assert api.v2("DELETE", "/unsafe/service_gc_safepoint") == (200, {"service_id": "tidebus-default-u"})


def test_api_log_level_changes_at_run_time(api: Api) -> None:
    root = logging.getLogger()
    before = root.level
    try:
        assert api.v2("POST", "/log", {"log_level": "warn"}) == (200, {})
        assert root.level == logging.WARNING
        assert api.ask("POST", "/admin/log", "debug") == (200, {})
        assert root.level == logging.DEBUG
        assert api.v2("POST", "/log", {"log_level": "loud"})[1]["error_code"] == "CDC:ErrAPIInvalidParam"
    finally:
        root.setLevel(before)


def test_api_requests_are_logged_with_status_and_path_and_no_body(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "consumers.control.api.serving.app"):
        api.v2("POST", "/changefeeds", {"sink_uri": URI})
        api.v2("GET", "/captures")
    seen = [record for record in caplog.records if record.getMessage() == "api request"]
    assert [
        (vars(record)["method"], vars(record)["path"], vars(record)["status"], record.levelname) for record in seen
    ] == [
        ("POST", "/api/v2/changefeeds", 200, "INFO"),
        ("GET", "/api/v2/captures", 200, "DEBUG"),
    ]
    assert "hidden" not in caplog.text


def test_api_overview_counts_each_captures_tables(api: Api, bus: Memory) -> None:
    made(api, bus)
    status, shown = api.ask("GET", "/api/tidebus/overview")
    assert status == 200
    assert [(capture["id"], capture["tables"], capture["is_owner"]) for capture in shown["captures"]] == [
        ("me", 1, True),
        ("other", 2, False),
    ]
    assert (shown["upstreams"][0]["upstream"], shown["upstreams"][0]["rows_in"]) == ("u", 7)
    (feed,) = shown["changefeeds"]
    assert (feed["id"], feed["state"], feed["sorter"]) == ("cf", "normal", {"host": "h", "pid": 11})
    bus.leader, bus.shares = None, None
    assert [capture["tables"] for capture in api.ask("GET", "/api/tidebus/overview")[1]["captures"]] == [None, None]


def test_api_config_and_debug_show_the_process(api: Api) -> None:
    assert api.ask("GET", "/config") == (200, {"addr": "127.0.0.1:1", "tz": "UTC"})
    threads = api.http.get("/debug/pprof/goroutine").text
    assert "MainThread" in threads and "routes/debug.py" in threads
    stacks = api.http.get("/debug/pprof/profile?seconds=0.05").text.splitlines()
    assert all(line.rpartition(" ")[2].isdecimal() for line in stacks) and any("MainThread;" in line for line in stacks)
    assert "builtins.dict" in api.http.get("/debug/pprof/heap").text
    assert api.ask("GET", "/debug/pprof/profile?seconds=9999")[1]["error_code"] == "CDC:ErrAPIInvalidParam"


def test_api_tells_of_itself(api: Api) -> None:
    document = api.ask("GET", "/openapi.json")[1]
    assert {"get", "put", "delete"} <= set(document["paths"]["/api/v2/changefeeds/{changefeed_id}"])
    page = api.http.get("/docs").text
    assert "<h1>TideBus: API</h1>" in page and "/openapi.json" in page
    for path, methods in document["paths"].items():
        assert all(f"<code>{method.upper()} {path}</code>" in page for method in methods)
    assert "<code>target_ts (body)</code> integer" in page and "<code>namespace (query)</code> string" in page


class Pair:
    """Two captures' servers, each with a socket: ``me`` stands by, ``other`` is the owner."""

    def __init__(self, stack: ExitStack) -> None:
        self.standby, self.owner = Memory(), Memory()
        servers = [stack.enter_context(closing(ApiServer("127.0.0.1:0"))) for _ in range(2)]
        captures = [
            replace(capture, address=server.address) for capture, server in zip((ME, OTHER), servers, strict=True)
        ]
        shares = Shares({captures[0].capture_id: [TableId(5)]})
        self.owner.shares, self.owner.table_ids = shares, [TableId(5)]
        for bus, server, capture in zip((self.standby, self.owner), servers, captures, strict=True):
            bus.capture, bus.live, bus.leader = capture, captures, OTHER.capture_id
            bus.kept = self.owner.kept
            stack.enter_context(server.serving(bus))
        self.address, self.asked = servers[0].address, shares.asked

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection(self.address, timeout=20)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def test_api_of_a_standby_lets_the_owner_answer(pair: Pair) -> None:
    assert pair.ask("POST", "/api/v2/changefeeds", {"changefeed_id": "cf", "sink_uri": URI})[0] == 200
    assert pair.ask("POST", "/api/v2/captures/me/drain") == (202, {"current_table_count": 1})
    move = {"capture_id": "me", "table_id": 5}
    assert pair.ask("POST", "/api/v1/changefeeds/cf/tables/move_table?namespace=default", move) == (202, {})
    assert pair.ask("POST", "/api/v2/owner/resign") == (200, {})
    assert pair.asked == [("drain", "me"), ("move", 5, "me"), ("resign",)]
    assert pair.ask("GET", "/api/v2/processors/cf/me") == (200, {"table_ids": [5]})
    (task,) = pair.ask("GET", "/api/v2/changefeeds/cf")[1]["task_status"]
    assert task["table_ids"] == [5]
    status, refused = pair.ask("POST", "/api/v2/captures/who/drain")
    assert (status, refused["error_code"]) == (400, "CDC:ErrCaptureNotExist")


def test_api_of_a_standby_hands_on_the_path_as_it_came(pair: Pair) -> None:
    for path in ("/api/v2/captures/%C3%A9/drain", "/api/v2/captures/a%20b/drain"):
        status, shown = pair.ask("POST", path, {})
        assert (status, shown["error_code"]) == (400, "CDC:ErrCaptureNotExist")


def test_api_of_a_standby_without_an_owner_to_ask_says_why(pair: Pair) -> None:
    pair.owner.shares, pair.owner.leader = None, CaptureId("third")  # it has lost its ownership in between
    status, shown = pair.ask("POST", "/api/v2/owner/resign")
    assert (status, shown["error_code"]) == (503, "CDC:ErrOwnerNotFound")
    assert "changed in between" in shown["error_msg"]
    pair.standby.live = [replace(OTHER, address="127.0.0.1:1")]
    status, shown = pair.ask("POST", "/api/v2/owner/resign")
    assert (status, shown["error_code"]) == (500, "CDC:ErrRequestForwardErr")
    pair.standby.leader = None
    assert pair.ask("POST", "/api/v2/owner/resign")[1]["error_code"] == "CDC:ErrOwnerNotFound"
    pair.standby.leader = ME.capture_id
    assert pair.ask("POST", "/api/v2/owner/resign")[1]["error_code"] == "CDC:ErrServerIsNotReady"
    pair.ask("POST", "/api/v2/changefeeds", {"changefeed_id": "cf", "sink_uri": URI})
    assert pair.ask("GET", "/api/v2/changefeeds/cf")[1]["task_status"] == []


def test_api_of_a_standby_whose_owner_is_stopped_and_loses_its_session_says_so_and_waits_no_longer(pair: Pair) -> None:
    """Who asks waits 20 s at most here; the owner's time to answer would be a minute."""
    with socket.create_server(("127.0.0.1", 0)) as stopped, ThreadPoolExecutor(1) as client:
        host, port = stopped.getsockname()
        pair.standby.live = [replace(OTHER, address=f"{host}:{port}")]
        asked = client.submit(pair.ask, "POST", "/api/v2/owner/resign")
        taken, _ = stopped.accept()
        with taken:
            assert taken.recv(4) == b"POST"
            pair.standby.leader = ME.capture_id
            status, shown = asked.result(30)
    assert (status, shown["error_code"]) == (503, "CDC:ErrOwnerNotFound")
    assert "gone while it was asked" in shown["error_msg"]


def test_api_of_a_standby_whose_owner_is_killed_in_mid_request_says_so(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as killed, ThreadPoolExecutor(1) as client:
        host, port = killed.getsockname()
        pair.standby.live = [replace(OTHER, address=f"{host}:{port}")]
        asked = client.submit(pair.ask, "POST", "/api/v2/owner/resign")
        taken, _ = killed.accept()
        taken.recv(4)
        taken.close()
        status, shown = asked.result(30)
    assert (status, shown["error_code"]) == (500, "CDC:ErrRequestForwardErr")


def test_api_without_a_session_is_not_ready() -> None:
    assert Api(None).v2("GET", "/changefeeds")[0] == 503
    assert Api(None).v2("GET", "/nothing")[0] == 404


def test_server_refuses_a_body_above_the_bound_unread() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(closing(ApiServer("127.0.0.1:0")))
        connection = stack.enter_context(closing(http.client.HTTPConnection(server.address, timeout=20)))
        connection.putrequest("POST", "/api/v2/changefeeds")
        connection.putheader("Content-Length", str(1 << 40))
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error_code"]) == (400, "CDC:ErrAPIInvalidParam")


def test_server_address_that_is_taken_or_none_is_a_clear_error() -> None:
    with closing(ApiServer("127.0.0.1:0")) as server, pytest.raises(ApiAddressError, match="another capture"):
        ApiServer(server.address)
    for address in ("8300", "h:port", "h:70000", ":8300"):
        with pytest.raises(ConfigError, match="host:port"):
            ApiServer(address)


def test_server_that_was_closed_listens_no_more() -> None:
    with closing(ApiServer("127.0.0.1:0")) as server:
        address = server.address
    with pytest.raises(ConnectionRefusedError), closing(http.client.HTTPConnection(address, timeout=5)) as connection:
        connection.request("GET", "/status")
