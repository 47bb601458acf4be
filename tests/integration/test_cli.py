"""The command line against real parts: changefeed verbs, decode, and errors as one coded line with an exit status."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from compose.cli import run_cli
from compose.stack.local import Addresses
from compose.stack.ports import free_ports
from tests.support.raw_log import START_TS, Change, RawLog, recorded, row_key

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


@pytest.fixture
def cli(stack: Addresses, raw_log: RawLog, capsys: Capsys) -> Callable[..., Any]:
    """Run a changefeed command in a cluster of its own; return what it printed as JSON."""

    def run(verb: str, *more: str) -> Any:
        where = ["--zookeeper", stack.zookeeper, "--cluster", raw_log.upstream]
        if verb == "create":
            where += ["--kafka", stack.kafka, "--upstream", raw_log.upstream]
        status = run_cli(["changefeed", verb, *where, *more])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        return json.loads(shown.out) if shown.out else None

    return run


def test_changefeed_verbs_from_create_to_remove(cli: Callable[..., Any], stack: Addresses, tmp_path: Path) -> None:
    file = tmp_path / "changefeed.toml"
    file.write_text("[filter]\nrules = ['sbtest.*']\n")
    uri = f"kafka://{stack.kafka}/orders?protocol=canal-json&sasl-user=u&sasl-password=hidden&sasl-mechanism=plain"
    made = cli("create", "--sink-uri", uri, "-c", "orders", "--config", str(file), "--start-ts", str(START_TS))
    assert (made["id"], made["state"], made["checkpoint_ts"]) == ("orders", "normal", START_TS)
    assert [feed["id"] for feed in cli("list")] == ["orders"]
    shown = cli("query", "-c", "orders")
    assert shown["config"] == {"filter": {"rules": ["sbtest.*"]}}
    assert "hidden" not in json.dumps(shown)
    cli("pause", "-c", "orders")
    assert cli("query", "-c", "orders")["state"] == "stopped"
    updated = cli("update", "-c", "orders", "--target-ts", str(START_TS + 900), "--no-confirm")
    assert updated["target_ts"] == START_TS + 900
    ahead = ["--overwrite-checkpoint-ts", "now", "--no-confirm", "--kafka", stack.kafka]
    cli("resume", "-c", "orders", *ahead)
    shown = cli("query", "-c", "orders")
    assert (shown["state"], shown["checkpoint_tso"]) == ("normal", START_TS + 100)
    assert cli("query", "-c", "orders", "-s")["tso"] == START_TS + 100
    assert cli("list")[0]["summary"]["tso"] == START_TS + 100
    assert cli("statistics", "-c", "orders", "--count", "1")["sink_gap"] == "0ms"
    cli("remove", "-c", "orders")
    assert cli("list") == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--sink-uri", "kafka://h:1/t?protocol=carrier-pigeon"], 2, "protocol"),
        (["--sink-uri", "kafka://h:1/t?protocol=avro"], 2, "needs a schema registry"),
        (["--sink-uri", "kafka://h:1/t?protocol=canal-json&partition-nums=3"], 2, "unknown key `partition-nums`"),
        (["--sink-uri", "kafka://h:1/t?protocol=canal-json", "--start-ts", "5"], 1, "[changefeed.start_ts]"),
        (["--sink-uri", "kafka://h:1/t?protocol=canal-json", "-c", "a--b"], 2, "changefeed-id must be"),
    ],
)
def test_changefeed_create_that_is_not_allowed_says_why_in_one_line(
    arguments: list[str], status: int, said: str, stack: Addresses, raw_log: RawLog, capsys: Capsys
) -> None:
    where = ["--zookeeper", stack.zookeeper, "--kafka", stack.kafka, "--upstream", raw_log.upstream]
    assert run_cli(["changefeed", "create", *where, "--cluster", raw_log.upstream, *arguments]) == status
    shown = capsys.readouterr().err
    assert shown.startswith("error: [") and said in shown and shown.count("\n") == 1


def test_changefeed_create_with_dispatchers_that_fit_no_table_names_table_key_file_and_line(
    cli: Callable[..., Any], stack: Addresses, raw_log: RawLog, tmp_path: Path, capsys: Capsys
) -> None:
    file = tmp_path / "feed.toml"
    file.write_text("[[sink.dispatchers]]\nmatcher = ['*.*']\npartition = 'columns'\ncolumns = ['id', 'region']\n")
    where = ["--zookeeper", stack.zookeeper, "--cluster", raw_log.upstream, "--kafka", stack.kafka]
    where += ["--upstream", raw_log.upstream, "--sink-uri", "kafka://h:1/t?protocol=canal-json", "-c", "misfit"]
    assert run_cli(["changefeed", "create", *where, "--config", str(file)]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: [sorter.dispatch_failed] table has no column `region` (table=sb.sbtest1, ")
    assert f"key=sink.dispatchers[0].columns[1], file={file}, line=4)" in shown and shown.count("\n") == 1
    assert cli("list") == []
    file.write_text(file.read_text().replace("region", "k"))
    assert run_cli(["changefeed", "create", *where, "--config", str(file)]) == 0


def test_changefeed_unknown_or_twice_is_an_error(
    cli: Callable[..., Any], stack: Addresses, raw_log: RawLog, capsys: Capsys
) -> None:
    where = ["--zookeeper", stack.zookeeper, "--cluster", raw_log.upstream]
    assert run_cli(["changefeed", "pause", "-c", "nobody", *where]) == 1
    assert "[changefeed.not_found]" in capsys.readouterr().err
    uri = f"kafka://{stack.kafka}/t?protocol=canal-json"
    cli("create", "--sink-uri", uri, "-c", "twice")
    more = ["--kafka", stack.kafka, "--upstream", raw_log.upstream]
    assert run_cli(["changefeed", "create", "--sink-uri", uri, "-c", "twice", *where, *more]) == 1
    assert "[changefeed.exists]" in capsys.readouterr().err


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
