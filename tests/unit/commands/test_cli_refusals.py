"""What the machine refuses ends a command with one coded line, and never with a traceback."""

import errno
import os
from pathlib import Path

import pytest

from compose.cli import refusal, run_cli


def test_command_whose_folder_lies_below_a_file_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "data"
    assert run_cli(["run", "--data-dir", str(folder)]) == 1
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith("error: [bus.machine] the machine refuses: Not a directory") and str(folder) in shown


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_full_machine_is_no_bug(number: int) -> None:
    refused = refusal(OSError(number, os.strerror(number)))
    assert refused is not None and os.strerror(number) in refused.message


def test_error_of_the_system_that_is_no_matter_of_files_is_none_of_the_machines() -> None:
    assert refusal(ConnectionResetError(errno.ECONNRESET, "reset")) is None


def test_capture_whose_kafka_spark_has_no_word_for_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[object] = []
    monkeypatch.setattr("compose.capture.process.run_capture", started.append)
    config = tmp_path / "kafka.properties"
    config.write_text("security.protocol=SSL\nenable.ssl.certificate.verification=false\n")
    given = ["--pd", "p:1", "--kafka", "k:1", "--kafka-config", str(config), "--zookeeper", "z:1"]
    given += ["--schema-registry", "http://r"]
    assert run_cli(["capture", *given]) != 0
    said = capsys.readouterr().err
    assert "[kafka.no_java_word]" in said and "enable.ssl.certificate.verification" in said
    assert started == []
    assert run_cli(["capture", *given, "--sorter-master", "none"]) == 0, "no Spark is started here"
    assert len(started) == 1


def test_commands_of_a_bus_without_a_file_or_address_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["decode", "--topic", "t"]) == 2
    assert "Missing option '--kafka'" in capsys.readouterr().err


def test_password_in_the_wrong_line_of_a_file_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "kafka.properties"
    config.write_text("sasl.passwort=hunter2\n")
    assert run_cli(["decode", "--topic", "t", "--kafka", "k:1", "--kafka-config", str(config)]) != 0
    said = capsys.readouterr().err
    assert "did you mean sasl.password" in said and "line=1" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "flags",
    [
        ["--sorter-master", "locl[2]"],
        ["--sorter-master", "spark://host"],
        ["--sorter-conf", "spark.cores.max"],
        ["--sorter-driver-memory", "2gib"],
    ],
)
def test_capture_with_a_sorter_setting_that_spark_would_choke_on_is_refused_at_once(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compose.capture.process.run_capture", lambda _: pytest.fail("it was started"))
    given = ["--pd", "p:1", "--kafka", "k:1", "--zookeeper", "z:1", "--schema-registry", "http://r"]
    assert run_cli(["capture", *given, *flags]) == 2
    assert flags[1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--service-id", "a/b"], "is no name"),
        (["--service-id", "../x"], "is no name"),
        (["--service-id", ""], "is no name"),
        (["--cluster", "a/b"], "is no name"),
        (["--cluster", ".."], "is no name"),
        (["--cluster", "x" * 129], "is no name"),
        (["--dedicated", "orders"], "write NAMESPACE/ID"),
        (["--dedicated", "default/a/b"], "write NAMESPACE/ID"),
    ],
)
def test_service_by_a_name_that_is_no_part_of_a_path_is_refused_at_once(
    flags: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sorters.service.service.run_service", lambda _: pytest.fail("it was started"))
    assert run_cli(["sorters", "--kafka", "k:1", "--zookeeper", "z:1", *flags]) == 2
    said = capsys.readouterr().err
    assert flags[0] in said and words in said and len(said) < 600


@pytest.mark.parametrize("name", ["a b", "a/b", "sink", "proofs.u", "prologue.c.0"])
def test_upstream_whose_topics_would_be_the_buss_own_or_none_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compose.capture.process.run_capture", lambda _: pytest.fail("it was started"))
    given = ["--pd", "p:1", "--kafka", "k:1", "--zookeeper", "z:1", "--schema-registry", "http://r"]
    assert run_cli(["capture", *given, "--upstream", name]) == 2
    assert "--upstream" in capsys.readouterr().err
