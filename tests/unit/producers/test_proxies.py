"""A proxy that the environment names, and servers on this machine."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from compose.local.bus import spare_loopback
from producers.tls import Channels


def test_channel_to_this_machine_goes_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with Channels().open(f"127.0.0.1:{port}", ()) as channel:
                grpc.channel_ready_future(channel).result(timeout=20)
        finally:
            server.stop(None).wait()


def test_run_adds_this_machine_to_what_needs_no_proxy_where_there_is_one() -> None:
    environment = {"PATH": "/bin"}
    spare_loopback(environment)
    assert environment == {"PATH": "/bin"}
    environment = {"https_proxy": "http://p:1", "NO_PROXY": ".corp"}
    spare_loopback(environment)
    assert environment["no_proxy"] == environment["NO_PROXY"] == ".corp,127.0.0.1,localhost"
