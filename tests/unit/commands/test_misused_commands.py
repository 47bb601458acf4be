"""Command lines that cannot work: one line says what was seen, what is allowed and where, with a code, before anything
is asked of anybody.
"""

from pathlib import Path

import pytest

from compose.cli import run_cli
from compose.cli.options.server_file import read_server_file
from compose.ports import free_ports
from schemas.errors import ConfigError
from tests.support.recorded.recording import TIDB_DATA

URI = "kafka://h:1/t?protocol=canal-json"


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command that is to fail; return its status and the one line that it ends with."""
    status = run_cli(list(arguments))
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return status, said


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "--offline", "--recording", str(TIDB_DATA)),
        ("dry-run", "--recording", str(TIDB_DATA)),
        (
            *("remount", "--from-ts", "1", "--to-ts", "2", "--name", "n", "--kafka", "127.0.0.1:1"),
            *("--schema-registry", "http://127.0.0.1:1"),
        ),
    ],
    ids=lambda command: command[0],
)
def test_changefeed_file_that_is_no_text_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    file = tmp_path / "feed.toml"
    file.write_bytes(b"\xff\xfe[filter]")
    status, said = failed(capsys, *command, "--sink-uri", URI, "--config", str(file))
    assert status == 2 and "[bus.config] changefeed file is not readable" in said and f"file={file}" in said


def test_data_dir_that_cannot_be_made_is_said_before_a_capture_asks_anybody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    folder, nobody = str(tmp_path / "file" / "data"), "127.0.0.1:1"
    servers = ("--pd", nobody, "--kafka", nobody, "--zookeeper", nobody, "--schema-registry", f"http://{nobody}")
    status, said = failed(capsys, "capture", *servers, "--sorter-master", "none", "--data-dir", folder)
    assert status == 2 and "[bus.config] data-dir cannot be written" in said and f"got={folder}" in said


def test_credentials_file_that_is_not_there_is_said_if_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "users")
    status, said = failed(capsys, "cli", "capture", "list", "--credentials", file)
    assert status == 2 and "[bus.config] file is not readable (key=credentials" in said and file in said


def test_migrate_speaks_of_ticdc_where_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    status, said = failed(capsys, "migrate", "--ticdc", f"http://127.0.0.1:{port}")
    assert status == 1 and "[api.unreachable] no TiCDC answers there; check --ticdc" in said


def test_unknown_keys_and_codes_come_with_the_likeliest_right_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.toml"
    file.write_text('adr = "h:1"\n')
    with pytest.raises(ConfigError, match="did you mean `addr`"):
        read_server_file(file)
    status, said = failed(capsys, "errors", "sorter.topic_mising")
    assert status == 2 and "did you mean sorter.topic_missing" in said


@pytest.mark.parametrize("command", ["sorter", "processor", "recover", "lake compact", "lake expire", "proofs export"])
@pytest.mark.parametrize("name", ["../x", "a/b", "", "x?y", "-x", "é", "x" * 200, "a\x1b[2J"])
def test_id_that_is_none_is_said_before_anybody_is_asked(
    capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    nobody = "127.0.0.1:1"
    servers = ["--kafka", nobody] if command == "proofs export" else ["--zookeeper", nobody]
    assert run_cli([*command.split(), f"--changefeed={name}", *servers]) == 2
    said = capsys.readouterr().err
    assert "is no id: letters and digits" in said
    assert "\x1b" not in said
