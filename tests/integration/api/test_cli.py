"""The command line against real parts: changefeed verbs, decode, and errors as one coded line with an exit status."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from confluent_kafka import Producer

from compose.cli import run_cli
from compose.ports import free_ports
from compose.stack.local import Addresses
from consumers.control.cluster.election import Election, raise_revision
from consumers.control.core.frontier.frontier import NewerOwnerError
from consumers.control.log.frontier_topic import FrontierTopic
from consumers.control.owner.owner import Owner
from producers.region_server.server import RegionServer
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.topics import raw_topics
from tests.support.control.lasting_session import lasting_session
from tests.support.control.served_bus import places_of, served_bus
from tests.support.rawlog.raw_log import START_TS, Change, RawLog, recorded, row_key

TABLE = 114
Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def raw_log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    log = RawLog(stack.kafka, fresh_name("cli"))
    log.snapshot([recorded("sbtest1")[0]])
    _, rows = recorded("sbtest1")
    log.rows(TABLE, [Change(START_TS + 1 + at, row_key(TABLE, at), rows[at].value) for at in range(5)], 0)
    log.advance(START_TS + 100)
    return log


@pytest.fixture(scope="module")
def pd() -> Iterator[str]:
    with RegionServer() as server:
        yield server.pd_address


@pytest.fixture
def server(stack: Addresses, raw_log: RawLog, pd: str) -> Iterator[str]:
    """The API of a cluster of its own."""
    places = places_of(pd, stack.kafka, stack.zookeeper, raw_log.upstream, raw_log.upstream)
    with lasting_session(stack.zookeeper_access) as session, served_bus(session, places) as url:
        yield url


@pytest.fixture
def cli(server: str, capsys: Capsys) -> Callable[..., Any]:
    """Run a changefeed command; return what it printed, read as JSON where it is."""

    def run(verb: str, *more: str) -> Any:
        status = run_cli(["changefeed", verb, "--server", server, *more])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        if verb in ("create", "update"):
            said, changefeed_id, info = shown.out.splitlines()
            assert said.endswith("successfully!") and changefeed_id.startswith("ID: ")
            return json.loads(info.removeprefix("Info: "))
        return json.loads(shown.out) if shown.out.startswith(("[", "{")) else shown.out

    return run


def test_changefeed_verbs_from_create_to_remove(cli: Callable[..., Any], stack: Addresses, tmp_path: Path) -> None:
    file = tmp_path / "changefeed.toml"
    file.write_text("[filter]\nrules = ['sbtest.*']\n")
    uri = f"kafka://{stack.kafka}/orders?protocol=canal-json&sasl-user=u&sasl-password=hidden&sasl-mechanism=plain"
    since = ["--start-ts", str(START_TS), "--no-confirm"]
    made = cli("create", "--sink-uri", uri, "-c", "orders", "--config", str(file), *since)
    assert (made["id"], made["state"], made["checkpoint_ts"]) == ("orders", "normal", START_TS)
    assert [feed["id"] for feed in cli("list")] == ["orders"]
    assert list(cli("list")[0]["summary"]) == ["state", "tso", "checkpoint", "error"]
    shown = cli("query", "-c", "orders")
    assert shown["config"]["filter"] == {"rules": ["sbtest.*"]}
    assert set(shown) == {
        *("upstream_id", "namespace", "id", "keyspace", "sink_uri", "config", "create_time", "start_ts", "resolved_ts"),
        *("target_ts", "checkpoint_tso", "checkpoint_time", "state", "error", "creator_version", "time_zone"),
        *("task_status", "sorter", "images"),
    }
    assert shown["images"] is None
    assert "hidden" not in json.dumps(shown)
    cli("pause", "-c", "orders")
    assert cli("query", "-c", "orders")["state"] == "stopped"
    updated = cli("update", "-c", "orders", "--target-ts", str(1 << 62), "--no-confirm")
    assert updated["target_ts"] == 1 << 62
    cli("resume", "-c", "orders", "--overwrite-checkpoint-ts", "now", "--no-confirm")
    shown = cli("query", "-c", "orders")
    assert shown["state"] == "normal"
    assert START_TS + 100 < shown["checkpoint_tso"] == cli("query", "-c", "orders", "-s")["checkpoint_tso"]
    cli("pause", "-c", "orders")
    cli("resume", "-c", "orders", "--overwrite-checkpoint-ts", str(START_TS + 50), "--no-confirm")
    assert cli("list")[0]["summary"]["tso"] == START_TS + 50
    gaps = cli("statistics", "-c", "orders", "--count", "1")
    assert gaps["sink_gap"] == "0ms" and int(gaps["replication_gap"].removesuffix("ms")) > 0
    assert "ID: orders" in cli("remove", "-c", "orders")
    assert cli("list") == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--sink-uri", "kafka://h:1/t?protocol=carrier-pigeon"], 2, "protocol"),
        (["--sink-uri", "kafka://h:1/t?protocol=avro"], 2, "needs a schema registry"),
        (["--sink-uri", "kafka://h:1/t?protocol=canal-json&partition-num=x"], 2, "must be a whole number"),
        (
            ["--sink-uri", "kafka://h:1/t?protocol=canal-json", "--start-ts", "5", "--no-confirm"],
            1,
            "ErrStartTsBeforeGC",
        ),
        (["--sink-uri", "kafka://h:1/t?protocol=canal-json", "--start-ts", str(1 << 63)], 2, "above PD's clock"),
        (["--sink-uri", "kafka://h:1/t?protocol=canal-json", "-c", "a--b"], 2, "changefeed-id must be"),
    ],
)
def test_changefeed_create_that_is_not_allowed_says_why_in_one_line(
    arguments: list[str], status: int, said: str, server: str, capsys: Capsys
) -> None:
    assert run_cli(["changefeed", "create", "--server", server, *arguments]) == status
    shown = capsys.readouterr().err
    assert shown.startswith("error: [") and said in shown and shown.count("\n") == 1


def test_changefeed_create_asks_before_it_reads_days_again(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(question: str, **_: Any) -> bool:
        asked.append(question)
        raise click.Abort

    monkeypatch.setattr("click.confirm", refuse)
    uri = "kafka://h:1/t?protocol=canal-json"
    arguments = ["changefeed", "create", "--server", server, "--sink-uri", uri, "--start-ts", str(START_TS)]
    assert run_cli(arguments) == 130
    assert len(asked) == 1 and "days behind" in asked[0]
    assert run_cli([*arguments, "--no-confirm"]) == 0


def test_changefeed_create_with_dispatchers_that_fit_no_table_names_table_key_file_and_line(
    cli: Callable[..., Any], server: str, tmp_path: Path, capsys: Capsys
) -> None:
    file = tmp_path / "feed.toml"
    file.write_text("[[sink.dispatchers]]\nmatcher = ['*.*']\npartition = 'columns'\ncolumns = ['id', 'region']\n")
    arguments = ["changefeed", "create", "--server", server, "--sink-uri", "kafka://h:1/t?protocol=canal-json"]
    arguments += ["-c", "misfit", "--config", str(file)]
    assert run_cli(arguments) == 1
    shown = capsys.readouterr().err
    prefix = (
        "error: [CDC:ErrDispatcherFailed] [sorter.dispatch_failed] table has no column `region` (table=sb.sbtest1, "
    )
    assert shown.startswith(prefix)
    assert f"key=sink.dispatchers[0].columns[1], file={file}, line=4)" in shown and shown.count("\n") == 1
    assert cli("list") == []
    file.write_text(file.read_text().replace("region", "k"))
    assert run_cli(arguments) == 0


def test_changefeed_unknown_or_twice_is_an_error(
    cli: Callable[..., Any], stack: Addresses, server: str, capsys: Capsys
) -> None:
    assert run_cli(["changefeed", "pause", "-c", "nobody", "--server", server]) == 1
    assert "[changefeed.not_found]" in capsys.readouterr().err
    uri = f"kafka://{stack.kafka}/t?protocol=canal-json"
    cli("create", "--sink-uri", uri, "-c", "twice")
    assert run_cli(["changefeed", "create", "--sink-uri", uri, "-c", "twice", "--server", server]) == 1
    shown = capsys.readouterr().err
    assert "[changefeed.exists]" in shown and "another --changefeed-id" in shown


def test_unsafe_metadata_and_reset_see_and_delete_the_clusters_nodes(
    cli: Callable[..., Any], stack: Addresses, raw_log: RawLog, server: str, capsys: Capsys
) -> None:
    secret = "kafka://h:1/t?protocol=canal-json&sasl-mechanism=plain&sasl-user=u&sasl-password=hidden"
    cli("create", "--sink-uri", secret, "-c", "kept")
    assert run_cli(["cli", "unsafe", "show-metadata", "--server", server]) == 0
    shown = capsys.readouterr().out
    assert f"Key: /tidebus/{raw_log.upstream}/changefeeds/default/kept/info, Value: " in shown and "hidden" not in shown
    where = ["--zookeeper", stack.zookeeper, "--cluster-id", raw_log.upstream]
    assert run_cli(["cli", "unsafe", "reset", "--no-confirm", *where]) == 1
    assert "[cluster.runs] captures run" in capsys.readouterr().err
    with lasting_session(stack.zookeeper_access) as session:
        session.client.delete(f"{ZkPaths(raw_log.upstream).captures}/served")
    with lasting_session(stack.zookeeper_access) as session:
        raise_revision(session, ZkPaths(raw_log.upstream), 7)
    assert run_cli(["cli", "unsafe", "reset", "--no-confirm", *where]) == 0
    assert capsys.readouterr().out == "reset\n"
    assert cli("list") == []
    # The raw log, that is still there, asks this of the next owner.
    with lasting_session(stack.zookeeper_access) as session:
        assert session.client.get(ZkPaths(raw_log.upstream).owner_rev)[0] == b"7"


def test_cluster_whose_zookeeper_was_lost_goes_on_once_it_has_adopted_the_raw_log(
    raw_log: RawLog, stack: Addresses, capsys: Capsys, fresh_name: Callable[[str], str]
) -> None:
    # What captures have published before the loss; the cluster's own nodes are new.
    cluster, topic = fresh_name("after"), raw_topics(UpstreamId(raw_log.upstream)).frontier
    where = ["--zookeeper", stack.zookeeper, "--kafka", stack.kafka, "--cluster", cluster]
    where += ["--upstream", raw_log.upstream, "--no-confirm"]
    with (
        contextlib.closing(FrontierTopic(stack.kafka_access, topic)) as frontier,
        lasting_session(stack.zookeeper_access) as session,
    ):
        last = frontier.newest()
        assert last is not None
        frontier.publish(replace(last, owner_rev=41))
        with pytest.raises(NewerOwnerError, match="adopt-raw-log"):
            Owner(frontier, session, 1, len(last.high)).start(lambda: Ts(0))
        assert run_cli(["unsafe", "adopt-raw-log", *where]) == 0
        assert "revision 41" in capsys.readouterr().out
        revision = Election(session, ZkPaths(cluster), CaptureId("first")).campaign(lambda: False)
        assert revision == 42
        record = Owner(frontier, session, revision, len(last.high)).start(lambda: Ts(0))
        assert (record.owner_rev, record.resolved_ts) == (42, last.resolved_ts)
    assert run_cli(["unsafe", "adopt-raw-log", *where]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_decode_shows_the_three_topics_of_the_raw_log(raw_log: RawLog, stack: Addresses, capsys: Capsys) -> None:
    def lines(topic: str, *more: str) -> list[dict[str, Any]]:
        assert run_cli(["decode", "--kafka", stack.kafka, "--topic", topic, *more]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    rows = lines(f"tidebus.{raw_log.upstream}.region-events")
    assert [(row["table_id"], row["commit_ts"], row["op"]) for row in rows] == [
        (TABLE, START_TS + 1 + at, "put") for at in range(5)
    ]
    assert bytes.fromhex(rows[3]["key"]) == row_key(TABLE, 3)
    ddl = lines(f"tidebus.{raw_log.upstream}.ddl")
    assert {"table", "snapshot_end"} <= {record["kind"] for record in ddl}
    assert lines(f"tidebus.{raw_log.upstream}.frontier")[-1]["resolved_ts"] == START_TS + 100
    assert len(lines(f"tidebus.{raw_log.upstream}.region-events", "--limit", "2")) == 2


def test_decode_of_a_topic_that_is_not_there_or_a_dead_broker_says_so(stack: Addresses, capsys: Capsys) -> None:
    assert run_cli(["decode", "--kafka", stack.kafka, "--topic", "nothing-here"]) == 1
    assert "[kafka.unreadable] no such topic" in capsys.readouterr().err
    (port,) = free_ports(1)
    assert run_cli(["decode", "--kafka", f"127.0.0.1:{port}", "--topic", "x"]) == 1
    assert "[kafka.unreadable] kafka does not answer" in capsys.readouterr().err


def test_decode_of_a_damaged_record_names_topic_partition_and_offset(
    stack: Addresses, fresh_name: Callable[[str], str], capsys: Capsys
) -> None:
    log = RawLog(stack.kafka, fresh_name("bad"))
    log.snapshot([recorded("sbtest1")[0]])
    log.advance(START_TS + 1)
    topic = f"tidebus.{log.upstream}.region-events"
    producer = Producer({"bootstrap.servers": stack.kafka})
    producer.produce(topic, b"\x07garbage", partition=0)
    assert producer.flush(20) == 0
    assert run_cli(["decode", "--kafka", stack.kafka, "--topic", topic]) == 1
    shown = capsys.readouterr().err
    assert f"topic={topic}, partition=0, offset=0" in shown and shown.count("\n") == 1
