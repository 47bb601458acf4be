"""The changefeed verbs of the command line: what they print, what they ask, and what a no leaves as it is."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

from compose.cli import run_cli
from consumers.control.api.errors import NoOwnerError
from consumers.control.api.serving.server import ApiServer
from edges.secrets import SecretKeyError
from schemas.errors import BusError, CorruptDataError
from schemas.ids import Ts
from tests.support.control.memory_bus import CHECKPOINT, PD, URI, Memory

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bus() -> Memory:
    return Memory()


@pytest.fixture
def run(bus: Memory, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run a changefeed verb; return the exit status and what it printed on either side."""
    with closing(ApiServer("127.0.0.1:0")) as server, server.serving(bus):

        def ask(verb: str, *more: str) -> tuple[int, str, str]:
            status = run_cli(["cli", "changefeed", verb, "--server", server.address, *more])
            shown = capsys.readouterr()
            return status, shown.out, shown.err

        yield ask


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions, each answered by no."""
    questions: list[str] = []

    def refuse(question: str, **_: Any) -> bool:
        questions.append(question)
        raise click.Abort

    monkeypatch.setattr("click.confirm", refuse)
    return questions


def test_create_prints_id_and_info_as_cdc_cli_does(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "feed.toml"
    file.write_text("case-sensitive = true\n[filter]\nrules = ['a.*']\n")
    status, out, _ = run("create", "-c", "cf", "--sink-uri", URI, "--config", str(file), "--target-ts", str(1 << 61))
    said, changefeed_id, info = out.splitlines()
    assert (status, said, changefeed_id) == (0, "Create changefeed successfully!", "ID: cf")
    shown = json.loads(info.removeprefix("Info: "))
    config = shown["config"]
    assert (config["case_sensitive"], config["filter"], shown["target_ts"]) == (True, {"rules": ["a.*"]}, 1 << 61)


def test_create_asks_before_tables_without_a_key_are_left_out(run: Run, bus: Memory, asked: list[str]) -> None:
    bus.ineligible = [{"database_name": "shop", "table_name": "log", "table_id": 9, "is_partition": False}]
    status, out, err = run("create", "-c", "cf", "--sink-uri", URI)
    assert (status, out, bus.kept) == (130, "", {})
    assert "shop.log" in err and len(asked) == 1
    assert run("create", "-c", "cf", "--sink-uri", URI, "--no-confirm")[0] == 0
    assert len(asked) == 1
    assert bus.kept["default", "cf"].info.config["ignore-ineligible-table"] is True


def test_create_asks_before_more_than_a_day_is_read_again(run: Run, bus: Memory, asked: list[str]) -> None:
    bus.now = Ts(CHECKPOINT + (25 * 3_600_000 << 18))
    assert run("create", "-c", "cf", "--sink-uri", URI, "--start-ts", str(CHECKPOINT))[0] == 130
    assert "1.0 days behind" in asked[0] and not bus.kept
    near = Ts(CHECKPOINT + (2 * 3_600_000 << 18))
    assert run("create", "-c", "cf", "--sink-uri", URI, "--start-ts", str(near))[0] == 0


def test_create_takes_cdc_clis_hidden_flags_and_says_what_they_do(run: Run, bus: Memory) -> None:
    flags = ["--sort-engine", "unified", "--tz", "UTC", "--disable-gc-check", "--upstream-pd", PD, "--pd", PD]
    status, _, err = run("create", "-c", "cf", "--sink-uri", URI, *flags)
    assert status == 0 and "--sort-engine does nothing here" in err and "--tz does nothing here" in err


def test_update_lays_the_file_over_what_is_stored(run: Run, bus: Memory, tmp_path: Path) -> None:
    file = tmp_path / "feed.toml"
    registry = "[sink]\nschema-registry = 'http://u:hidden@r'\n"
    file.write_text("case-sensitive = true\n[filter]\nrules = ['a.*']\n[sorter]\nrun-cuts = 'driver'\n" + registry)
    assert run("create", "-c", "cf", "--sink-uri", URI, "--config", str(file))[0] == 0
    run("pause", "-c", "cf")
    file.write_text("[filter]\nignore-txn-start-ts = [5]\n")
    status, out, err = run("update", "-c", "cf", "--config", str(file), "--no-confirm")
    assert status == 0 and "hidden" not in out + err
    config = bus.kept["default", "cf"].info.config
    assert config["filter"] == {"rules": ["a.*"], "ignore-txn-start-ts": [5]}
    assert (config["case-sensitive"], config["sorter"]) == (True, {"run-cuts": "driver"})
    assert config["sink"]["schema-registry"] == "http://u:hidden@r"


def test_flags_may_stand_before_the_verb_and_those_behind_count_more(
    bus: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(ApiServer("127.0.0.1:0")) as server, server.serving(bus):
        verb = ["changefeed", "list", "-k", "default"]
        assert run_cli(["cli", "--server", server.address, *verb]) == 0
        assert run_cli(["cli", "--server", "127.0.0.1:1", *verb, "--server", server.address]) == 0
        assert run_cli(["cli", "--server", server.address, *verb, "--server", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().out == "[]\n[]\n"


def test_newer_flags_of_cdc_cli_are_taken(run: Run, bus: Memory) -> None:
    assert run("create", "-c", "cf", "--sink-uri", URI, "-k", "other", "-v")[0] == 0
    assert list(bus.kept) == [("other", "cf")]
    assert run("pause", "-c", "cf", "--keyspace", "other")[0] == 0
    assert run("resume", "-c", "cf", "-k", "other", "-v", "--upstream-pd", PD)[0] == 0
    assert run("resume", "-c", "cf", "-k", "other", "--upstream-pd", "elsewhere:1")[0] == 2
    assert bus.kept["other", "cf"].state == "normal"


def test_update_prints_the_difference_without_secrets_and_asks(
    run: Run, bus: Memory, asked: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "feed.toml"
    file.write_text("[filter]\nrules = ['b.*']\n")
    assert run("create", "-c", "cf", "--sink-uri", URI)[0] == 0
    status, _, err = run("update", "-c", "cf", "--target-ts", str(1 << 61))
    assert status == 1 and "pause it first" in err and not asked
    run("pause", "-c", "cf")
    before = bus.kept["default", "cf"]
    change = ["--config", str(file), "--sink-uri", URI.replace("/t?", "/other?")]
    status, _, err = run("update", "-c", "cf", *change)
    assert status == 130, err
    assert len(asked) == 1 and bus.kept["default", "cf"] == before
    lines = [line for line in err.splitlines() if line.startswith(("+", "-"))]
    assert any("b.*" in line for line in lines) and any("/other?" in line for line in lines)
    assert "hidden" not in err
    status, out, _ = run("update", "-c", "cf", *change, "--no-confirm")
    assert status == 0 and out.startswith("Update changefeed config successfully!\nID: cf\nInfo: {")
    assert bus.kept["default", "cf"].info.sink_uri == URI.replace("/t?", "/other?")
    file.write_text("[filter]\nrules = ['c.*']\n")
    assert run("update", "-c", "cf", "--config", str(file), "--no-confirm")[0] == 0
    assert "hidden" in bus.kept["default", "cf"].info.sink_uri
    file.write_text("[filter]\nrulez = ['c.*']\n")
    status, _, err = run("update", "-c", "cf", "--config", str(file), "--no-confirm")
    assert status == 2 and f"file={file}, line=2" in err


def test_resume_asks_before_it_overwrites_a_checkpoint(run: Run, bus: Memory, asked: list[str]) -> None:
    assert run("create", "-c", "cf", "--sink-uri", URI)[0] == 0
    run("pause", "-c", "cf")
    assert run("resume", "-c", "cf", "--overwrite-checkpoint-ts", "now")[0] == 130
    assert f"from {CHECKPOINT} to {CHECKPOINT}" in asked[0]
    assert run("resume", "-c", "cf", "--overwrite-checkpoint-ts", "NOW")[0] == 130
    for refused in ("then", "0"):
        assert run("resume", "-c", "cf", "--overwrite-checkpoint-ts", refused)[0] == 2
    assert bus.kept["default", "cf"].state == "stopped"
    assert run("resume", "-c", "cf")[0] == 0
    assert (bus.kept["default", "cf"].state, len(asked)) == ("normal", 2)


def test_list_and_statistics_print_cdc_clis_json(run: Run, bus: Memory) -> None:
    assert run("create", "-c", "cf", "--sink-uri", URI)[0] == 0
    (shown,) = json.loads(run("list")[1])
    assert list(shown) == ["id", "namespace", "keyspace", "summary"]
    assert list(shown["summary"]) == ["state", "tso", "checkpoint", "error"]
    bus.now = Ts(CHECKPOINT + (1234 << 18))
    status, out, _ = run("statistics", "-c", "cf", "--count", "2", "--interval", "10ms")
    assert status == 0
    assert out == '{\n  "sink_gap": "0ms",\n  "replication_gap": "1234ms"\n}\n' * 2
    assert run("remove", "-c", "cf")[1].splitlines()[:2] == ["Changefeed remove successfully.", "ID: cf"]
    assert json.loads(run("list", "--all")[1]) == []


@pytest.mark.parametrize("kind", [CorruptDataError, SecretKeyError, NoOwnerError])
def test_remove_of_one_that_nobody_can_read_says_so_and_removes_it(
    run: Run, bus: Memory, monkeypatch: pytest.MonkeyPatch, kind: type[BusError]
) -> None:
    removed: list[str] = []

    def unreadable(*_: object) -> Any:
        raise kind("changefeed info does not decode")

    monkeypatch.setattr(bus, "feed", unreadable)
    monkeypatch.setattr(bus, "remove", lambda changefeed_id, _: removed.append(changefeed_id))
    status, out, err = run("remove", "-c", "cf")
    assert (status, removed) == (0, ["cf"])
    assert "CheckpointTs: unknown" in out and f"[{kind.code}]" in err


def test_remove_that_is_refused_says_why_once(run: Run, bus: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise NoOwnerError("no owner has been elected")

    monkeypatch.setattr(bus, "feed", refuse)
    monkeypatch.setattr(bus, "remove", refuse)
    status, out, err = run("remove", "-c", "cf")
    assert (status, out, err.count("no owner has been elected")) == (1, "", 1)
