"""Live data: for so many listeners, made once for all, and its end."""

import json
import re
import socket
import threading
from contextlib import ExitStack, closing
from typing import Any

import pytest

from consumers.control.api import overview
from consumers.control.api.client import ApiClient
from consumers.control.api.serving.server import ApiServer
from consumers.control.console import live
from consumers.control.console.routes import ROUTERS
from tests.support.control.console_api import BASE
from tests.support.control.memory_bus import CHECKPOINT, Memory
from tests.support.upstream.feed_sink import wait_until

LIVE = f"GET {BASE}/live HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def events(connection: socket.socket, count: int) -> list[tuple[str, Any]]:
    """Read so many events of a stream whose headers come first, or all up to its end."""
    text = b""
    while text.count(b"\ndata: ") < count or not text.endswith((b"\n\n", b"\n\n\r\n")):
        if text.endswith(b"\r\n0\r\n\r\n"):  # the connection stays open for another request
            break
        if not (more := connection.recv(65536)):
            break
        text += more
    return [(name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n", text.decode())]


def opened(stack: ExitStack, server: ApiServer) -> socket.socket:
    host, port = server.address.split(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), 30))
    connection.sendall(LIVE)
    return connection


def test_live_data_is_the_overview_with_what_waits(server: ApiServer) -> None:
    with ExitStack() as stack:
        (name, shown), *_ = events(opened(stack, server), 1)
    assert name == "overview"
    assert shown["answered_by"] == "me" and shown["upstreams"][0]["resolved_ts"] == str(CHECKPOINT)
    assert shown["waits"] == []


def test_live_data_without_a_session_says_what_is_wrong(server: ApiServer) -> None:
    server.context.backend = None
    with ExitStack() as stack:
        ((name, shown),) = events(opened(stack, server), 1)
    assert (name, shown["code"]) == ("trouble", "api.not_ready")


def test_live_data_is_for_so_many_and_those_who_go_make_room(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.control.console.routes.CLIENTS_MAX", 2)
    with ExitStack() as stack:
        first = [opened(stack, server) for _ in range(2)]
        for connection in first:
            assert events(connection, 1)[0][0] == "overview"
        refused = ApiClient(url=server.address).ask("GET", f"{BASE}/live")
        assert refused.status == 503 and "api.busy" in refused.json()["error_msg"]
        first[0].close()

        def has_room() -> bool:
            with ExitStack() as inner:
                return opened(inner, server).recv(12) == b"HTTP/1.1 200"

        wait_until(has_room, lambda: None)


def test_live_data_is_made_once_for_all_who_listen(bus: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    whole = overview.overview_body

    def counted(*given: Any) -> dict[str, Any]:
        made.append(threading.get_ident())
        return whole(*given)

    monkeypatch.setattr(live, "overview_body", counted)
    monkeypatch.setattr(live, "PERIOD_S", 3600.0)
    with closing(ApiServer("127.0.0.1:0", routers=ROUTERS)) as server, server.serving(bus), ExitStack() as stack:
        for connection in [opened(stack, server) for _ in range(5)]:
            assert events(connection, 1)[0][0] == "overview"
    assert len(made) == 1


def test_server_that_ends_ends_streams(bus: Memory) -> None:
    with ExitStack() as stack:
        with closing(ApiServer("127.0.0.1:0", routers=ROUTERS)) as server, server.serving(bus):
            connection = opened(stack, server)
            assert events(connection, 1)[0][0] == "overview"
        connection.settimeout(30)
        rest = b""
        while more := connection.recv(65536):
            rest += more
    assert rest.endswith(b"0\r\n\r\n"), "the stream has an end of its own, and is not cut off"


def test_stream_that_has_had_its_time_asks_its_listener_to_come_again(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STREAM_S", 0.0)
    with ExitStack() as stack:
        assert events(opened(stack, server), 2) == [("again", {})]
