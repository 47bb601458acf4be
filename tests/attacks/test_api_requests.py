"""Requests of web pages, of strangers and of those who guess, against a capture's API."""

import functools
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compose.stack.secure.certificates import Authority
from consumers.control.api.access import connections
from consumers.control.api.access.tls import ApiTls
from consumers.control.api.client import ApiClient, ServerUnreachableError
from consumers.control.api.serving.about import about_page
from consumers.control.api.serving.server import ApiServer
from tests.support.control.api import Api
from tests.support.control.api_users import USERS, is_refused
from tests.support.control.memory_bus import URI, Memory
from tests.support.upstream.feed_sink import wait_until

CREATE = {"changefeed_id": "cf", "sink_uri": URI}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def api() -> Api:
    return Api(Memory())


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with closing(ApiServer("127.0.0.1:0")) as opened, opened.serving(Memory()):
        yield opened


@functools.cache
def shared_api() -> Api:
    """Return one that all examples ask: making one takes long."""
    return Api(Memory())


def create(api: Api, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.ask("POST", "/api/v2/changefeeds", raw=json.dumps(CREATE).encode(), headers=named)


# -- pages that are open on the operator's machine


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8300", "127.0.0.1.evil.example", "[::1"])
def test_page_whose_name_resolves_to_us_is_refused(api: Api, host: str) -> None:
    answer = create(api, Host=host, Content_Type="application/json", Origin=f"http://{host}")
    assert is_refused(answer, 421, "api.wrong_host")
    assert is_refused(api.ask("GET", "/api/v2/captures", headers={"Host": "evil.example"}), 421, "api.wrong_host")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:8300"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_page_of_another_server_is_refused(api: Api, headers: dict[str, str]) -> None:
    assert is_refused(create(api, **JSON, **headers), 403, "api.wrong_origin")
    assert api.v2("GET", "/changefeeds")[1]["total"] == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/x-www-form-urlencoded", "User-Agent": "Mozilla/5.0 (X11)"},
        {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://127.0.0.1:8300"},
        {"User-Agent": "Mozilla/5.0 (X11)"},
        {"Content-Type": "text/plain", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_body_that_a_page_may_send_unasked_is_refused(api: Api, headers: dict[str, str]) -> None:
    assert is_refused(create(api, **headers), 415, "api.content_type")
    assert api.v2("GET", "/changefeeds")[1]["total"] == 0


def test_own_page_and_programs_are_served(api: Api) -> None:
    own = {"Origin": "http://127.0.0.1:8300", "Sec-Fetch-Site": "same-origin", "User-Agent": "Mozilla/5.0"}
    assert create(api, **JSON, **own)[0] == 200
    form = {"Content-Type": "application/x-www-form-urlencoded", "User-Agent": "curl/8.5.0"}
    assert "changefeed.exists" in create(api, **form)[1]["error_msg"], "the body was read"
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert api.http.get("/docs", headers=link).status_code == 200
    for host in ("127.0.0.1:1", "[::1]:8300", "LOCALHOST", "10.1.2.3"):
        assert api.ask("GET", "/status", headers={"Host": host})[0] == 200


def test_server_is_asked_under_the_names_that_it_is_given() -> None:
    with closing(ApiServer("127.0.0.1:0", hosts=["capture-1:8300", "*.svc"])) as server, server.serving(Memory()):
        for host, status in (("capture-1", 200), ("Capture-1:8300", 200), ("a.svc", 200), ("a.b.svc", 421)):
            assert ApiClient(url=server.address).ask("GET", "/status", headers={"Host": host}).status == status


# -- bounds before anybody is known


def test_body_of_a_stranger_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.control.api.serving.app._read", lambda *_: pytest.fail("the body was read"))
    api = Api(Memory(), USERS)
    answer = create(api, **JSON)
    assert is_refused(answer, 401, "api.unauthorized")


def open_count(held: list[socket.socket]) -> int:
    """Return how many of these connections the server has not ended."""
    count = 0
    for connection in held:
        connection.setblocking(False)
        try:
            count += connection.recv(1) != b""
        except BlockingIOError:
            count += 1
        except ConnectionError:
            pass
    return count


def test_headers_have_a_size_and_a_time(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), 10) as large, suppress(ConnectionError):
        large.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n" + b"a: " + b"b" * (20 << 10))
        assert large.recv(100).startswith(b"HTTP/1.1 400")
    monkeypatch.setattr(connections, "HEADER_S", 0.3)
    with socket.create_connection((host, int(port)), 10) as slow:
        slow.sendall(b"GET /status HTTP/1.1\r\n")
        with suppress(ConnectionError):
            assert slow.recv(100) == b""
    assert ApiClient(url=server.address).ask("GET", "/status").status == 200


def test_connections_of_one_host_are_bounded(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HOST_CONNECTIONS_MAX", 5)
    host, port = server.address.split(":")
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(8)]

        wait_until(lambda: open_count(held) == 5, lambda: open_count(held))

    def is_served() -> bool:
        try:
            return ApiClient(url=server.address).ask("GET", "/status").status == 200
        except ServerUnreachableError:  # it has not seen yet that the others are gone
            return False

    wait_until(is_served, lambda: None)


def test_headers_of_a_later_request_have_a_time_too(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_S", 0.3)
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), 10) as slow:
        slow.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        first = HTTPResponse(slow)
        first.begin()
        assert first.status == 200 and first.read()
        slow.sendall(b"G")
        with suppress(ConnectionError):
            assert slow.recv(100) == b""


def test_client_that_reads_no_answer_gives_its_connection_back(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "READ_S", 0.3)
    host, port = server.address.split(":")
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(20)
        deaf.connect((host, int(port)))
        with pytest.raises((ConnectionError, BrokenPipeError)):
            while True:
                deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)


def test_connections_that_never_shake_hands_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HOST_CONNECTIONS_MAX", 5)
    authority = Authority(tmp_path)
    own = authority.issue("server")
    tls = ApiTls(ca_path=authority.path, cert_path=own.cert, key_path=own.key)
    with closing(ApiServer("127.0.0.1:0", tls=tls)) as server, server.serving(Memory()), ExitStack() as stack:
        host, port = server.address.split(":")
        held = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(8)]
        wait_until(lambda: open_count(held) == 5, lambda: open_count(held))


