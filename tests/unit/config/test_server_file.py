"""``tidebus capture --config``: TiCDC's own server files, and what becomes of each key."""

import io
import json
from pathlib import Path
from typing import Any, Final

import click
import pytest
import zstandard
from click.testing import CliRunner

from compose.cli.options.logs import log_options
from compose.cli.options.server_file import read_server_file, server_file_option
from schemas.config.parse.origin import NotSupportedYetError
from schemas.errors import ConfigError

DATA: Final = Path(__file__).resolve().parents[2] / "data/ticdc-files/servers.jsonl.zst"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.toml"


def test_server_file_gives_a_captures_parameters_and_names_the_rest(file: Path) -> None:
    file.write_text(
        'addr = "127.0.0.1:8301"\ngc-ttl = 3600\ncluster-id = "c"\ntz = "System"\nlog-file = ""\n'
        'advertise-addr = "h:8301"\nlog-level = "warn"\ndata-dir = "/d"\n'
        "[log.file]\nmax-size = 7\nmax-days = 3\nmax-backups = 2\n"
        '[security]\nca-path = "/ca"\ncert-path = "/cert"\nkey-path = "/key"\ncert-allowed-cn = ["a", "b"]\n'
        "mtls = true\nclient-user-required = false\nredact-info-log = true\n"
        "[sorter]\nsort-dir = '/x'\n[debug.puller]\nany = 1\n"
    )
    values, notes = read_server_file(file)
    assert values == {
        "addr": "127.0.0.1:8301",
        "advertise_addr": "h:8301",
        "log_level": "warn",
        "data_dir": "/d",
        "gc_ttl": "3600",
        "cluster": "c",
        "tz": "System",
        "log_file_max_size": "7",
        "log_file_max_backups": "2",
        "ca": "/ca",
        "cert": "/cert",
        "key": "/key",
        "cert_allowed_cn": "a,b",
        "mtls": True,
        "redact_info_log": True,
    }
    assert [note.partition(" ")[0] for note in notes] == ["log.file.max-days", "sorter.sort-dir", "debug.puller.any"]


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        ("[security]\nclient-user-required = true", NotSupportedYetError, "--client-credentials"),
        ("[encryption]\nenable-encryption = true", NotSupportedYetError, "enable-encryption"),
        ("adr = 'x'", ConfigError, "unknown key `adr`"),
        ("adr = ", ConfigError, "TOML"),
        ("addr = 1.5", ConfigError, "`addr` must be"),
    ],
)
def test_server_file_that_cannot_be_followed_is_refused(
    file: Path, text: str, kind: type[Exception], word: str
) -> None:
    file.write_text(text)
    with pytest.raises(kind, match=word):
        read_server_file(file)


def test_ticdcs_own_server_files_are_read_or_refused_for_their_encryption(file: Path) -> None:
    with DATA.open("rb") as packed:
        files = [json.loads(line) for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(packed))]
    assert len(files) == 8
    for known in files:
        file.write_text(known["text"])
        if "enable-encryption = true" in known["text"]:
            with pytest.raises(NotSupportedYetError):
                read_server_file(file)
        else:
            read_server_file(file)


def test_flags_count_more_than_the_server_file(file: Path, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    @click.command()
    @server_file_option
    @click.option("--addr", default="d")
    @click.option("--cluster", default="d")
    @click.option("--tz", default="d")
    @log_options
    def server(**given: Any) -> None:
        asked.append(given)

    log = tmp_path / "log"
    file.write_text(f"addr = 'f'\ncluster-id = 'f'\ntz = 'Asia/Tokyo'\nlog-file = '{log}'\n[log.file]\nmax-size = 1")
    result = CliRunner().invoke(server, ["--config", str(file), "--addr", "flag"])
    assert result.exit_code == 0, result.output
    assert asked == [{"addr": "flag", "cluster": "f", "tz": "Asia/Tokyo"}]
    assert log.exists()
