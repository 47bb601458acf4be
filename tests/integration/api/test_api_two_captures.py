"""Two captures of one cluster and their APIs: what only the owner can do, asked of the one that stands by."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from compose.capture.process import run_capture
from compose.capture.settings.options import CaptureOptions
from compose.cli import run_cli
from compose.stack.local import Addresses
from consumers.control.cluster.capture_registry import list_captures
from consumers.control.fleets.settings import SorterSettings
from producers.region_server.recording import Replay, read_recording
from producers.region_server.server import RegionServer
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ZkPaths
from tests.support.control.lasting_session import lasting_session
from tests.support.recorded.recording import TIDB_DATA

REACH_S = 200.0


@dataclass
class Cluster:
    """The addresses of the two APIs."""

    standby: str
    owner: str

    def ask(self, method: str, path: str, body: Any = None, address: str = "") -> tuple[int, Any]:
        with closing(http.client.HTTPConnection(address or self.standby, timeout=REACH_S)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else None

    def tables(self, capture: str) -> list[int]:
        return list(self.ask("GET", f"/api/v2/processors/all/{capture}")[1].get("table_ids", []))


def reached(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + REACH_S
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.2)
    raise AssertionError("not reached")


@pytest.fixture(scope="module")
def cluster(stack: Addresses) -> Iterator[Cluster]:
    name, stopping = f"pair{time.time_ns()}", threading.Event()
    with ExitStack() as exits:
        server = exits.enter_context(RegionServer(min_ts_interval_ms=100))
        session = exits.enter_context(lasting_session(stack.zookeeper_access))
        replay = Replay(server, read_recording(TIDB_DATA))
        server.call(replay.load())
        server.spawn(replay.run(0.0, wait_for_subscriber=True))
        options = CaptureOptions(
            pd=server.pd_address,
            kafka=stack.kafka_access,
            zookeeper=stack.zookeeper_access,
            schema_registry=stack.registry_access,
            cluster=name,
            upstream=UpstreamId(name),
            addr="127.0.0.1:0",
            session_timeout_s=30.0,  # a slow machine must not lose the ids that are asked for
            sorters=SorterSettings(master="none"),
            graceful_stop_timeout_s=1.0,
        )
        threads = [threading.Thread(target=run_capture, args=(options, stopping)) for _ in range(2)]
        for thread in threads:
            thread.start()
            exits.callback(thread.join, REACH_S)
        exits.callback(stopping.set)
        captures = reached(lambda: (living := list_captures(session, ZkPaths(name)))[1:] and living)
        cluster = Cluster(*(capture.address for capture in captures))

        def owns(address: str) -> bool:
            status, shown = cluster.ask("GET", "/api/v2/status", address=address)
            return status == 200 and shown["is_owner"]

        owner = reached(lambda: next((capture.address for capture in captures if owns(capture.address)), None))
        (standby,) = {capture.address for capture in captures} - {owner}
        cluster = Cluster(standby, owner)
        reached(lambda: cluster.ask("GET", "/api/v2/health", address=owner)[0] == 200)
        body = {"changefeed_id": "all", "sink_uri": f"kafka://{stack.kafka}/t?protocol=canal-json"}
        body["replica_config"] = {"force_replicate": True}  # type: ignore[assignment]
        reached(lambda: cluster.ask("POST", "/api/v2/changefeeds", body)[0] == 200)
        yield cluster


def test_standby_shows_and_moves_tables_lets_the_owner_resign_and_drains_a_capture(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    captures = cluster.ask("GET", "/api/v2/captures")[1]["items"]
    (owner,) = (capture["id"] for capture in captures if capture["is_owner"])
    (standby,) = (capture["id"] for capture in captures if not capture["is_owner"])
    shares = reached(
        lambda: (
            (halves := [cluster.tables(owner), cluster.tables(standby)])
            and sum(map(len, halves)) == len({*halves[0], *halves[1]}) > 20
            and halves
        )
    )
    pairs = {
        (share["changefeed_id"], share["capture_id"]) for share in cluster.ask("GET", "/api/v2/processors")[1]["items"]
    }
    assert pairs == {("all", capture) for capture, tables in zip((owner, standby), shares, strict=True) if tables}
    tasks = cluster.ask("GET", "/api/v2/changefeeds/all")[1]["task_status"]
    assert {task["capture_id"] for task in tasks} == {capture for _, capture in pairs}

    fro, to, table = (owner, standby, shares[0][0]) if shares[0] else (standby, owner, shares[1][0])
    where = ["--server", cluster.standby]
    move = ["cli", "capture", "move-table", "-c", "all", "-t", str(table), "-p", to, *where]
    assert run_cli(move) == 0, capsys.readouterr().err
    reached(lambda: table in cluster.tables(to) and table not in cluster.tables(fro))

    assert run_cli(["cli", "capture", "resign-owner", *where]) == 0
    reached(lambda: cluster.ask("GET", "/api/v2/status")[1].get("is_owner"))
    owner, standby = standby, owner
    where = ["--server", cluster.owner]  # which stands by now
    reached(lambda: {*cluster.tables(owner), *cluster.tables(standby)} >= {*shares[0], *shares[1]})

    status, shown = cluster.ask("POST", f"/api/v2/captures/{owner}/drain")
    assert (status, shown["error_code"]) == (400, "CDC:ErrSchedulerRequestFailed")
    assert run_cli(["cli", "capture", "drain", standby, *where]) == 0
    assert json.loads(capsys.readouterr().out)["current_table_count"] > 0
    reached(lambda: not cluster.tables(standby) and len(cluster.tables(owner)) > 20)
    assert run_cli(["top", "--interval", "10ms", *where]) == 0
    shown = capsys.readouterr().out
    assert f"{owner[:8]} owner" in shown and standby[:8] in shown