def test_body_that_dribbles_is_given_up(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.control.api.serving.app.BODY_S", 0.3)
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), 10) as slow:
        slow.sendall(b"POST /api/v2/tso HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        assert slow.recv(1000).startswith(b"HTTP/1.1 400")


def test_profiles_do_not_hold_everybody_up(server: ApiServer) -> None:
    host, port = server.address.split(":")
    with ExitStack() as stack:
        asked = []
        for _ in range(45):
            connection = stack.enter_context(socket.create_connection((host, int(port)), 10))
            connection.sendall(b"GET /debug/pprof/profile?seconds=5 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            asked.append(connection)
        began_at = time.monotonic()
        assert ApiClient(url=server.address, timeout_s=10).ask("GET", "/status").status == 200
        assert time.monotonic() - began_at < 5
        refused = HTTPResponse(asked[-1])
        refused.begin()
        assert refused.status == 503 and b"api.busy" in refused.read()


@given(st.binary(max_size=300), st.sampled_from(["/api/v2/changefeeds", "/api/v2/tso", "/admin/log", "/api/v2/log"]))
def test_any_body_is_answered(body: bytes, path: str) -> None:
    status, shown = shared_api().ask("POST", path, raw=body, headers=JSON)
    if status != 200:
        assert status in (202, 400) and "\n" not in shown["error_msg"], shown


_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
_FEED_KEYS = st.sampled_from(
    ["changefeed_id", "namespace", "sink_uri", "start_ts", "target_ts", "replica_config", "pd_addrs", "other"]
)


@given(st.dictionaries(_FEED_KEYS, _JSON_VALUES, max_size=5))
def test_any_changefeed_is_made_or_refused_in_one_line(body: dict[str, Any]) -> None:
    status, shown = shared_api().v2("POST", "/changefeeds", body)
    if status != 200:
        assert status == 400 and shown["error_code"].startswith("CDC:Err"), shown
        assert "\n" not in shown["error_msg"] and len(shown["error_msg"]) < 4000


@pytest.mark.parametrize("depth", [200, 100_000])
def test_body_of_any_depth_is_refused(api: Api, depth: int) -> None:
    status, shown = api.ask("POST", "/api/v2/tso", raw=b"[" * depth, headers=JSON)
    assert status == 400 and "\n" not in shown["error_msg"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v2/verify_table", {"sink_uri": URI, "replica_config": {"filter": {"rules": 0}}}),
        ("/api/v2/changefeeds", {"sink_uri": URI, "replica_config": {"sink": {"dispatchers": 0}}}),
        ("/api/v2/changefeeds", {"sink_uri": URI, "replica_config": 0}),
    ],
)
@pytest.mark.parametrize("depth", [100, 400, 900])
@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}")])
def test_settings_that_nest_deep_are_refused(
    api: Api, path: str, body: dict[str, Any], pair: tuple[str, str], depth: int
) -> None:
    deep = pair[0] * depth + "1" + pair[1] * depth
    status, shown = api.ask("POST", path, raw=json.dumps(body).replace(": 0", f": {deep}").encode(), headers=JSON)
    assert status == 400 and "nests too deep" in shown["error_msg"], shown


@pytest.mark.parametrize("config", [{"sync_point_interval": int("9" * 400)}, {"sorter": {"cpu_share_max": 1 << 64}}])
def test_settings_that_no_answer_could_show_are_not_stored(api: Api, config: dict[str, Any]) -> None:
    status, shown = api.v2("POST", "/changefeeds", CREATE | {"replica_config": config})
    assert status == 400 and "[bus.config]" in shown["error_msg"]
    assert api.v2("GET", "/changefeeds")[1]["total"] == 0


def test_page_of_the_api_runs_no_script_and_asks_no_other_server(api: Api) -> None:
    page = api.http.get("/docs")
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert "<script" not in page.text and "://" not in page.text
    for path in ("/redoc", "/docs/oauth2-redirect"):
        assert api.http.get(path).status_code == 404


def test_page_of_the_api_shows_any_description_as_text() -> None:
    evil = "</code><img src=x onerror=alert(1)>"
    key = {"type": "string", "description": evil}
    route: dict[str, Any] = {
        "summary": evil,
        "description": evil,
        "parameters": [{"name": evil, "in": "query", "schema": key}],
    }
    route |= {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/B"}}}}}
    document = {
        "info": {"title": evil, "version": evil, "description": evil},
        "paths": {f"/{evil}": {"get": {**route, "tags": [evil]}}},
        "components": {"schemas": {"B": {"properties": {evil: key}}}},
    }
    page = about_page(document)
    assert "<img" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") == 11
