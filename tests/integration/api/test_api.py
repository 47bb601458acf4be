"""The HTTP API of a capture over real ZooKeeper and Kafka, on a raw log that is written by hand."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from compose.capture.process import run_capture
from compose.capture.settings.options import CaptureOptions
from compose.cli import run_cli
from compose.stack.local import Addresses
from consumers.control.changefeeds.verbs import ChangefeedControl
from consumers.control.cluster.capture_registry import list_captures
from producers.region_server.pd.cluster import PdCluster
from producers.region_server.server import RegionServer
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import ZkPaths
from tests.support.control.lasting_session import lasting_session
from tests.support.control.pauses import growing_pauses
from tests.support.database.fake_tidb import FakeTidb
from tests.support.rawlog.raw_log import START_TS, RawLog, recorded

REACH_S = 180.0
NEWEST_TS = START_TS + 100


@dataclass
class Bus:
    """A capture's API, and the cluster it belongs to."""

    address: str
    cluster: str
    pd: PdCluster

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection(self.address, timeout=REACH_S)) as connection:
            connection.request(method, f"/api/v2{path}", None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


def reached(condition: Callable[[], Any]) -> Any:
    deadline, pauses = time.monotonic() + REACH_S, growing_pauses()
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(next(pauses))
    raise AssertionError("not reached")


@pytest.fixture(scope="module")
def bus(stack: Addresses) -> Iterator[Bus]:
    """A capture that stands by: the changefeeds' upstream is another one's, whose raw log is written here."""
    cluster = upstream = f"api{time.time_ns()}"
    log = RawLog(stack.kafka, upstream)
    log.snapshot([recorded("sbtest1")[0]])
    log.advance(NEWEST_TS)
    stopping = threading.Event()
    with RegionServer() as server, lasting_session(stack.zookeeper_access) as session:
        candidate = f"{ZkPaths(cluster).election}/candidate-"
        session.client.create(candidate, b"the-owner", ephemeral=True, sequence=True, makepath=True)
        options = CaptureOptions(
            pd=server.pd_address,
            kafka=stack.kafka_access,
            zookeeper=stack.zookeeper_access,
            schema_registry=stack.registry_access,
            cluster=cluster,
            upstream=UpstreamId(upstream),
            addr="127.0.0.1:0",
            session_timeout_s=30.0,  # a slow machine must not lose the address that is asked
        )
        thread = threading.Thread(target=run_capture, args=(options, stopping))
        thread.start()
        try:
            (capture,) = reached(lambda: list_captures(session, ZkPaths(cluster)))
            bus = Bus(capture.address, cluster, server.pd)
            reached(lambda: bus.ask("GET", "/status")[0] == 200)
            yield bus
        finally:
            stopping.set()
            thread.join(REACH_S)


def test_api_of_a_capture_that_is_not_the_owner_runs_a_changefeeds_whole_life(
    bus: Bus, stack: Addresses, capsys: pytest.CaptureFixture[str]
) -> None:
    status, shown = bus.ask("GET", "/status")
    assert (status, shown["is_owner"], shown["cluster_id"]) == (200, False, bus.cluster)
    assert bus.ask("GET", "/health") == (200, {})
    uri = f"kafka://{stack.kafka}/orders?protocol=canal-json"
    body = {"changefeed_id": "cf", "sink_uri": uri, "replica_config": {"filter": {"rules": ["sbtest.*"]}}}
    status, made = bus.ask("POST", "/changefeeds", body)
    assert status == 200, made
    assert (made["start_ts"], made["config"]["filter"]) == (NEWEST_TS, {"rules": ["sbtest.*"]})
    assert made["upstream_id"] > 0
    assert bus.ask("POST", "/changefeeds", body)[1]["error_code"] == "CDC:ErrChangeFeedAlreadyExists"
    assert bus.ask("POST", "/changefeeds/cf/pause") == (200, {})
    assert bus.ask("GET", "/changefeeds/cf")[1]["state"] == "stopped"
    assert bus.ask("PUT", "/changefeeds/cf", {"target_ts": NEWEST_TS + 50})[1]["target_ts"] == NEWEST_TS + 50
    status, refused = bus.ask("POST", "/changefeeds/cf/resume", {"overwrite_checkpoint_ts": START_TS - 1})
    assert (status, refused["error_code"]) == (400, "CDC:ErrStartTsBeforeGC")
    assert bus.ask("POST", "/changefeeds/cf/resume", {"overwrite_checkpoint_ts": NEWEST_TS - 1}) == (200, {})
    assert bus.ask("GET", "/changefeeds/cf/status")[1]["checkpoint_ts"] == NEWEST_TS - 1
    with lasting_session(stack.zookeeper_access) as session:
        info = ChangefeedControl(session, ZkPaths(bus.cluster)).store.get("cf")
        assert info.safe_until_ts > NEWEST_TS, "PD's clock, which is far above these"
    assert run_cli(["changefeed", "query", "-c", "cf", "--server", f"http://{bus.address}"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoint_tso"] == NEWEST_TS - 1
    assert bus.ask("DELETE", "/changefeeds/cf") == (200, {})
    assert bus.ask("POST", "/changefeeds", {**body, "start_ts": NEWEST_TS})[0] == 200
    with lasting_session(stack.zookeeper_access) as session:
        info = ChangefeedControl(session, ZkPaths(bus.cluster)).store.get("cf")
        assert (info.start_ts, info.safe_until_ts > NEWEST_TS) == (NEWEST_TS, True)
    assert bus.ask("DELETE", "/changefeeds/cf") == (200, {})
    assert bus.ask("GET", "/changefeeds")[1] == {"total": 0, "items": []}


def test_api_of_a_capture_asks_pd_for_the_source_id_of_what_writes_into_a_database(bus: Bus, stack: Addresses) -> None:
    def stored() -> int:
        with lasting_session(stack.zookeeper_access) as session:
            return ChangefeedControl(session, ZkPaths(bus.cluster)).store.get("into-tidb").source_id

    with FakeTidb(lambda _: None) as tidb:
        bus.pd.global_config["source_id"] = "2"
        status, made = bus.ask("POST", "/changefeeds", {"changefeed_id": "into-tidb", "sink_uri": tidb.uri})
        assert (status, stored()) == (200, 2), made
        bus.pd.global_config["source_id"] = "3"
        assert bus.ask("POST", "/changefeeds/into-tidb/pause") == (200, {})
        assert stored() == 2, "as it was begun"
        assert bus.ask("POST", "/changefeeds/into-tidb/resume") == (200, {})
        assert stored() == 3
        bus.pd.global_config["source_id"] = "none"
        status, refused = bus.ask("POST", "/changefeeds", {"changefeed_id": "other", "sink_uri": tidb.uri})
        assert status != 200
        assert "source_id" in refused["error_msg"]
    bus.pd.global_config.clear()
    assert bus.ask("DELETE", "/changefeeds/into-tidb") == (200, {})


def test_api_of_a_capture_knows_tables_and_pds_clock(bus: Bus) -> None:
    uri = "kafka://127.0.0.1:9092/orders?protocol=canal-json"
    status, shown = bus.ask("POST", "/verify_table", {"sink_uri": uri})
    assert (status, shown["ineligible_tables"]) == (200, [])
    (table,) = shown["eligible_tables"]
    assert (table["table_name"], table["is_partition"]) == ("sbtest1", False)
    rules = {"filter": {"rules": ["nothing.*"]}}
    _, shown = bus.ask("POST", "/verify_table", {"sink_uri": uri, "replica_config": rules})
    assert shown == {"ineligible_tables": [], "eligible_tables": [], "all_tables": []}
    _, shown = bus.ask("POST", "/get_all_tables", {"replica_config": {"filter": {"rules": ["sb.nothing"]}}})
    assert (shown["eligible_tables"], [table["table_name"] for table in shown["all_tables"]]) == ([], ["sbtest1"])
    first, second = (bus.ask("POST", "/tso")[1] for _ in range(2))
    assert (first["timestamp"], first["logic_time"]) < (second["timestamp"], second["logic_time"])


def test_api_of_a_capture_refuses_another_upstream(bus: Bus) -> None:
    body = {"sink_uri": "kafka://h:1/t?protocol=canal-json", "pd_addrs": ["http://elsewhere:2379"]}
    status, shown = bus.ask("POST", "/changefeeds", body)
    assert (status, shown["error_code"]) == (400, "CDC:ErrAPIInvalidParam")
    assert "another upstream" in shown["error_msg"]


def test_capture_list_by_the_command_line(bus: Bus, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["cli", "capture", "list", "--server", bus.address]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["address"], shown["is-owner"], shown["cluster-id"]) == (bus.address, False, bus.cluster)
