"""Many who ask, without a login, for what anybody may ask a capture's API for."""

import asyncio
import socket
import threading
import time
from contextlib import ExitStack, closing

import pytest
from starlette.types import Message

from consumers.control.api.access.open_answers import PART_BYTES, LongResponse, Shared, rest_s
from consumers.control.api.client import ApiClient
from consumers.control.api.serving.server import ApiServer
from tests.support.control.memory_bus import Memory
from tests.support.upstream.feed_sink import wait_until


@pytest.mark.parametrize(
    ("path", "reads"), [("/metrics", "metrics"), ("/status", "owner"), ("/api/v2/health", "check_health")]
)
def test_what_anybody_may_ask_for_is_made_once_for_all_who_ask_meanwhile(
    monkeypatch: pytest.MonkeyPatch, path: str, reads: str
) -> None:
    bus, goes_on = Memory(), threading.Event()
    read, running = getattr(bus, reads), list[int]()
    made, most_at_once = 0, 0

    def slow(*given: object) -> object:
        nonlocal made, most_at_once
        running.append(1)
        made, most_at_once = made + 1, max(most_at_once, len(running))
        goes_on.wait(20)
        running.pop()
        return read(*given)

    monkeypatch.setattr(bus, reads, slow)
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with closing(ApiServer("127.0.0.1:0")) as server, server.serving(bus), ExitStack() as stack:
        host, port = server.address.split(":")
        asking = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(30)]
        for connection in asking:
            connection.sendall(request)
        assert ApiClient(url=server.address, timeout_s=20).ask("GET", "/openapi.json").status == 200
        wait_until(lambda: made > 0, lambda: made)
        goes_on.set()
        assert {connection.recv(12) for connection in asking} == {b"HTTP/1.1 200"}
    assert (most_at_once, made < 10) == (1, True), (most_at_once, made)


def test_who_asks_without_end_has_a_fifth_of_a_thread() -> None:
    async def ask() -> float:
        shared, began_at = Shared[None](), time.monotonic()
        for _ in range(3):
            await shared.of(lambda: time.sleep(0.05))
        return time.monotonic() - began_at

    assert asyncio.run(ask()) >= 0.05 * (1 + 5 + 5)


def test_where_zookeeper_is_slow_the_next_who_asks_waits_a_second_more() -> None:
    assert (rest_s(0.1), rest_s(10.0)) == (0.4, 1.0)


def test_long_answer_is_sent_in_pieces() -> None:
    content, sent = bytes(range(256)) * 1000, list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    asyncio.run(LongResponse(content)({"type": "http"}, receive, send))
    head, *parts = sent
    assert (b"content-length", b"256000") in head["headers"]
    assert b"".join(part["body"] for part in parts) == content
    assert max(len(part["body"]) for part in parts) == PART_BYTES
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
